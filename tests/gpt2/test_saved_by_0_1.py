"""Checkpoints of version 0.1 load and give the logits that it gave; weights of another encoding do not."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import seqpe_zoo  # noqa: F401 (tells transformers of the models)
from tests.gpt2.cases import tiny_model

SAVED = sorted((Path(__file__).parents[1] / "fixtures" / "saved_by_0_1").glob("gpt2_*"))
PUBLISHED = sorted((Path(__file__).parents[2] / "model_cards").glob("tiny-gpt2-*"))
OTHERS = [
    ("seqpe_bias_shared", "seqpe", {"integration": "mul"}),
    ("seqpe_mul_shared", "seqpe", {"integration": "sum"}),
    ("seqpe_sum_shared", "seqpe", {"integration": "bias"}),
    ("rope", "alibi", {}),
    ("nope", "rope", {}),
    ("seqpe_input_shared", "ape_sin", {}),
    ("rope", "rope", {"base": 500.0}),
    ("seqpe_bias_shared", "seqpe", {"bias_scale": 2.0}),
    ("seqpe_bias_shared", "seqpe", {"mask_padding": True}),
    ("seqpe_mul_shared", "seqpe", {"encoder_heads": 2}),
]


def load_without_complaint(folder: Path, **arguments):
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **arguments)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("folder", SAVED, ids=lambda folder: folder.name)
@torch.no_grad()
def test_saved_models_give_the_stored_logits(folder: Path, attention: str) -> None:
    model = load_without_complaint(folder, attn_implementation=attention)
    expected = load_file(folder / "expected.safetensors")
    tokens, mask = expected["input_ids"], expected["attention_mask"]
    assert (mask == 0).any()
    kept = expected["logits"].shape[1]
    plain = model(tokens, logits_to_keep=kept).logits
    torch.testing.assert_close(plain, expected["logits"], atol=1e-5, rtol=1e-5)
    padded = model(tokens, attention_mask=mask, logits_to_keep=kept).logits
    torch.testing.assert_close(padded, expected["masked_logits"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("folder", SAVED, ids=lambda folder: folder.name)
@torch.no_grad()
def test_saved_models_are_the_same_after_saving_again(folder: Path, tmp_path: Path) -> None:
    first = load_without_complaint(folder)
    first.save_pretrained(tmp_path)
    tokens = load_file(folder / "expected.safetensors")["input_ids"]
    again = load_without_complaint(tmp_path)
    torch.testing.assert_close(again(tokens).logits, first(tokens).logits, atol=0, rtol=0)


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
@torch.no_grad()
def test_published_models_load(folder: Path) -> None:
    model = load_without_complaint(folder)
    named = json.loads((folder / "config.json").read_text())["position_encoding"]
    assert model.base_model.position_encoding.name == named
    loss = model(torch.arange(20).unsqueeze(0), labels=torch.arange(20).unsqueeze(0)).loss
    assert torch.isfinite(loss)


def test_there_is_something_to_load() -> None:
    assert len(SAVED) == 5
    assert len(PUBLISHED) == 3


@pytest.mark.parametrize(("case", "encoding", "options"), OTHERS)
def test_weights_of_another_encoding_are_refused_by_from_pretrained(
    case: str, encoding: str, options: dict, tmp_path: Path
) -> None:
    model = tiny_model(case)
    model.save_pretrained(tmp_path)
    args = {**model.config.position_encoding_args, **options} if encoding == "seqpe" else options
    with pytest.raises(ValueError, match=f"these weights are of position encoding '{kind(model)}'"):
        AutoModelForCausalLM.from_pretrained(
            tmp_path, position_encoding=encoding, position_encoding_args=args
        )


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("case", "encoding", "options"), OTHERS)
def test_weights_of_another_encoding_are_refused_by_load_state_dict(
    case: str, encoding: str, options: dict, strict: bool
) -> None:
    model = tiny_model(case)
    args = {**model.config.position_encoding_args, **options} if encoding == "seqpe" else options
    other = tiny_model("nope", position_encoding=encoding, position_encoding_args=args)
    with pytest.raises(RuntimeError, match=f"these weights are of position encoding '{kind(model)}'"):
        other.load_state_dict(model.state_dict(), strict=strict)


def kind(model) -> str:
    return model.base_model.position_encoding.kind_name()
