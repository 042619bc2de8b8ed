"""What `graft` takes: files of weights, folders of timm and transformers, tables and rotations."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from safetensors.torch import save_file

import seqpe_zoo  # noqa: F401 (registers the models)
from seqpe_zoo.cli import main
from seqpe_zoo.convert.errors import ConversionError
from seqpe_zoo.convert.weights_file import load_weights_file
from seqpe_zoo.data.byte_tokenizer import build_byte_tokenizer

VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 3,
}
LLAMA = {
    "vocab_size": 256,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def run(*words: object) -> int:
    return main([str(word) for word in words])


def save_image_classifier(folder: Path, family: str) -> Any:
    config = getattr(transformers, f"{family}Config")(**VIT)
    model = getattr(transformers, f"{family}ForImageClassification")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


def save_decoder(folder: Path, family: str) -> Any:
    config = getattr(transformers, f"{family}Config")(**LLAMA, bos_token_id=0, eos_token_id=0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    model.save_pretrained(folder)
    build_byte_tokenizer().save_pretrained(folder)
    return model


@pytest.mark.parametrize("family", ["ViT", "DeiT", "Dinov2"])
@torch.no_grad()
def test_vits_of_transformers_are_grafted(family: str, tmp_path: Path) -> None:
    theirs = save_image_classifier(tmp_path / "theirs", family)
    assert run("graft", tmp_path / "theirs", tmp_path / "ours", "--fit-steps", 300) == 0
    ours = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "ours").eval()
    pixels = torch.randn(2, 3, 32, 32)
    old, new = theirs(pixels).logits, ours(pixels).logits
    assert (new - old).norm() / (old - old.mean()).norm() < 0.05
    assert ours(torch.randn(1, 3, 64, 48)).logits.shape == (1, 3)


@pytest.mark.parametrize("integration", ["mul", "sum", "bias"])
def test_vits_of_transformers_take_attention_integrations(integration: str, tmp_path: Path) -> None:
    save_image_classifier(tmp_path / "theirs", "ViT")
    words = ("--fit-steps", 5, "--integration", integration)
    assert run("graft", tmp_path / "theirs", tmp_path / "ours", *words) == 0
    ours = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "ours")
    assert ours.config.position_encoding_args["integration"] == integration


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
@torch.no_grad()
def test_rotary_models_keep_what_they_know(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = save_decoder(tmp_path / "theirs", family)
    assert run("graft", "--keep-native", tmp_path / "theirs", tmp_path / "ours") == 0
    said = capsys.readouterr().out
    assert "beside the model's own positions" in said
    assert "same top choice in 100.0%" in said
    ours = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    tokens = torch.randint(256, (2, 40))
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits)
    assert (tmp_path / "ours" / "tokenizer.json").is_file()


def test_rotary_models_lose_their_rotation_without_keep_native(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_decoder(tmp_path / "theirs", "Llama")
    assert run("graft", tmp_path / "theirs", tmp_path / "ours") == 0
    assert "in place of the model's own positions, untrained" in capsys.readouterr().out


@pytest.mark.parametrize("ending", [".safetensors", ".pth"])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("vit_small_patch16_224", {}),
        ("vit_small_patch16_224", {"reg_tokens": 2, "no_embed_class": True, "init_values": 1e-5}),
        ("vit_small_patch16_224", {"class_token": False, "global_pool": "avg", "qkv_bias": False}),
        ("deit_small_distilled_patch16_224", {}),
    ],
)
@torch.no_grad()
def test_files_of_vits_are_understood(
    ending: str, name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 128, "depth": 2, "num_heads": 2, "num_classes": 5}
    theirs = timm.create_model(name, **sizes, **changes).eval()
    path = tmp_path / f"weights{ending}"
    if ending == ".pth":
        torch.save({"model": theirs.state_dict()}, path)
    else:
        save_file(theirs.state_dict(), path)
    pixels = torch.randn(2, 3, 32, 32)
    assert torch.equal(load_weights_file(path).model(pixels), theirs(pixels))


def test_files_are_grafted(tmp_path: Path) -> None:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 1, "num_heads": 1, "num_classes": 5}
    save_file(timm.create_model("vit_small_patch16_224", **sizes).state_dict(), tmp_path / "vit.safetensors")
    assert run("graft", tmp_path / "vit.safetensors", tmp_path / "vit", "--fit-steps", 5) == 0
    assert timm.create_model(f"local-dir:{tmp_path / 'vit'}", pretrained=True).num_classes == 5

    config = transformers.GPT2Config(vocab_size=90, n_positions=16, n_embd=64, n_layer=1, n_head=1)
    torch.save(transformers.GPT2LMHeadModel(config).state_dict(), tmp_path / "gpt2.pth")
    assert run("graft", tmp_path / "gpt2.pth", tmp_path / "lm", "--fit-steps", 5) == 0
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "lm").config.vocab_size == 90


def test_file_of_another_model_needs_its_architecture(tmp_path: Path) -> None:
    path = tmp_path / "resnet.safetensors"
    save_file(timm.create_model("resnet10t", num_classes=4).state_dict(), path)
    with pytest.raises(ConversionError, match="--architecture"):
        load_weights_file(path)
    assert load_weights_file(path, "resnet10t").model.num_classes == 4


def test_model_that_cannot_have_positions_is_refused_before_its_weights_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers.BloomConfig(
        hidden_size=32, n_layer=1, n_head=2, architectures=["BloomForCausalLM"]
    ).save_pretrained(tmp_path / "bloom")
    assert run("graft", tmp_path / "bloom", tmp_path / "ours") == 2
    assert "a model of type 'bloom' cannot have another position encoding" in capsys.readouterr().err
