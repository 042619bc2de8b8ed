"""The authors' folders become zoo checkpoints that give the numbers of the authors' modules."""

import json
import re
from pathlib import Path

import pytest
import timm
import torch
from transformers import AutoModelForCausalLM

import seqpe_zoo  # noqa: F401 (registers the architectures)
from seqpe_zoo.convert.authors_release import find_folder, load_authors
from seqpe_zoo.convert.safe_pickle import UnsafePickleError
from seqpe_zoo.convert.zoo_checkpoint import ConversionError, Converted, write_checkpoint
from seqpe_zoo.data.errors import DataError

from .release import fixtures, read_fixture, weights_of, write_image_run, write_text_run

TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}
IMAGE, TEXT = "vit_seqpe_attn_mul_multi", "gpt2_seqpe_attn_scalar_single"


def convert_authors(source: str, target: Path) -> Converted:
    converted = load_authors(source)
    write_checkpoint(converted, target)
    return converted


@pytest.mark.parametrize("name", fixtures("vit_"))
def test_image_run_becomes_a_timm_checkpoint_with_equal_logits(name: str, tmp_path: Path) -> None:
    source = write_image_run(tmp_path / "image_seqpe_ckpt", name)
    convert_authors(str(source), tmp_path / "zoo")
    model = timm.create_model(f"local-dir:{tmp_path / 'zoo'}", pretrained=True).eval()
    config, tensors = read_fixture(name)
    sizes = [match[1] for key in tensors if (match := re.fullmatch(r"logits_(\d+)", key))]
    assert len(sizes) == len(config["grids"])
    for size in sizes:
        with torch.no_grad():
            torch.testing.assert_close(
                model(tensors[f"pixels_{size}"]), tensors[f"logits_{size}"], **TOLERANCE
            )


@pytest.mark.parametrize("name", fixtures("gpt2_"))
def test_text_run_becomes_a_transformers_checkpoint_with_equal_logits(name: str, tmp_path: Path) -> None:
    source = write_text_run(tmp_path / "lm_seqpe_ckpt", name)
    convert_authors(str(source), tmp_path / "zoo")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "zoo").eval()
    config, tensors = read_fixture(name)
    assert model.config.train_length == config["train_len"]
    for length in config["lens"]:
        with torch.no_grad():
            logits = model(tensors[f"input_ids_{length}"]).logits
        torch.testing.assert_close(logits, tensors[f"logits_{length}"], **TOLERANCE)


def test_timm_config_says_what_the_model_is(tmp_path: Path) -> None:
    convert_authors(str(write_image_run(tmp_path / "run", IMAGE)), tmp_path / "zoo")
    sizes, _ = read_fixture(IMAGE)
    config = json.loads((tmp_path / "zoo" / "config.json").read_text())
    assert config["architecture"] == "vit_small_patch16_seqpe_224"
    assert config["num_classes"] == sizes["num_classes"]
    assert config["pretrained_cfg"]["input_size"] == [3, sizes["img_size"], sizes["img_size"]]
    assert "license" not in config["pretrained_cfg"]
    args = config["model_args"]
    assert args["pos_embed_args"]["integration"] == "mul"
    assert args["pos_embed_args"]["max_position"] == 100
    assert sorted(path.name for path in (tmp_path / "zoo").iterdir()) == [
        "config.json",
        "conversion.json",
        "model.safetensors",
    ]


def test_record_names_every_source_tensor_and_file(tmp_path: Path) -> None:
    source = write_image_run(tmp_path / "run", IMAGE)
    convert_authors(str(source), tmp_path / "zoo")
    record = json.loads((tmp_path / "zoo" / "conversion.json").read_text())
    model, encoder = weights_of(read_fixture(IMAGE)[1])
    assert record["tensors"] == {"model": len(model), "pe_model": len(encoder)}
    assert record["left_out"] == ["epoch", "max_accuracy"]
    assert set(record["files"]) == {"best_model.pth", "config.json"}
    assert record["source"] == "run"
    assert str(tmp_path) not in (tmp_path / "zoo" / "conversion.json").read_text()


def test_configuration_inside_the_pickle_serves_where_the_file_is_missing(tmp_path: Path) -> None:
    source = write_image_run(tmp_path / "run", IMAGE, config_file=False)
    convert_authors(str(source), tmp_path / "zoo")
    assert (tmp_path / "zoo" / "model.safetensors").is_file()


def test_masks_and_untrained_rows_of_text_runs_are_named(tmp_path: Path) -> None:
    def add_masks_and_rows(model, encoder):
        model["transformer.h.0.attn.bias"] = torch.ones(1, 1, 4, 4, dtype=torch.bool)
        table = model["transformer.wpe.weight"]
        model["transformer.wpe.weight"] = torch.cat([table, torch.zeros_like(table)])

    source = write_text_run(tmp_path / "run", "gpt2_baseline_vanilla", add_masks_and_rows)
    converted = convert_authors(str(source), tmp_path / "zoo")
    left_out = converted.record["left_out"]
    assert left_out[0] == "transformer.h.0.attn.bias"
    assert left_out[1].startswith(f"transformer.wpe.weight, rows from {converted.model.config.train_length}")
    assert (tmp_path / "zoo" / "vocab.json").is_file()
    assert not (tmp_path / "zoo" / "random_states_0.pkl").exists()


def break_image(model, encoder):
    del model["blocks.0.norm1.weight"]
    del encoder["out_proj.bias"]
    model["surplus.weight"] = torch.ones(2)
    encoder["surplus"] = torch.ones(3)
    model["head.weight"] = model["head.weight"][:, :-1].clone()
    encoder["transformers.0.mlp.c_fc.weight"] = torch.ones(5)


def break_text(model, encoder):
    del model["transformer.ln_f.weight"]
    del encoder["token_of_seqpe_embed.weight"]
    model["surplus.weight"] = torch.ones(2)
    encoder["surplus"] = torch.ones(3)
    model["transformer.h.0.mlp.c_fc.weight"] = torch.ones(5, 5)
    encoder["layernorm.weight"] = torch.ones(5)


@pytest.mark.parametrize(
    ("write", "name", "change", "expected"),
    [
        (
            write_image_run,
            IMAGE,
            break_image,
            [
                "missing: blocks.0.norm1.weight",
                "missing: position_encoding.encoder.out.bias",
                "extra: surplus.weight",
                "extra: pe_model.surplus",
                "misshaped: head.weight",
                "misshaped: position_encoding.encoder.model.layers.0.fc1.weight",
            ],
        ),
        (
            write_text_run,
            TEXT,
            break_text,
            [
                "missing: transformer.ln_f.weight",
                "missing: transformer.position_encoding.encoder.digit_embedding",
                "extra: surplus.weight",
                "extra: pe_model.surplus",
                "misshaped: transformer.h.0.mlp.c_fc.weight",
                "misshaped: transformer.position_encoding.encoder.norm.weight",
            ],
        ),
    ],
    ids=["image", "text"],
)
def test_wrong_keys_are_all_named_and_nothing_is_written(write, name, change, expected, tmp_path) -> None:
    source = write(tmp_path / "run", name, change)
    with pytest.raises(ConversionError) as caught:
        convert_authors(str(source), tmp_path / "zoo")
    found = {" ".join(problem.split()[:2]) for problem in caught.value.problems}
    assert found == set(expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_missing_layer_is_named_key_by_key(tmp_path: Path) -> None:
    def drop_layer(model, encoder):
        for key in [key for key in model if key.startswith("blocks.1.")]:
            del model[key]

    source = write_image_run(tmp_path / "run", IMAGE, drop_layer)
    with pytest.raises(ConversionError, match=r"missing: blocks\.1\.attn\.qkv\.weight"):
        convert_authors(str(source), tmp_path / "zoo")


def test_failure_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_image_run(tmp_path / "run", IMAGE)

    def full_disk(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("seqpe_zoo.convert.zoo_checkpoint.write_record", full_disk)
    with pytest.raises(ConversionError, match="No space left"):
        convert_authors(str(source), tmp_path / "zoo")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_existing_target_is_not_touched(tmp_path: Path) -> None:
    source = write_image_run(tmp_path / "run", IMAGE)
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "mine.txt").write_text("keep")
    with pytest.raises(ConversionError, match="exists"):
        convert_authors(str(source), tmp_path / "zoo")
    assert [path.name for path in (tmp_path / "zoo").iterdir()] == ["mine.txt"]


def test_hostile_checkpoint_is_refused(tmp_path: Path) -> None:
    source = write_image_run(tmp_path / "run", IMAGE)
    torch.save({"model": torch.nn.Linear(1, 1)}, source / "best_model.pth")
    with pytest.raises(UnsafePickleError, match="Linear"):
        convert_authors(str(source), tmp_path / "zoo")
    assert not (tmp_path / "zoo").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "best_model" / "model_1.safetensors").unlink(), r"model_1\.safetensors"),
        (lambda folder: (folder / "config.json").write_text("{"), r"config\.json is not JSON"),
        (lambda folder: (folder / "pe_config.json").write_text("a: [b"), r"pe_config\.json is not YAML"),
        (lambda folder: (folder / "pe_config.json").write_text("PE_TYPE: seq_pe"), "PE_APPLY_METHOD"),
        (lambda folder: (folder / "pe_config.json").unlink(), "is no folder of the release"),
        (lambda folder: (folder / "best_model" / "model.safetensors").write_bytes(b"x" * 99), "damaged"),
    ],
)
def test_broken_text_folder_is_explained(change, message: str, tmp_path: Path) -> None:
    source = write_text_run(tmp_path / "run", TEXT)
    change(source)
    with pytest.raises(DataError, match=message):
        convert_authors(str(source), tmp_path / "zoo")
    assert not (tmp_path / "zoo").exists()


def test_subfolder_of_a_local_copy_is_found(tmp_path: Path) -> None:
    write_image_run(tmp_path / "seqpe" / "image_seqpe_ckpt", IMAGE)
    assert find_folder(str(tmp_path / "seqpe"), "image_seqpe_ckpt").name == "image_seqpe_ckpt"
    with pytest.raises(ConversionError, match="image_seqpe_ckpt"):
        find_folder(str(tmp_path / "seqpe"), "qa_seqpe_ckpt")
    with pytest.raises(ConversionError, match="neither a folder nor a Hub id"):
        find_folder(str(tmp_path / "nowhere"))
