"""Every GPT-2 of the authors' release, number by number.

The fixtures were made by running the authors' modules; all sizes are read from each file's configuration, so
any other set of the same structure can be named by SEQPE_FIXTURES.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from seqpe_zoo.convert.authors import gpt2_state_dict_from_authors
from seqpe_zoo.portable import transformers_host
from seqpe_zoo.portable.configuration_seqpe import SeqPEGPT2Config
from seqpe_zoo.portable.modeling_seqpe import SeqPEGPT2LMHeadModel

FOLDER = Path(os.environ.get("SEQPE_FIXTURES") or Path(__file__).parents[1] / "fixtures")
NAMES = sorted(path.stem for path in FOLDER.glob("gpt2_*.json") if path.with_suffix(".safetensors").exists())
# float32 sums in another order; the fixtures' README measures 8.8e-6 for an independent implementation.
TOLERANCE = {"atol": 5e-5, "rtol": 1e-4}

ENCODINGS = {
    "nope": "nope",
    "vanilla": "ape_learn",
    "sin": "ape_sin",
    "rotary": "rope",
    "alibi": "alibi",
    "seq_pe": "seqpe",
}
INTEGRATIONS = {"attn_mul": "mul", "attn_add": "sum", "attn_scalar": "bias", "input_add": "input"}
PROJECTIONS = {"multi": "per_layer", "single": "shared", "none": "none", None: "none"}


class Fixture(NamedTuple):
    sizes: dict[str, Any]
    tensors: dict[str, Tensor]
    model: SeqPEGPT2LMHeadModel

    def lengths(self) -> list[int]:
        return [length for length in self.sizes["lens"] if f"logits_{length}" in self.tensors]


def our_options(sizes: dict[str, Any]) -> dict[str, Any]:
    """The release's options of a position encoding as ours."""
    if sizes["pe_type"] == "alibi":
        return {"scaled": True}
    if sizes["pe_type"] in ("sin", "rotary"):
        return {"base": sizes["base"]}
    if sizes["pe_type"] != "seq_pe":
        return {}
    return {
        "num_digits": sizes["max_digits"],
        "max_position": sizes["pe_max_position"],
        "encoder_dim": sizes["pe_embed_dim"],
        "encoder_heads": sizes["pe_heads"],
        "encoder_layers": sizes["pe_layers"],
        "integration": INTEGRATIONS[sizes["pe_apply_method"]],
        "projection": PROJECTIONS[sizes["use_pe_qk_per_layer"]],
        "multi_head": sizes["use_pe_multi_head"],
        "bias_scale": sizes["seqpe_scalar_scale"],
        "ood_heads": 1,
    }


def load_fixture(name: str) -> Fixture:
    sizes = json.loads((FOLDER / f"{name}.json").read_text())["config"]
    tensors = load_file(FOLDER / f"{name}.safetensors")
    config = SeqPEGPT2Config(
        vocab_size=sizes["vocab_size"],
        n_positions=sizes["train_len"],
        n_embd=sizes["n_embd"],
        n_head=sizes["n_head"],
        n_layer=sizes["n_layer"],
        activation_function=sizes["activation"],
        layer_norm_epsilon=sizes["ln_eps"],
        position_encoding=ENCODINGS[sizes["pe_type"]],
        position_encoding_args=our_options(sizes),
        bos_token_id=None,
        eos_token_id=None,
    )
    model = SeqPEGPT2LMHeadModel(config).eval()
    backbone = {key.removeprefix("model."): t for key, t in tensors.items() if key.startswith("model.")}
    encoder = {key.removeprefix("pe_model."): t for key, t in tensors.items() if key.startswith("pe_model.")}
    model.load_state_dict(gpt2_state_dict_from_authors(backbone, encoder, config), strict=True)
    return Fixture(sizes, tensors, model)


@pytest.fixture(params=NAMES, scope="module")
def fixture(request: pytest.FixtureRequest) -> Fixture:
    return load_fixture(request.param)


@pytest.fixture(autouse=True)
def _without_gradients() -> Any:
    with torch.no_grad():
        yield


def test_parity_fixtures_are_there() -> None:
    assert NAMES


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_parity_of_logits_at_training_length_and_longer(fixture: Fixture, attention: str) -> None:
    fixture.model.set_attn_implementation(attention)
    for length in fixture.lengths():
        logits = fixture.model(fixture.tensors[f"input_ids_{length}"]).logits
        torch.testing.assert_close(logits, fixture.tensors[f"logits_{length}"], **TOLERANCE)
    fixture.model.set_attn_implementation("sdpa")


def test_parity_of_logits_with_wide_heads(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_host, "MAX_SCORE_MASK", 0)
    for length in fixture.lengths():
        logits = fixture.model(fixture.tensors[f"input_ids_{length}"]).logits
        torch.testing.assert_close(logits, fixture.tensors[f"logits_{length}"], **TOLERANCE)


def test_parity_of_logits_from_shifted_starts(fixture: Fixture) -> None:
    for key, expected in fixture.tensors.items():
        if not key.startswith("logits_") or "_start" not in key:
            continue
        length, start = (int(number) for number in key.removeprefix("logits_").split("_start"))
        position_ids = torch.arange(start, start + length).unsqueeze(0)
        logits = fixture.model(fixture.tensors[f"input_ids_{length}"], position_ids=position_ids).logits
        torch.testing.assert_close(logits, expected, msg=lambda text, key=key: f"{key}: {text}", **TOLERANCE)


def test_parity_of_logits_with_left_padding(fixture: Fixture) -> None:
    """The release counts positions over the padding, so it is given those positions here."""
    for key, mask in fixture.tensors.items():
        if not key.startswith("attention_mask_"):
            continue
        length = mask.shape[1]
        logits = fixture.model(
            fixture.tensors[f"input_ids_{length}"],
            attention_mask=mask,
            position_ids=torch.arange(length).expand_as(mask),
        ).logits
        expected = fixture.tensors[f"logits_{length}_leftpad"]
        torch.testing.assert_close(logits[mask > 0], expected[mask > 0], **TOLERANCE)


def test_parity_of_logits_with_left_padding_through_the_cache(fixture: Fixture) -> None:
    for key, mask in fixture.tensors.items():
        if not key.startswith("attention_mask_"):
            continue
        length = mask.shape[1]
        tokens, expected = fixture.tensors[f"input_ids_{length}"], fixture.tensors[f"logits_{length}_leftpad"]
        prefill = length // 2
        positions = torch.arange(length).expand_as(mask)
        output = fixture.model(
            tokens[:, :prefill],
            attention_mask=mask[:, :prefill],
            position_ids=positions[:, :prefill],
            use_cache=True,
        )
        for place in range(prefill, length):
            output = fixture.model(
                tokens[:, place : place + 1],
                attention_mask=mask[:, : place + 1],
                position_ids=positions[:, place : place + 1],
                past_key_values=output.past_key_values,
                use_cache=True,
            )
            torch.testing.assert_close(output.logits[:, 0], expected[:, place], **TOLERANCE)


def test_parity_of_the_loss_in_evaluation(fixture: Fixture) -> None:
    """Labels of the fixtures are shifted already: each place predicts its next token, the last place none."""
    for key, expected in fixture.tensors.items():
        if not key.startswith("loss_"):
            continue
        tokens = fixture.tensors[f"input_ids_{key.removeprefix('loss_')}"]
        loss = fixture.model(tokens, labels=tokens).loss
        shifted = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100)
        given = fixture.model(tokens, labels=shifted, shift_labels=shifted).loss
        torch.testing.assert_close(loss, expected, **TOLERANCE)
        torch.testing.assert_close(given, expected, **TOLERANCE)


def test_parity_of_the_encoded_positions(fixture: Fixture) -> None:
    """What the release hands to its layers; ALiBi and RoPE lay the same numbers out differently."""
    if fixture.sizes["pe_type"] not in ("seq_pe", "sin", "vanilla"):
        return
    for key, expected in fixture.tensors.items():
        if not key.startswith("pe_") or not key.removeprefix("pe_").isdigit():
            continue
        encoded = fixture.model.transformer.position_encoding.encode(
            torch.arange(expected.shape[-2]).unsqueeze(-1)
        )
        torch.testing.assert_close(encoded, expected.reshape(encoded.shape), **TOLERANCE)


def test_parity_of_rotations_and_linear_biases(fixture: Fixture) -> None:
    kind, rows = fixture.sizes["pe_type"], f"pe_{fixture.sizes['train_len']}"
    if kind not in ("rotary", "alibi") or rows not in fixture.tensors:
        return
    expected = fixture.tensors[rows]
    positions = torch.arange(expected.shape[0]).unsqueeze(-1)
    encoded = fixture.model.transformer.position_encoding.encode(positions)
    if kind == "rotary":  # the release has sines first
        half = expected.shape[-1] // 2
        expected = torch.cat([expected[:, half:], expected[:, :half]], dim=-1)
        torch.testing.assert_close(encoded, expected, **TOLERANCE)
        return
    operation = fixture.model.transformer.position_encoding.make_operation()
    f_q, f_k = operation.score_factors(encoded, encoded)
    bias = (f_q @ f_k.transpose(-2, -1))[:, 0]  # (H, L), the same for all queries
    torch.testing.assert_close(bias.t() - bias.t()[:1], expected - expected[:1], **TOLERANCE)


@pytest.mark.parametrize("prefill", ["one token", "as recorded"])
def test_parity_of_logits_token_by_token_through_the_cache(fixture: Fixture, prefill: str) -> None:
    """The release loses the position bias here (`refbug_cached_logits`); ours must give the full logits."""
    length = fixture.sizes["train_len"]
    tokens, expected = fixture.tensors[f"input_ids_{length}"], fixture.tensors[f"logits_{length}"]
    first = 1 if prefill == "one token" else fixture.sizes["cached_prefill_len"]
    output = fixture.model(tokens[:, :first], use_cache=True)
    torch.testing.assert_close(output.logits, expected[:, :first], **TOLERANCE)
    for place in range(first, length):
        output = fixture.model(
            tokens[:, place : place + 1], past_key_values=output.past_key_values, use_cache=True
        )
        torch.testing.assert_close(output.logits[:, 0], expected[:, place], **TOLERANCE)
