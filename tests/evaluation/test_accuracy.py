import shutil
from pathlib import Path

import pytest
import timm
import torch

from seqpe_zoo.data.digits_images import load_digit_images, write_image_folder
from seqpe_zoo.data.errors import DataError
from seqpe_zoo.data.images import open_image_split
from seqpe_zoo.evaluation.accuracy import count_correct, evaluate_accuracy
from seqpe_zoo.evaluation.measure import measure_images
from seqpe_zoo.evaluation.model_loading import image_model_of, load_image_model


def stock_vit(**options: object) -> torch.nn.Module:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    return timm.create_model(
        "vit_tiny_patch16_224", num_classes=10, dynamic_img_size=True, **sizes, **options
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_image_folder(tmp_path_factory.mktemp("digits"), size=32, train=10, test=30)


def test_right_answers_are_counted() -> None:
    model = image_model_of(stock_vit(), "vit")
    model.logits = lambda pixels: torch.eye(10)[pixels[:, 0, 0, 0].long()]
    labels = torch.tensor([0, 1, 2, 3])
    pixels = torch.tensor([0.0, 1.0, 2.0, 9.0]).view(4, 1, 1, 1).expand(4, 3, 32, 32)
    result = count_correct(model, [(pixels, labels)], 32)
    assert (result.top1, result.images) == (75.0, 4)


@pytest.mark.parametrize(("classes", "metrics"), [(10, {"accuracy", "top5_accuracy"}), (5, {"accuracy"})])
def test_first_five_of_five_classes_say_nothing(tmp_path: Path, classes: int, metrics: set[str]) -> None:
    folder = write_image_folder(tmp_path, size=32, train=0, test=30)
    for label in range(classes, 10):
        shutil.rmtree(folder / "validation" / str(label))
    model = image_model_of(stock_vit(), "vit")
    model.model.reset_classifier(classes)
    measured = measure_images(model, "vit", str(folder), "val", [32], max_images=4)
    assert {m.metric for m in measured} == metrics


def test_stock_model_is_measured_at_other_resolutions(folder: Path) -> None:
    model = image_model_of(stock_vit(), "vit")
    results = evaluate_accuracy(model, open_image_split(str(folder), "val"), [32, 48], batch_size=16)
    assert [(r.resolution, r.images) for r in results] == [(32, 30), (48, 30)]
    assert all(0 <= r.top1 <= r.top5 <= 100 for r in results)


def test_fewer_images_are_spread_evenly(folder: Path) -> None:
    model = image_model_of(stock_vit(), "vit")
    assert evaluate_accuracy(model, open_image_split(str(folder), "val"), [32], max_images=7)[0].images == 7


def test_digits_are_measured_upsampled() -> None:
    model = image_model_of(stock_vit(in_chans=1), "vit")
    results = evaluate_accuracy(model, (load_digit_images(), "test"), [32, 40])
    assert [(r.resolution, r.images) for r in results] == [(32, 539), (40, 539)]


def test_resolution_that_patches_do_not_divide_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match=r"resolution 36 .* patches of 8 pixels; use 32 or 40"):
        evaluate_accuracy(image_model_of(stock_vit(), "vit"), open_image_split(str(folder), "val"), [32, 36])


def test_convolutional_network_is_accepted(folder: Path) -> None:
    model = image_model_of(timm.create_model("resnet10t", num_classes=10), "resnet")
    assert evaluate_accuracy(model, open_image_split(str(folder), "val"), [36], max_images=4)[0].images == 4


def test_transformers_classifier_is_accepted(folder: Path, tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        num_labels=10,
        patch_size=8,
    )
    ViTForImageClassification(config).save_pretrained(tmp_path)
    model = load_image_model(str(tmp_path))
    results = evaluate_accuracy(model, open_image_split(str(folder), "val"), [32, 48], max_images=4)
    assert len(results) == 2


@pytest.mark.parametrize("name", ["no_such_model", "nobody/nothing"])
def test_unknown_model_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=name):
        load_image_model(name)


def test_folder_without_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no config\.json"):
        load_image_model(str(tmp_path))
