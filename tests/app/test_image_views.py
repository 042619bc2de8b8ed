import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from seqpe_zoo.app.pictures import class_names, prepare_picture, sample_pictures
from seqpe_zoo.app.views import SettingRange, classify, compare_pictures, size_range, view_picture
from seqpe_zoo.app.zoo import IMAGES, Zoo, find_models
from seqpe_zoo.data.digits_images import load_digit_images
from seqpe_zoo.data.errors import DataError

from .stand_ins import DIGITS, save_classifier

GREY = Image.new("L", (8, 8), 128)


def test_probabilities_are_those_of_evaluation(zoo: Zoo) -> None:
    model = zoo.image_model("vit_seqpe")
    digits = load_digit_images()
    images = digits.split("test").images[:8]
    # As evaluation sees them, but for the model's own mean and standard deviation.
    pixels = (digits.pixels(images, 24) * digits.std + digits.mean - 0.3) / 0.4
    with torch.inference_mode():
        expected = model.logits(pixels).softmax(-1)
    samples = sample_pictures(zoo.model("vit_seqpe", IMAGES))
    seen = torch.tensor([list(classify(model, DIGITS, sample, 24).values()) for sample in samples])
    # Samples are stored in whole steps of 1/255.
    torch.testing.assert_close(seen, expected, atol=2e-3, rtol=0)


def test_view_names_the_answer_and_the_size(zoo: Zoo) -> None:
    view = view_picture(zoo.image_model("vit_seqpe"), DIGITS, GREY, 32)
    answer = max(view.probabilities, key=lambda name: view.probabilities[name])
    assert view.summary.startswith(f"### {answer}: {100 * view.probabilities[answer]:.1f} %")
    assert "at 32 x 32 pixels, 2 times the 16 pixels of training" in view.summary
    assert sum(view.probabilities.values()) == pytest.approx(1)


def test_heatmaps_follow_the_size(zoo: Zoo) -> None:
    model = zoo.image_model("vit_seqpe")
    shapes = [
        view_picture(model, DIGITS, GREY, size).heatmap.axes[0].images[0].get_array().shape
        for size in (16, 40)
    ]
    assert shapes == [(4, 4), (10, 10)]


def test_encoding_that_numbers_patches_through_has_a_heatmap(tmp_path: Path) -> None:
    save_classifier(tmp_path / "vit_sin", "ape_sin")
    model = Zoo(find_models([str(tmp_path)])).image_model("vit_sin")
    heatmap = view_picture(model, DIGITS, GREY, 24).heatmap
    assert heatmap.axes[0].images[0].get_array().shape == (6, 6)


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (18, "resolution 18 is not divisible into patches of 4 pixels; use 16 or 20"),
        (44, "resolution 44: position 10"),
        (0, "must be positive"),
    ],
)
def test_size_that_the_model_cannot_see_is_refused(zoo: Zoo, size: int, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        view_picture(zoo.image_model("vit_seqpe"), DIGITS, GREY, size)


def test_classes_without_names_are_numbered(zoo: Zoo) -> None:
    assert list(classify(zoo.image_model("vit_rope"), None, GREY, 16))[:2] == ["class 0", "class 1"]


def test_curves_follow_the_first_answer(zoo: Zoo) -> None:
    loaded = {name: (zoo.image_model(name), DIGITS) for name in ("vit_rope", "vit_seqpe")}
    curves = compare_pictures(loaded, GREY)
    assert list(curves.points["vit_rope"]) == [16, 24, 32, 48, 64]
    assert list(curves.points["vit_seqpe"]) == [16, 24, 32]
    assert curves.note == "vit_seqpe cannot see 48 pixels."
    probabilities = classify(*loaded["vit_rope"], GREY, 16)
    assert curves.points["vit_rope"][16] == pytest.approx(100 * max(probabilities.values()))


def test_models_of_different_classes_are_not_compared(zoo: Zoo) -> None:
    letters = list("abcdefghij")
    loaded = {"a": (zoo.image_model("vit_rope"), DIGITS), "b": (zoo.image_model("vit_seqpe"), letters)}
    with pytest.raises(DataError, match="know different classes"):
        compare_pictures(loaded, GREY)


def test_slider_goes_by_patches(zoo: Zoo) -> None:
    assert size_range([zoo.image_model("vit_rope")]) == SettingRange(largest=64, step=4, start=16)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1"])
@pytest.mark.parametrize("channels", [1, 3])
def test_picture_of_any_mode_is_prepared(zoo: Zoo, tmp_path: Path, mode: str, channels: int) -> None:
    save_classifier(tmp_path / "vit", "nope", channels=channels)
    model = Zoo(find_models([str(tmp_path)])).image_model("vit")
    pixels = prepare_picture(Image.new("L", (20, 12), 255).convert(mode), model, 16)
    torch.testing.assert_close(pixels, torch.full((1, channels, 16, 16), (1 - 0.3) / 0.4))


def test_centre_of_a_wide_picture_is_seen(zoo: Zoo) -> None:
    wide = Image.new("L", (24, 8), 0)
    wide.paste(255, (8, 0, 16, 8))
    pixels = prepare_picture(wide, zoo.image_model("vit_rope"), 8)
    assert pixels.min() == pixels.max() == pytest.approx((1 - 0.3) / 0.4)


def test_samples_beside_the_weights_come_first(models_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(models_folder / "vit_rope", tmp_path / "vit_rope")
    (folder / "samples").mkdir()
    for number in range(10):
        Image.new("L", (28, 28), number).save(folder / "samples" / f"{number}.png")
    (model,) = find_models([str(folder)])
    assert [sample.getpixel((0, 0)) for sample in sample_pictures(model)] == list(range(8))


def test_sample_that_is_no_picture_is_reported(models_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(models_folder / "vit_rope", tmp_path / "vit_rope")
    (folder / "samples").mkdir()
    (folder / "samples" / "broken.png").write_bytes(b"not a picture")
    (model,) = find_models([str(folder)])
    with pytest.raises(DataError, match=r"broken.png among the model's samples is no picture"):
        sample_pictures(model)


def test_model_of_other_classes_has_no_digits_for_samples(tmp_path: Path) -> None:
    save_classifier(tmp_path / "vit", "nope", labels=list("abcdefghij"))
    (model,) = find_models([str(tmp_path)])
    assert class_names(model.source) == list("abcdefghij")
    assert sample_pictures(model) == []
