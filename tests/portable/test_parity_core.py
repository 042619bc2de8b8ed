"""Parity of the core with the authors' modules, on their recorded weights, inputs and outputs.

The folder named by SEQPE_FIXTURES is read instead when it is set; all sizes come from the files.
"""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from seqpe_zoo import Positions, SeqPE, build_position_encoding, grid_positions
from seqpe_zoo.convert.authors import encoder_state_dict_from_authors
from seqpe_zoo.portable.objectives import (
    distance_contrastive_loss,
    ood_distillation_loss,
    squared_distance,
)
from seqpe_zoo.portable.positions import positions_to_digits, real_digit_mask

FOLDER = Path(os.environ.get("SEQPE_FIXTURES") or Path(__file__).parents[1] / "fixtures")
ENCODERS = sorted(path.stem for path in FOLDER.glob("seqpe_*.safetensors"))
SAMPLERS = sorted(path.stem for path in FOLDER.glob("sampler_*.safetensors"))
LOSSES = json.loads((FOLDER / "losses.json").read_text())["config"]


def load(name):
    return json.loads((FOLDER / f"{name}.json").read_text())["config"], load_file(
        FOLDER / f"{name}.safetensors"
    )


def seqpe_of_fixture(config, tensors):
    """Builds the encoder that a fixture was made with and loads the authors' weights."""
    pe = SeqPE(
        dim=config["out_proj_dim"],
        num_dims=config["data_dim"],
        num_digits=config["max_digits"],
        encoder_dim=config["pe_embed_dim"],
        encoder_heads=config["num_attention_heads"],
        encoder_layers=config["layer_num"],
        encoder_causal=config["attn_direction"] == "causal",
        final_norm=config["use_last_layernorm"],
        mask_padding=config["mask_padding"],
        temperature=config["seqpe_temperature"],
        ood_weight=0.0,
    )
    weights = {
        key.removeprefix("pe_model."): value for key, value in tensors.items() if key.startswith("pe_model.")
    }
    pe.load_state_dict(encoder_state_dict_from_authors(weights))
    return pe.eval()


def test_there_are_fixtures_for_parity():
    assert ENCODERS
    assert SAMPLERS
    assert LOSSES["cases"]


@pytest.mark.parametrize("name", ENCODERS)
def test_parity_of_digits(name):
    config, tensors = load(name)
    digits = positions_to_digits(tensors["positions"], 10, config["max_digits"])
    assert torch.equal(digits, tensors["pos_seq_data"])
    assert torch.equal(real_digit_mask(digits, config["max_digits"]).float(), tensors["pad_mask"])


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("path", ["shared prefixes", "every sequence", "table"])
def test_parity_of_encoder(name, path):
    config, tensors = load(name)
    pe = seqpe_of_fixture(config, tensors)
    if path == "table":
        with torch.no_grad():
            ours = pe(Positions(ids=tensors["positions"].long())).encoded
    else:
        encode = pe.encoder.encode_each if path == "every sequence" else pe
        ours = encode(tensors["positions"])
    torch.testing.assert_close(ours, tensors["embeddings"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("case", [case for case in LOSSES["cases"] if case.startswith("ct_")])
def test_parity_of_contrastive_loss(case):
    config, tensors = load("losses")
    heads = config["num_heads"] if "mh1" in case else 1
    pivot = tensors["ct_pivot"].requires_grad_()
    candidates = tensors["ct_candidates"].requires_grad_()
    loss = distance_contrastive_loss(
        pivot,
        candidates.unflatten(0, (pivot.shape[0], -1)),
        tensors["ct_labels"],
        num_heads=heads,
        scale=float(case.split("scale")[1].split("_")[0]),
        label_smoothing=float(case.split("ls")[1]),
    )
    torch.testing.assert_close(loss, tensors[case], atol=1e-5, rtol=1e-5)
    if f"{case}_grad_pivot" in tensors:
        loss.backward()
        torch.testing.assert_close(pivot.grad, tensors[f"{case}_grad_pivot"], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(candidates.grad, tensors[f"{case}_grad_candidates"], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("case", [case for case in LOSSES["cases"] if case.startswith("tr_")])
def test_parity_of_distillation_loss(case):
    config, tensors = load("losses")
    main = tensors["tr_main"].requires_grad_()
    student = tensors["tr_student"].requires_grad_()
    loss = ood_distillation_loss(
        main[tensors["tr_indices"]].unflatten(0, (config["tr_batch"], -1)),
        student.unflatten(0, (config["tr_batch"], -1)),
        num_heads=config["num_heads"] if "mh1" in case else 1,
        form="release" if "kl_div" in case else "release_mse",
        scale=float(case.split("scale")[1]),
        student_weight=float(case.split("beta")[1].split("_")[0]),
    )
    torch.testing.assert_close(loss, tensors[case], atol=1e-5, rtol=1e-5)
    if f"{case}_grad_student" in tensors:
        loss.backward()
        main_grad = torch.zeros_like(main) if main.grad is None else main.grad
        torch.testing.assert_close(student.grad, tensors[f"{case}_grad_student"], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(main_grad, tensors[f"{case}_grad_main"], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", SAMPLERS)
def test_parity_of_labelling_rule(name):
    """The release's labels are nearest candidates under our distance too."""
    _, tensors = load(name)
    for mode in {key.split("_")[0] for key in tensors if key.endswith("_labels")}:
        pivots, candidates = tensors[f"{mode}_pivots"].long(), tensors[f"{mode}_candidates"].long()
        distances = squared_distance(pivots, candidates)
        labelled = distances.gather(1, tensors[f"{mode}_labels"].unsqueeze(1))
        assert torch.equal(labelled.squeeze(1), distances.amin(1))


def test_parity_of_sinusoidal_rows():
    for name in ("gpt2_baseline_sin", "vit_baseline_sin"):
        config, tensors = load(name)
        rows = next(value for key, value in tensors.items() if re.fullmatch(r"pe_(main_)?\d+", key))
        width = config.get("n_embd") or config["dim"]
        pe = build_position_encoding("ape_sin", width, base=config["base"])
        torch.testing.assert_close(pe.encode(torch.arange(len(rows))[:, None]), rows, atol=1e-5, rtol=0)


def rotations(pe, grid):
    """Cosines and sines of each layer for a square image, (layers, L, H * D)."""
    return torch.stack(pe.layer_inputs(pe.encode(grid_positions((grid, grid)))))


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("vit_baseline_rotary_2d_*.json")))
def test_parity_of_axial_rotation_rows(name):
    config, tensors = load(name)
    pe = build_position_encoding(
        "rope2d_axial", config["dim"], num_heads=config["heads"], num_dims=2, base=config["base"]
    )
    recorded = tensors[f"pe_main_{config['img_size']}"]  # (L, D/2, 2): cosine and sine
    ours = rotations(pe, config["grids"][0])[0]
    torch.testing.assert_close(ours, torch.cat(recorded.unbind(-1), dim=-1), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in FOLDER.glob("vit_baseline_rotary_mixed_*.json"))
)
def test_parity_of_mixed_rotation_rows(name):
    config, tensors = load(name)
    pe = build_position_encoding(
        "rope2d_mixed", config["dim"], num_heads=config["heads"], num_layers=config["depth"], num_dims=2
    )
    pe.load_state_dict({"freqs": tensors["pe_model.freqs"].view_as(pe.freqs)})
    recorded = torch.cat(tensors[f"pe_main_{config['img_size']}"].unbind(-1), dim=-1)  # (depth, H, L, D)
    ours = rotations(pe, config["grids"][0])
    torch.testing.assert_close(ours, recorded.transpose(1, 2).flatten(2), atol=1e-5, rtol=0)
