"""The authors' models at their true size: every key and shape of the release fits ours.

`release_keys/` lists them as the authors' modules have them, with the configurations of the runs. Nothing is
allocated: all tensors are on the meta device.
"""

import json
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

import seqpe_zoo  # noqa: F401 (registers the architectures)
from seqpe_zoo.convert.authors_release import AuthorsRun, build_from_run
from seqpe_zoo.convert.zoo_checkpoint import ConversionError, Converted

KEYS = Path(__file__).with_name("release_keys")
GPT2 = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}


def without_memory(keys: dict[str, list]) -> dict[str, Tensor]:
    return {
        name: torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        for name, (shape, dtype) in keys.items()
    }


def image_run() -> AuthorsRun:
    keys = json.loads((KEYS / "vit_s_seqpe_state_dict.json").read_text())
    config = yaml.safe_load((KEYS / "vit_s_seqpe_config.yaml").read_text())
    return AuthorsRun("image", without_memory(keys["model"]), without_memory(keys["pe_model"]), config)


def text_run() -> AuthorsRun:
    keys = json.loads((KEYS / "gpt2_seqpe_state_dict.json").read_text())
    config = yaml.safe_load((KEYS / "gpt2_seqpe_pe_config.yaml").read_text())
    model, encoder = (without_memory(keys[name]) for name in ("model.safetensors", "model_1.safetensors"))
    return AuthorsRun("text", model, encoder, config, GPT2, {"block_size": 512})


def build(run: AuthorsRun) -> Converted:
    with torch.device("meta"):
        return build_from_run(run)


def test_image_run_fits_the_named_architecture() -> None:
    converted = build(image_run())
    assert converted.record["tensors"] == {"model": 176, "pe_model": 32}
    assert converted.model.pretrained_cfg["architecture"] == "vit_small_patch16_seqpe_224"
    assert set(converted.model_args) == {"dynamic_img_size", "num_classes", "pos_embed", "pos_embed_args"}
    options = converted.model.position_encoding.options
    assert (options.num_pivots, options.num_candidates, options.max_position) == (32, 64, 100)


def test_text_run_fits_the_papers_configuration() -> None:
    converted = build(text_run())
    assert converted.record["tensors"] == {"model": 149, "pe_model": 31}
    config = converted.model.config
    assert config.train_length == 512
    assert config.position_encoding_args["integration"] == "bias"
    assert config.position_encoding_args["num_digits"] == 5


@pytest.mark.parametrize("run", [image_run, text_run])
def test_one_missing_key_of_the_encoder_is_noticed(run) -> None:
    broken = run()
    del broken.encoder["transformers.1.mlp.c_proj.bias"]
    with pytest.raises(ConversionError, match=r"missing: .*encoder\.model\.layers\.1\.fc2\.bias"):
        build(broken)
