"""Builds untrained models and saves them as runs do: what is shown of them is real, if not clever."""

from pathlib import Path

import timm

import seqpe_zoo  # noqa: F401 - tells timm the names of its models
from seqpe_zoo.data.byte_tokenizer import build_byte_tokenizer
from seqpe_zoo.portable.configuration_seqpe import SeqPEGPT2Config
from seqpe_zoo.portable.modeling_seqpe import SeqPEGPT2LMHeadModel
from seqpe_zoo.training.image_task import save_image_model

TRAINED_LENGTH, TRAINED_SIZE = 32, 16
DIGITS = [str(digit) for digit in range(10)]


def save_language_model(folder: Path, encoding: str, **options: object) -> Path:
    config = SeqPEGPT2Config.tiny(
        vocab_size=256,
        n_positions=TRAINED_LENGTH,
        position_encoding=encoding,
        position_encoding_args=options,
    )
    SeqPEGPT2LMHeadModel(config).save_pretrained(folder)
    build_byte_tokenizer().save_pretrained(folder)
    return folder


def save_classifier(
    folder: Path, encoding: str, labels: list[str] | None = DIGITS, channels: int = 3, **options: object
) -> Path:
    arguments = {
        "pos_embed": encoding,
        "pos_embed_args": options,
        "img_size": TRAINED_SIZE,
        "in_chans": channels,
        "dynamic_img_size": True,
    }
    model = timm.create_model("vit_pico_patch4_pe_32", num_classes=10, depth=2, embed_dim=32, **arguments)
    folder.mkdir(parents=True)
    sizes = {"depth": 2, "embed_dim": 32, **arguments}
    save_image_model(model, folder, sizes, labels, TRAINED_SIZE, (0.3,) * channels, (0.4,) * channels)
    return folder
