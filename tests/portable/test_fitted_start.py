import logging
from pathlib import Path

import pytest
import torch

from seqpe_zoo import SeqPE, SeqPEGPT2Config, SeqPEGPT2LMHeadModel
from seqpe_zoo.portable.encoder import sinusoids

SMALL = {"num_digits": 2, "max_position": 40, "encoder_heads": 2, "dropout": 0.0, "init": "fitted"}


def test_fitted_encoder_comes_near_to_sines_and_the_same_seed_gives_the_same() -> None:
    @torch.no_grad()
    def error(pe: SeqPE) -> float:
        positions = torch.arange(40)[:, None]
        return float((pe.encoder(positions) - sinusoids(positions, 32, 40)).square().mean())

    torch.manual_seed(0)
    short = SeqPE(dim=32, fit_steps=1, **SMALL)
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(SeqPE(dim=32, fit_steps=100, **SMALL))
    assert error(made[0]) < 0.5 * error(short)
    assert torch.equal(made[0].encoder.out.weight, made[1].encoder.out.weight)
    assert all(parameter.grad is None for parameter in made[0].parameters())


def test_sinusoids_are_near_for_near_positions_in_each_dimension() -> None:
    grid = torch.tensor([[5, 5], [5, 6], [6, 5], [5, 9], [9, 5]])
    waves = sinusoids(grid, 16, 40)
    away = (waves - waves[0]).square().sum(-1)
    assert away[1] == pytest.approx(float(away[2]))
    assert away[3] == pytest.approx(float(away[4]))
    assert away[3] > away[1] > 0


def test_nothing_is_fitted_on_the_meta_device() -> None:
    with torch.device("meta"):
        assert not SeqPE(dim=32, fit_steps=1, **SMALL).is_fitted


def test_fitted_once_and_not_when_a_checkpoint_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "seqpe_zoo.portable.encoder")
    options = {"num_digits": 2, "max_position": 40, "init": "fitted", "fit_steps": 1}
    config = SeqPEGPT2Config(
        vocab_size=32, n_embd=32, n_layer=2, n_head=2, n_positions=8, position_encoding_args=options
    )
    model = SeqPEGPT2LMHeadModel(config)
    assert len([r for r in caplog.records if "fitting" in r.message]) == 1
    caplog.clear()
    model.save_pretrained(tmp_path)
    again = SeqPEGPT2LMHeadModel.from_pretrained(tmp_path)
    assert not caplog.records
    for (name, one), (_, two) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(one, two), name
