from pathlib import Path

import pytest
import timm
import torch

import seqpe_zoo  # noqa: F401  (tells timm of our models)
from seqpe_zoo.cli import main
from seqpe_zoo.data.errors import DataError
from seqpe_zoo.training.fit_positions import load_position_encoder


def test_a_fitted_encoder_goes_into_models_of_its_sizes_only(tmp_path: Path) -> None:
    path = tmp_path / "encoder.safetensors"
    words = ["--dim", "64", "--num-dims", "2", "--steps", "3", "--option", "num_digits=2", "max_position=40"]
    assert main(["fit-positions", str(path), *words]) == 0
    model = timm.create_model(
        "vit_pico_patch4_pe_32", pos_embed="seqpe", pos_embed_args={"integration": "sum"}
    )
    before = model.position_encoding(torch.tensor([[3, 5]]))
    load_position_encoder(model, path)
    assert not torch.allclose(before, model.position_encoding(torch.tensor([[3, 5]])))
    other = timm.create_model("vit_pico_patch4_pe_32", pos_embed="seqpe", pos_embed_args={"num_digits": 3})
    with pytest.raises(DataError, match="encoder of other sizes"):
        load_position_encoder(other, path)
    with pytest.raises(DataError, match="is for SeqPE"):
        load_position_encoder(timm.create_model("vit_pico_patch4_pe_32", pos_embed="nope"), path)


def test_wrong_options_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["fit-positions", str(tmp_path / "x"), "--dim", "8", "--option", "digits=2"]) == 2
    assert "has no option digits" in " ".join(capfd.readouterr().err.split())


def test_a_place_that_cannot_be_written_is_refused_before_the_fit(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "encoder.safetensors"):
        assert main(["fit-positions", str(path), "--dim", "8", "--steps", "2"]) == 2
        words = " ".join(capfd.readouterr().err.split())
        assert "error:" in words
        assert "fitting" not in words
