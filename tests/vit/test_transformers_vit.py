"""The ViT in transformers, by both roads: the installed package, and the code that travels with weights."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from timm.models import save_for_hf
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    Trainer,
    TrainingArguments,
    pipeline,
)

from seqpe_zoo.auto_classes import register_auto_classes
from seqpe_zoo.portable.configuration_seqpe_vit import AUTO_MAP, SeqPEViTConfig
from seqpe_zoo.portable.modeling_seqpe_vit import SeqPEViTForImageClassification, SeqPEViTModel
from tests.without_package import PREAMBLE

from .small_models import ENCODINGS, enliven, images

REPOSITORY = Path(__file__).parents[2]
encodings = pytest.mark.parametrize(("name", "options"), ENCODINGS)

LOAD_REMOTE_CODE = (
    PREAMBLE
    + """
import torch
from PIL import Image
from transformers import AutoConfig, AutoModel, AutoModelForImageClassification, pipeline

source, copies = Path(sys.argv[1]), Path(sys.argv[2])
for folder in sorted(source.iterdir()):
    expected = torch.load(folder / "expected.pt")
    pixels = expected["pixels"]
    assert AutoConfig.from_pretrained(folder, trust_remote_code=True).model_type == "seqpe_vit"
    model = AutoModelForImageClassification.from_pretrained(folder, trust_remote_code=True)
    base = AutoModel.from_pretrained(folder, trust_remote_code=True)
    with torch.no_grad():
        torch.testing.assert_close(model(pixels).logits, expected["logits"], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(base(pixels)[0], expected["hidden"], atol=1e-6, rtol=1e-5)
    weights = model.state_dict()
    assert weights.keys() == expected["weights"].keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected["weights"].items())
    model.train()
    model(pixels, labels=torch.tensor([0, 1])).loss.backward()
    classify = pipeline("image-classification", str(folder), trust_remote_code=True)
    assert len(classify(Image.new("RGB", (30, 20)))) == 5
    model.eval().save_pretrained(copies / folder.name)
    torch.save(expected, copies / folder.name / "expected.pt")
print("all equal")
"""
)


@pytest.fixture(autouse=True)
def _auto_classes() -> None:
    register_auto_classes()


def tiny_classifier(
    name: str = "seqpe", options: dict[str, Any] | None = None, **changes: Any
) -> SeqPEViTForImageClassification:
    config = SeqPEViTConfig.tiny(
        position_encoding=name, position_encoding_args=options, num_labels=5, **changes
    )
    return enliven(SeqPEViTForImageClassification(config)).eval()


@encodings
def test_saved_models_load_through_auto_classes(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_classifier(name, options)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path)
    x = images()
    with torch.no_grad():
        # Loaded weights lie in the file's memory, at addresses for which some CPUs have other kernels: equal
        # weights then give results that differ by rounding.
        torch.testing.assert_close(loaded(x).logits, model(x).logits, atol=1e-6, rtol=1e-5)
        outputs = base(x, output_hidden_states=True)
        hidden = model.vit.forward_features(x)
        torch.testing.assert_close(outputs.last_hidden_state, hidden, atol=1e-6, rtol=1e-5)
    weights = loaded.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
    assert type(AutoConfig.from_pretrained(tmp_path)) is SeqPEViTConfig
    assert (type(loaded), type(base)) == (SeqPEViTForImageClassification, SeqPEViTModel)
    assert [tuple(hidden.shape) for hidden in outputs.hidden_states] == [(2, 17, 32)] * 3


@pytest.mark.parametrize("integration", ["mul", "sum", "bias"])
@pytest.mark.parametrize("places", ["auto", "blocks on disk", "positions on disk"])
@torch.no_grad()
def test_device_map(integration: str, places: str, tmp_path: Path) -> None:
    model, x = tiny_classifier("seqpe", {"integration": integration}).eval(), images()
    model.save_pretrained(tmp_path / "model")
    devices: Any = "auto"
    if places != "auto":
        parts = [f"vit.{name}" for name, _ in model.vit.named_children() if name != "blocks"]
        devices = dict.fromkeys([*parts, "vit.cls_token", "vit.blocks.0"], "cpu")
        devices |= {f"vit.blocks.{number}": "disk" for number in range(1, len(model.vit.blocks))}
    if places == "positions on disk":
        devices["vit.position_encoding"] = "disk"
    loaded = SeqPEViTForImageClassification.from_pretrained(
        tmp_path / "model", device_map=devices, offload_folder=tmp_path / "disk"
    )
    for _ in range(2):
        torch.testing.assert_close(loaded(x).logits, model(x).logits)


def test_model_is_the_timm_model() -> None:
    model = tiny_classifier("seqpe", num_register_tokens=2, global_pool="avg", vit_args={"init_values": 0.5})
    twin = timm.create_model("vit_small_patch16_pe_224", **model.config.vit_arguments(), num_classes=5).eval()
    twin.load_state_dict(model.vit.state_dict())
    x = images(24, 20)
    with torch.no_grad():
        assert torch.equal(model(x).logits, twin(x))
        twin.set_grid_start((3, 9))
        assert torch.equal(model(x, start=(3, 9)).logits, twin(x))
        assert not torch.equal(model(x).logits, twin(x))


def test_timm_reads_the_weights_that_transformers_saved(tmp_path: Path) -> None:
    model = tiny_classifier("seqpe")
    model.save_pretrained(tmp_path)
    twin = timm.create_model(
        "vit_small_patch16_pe_224",
        pretrained=True,
        pretrained_cfg_overlay={
            "file": str(tmp_path / "model.safetensors"),
            "num_classes": 5,
            "input_size": (3, 16, 16),
        },
        num_classes=5,
        **model.config.vit_arguments(),
    ).eval()
    x = images()
    with torch.no_grad():
        assert torch.equal(model(x).logits, twin(x))


def test_weights_that_are_missing_are_initialised(tmp_path: Path) -> None:
    tiny_classifier(vit_args={"init_values": 0.5}).save_pretrained(tmp_path)
    model = AutoModelForImageClassification.from_pretrained(
        tmp_path, num_labels=3, ignore_mismatched_sizes=True
    )
    assert model.vit.head.weight.shape == (3, 32)
    assert model(images()).logits.isfinite().all()


@pytest.mark.parametrize("pool", ["token", "map"])
def test_fresh_models_start_from_sensible_weights(pool: str) -> None:
    config = SeqPEViTConfig.tiny(num_register_tokens=1, global_pool=pool, vit_args={"init_values": 0.5})
    with torch.device("meta"):
        hollow = SeqPEViTForImageClassification(config)
    model = hollow.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, float("nan"))
        parameter._is_hf_initialized = False
    for module in model.modules():
        module._is_hf_initialized = False
    model.init_weights()
    assert [key for key, parameter in model.named_parameters() if parameter.isnan().any()] == []
    assert float(model.vit.blocks[0].ls1.gamma[0]) == 0.5


def test_training_output_has_the_objectives_and_their_share_of_the_loss() -> None:
    model = tiny_classifier("seqpe", {"dropout": 0.0, "shift_probability": 0.0}).train()
    x, labels = images(), torch.tensor([1, -100])
    output = model(pixel_values=x, labels=labels)
    plain = torch.nn.functional.cross_entropy(output.logits, labels)
    parts = 0.1 * output.position_distance_loss + 0.1 * output.position_ood_loss
    torch.testing.assert_close(output.loss, plain + parts)
    output = model(pixel_values=x, labels=labels, num_items_in_batch=4)
    parts = 0.1 * output.position_distance_loss + 0.1 * output.position_ood_loss
    total = torch.nn.functional.cross_entropy(output.logits, labels, reduction="sum")
    torch.testing.assert_close(output.loss, total / 4 + parts / 4)


def test_evaluation_and_plain_forward_have_no_objectives() -> None:
    model = tiny_classifier()
    with torch.no_grad():
        output = model(images(), labels=torch.tensor([1, 2]))
    assert output.position_distance_loss is None
    assert set(tiny_classifier("rope2d_axial").train()(images(), torch.tensor([1, 2]))) == {"loss", "logits"}
    switched_off = {"distance_weight": 0.0, "ood_weight": 0.0, "shift_probability": 0.0}
    assert set(tiny_classifier("seqpe", switched_off).train()(images(), torch.tensor([1, 2]))) == {
        "loss",
        "logits",
    }


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attention_implementations_agree(implementation: str, tmp_path: Path) -> None:
    model = tiny_classifier("seqpe", {"integration": "bias"})
    model.save_pretrained(tmp_path)
    other = AutoModelForImageClassification.from_pretrained(tmp_path, attn_implementation=implementation)
    assert other.vit.blocks[0].attn.fused_attn == (implementation == "sdpa")
    x = images()
    with torch.no_grad():
        torch.testing.assert_close(other(x).logits, model(x).logits, atol=1e-5, rtol=1e-5)


def test_gradient_checkpointing_can_be_switched() -> None:
    model = tiny_classifier().train()
    model.gradient_checkpointing_enable()
    assert model.vit.grad_checkpointing
    model(images(), labels=torch.tensor([0, 1])).loss.backward()
    model.gradient_checkpointing_disable()
    assert not model.vit.grad_checkpointing


def test_processor_and_pipeline(tmp_path: Path) -> None:
    model = tiny_classifier(image_size=[16, 24], id2label={number: f"kind {number}" for number in range(5)})
    model.save_pretrained(tmp_path)
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    pixels = processor(Image.new("RGB", (50, 40)), return_tensors="pt")["pixel_values"]
    assert pixels.shape == (1, 3, 16, 24)
    answers = pipeline("image-classification", model=str(tmp_path))(Image.new("RGB", (50, 40)))
    assert {answer["label"] for answer in answers} == {f"kind {number}" for number in range(5)}


def test_processor_of_the_user_is_kept(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(
        '{"image_processor_type": "ViTImageProcessor", "mine": 1}'
    )
    tiny_classifier().save_pretrained(tmp_path)
    assert json.loads((tmp_path / "preprocessor_config.json").read_text())["mine"] == 1


class Shades(torch.utils.data.Dataset):
    """Bright and dark images."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, Any]:
        label = index % 2
        generator = torch.Generator().manual_seed(index)
        return {"pixel_values": torch.randn(3, 16, 16, generator=generator) * 0.1 + label, "labels": label}


def test_trainer_trains_evaluates_and_resumes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = SeqPEViTForImageClassification(SeqPEViTConfig.tiny(num_labels=2))
    arguments = TrainingArguments(
        tmp_path / "run",
        max_steps=16,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        save_steps=8,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Shades(), eval_dataset=Shades())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    metrics = trainer.evaluate()
    assert metrics["eval_loss"] < 0.5
    resumed = Trainer(
        SeqPEViTForImageClassification(SeqPEViTConfig.tiny(num_labels=2)), arguments, train_dataset=Shades()
    )
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-8"))
    assert resumed.state.global_step == 16


def test_timm_repository_of_the_same_weights_loads_through_timm_wrapper(tmp_path: Path) -> None:
    model = tiny_classifier()
    arguments = model.config.vit_arguments()
    twin = timm.create_model("vit_pico_patch4_pe_32", **arguments, num_classes=5)
    twin.load_state_dict(model.vit.state_dict())
    cfg = {"num_classes": 5, "input_size": (3, 16, 16)}
    save_for_hf(twin, tmp_path, model_config=cfg, model_args=arguments, safe_serialization=True)
    wrapper = AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    assert type(wrapper).__name__ == "TimmWrapperForImageClassification"
    x = images(24, 20)
    with torch.no_grad():
        torch.testing.assert_close(wrapper(x).logits, model(x).logits)


def test_saving_writes_the_whole_auto_map(tmp_path: Path) -> None:
    SeqPEViTModel(SeqPEViTConfig.tiny()).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"] == AUTO_MAP


@pytest.mark.slow
def test_remote_code_alone_gives_the_same_numbers_also_when_saved_again(tmp_path: Path) -> None:
    x = images(24, 20)
    for number, (name, options) in enumerate(
        [("seqpe", {}), ("seqpe", {"integration": "bias"}), ("ape_learn", {})]
    ):
        model = tiny_classifier(name, options, num_register_tokens=1)
        folder = tmp_path / "saved" / f"{number}_{name}"
        model.save_pretrained(folder)
        with torch.no_grad():
            expected = {"pixels": x, "logits": model(x).logits, "hidden": model.vit.forward_features(x)}
        expected["weights"] = model.state_dict()
        torch.save(expected, folder / "expected.pt")
    for source, copies in (("saved", "again"), ("again", "once_more")):
        assert "all equal" in run_hidden(LOAD_REMOTE_CODE, tmp_path / source, tmp_path / copies, cwd=tmp_path)


def run_hidden(script: str, *args: Path, cwd: Path) -> str:
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(cwd / "hf_home"), "OMP_NUM_THREADS": "1", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, args)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


# Bad input.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_encoding": "seqpee"}, "unknown position encoding 'seqpee'"),
        ({"position_encoding": "alibi"}, "'alibi' handles"),
        ({"num_attention_heads": 5}, "not divisible by"),
        ({"image_size": 2}, "smaller than patch_size=4"),
        ({"position_encoding_args": {"extrapolation": "stretch"}}, "extrapolation='stretch' is unknown"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SeqPEViTForImageClassification(SeqPEViTConfig.tiny(**changes))


def test_image_beyond_the_digits_is_a_clear_error() -> None:
    model = tiny_classifier()
    with pytest.raises(ValueError, match="largest allowed position is 99"):
        model(images(4, 404))
