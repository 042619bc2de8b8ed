"""What timm is told: our names, `pos_embed=` on its own models, and the way back."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models import deit, eva, naflexvit, vision_transformer

import seqpe_zoo
from seqpe_zoo import timm_models
from seqpe_zoo.timm_models import MODELS, register_timm, unregister_timm

from .small_models import NAMES_2D

NAMES = [model.__name__ for model in MODELS]
STOCK_VALUES: list[dict[str, Any]] = [{}, {"pos_embed": "learn"}, {"pos_embed": "none"}, {"pos_embed": ""}]
STOCK_MODELS = ["vit_tiny_patch16_224", "deit_tiny_patch16_224", "vit_small_patch14_reg4_dinov2"]


def test_our_names_are_listed() -> None:
    assert set(NAMES) <= set(timm.list_models("vit_*"))
    assert {timm.get_pretrained_cfg(name).architecture for name in NAMES} == set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if "base" not in name and "384" not in name])
def test_our_names_build_models_of_the_right_size(name: str) -> None:
    model = timm.create_model(name, depth=1).eval()
    size = model.pretrained_cfg["input_size"]
    with torch.no_grad():
        assert model(torch.randn(1, *size)).shape == (1, model.pretrained_cfg["num_classes"])
    assert model.position_encoding.name == "seqpe"


@pytest.mark.parametrize("name", NAMES_2D)
@pytest.mark.parametrize(
    "stock", [*STOCK_MODELS, "deit_tiny_distilled_patch16_224", "deit3_small_patch16_224"]
)
def test_stock_names_take_our_encodings(stock: str, name: str) -> None:
    model = timm.create_model(stock, pos_embed=name, depth=1, img_size=56, num_classes=3).eval()
    assert isinstance(model, vision_transformer.VisionTransformer)
    with torch.no_grad():
        assert model(torch.randn(1, 3, 56, 56)).shape == (1, 3)
    assert model.position_encoding.name == name


def test_options_reach_the_encoding() -> None:
    model = timm.create_model(
        "vit_tiny_patch16_224", pos_embed="seqpe", pos_embed_args={"integration": "bias"}, depth=1
    )
    assert model.position_encoding.integration == "bias"


def test_distilled_model_trains_both_heads() -> None:
    model = timm.create_model("deit_tiny_distilled_patch16_224", pos_embed="seqpe", depth=1, img_size=32)
    model.set_distilled_training(True)
    first, second = model.train()(torch.randn(2, 3, 32, 32))
    (first.mean() + second.mean()).backward()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []


def build_stock(name: str, arguments: dict[str, Any]) -> tuple[type, dict[str, torch.Tensor], torch.Tensor]:
    torch.manual_seed(7)
    model = timm.create_model(name, depth=1, img_size=56, **arguments).eval()
    with torch.no_grad():
        return type(model), model.state_dict(), model(torch.ones(1, 3, 56, 56))


@pytest.mark.parametrize("arguments", STOCK_VALUES)
@pytest.mark.parametrize("name", STOCK_MODELS)
def test_stock_values_are_bit_identical_with_and_without_us(name: str, arguments: dict[str, Any]) -> None:
    register_timm()
    with_us = build_stock(name, arguments)
    unregister_timm()
    without_us = build_stock(name, arguments)
    assert with_us[0] is without_us[0]
    assert with_us[1].keys() == without_us[1].keys()
    assert all(torch.equal(with_us[1][key], without_us[1][key]) for key in with_us[1])
    assert torch.equal(with_us[2], without_us[2])


def test_unregistering_leaves_timm_as_it_was() -> None:
    unregister_timm()
    wrapped = [module.build_model_with_cfg for module in (vision_transformer, deit, eva, naflexvit)]
    wrapped.append(timm.models._factory.model_entrypoint)
    assert not any(hasattr(function, "__wrapped__") for function in wrapped)
    assert not set(NAMES) & set(timm.list_models())
    with pytest.raises(AssertionError):
        timm.create_model("vit_tiny_patch16_224", pos_embed="seqpe")
    with pytest.raises(RuntimeError, match="Unknown model"):
        timm.create_model("vit_pico_patch4_pe_32")
    register_timm()
    assert set(NAMES) <= set(timm.list_models())


def test_registering_twice_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register_timm()
        register_timm()
    unregister_timm()
    assert not hasattr(vision_transformer.build_model_with_cfg, "__wrapped__")


def test_changed_internals_of_timm_give_one_warning_and_our_names_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unregister_timm()
    monkeypatch.setattr(timm_models, "_warned", False)
    monkeypatch.delattr(vision_transformer, "build_model_with_cfg")
    monkeypatch.setattr(deit, "build_model_with_cfg", lambda new_signature: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        register_timm()
        register_timm()
    assert len(caught) == 1
    assert "may not work on its stock names" in str(caught[0].message)
    model = timm.create_model("vit_pico_patch4_pe_32", pos_embed="rope2d_mixed").eval()
    with torch.no_grad():
        assert model(torch.randn(1, 3, 32, 32)).shape == (1, 10)
    unregister_timm()


# Bad input.


@pytest.mark.parametrize("model", ["vit_tiny_patch16_224", "vit_tiny_patch16_pe_224"])
def test_unknown_encoding_lists_the_known_ones(model: str) -> None:
    with pytest.raises(ValueError, match=r"unknown position encoding 'seqpee'.*rope2d_mixed.*seqpe"):
        timm.create_model(model, pos_embed="seqpee")


def test_encoding_of_text_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'alibi' handles"):
        timm.create_model("vit_tiny_patch16_pe_224", pos_embed="alibi")


def test_unknown_option_lists_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"no option bass \(did you mean base\?\); its options are: base"):
        timm.create_model("vit_tiny_patch16_pe_224", pos_embed="rope2d_axial", pos_embed_args={"bass": 3})


def test_wrong_value_of_an_option_lists_the_choices() -> None:
    with pytest.raises(ValueError, match=r"integration='add' is unknown.*'mul', 'sum', 'bias', 'input'"):
        timm.create_model("vit_tiny_patch16_seqpe_224", pos_embed_args={"integration": "add"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vit_dlittle_patch16_reg1_gap_256", "DiffAttention take no position encoding"),
        ("vit_dpwee_patch16_reg1_gap_256", "DiffParallelScalingBlock take no position encoding"),
    ],
)
def test_attention_that_takes_no_positions_is_refused(name: str, message: str) -> None:
    if not timm.is_model(name):
        pytest.skip(f"this timm has no {name}")
    with pytest.raises(ValueError, match=message):
        timm.create_model(name, pos_embed="seqpe")


def test_image_of_another_size_is_refused_by_a_static_model() -> None:
    model = timm.create_model("vit_pico_patch4_pe_32")
    with pytest.raises(AssertionError, match="doesn't match model"):
        model(torch.randn(1, 3, 36, 36))


def test_image_that_is_no_multiple_of_patches_is_refused() -> None:
    model = timm.create_model("vit_pico_patch4_pe_32", dynamic_img_size=True)
    with pytest.raises(AssertionError, match="divisible by patch size"):
        model(torch.randn(1, 3, 34, 32))


OTHERS = [
    "swin_tiny_patch4_window7_224",
    "beit_base_patch16_224",
    "convnext_tiny",
    "hiera_tiny_224",
    "samvit_base_patch16",
    "cait_xxs24_224",
    "xcit_nano_12_p16_224",
    "vitamin_small_224",
    "resnet18",
]


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_are_refused_and_those_that_can_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=rf"'seqpe' cannot be added to {name}; .*naflexvit_\*.*eva02_\*"):
        timm.create_model(name, pos_embed="seqpe")


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "convnext_atto"])
def test_one_call_refuses_other_models_too(name: str) -> None:
    with pytest.raises(ValueError, match=r"'seqpe' cannot be added to .*vit_\*_dinov3\*"):
        seqpe_zoo.set_position_encoding(timm.create_model(name), "seqpe")


@pytest.mark.parametrize("value", [["seqpe"], ("seqpe",), 3, True, {"name": "seqpe"}])
@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_patch16_224",
        "vit_tiny_patch16_pe_224",
        "naflexvit_base_patch16_gap",
        "eva02_tiny_patch14_224",
        "swin_tiny_patch4_window7_224",
    ],
)
def test_names_that_are_no_strings_are_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match="a position encoding is named by a string such as 'seqpe'"):
        timm.create_model(name, pos_embed=value)


@pytest.mark.parametrize("options", [{"pos_embed_args": {}}, {"keep_native": True}, {"train_img_size": 96}])
@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "naflexvit_base_patch16_gap", "eva02_tiny_patch14_224"]
)
def test_options_without_an_encoding_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(options))} is for pos_embed='seqpe'"):
        timm.create_model(name, **options)


# Shipped models.


def test_shipped_models_are_listed_and_load_by_name() -> None:
    assert timm.list_pretrained("*seqpe*") == ["vit_pico_patch4_pe_28.seqpe_fashion"]
    cards = {"seqpe": "seqpe", "rope2d": "rope2d_axial", "ape": "ape_learn"}
    for tag, encoding in cards.items():
        named = timm.create_model(f"vit_pico_patch4_pe_28.{tag}_fashion", pretrained=True).eval()
        card = Path(__file__).parents[2] / "model_cards" / f"tiny-vit-{tag}-fashion"
        from_folder = timm.create_model(f"local-dir:{card}", pretrained=True).eval()
        assert named.position_encoding.name == encoding
        with torch.no_grad():
            for x in (torch.randn(1, 1, 28, 28), torch.randn(1, 1, 56, 40)):
                assert torch.equal(named(x), from_folder(x))
