"""SeqPE takes the place of a learned table: warm, and better than stretching after a short fine-tune."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import seqpe_zoo  # noqa: F401 (registers the models)
from seqpe_zoo.convert.graft import graft, graft_vit, logit_change
from seqpe_zoo.convert.warm_start import LayerWeights, fit_to_table, start_projection
from seqpe_zoo.convert.zoo_checkpoint import ConversionError, write_checkpoint
from seqpe_zoo.data.stdlib_text import load_stdlib_text
from seqpe_zoo.portable.configuration_seqpe import SeqPEGPT2Config
from seqpe_zoo.portable.modeling_seqpe import SeqPEGPT2LMHeadModel
from seqpe_zoo.portable.positions import Positions
from seqpe_zoo.portable.seqpe import INTEGRATIONS, SeqPE

SMALL = {"num_digits": 3, "max_position": 256, "num_candidates": 16}
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}


def strong_gpt2() -> GPT2LMHeadModel:
    """A GPT-2 of random weights, large enough for positions to matter."""
    sizes = {"vocab_size": 64, "n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def strong_vit(name: str = "vit_tiny_patch16_224", **changes: Any) -> nn.Module:
    model = timm.create_model(name, **{**VIT, **changes}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def test_encoder_is_fitted_to_a_table() -> None:
    positions = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    table = torch.randn(16, 32)
    assert fit_to_table(SeqPE(32, num_dims=2, num_digits=2).encoder, positions, table, steps=0) > 0.5
    encoder = SeqPE(32, num_dims=2, num_digits=2).encoder
    error = fit_to_table(encoder, positions, table, steps=300)
    assert error < 0.4
    with torch.no_grad():
        encoded = encoder.eval()(positions)
    assert (encoded - table).pow(2).mean().sqrt() / table.std() == pytest.approx(error, rel=0.2)
    assert encoder.out.weight.abs().max() < 5  # a fit by huge weights would not survive a fine-tune


def test_logit_change_of_equal_and_of_moved_logits() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    same = logit_change(logits, logits)
    assert (same.mean, same.largest, same.divergence, same.same_top) == (0, 0, 0, 1)
    moved = logit_change(logits, logits.flip(-1))
    assert (moved.mean, moved.largest, moved.same_top) == (1.5, 2, 0)


def test_input_graft_of_gpt2_hardly_moves_logits(tmp_path: Path) -> None:
    converted, report = graft(strong_gpt2(), options=SMALL, fit_steps=300)
    assert report.fit_error < 0.1
    assert report.change.relative < 0.05
    assert report.change.same_top > 0.9
    write_checkpoint(converted, tmp_path / "zoo")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "zoo").eval()
    tokens = torch.randint(64, (2, 60))  # longer than the old table
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, converted.model(tokens).logits)
    record = json.loads((tmp_path / "zoo" / "conversion.json").read_text())
    assert record["graft"]["change"]["relative"] == report.change.relative


@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_report_says_how_far_logits_moved(integration: str) -> None:
    theirs = strong_gpt2()
    converted, report = graft(theirs, integration, SMALL, fit_steps=20)
    assert converted.model.transformer.position_encoding.integration == integration
    assert "logits before any fine-tuning, on random inputs" in report.lines()[1]
    assert converted.model.config.train_length == 24


@torch.no_grad()
def test_projection_starts_with_what_a_layer_makes_of_a_position() -> None:
    width, count = 256, 8
    query, key, norm = nn.Linear(width, width), nn.Linear(width, width), nn.LayerNorm(width)
    norm.weight.normal_(1.0, 0.2)
    content, place = 3 * torch.randn(count, width), 0.1 * torch.randn(count, width)
    sigma = float(content.std(dim=-1).mean())
    encoding = SeqPE(width, num_heads=4, num_layers=1, integration="sum", num_digits=2)
    start_projection(encoding, [LayerWeights(query.weight, key.weight, norm.weight, sigma)])
    expected = torch.cat(
        [layer(norm(content + place)) - layer(norm(content)) for layer in (query, key)], dim=-1
    )
    actual = encoding.projection[0](place)
    assert (actual - expected).norm() / expected.norm() < 0.15


def test_factors_of_mul_start_near_one() -> None:
    converted, _ = graft(strong_gpt2(), "mul", SMALL, fit_steps=20)
    encoding = converted.model.eval().transformer.position_encoding
    for layer in encoding(Positions((24,), (0,))).layers:
        torch.testing.assert_close(layer, torch.ones_like(layer), atol=0.3, rtol=0)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("vit_tiny_patch16_224", {}),
        ("vit_tiny_patch16_224", {"reg_tokens": 2}),
        ("vit_tiny_patch16_224", {"no_embed_class": True}),
        ("deit_tiny_distilled_patch16_224", {}),
    ],
)
def test_input_graft_of_vits_hardly_moves_logits(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = strong_vit(name, **changes)
    converted, report = graft_vit(theirs, name, {**VIT, **changes}, fit_steps=300)
    assert report.fit_error < 0.1
    assert report.change.relative < 0.05
    write_checkpoint(converted, tmp_path / "zoo")
    loaded = timm.create_model(f"local-dir:{tmp_path / 'zoo'}", pretrained=True).eval()
    x = torch.randn(1, 3, 64, 48)
    with torch.no_grad():
        assert torch.equal(loaded(x), converted.model(x))


@pytest.mark.parametrize("integration", ["mul", "sum", "bias"])
def test_vits_take_attention_integrations(integration: str) -> None:
    _, report = graft_vit(strong_vit(), "vit_tiny_patch16_224", VIT, integration, fit_steps=20)
    assert report.integration == integration
    assert 0 < report.change.relative < 3


def test_models_without_a_table_and_wrong_options_are_refused() -> None:
    with pytest.raises(ConversionError, match="no learned table"):
        graft_vit(strong_vit(pos_embed="none"), "vit_tiny_patch16_224", VIT)
    rotary = SeqPEGPT2LMHeadModel(SeqPEGPT2Config.tiny(position_encoding="rope"))
    with pytest.raises(ConversionError, match="no learned table"):
        graft(rotary)
    with pytest.raises(ConversionError, match="keep_native=True"):
        graft(strong_gpt2(), keep_native=True)
    with pytest.raises(ConversionError, match="integration='twist' is unknown"):
        graft(strong_gpt2(), "twist")
    with pytest.raises(ConversionError, match="no option colour"):
        graft(strong_gpt2(), options={"colour": 1})
    with pytest.raises(ConversionError, match="multi_head"):
        graft(strong_gpt2(), options={"multi_head": False})
    with pytest.raises(ConversionError, match="no position_dim"):
        graft(strong_gpt2(), "bias", {"position_dim": 4})


# A trained model. The baseline gets the same fine-tune as the graft.

LENGTH = 32


def train(model: SeqPEGPT2LMHeadModel, text: Tensor, steps: int, rate: float) -> None:
    generator = torch.Generator().manual_seed(steps)
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    model.train()
    for _ in range(steps):
        starts = torch.randint(len(text) - LENGTH, (16, 1), generator=generator)
        rows = text[starts + torch.arange(LENGTH)]
        loss = model(rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


@torch.no_grad()
def loss_at(model: SeqPEGPT2LMHeadModel, text: Tensor, length: int) -> float:
    blocks = text[: len(text) // length * length].view(-1, length)
    logits = model(blocks).logits[:, :-1]
    return float(nn.functional.cross_entropy(logits.flatten(0, 1), blocks[:, 1:].flatten()))


@pytest.mark.slow
def test_graft_and_short_fine_tune_beat_interpolation_at_twice_and_four_times_the_length() -> None:
    corpus = load_stdlib_text(300_000, 8192)
    sizes = {"vocab_size": 256, "n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 4}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = SeqPEGPT2Config(
        **sizes, **dropout, bos_token_id=0, eos_token_id=0, position_encoding="ape_learn"
    )
    trained = SeqPEGPT2LMHeadModel(config)
    train(trained, corpus.train, 900, 5e-3)
    options = {**SMALL, "num_pivots": 8, "num_starts": 8, "num_transfer": 16, "shift_probability": 0.5}
    stretched = {factor: loss_at(trained, corpus.held_out, factor * LENGTH) for factor in (1, 2, 4)}

    probe = corpus.held_out[: 8 * LENGTH].view(8, LENGTH)
    converted, report = graft(
        trained,
        "sum",
        {**options, "dropout": 0.0},
        fit_steps=300,
        probe=probe,
        probe_name="held-out text",
    )
    train(converted.model, corpus.train, 150, 1e-3)
    grafted = {factor: loss_at(converted.model, corpus.held_out, factor * LENGTH) for factor in (1, 2, 4)}
    train(trained, corpus.train, 150, 1e-3)
    tuned = {factor: loss_at(trained, corpus.held_out, factor * LENGTH) for factor in (1, 2, 4)}
    print(f"stretched {stretched}\nstretched, tuned {tuned}\ngrafted {grafted}\n{report.lines()}")

    for factor in (2, 4):
        assert grafted[factor] < min(stretched[factor], tuned[factor]) - 0.05
    assert grafted[1] < stretched[1] + 0.1
