"""The authors' release becomes a zoo checkpoint: read, rename, check every key, write.

An image run becomes a timm checkpoint, a text run one of transformers. Nothing is written before all keys
fit. Every tensor of the source is in the result or named in `conversion.json`.
"""

from typing import Any

from ..data.token_cache import file_sha256
from .authors import (
    gpt2_state_dict_from_authors,
    names_left_out,
    unknown_encoder_names,
    vit_state_dict_from_authors,
)
from .authors_config import gpt2_from_authors, vit_from_authors
from .authors_folder import AuthorsRun, find_folder, read_authors_folder
from .sources import public_name
from .zoo_checkpoint import Converted, load_exactly


def load_authors(
    source: str,
    subfolder: str | None = None,
    revision: str | None = None,
    weights: str | None = None,
    train_length: int | None = None,
) -> Converted:
    """Builds our model from a run of the release, without writing anything.

    Args:
        source: a local folder, or a Hub id.
        subfolder: of the source, as "image_seqpe_ckpt".
        revision: of the Hub repository.
        weights: which weights, by default the best; see `read_authors_folder`.
        train_length: of a text run, where its files do not tell; see `gpt2_from_authors`.

    Raises:
        ConversionError: the source cannot be converted.
    """
    run = read_authors_folder(find_folder(source, subfolder, revision), weights)
    converted = build_from_run(run, train_length)
    origin = {"source": public_name(source), "subfolder": subfolder, "revision": revision}
    converted.record.update({key: value for key, value in origin.items() if value})
    return converted


def build_from_run(run: AuthorsRun, train_length: int | None = None) -> Converted:
    """Builds our model with the weights of a run.

    Raises:
        ConversionError: a key is missing, extra or misshaped; all are listed.
    """
    unknown = unknown_encoder_names(name for name in run.encoder if name != "freqs")
    problems = [f"extra: pe_model.{name} {list(run.encoder[name].shape)}" for name in unknown]
    encoder = {name: tensor for name, tensor in run.encoder.items() if name not in unknown}
    args: dict[str, Any] = {}
    left_out: list[str] = []
    if run.kind == "image":
        import timm

        from .. import timm_models  # noqa: F401 (registers the architectures)

        architecture, args = vit_from_authors(run.config, run.model)
        model, heads = timm.create_model(architecture, **args), int(run.config["MODEL"]["NUM_HEADS"])
        state = vit_state_dict_from_authors(run.model, encoder, {"num_heads": heads})
    else:
        from ..portable.configuration_seqpe import SeqPEGPT2Config
        from ..portable.modeling_seqpe import SeqPEGPT2LMHeadModel

        config = SeqPEGPT2Config(**gpt2_from_authors(run.gpt2, run.config, run.train_args, train_length))
        model = SeqPEGPT2LMHeadModel(config)
        state = gpt2_state_dict_from_authors(run.model, encoder, config)
        left_out = names_left_out(run.model)
        table = run.model.get("transformer.wpe.weight")
        if table is not None and table.shape[-2] > config.train_length:
            left_out.append(f"transformer.wpe.weight, rows from {config.train_length} on (untrained)")
    load_exactly(model, state, "the checkpoint", problems)
    record = {
        "format": "SeqPE release",
        "files": {name: file_sha256(path) for name, path in run.files.items()},
        "tensors": {"model": len(run.model), "pe_model": len(run.encoder)},
        "left_out": [*left_out, *run.unread],
    }
    library = "timm" if run.kind == "image" else "transformers"
    return Converted(model.eval(), library, args, record, run.tokenizer)
