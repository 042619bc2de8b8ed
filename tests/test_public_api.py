"""The names that users type, frozen, and what importing the package costs."""

import subprocess
import sys

import pytest

import seqpe_zoo


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_public_names_are_frozen():
    assert seqpe_zoo.__all__ == [
        "ABSENT",
        "AttentionOperation",
        "Host",
        "PositionEncoding",
        "PositionLosses",
        "Positions",
        "SeqPE",
        "SeqPEGPT2Config",
        "SeqPEGPT2LMHeadModel",
        "SeqPEGPT2Model",
        "SeqPEOptions",
        "SeqPEViTConfig",
        "SeqPEViTForImageClassification",
        "SeqPEViTModel",
        "build_position_encoding",
        "grid_positions",
        "list_hosts",
        "list_position_encodings",
        "positions_from_mask",
        "range_positions",
        "register_auto_classes",
        "register_position_encoding",
        "register_timm",
        "set_position_encoding",
        "unregister_timm",
        "with_position_encoding",
        "zoo_path",
    ]
    assert all(hasattr(seqpe_zoo, name) for name in seqpe_zoo.__all__)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(AttributeError, match=r"has no attribute 'Seqpe'.*SeqPE"):
        _ = seqpe_zoo.Seqpe


def test_the_command_line_loads_nothing_heavy():
    code = "import sys, seqpe_zoo.cli as cli; cli.build_parser(); print(*sys.modules)"
    loaded = {name.split(".")[0] for name in run(code)}
    assert loaded.isdisjoint({"torch", "timm", "transformers", "numpy", "huggingface_hub", "matplotlib"})


def test_seqpe_alone_needs_torch_alone():
    loaded = {
        name.split(".")[0] for name in run("import sys; from seqpe_zoo import SeqPE; print(*sys.modules)")
    }
    assert "torch" in loaded
    assert loaded.isdisjoint({"timm", "transformers", "huggingface_hub"})


@pytest.mark.parametrize("order", ["import seqpe_zoo, timm", "import timm, seqpe_zoo"])
def test_timm_is_told_in_either_order_of_imports(order):
    assert run(f"{order}; print(timm.is_model('vit_small_patch16_seqpe_224'))") == ["True"]


def test_looking_for_timm_does_not_lose_the_registration():
    code = (
        "import importlib.util, seqpe_zoo; importlib.util.find_spec('timm'); import timm; "
        "print(timm.is_model('vit_small_patch16_seqpe_224'))"
    )
    assert run(code) == ["True"]
