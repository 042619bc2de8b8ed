import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import seqpe_zoo
from seqpe_zoo.data.errors import DataError
from seqpe_zoo.evaluation.context_scaling import scale_context

TOKENS = torch.arange(48)[None] % 23


def llama(encoding: str | None = None, options: dict | None = None, **kwargs: object) -> torch.nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=16, **kwargs,
    )  # fmt: skip
    if encoding is None:
        return LlamaForCausalLM(config).eval()
    config = seqpe_zoo.with_position_encoding(config, encoding, **(options or {}))
    return AutoModelForCausalLM.from_config(config).eval()


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    return model(TOKENS).logits


@pytest.mark.parametrize(
    ("scaling", "rope"),
    [
        ("linear", {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4}),
        ("ntk", {"rope_type": "default", "rope_theta": 1e4 * 3.0 ** (16 / 14)}),
        ("ntk", {"rope_type": "dynamic", "factor": 1.0, "rope_theta": 1e4}),
    ],
)
def test_rotation_of_a_llama_is_scaled_as_transformers_does(scaling: str, rope: dict) -> None:
    model, reference = llama(), llama(rope_parameters=rope)
    reference.load_state_dict(model.state_dict())
    assert not torch.allclose(logits(model), logits(reference), atol=1e-4)
    scale_context(model, scaling, 48 / 16)
    torch.testing.assert_close(logits(model), logits(reference), atol=1e-5, rtol=1e-4)


def test_our_rotation_takes_a_larger_base() -> None:
    model, reference = llama("rope"), llama("rope", {"base": 1e4 * 3.0 ** (8 / 7)})  # of the same weights
    assert not torch.allclose(logits(model), logits(reference), atol=1e-4)
    scale_context(model, "ntk", 3.0)
    torch.testing.assert_close(logits(model), logits(reference))


def test_our_rotation_takes_interpolated_positions() -> None:
    model = llama("rope")
    encoding = model.position_host.position_encoding
    positions = torch.arange(16)[:, None]
    wanted = encoding.encode(positions)
    scale_context(model, "linear", 3.0)
    torch.testing.assert_close(encoding.encode(3 * positions), wanted)


def test_learned_rotations_of_images_slow_down_by_the_factor_at_most() -> None:
    import timm

    model = timm.create_model("vit_pico_patch4_pe_32", pos_embed="rope2d_mixed")
    before = model.position_encoding.freqs.detach().clone()
    scale_context(model, "ntk", 4.0)
    ratio = model.position_encoding.freqs.detach() / before
    assert float(ratio.max()) == pytest.approx(1.0)
    assert float(ratio.min()) == pytest.approx(0.25)


def test_seqpe_is_stretched_as_if_built_so() -> None:
    options = {"num_digits": 3, "encoder_heads": 2}
    model = llama("seqpe", options)
    reference = llama("seqpe", {**options, "extrapolation": "interpolate"})
    reference.load_state_dict(model.state_dict())
    extended = logits(model)
    scale_context(model, "stretch", 3.0)
    torch.testing.assert_close(logits(model), logits(reference))
    assert not torch.allclose(extended, logits(model))


def test_what_cannot_be_scaled_is_refused() -> None:
    with pytest.raises(DataError, match="'linear' and 'ntk' are for rotary"):
        scale_context(llama("alibi"), "linear", 2.0)
    with pytest.raises(DataError, match="'stretch' is for seqpe"):
        scale_context(llama(), "stretch", 2.0)
