import pytest
import timm
import torch

import seqpe_zoo  # noqa: F401 (registers our names)
from seqpe_zoo.portable.configuration_seqpe import SeqPEGPT2Config
from seqpe_zoo.portable.modeling_seqpe import SeqPEGPT2LMHeadModel
from seqpe_zoo.training.parameter_groups import build_parameter_groups, layer_of, position_parameter_names
from seqpe_zoo.training.run_config import TrainingConfig
from seqpe_zoo.training.trainer import schedule_factor


def training(**options: object) -> TrainingConfig:
    return TrainingConfig("run", steps=1, learning_rate=1e-3, weight_decay=0.05, **options)


def names_by_group(model: torch.nn.Module, **options: object) -> dict[str, tuple[float, float, str]]:
    groups = build_parameter_groups(model, training(**options))
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        name_of[id(parameter)]: (group["lr"], group["weight_decay"], group["name"])
        for group in groups
        for parameter in group["params"]
    }


@pytest.fixture(scope="module")
def vit() -> torch.nn.Module:
    return timm.create_model("vit_pico_patch4_pe_32", pos_embed="seqpe")


def test_every_parameter_is_in_one_group(vit: torch.nn.Module) -> None:
    groups = build_parameter_groups(vit, training())
    members = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(members) == len(set(members)) == len(list(vit.parameters()))


def test_encoder_is_not_decayed_but_its_projection_is(vit: torch.nn.Module) -> None:
    table = names_by_group(vit)
    for name in position_parameter_names(vit):
        is_projection_matrix = ".projection." in name and name.endswith("weight")
        assert table[name][1] == (0.05 if is_projection_matrix else 0.0), name
    assert table["blocks.0.attn.qkv.weight"] == (1e-3, 0.05, "host")
    assert table["blocks.0.norm1.weight"][1] == table["cls_token"][1] == table["head.bias"][1] == 0.0


def test_projection_can_be_left_undecayed(vit: torch.nn.Module) -> None:
    table = names_by_group(vit, decay_position_projection=False)
    assert all(table[name][1] == 0.0 for name in position_parameter_names(vit))


def test_position_encoding_has_its_own_rate(vit: torch.nn.Module) -> None:
    table = names_by_group(vit, position_learning_rate=5e-3, layer_decay=0.5)
    assert {table[name][0] for name in position_parameter_names(vit)} == {5e-3}


def test_layer_decay_falls_towards_the_input(vit: torch.nn.Module) -> None:
    table = names_by_group(vit, layer_decay=0.5)
    rates = [table[f"blocks.{layer}.attn.qkv.weight"][0] for layer in range(4)]
    assert rates == [1e-3 * 0.5 ** (4 - layer) for layer in range(4)]
    assert table["head.weight"][0] == 1e-3
    assert table["patch_embed.proj.weight"][0] == pytest.approx(1e-3 * 0.5**5)


def test_language_model_is_grouped_alike() -> None:
    model = SeqPEGPT2LMHeadModel(SeqPEGPT2Config.tiny())
    table = names_by_group(model)
    assert table["transformer.position_encoding.encoder.cls_embedding"][2] == "position encoder"
    assert table["transformer.position_encoding.projection.0.weight"][1] == 0.05
    assert table["transformer.h.1.mlp.c_fc.weight"][2] == "host"


def test_layers_of_the_position_encoder_are_no_layers_of_the_model() -> None:
    args = {"encoder_layers": 3, "num_digits": 4}
    model = SeqPEGPT2LMHeadModel(SeqPEGPT2Config.tiny(n_layer=2, position_encoding_args=args))
    table = names_by_group(model, layer_decay=0.5)
    rates = [table[f"transformer.h.{layer}.mlp.c_fc.weight"][0] for layer in range(2)]
    assert rates == [1e-3 * 0.5**2, 1e-3 * 0.5]
    assert table["transformer.ln_f.weight"][0] == 1e-3


def test_model_of_others_has_host_groups_only() -> None:
    table = names_by_group(timm.create_model("vit_tiny_patch16_224", depth=1))
    assert {entry[2] for entry in table.values()} == {"host"}


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("transformer.wte.weight", 0),
        ("transformer.h.3.ln_1.bias", 4),
        ("transformer.ln_f.weight", 13),
        ("norm.bias", 13),
    ],
)
def test_layers_are_read_from_names(name: str, layer: int) -> None:
    assert layer_of(name, 12) == layer


@pytest.mark.parametrize(
    ("step", "shape", "factor"),
    [
        (0, "linear", 0.1),
        (5, "linear", 0.55),
        (10, "linear", 1.0),
        (60, "linear", 0.6),
        (110, "linear", 0.2),
        (60, "cosine", 0.6),
        (110, "cosine", 0.2),
        (90, "constant", 1.0),
    ],
)
def test_schedule(step: int, shape: str, factor: float) -> None:
    assert schedule_factor(step, 110, 10, shape, start=0.1, end=0.2) == pytest.approx(factor)
