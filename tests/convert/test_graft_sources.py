"""What `graft` takes: files of weights, folders of timm and transformers, tables and rotations."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from safetensors.torch import save_file

from seqpe_zoo import set_position_encoding
from seqpe_zoo.cli import main
from seqpe_zoo.convert.graft import graft, graft_vit, logit_change
from seqpe_zoo.convert.weights_file import load_weights_file
from seqpe_zoo.convert.zoo_checkpoint import ConversionError, write_checkpoint
from seqpe_zoo.data.byte_tokenizer import build_byte_tokenizer

VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 3,
}
LLAMA = {
    "vocab_size": 256,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def run(*words: object) -> int:
    return main([str(word) for word in words])


def save_image_classifier(folder: Path, family: str) -> Any:
    config = getattr(transformers, f"{family}Config")(**VIT)
    model = getattr(transformers, f"{family}ForImageClassification")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


def save_decoder(folder: Path, family: str) -> Any:
    config = getattr(transformers, f"{family}Config")(**LLAMA, bos_token_id=0, eos_token_id=0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    model.save_pretrained(folder)
    build_byte_tokenizer().save_pretrained(folder)
    return model


@pytest.mark.parametrize("family", ["ViT", "DeiT", "Dinov2"])
@torch.no_grad()
def test_vits_of_transformers_are_grafted(family: str, tmp_path: Path) -> None:
    theirs = save_image_classifier(tmp_path / "theirs", family)
    assert run("graft", tmp_path / "theirs", tmp_path / "ours", "--fit-steps", 300) == 0
    ours = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "ours").eval()
    pixels = torch.randn(2, 3, 32, 32)
    old, new = theirs(pixels).logits, ours(pixels).logits
    assert (new - old).norm() / (old - old.mean()).norm() < 0.05
    assert ours(torch.randn(1, 3, 64, 48)).logits.shape == (1, 3)


@pytest.mark.parametrize("integration", ["mul", "sum", "bias"])
def test_vits_of_transformers_take_attention_integrations(integration: str, tmp_path: Path) -> None:
    save_image_classifier(tmp_path / "theirs", "ViT")
    words = ("--fit-steps", 5, "--integration", integration)
    assert run("graft", tmp_path / "theirs", tmp_path / "ours", *words) == 0
    ours = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "ours")
    assert ours.config.position_encoding_args["integration"] == integration


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
@torch.no_grad()
def test_rotary_models_keep_what_they_know(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = save_decoder(tmp_path / "theirs", family)
    assert run("graft", "--keep-native", tmp_path / "theirs", tmp_path / "ours") == 0
    said = capsys.readouterr().out
    assert "beside the model's own positions" in said
    assert "same top choice in 100.0%" in said
    ours = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    tokens = torch.randint(256, (2, 40))
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits)
    assert (tmp_path / "ours" / "tokenizer.json").is_file()


@torch.no_grad()
def qwen_with_strong_means() -> Any:
    """A model whose queries and keys are much alike, so that its rotation adds a bias of distances."""
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**LLAMA, bos_token_id=0, eos_token_id=0))
    for name, parameter in model.named_parameters():
        if name.endswith(("q_proj.bias", "k_proj.bias")):
            parameter.normal_(std=0.8)
        elif "q_proj" not in name and "k_proj" not in name and "norm" not in name:
            parameter.normal_(std=0.3)
    return model.eval()


@pytest.mark.parametrize("integration", ["bias", "sum"])
@pytest.mark.parametrize("keys", [1, 2])
def test_seqpe_starts_from_what_a_rotation_does_on_average(
    integration: str, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LLAMA, "num_key_value_heads", keys)
    probe = torch.randint(256, (4, 64), generator=torch.Generator().manual_seed(0))
    options = {"encoder_dim": 64, "encoder_heads": 4}
    model, report = graft(qwen_with_strong_means(), integration, options, probe=probe, fit_steps=300)
    untrained = set_position_encoding(qwen_with_strong_means(), "seqpe", integration=integration).eval()
    with torch.no_grad():
        plain = logit_change(qwen_with_strong_means()(probe).logits, untrained(probe).logits)
        now = logit_change(qwen_with_strong_means()(probe).logits, model.model(probe).logits)
    assert now == report.change
    assert report.fit_error < 0.1
    assert report.change.divergence < 0.75 * plain.divergence
    assert "a rotation is imitated only on average: keep_native" in report.lines()[0]


def test_rotary_models_lose_their_rotation_without_keep_native(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_decoder(tmp_path / "theirs", "Llama")
    assert run("graft", tmp_path / "theirs", tmp_path / "ours", "--integration", "mul") == 0
    assert "in place of the model's own positions, untrained" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["vit_small_patch16_rope_224", "vit_small_patch16_224"])
def test_models_of_timm_keep_what_they_know(name: str, tmp_path: Path) -> None:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 5}
    theirs = timm.create_model(name, **sizes).eval()
    converted, report = graft_vit(theirs, name, sizes, keep_native=True)
    assert report.change.same_top == 1
    assert report.change.largest < 1e-5
    write_checkpoint(converted, tmp_path / "ours")
    loaded = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True).eval()
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(loaded(pixels), theirs(pixels))


@pytest.mark.parametrize("ending", [".safetensors", ".pth"])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("vit_small_patch16_224", {}),
        ("vit_small_patch16_224", {"reg_tokens": 2, "no_embed_class": True, "init_values": 1e-5}),
        ("vit_small_patch16_224", {"class_token": False, "global_pool": "avg", "qkv_bias": False}),
        ("deit_small_distilled_patch16_224", {}),
    ],
)
@torch.no_grad()
def test_files_of_vits_are_understood(
    ending: str, name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 128, "depth": 2, "num_heads": 2, "num_classes": 5}
    theirs = timm.create_model(name, **sizes, **changes).eval()
    path = tmp_path / f"weights{ending}"
    if ending == ".pth":
        torch.save({"model": theirs.state_dict()}, path)
    else:
        save_file(theirs.state_dict(), path)
    pixels = torch.randn(2, 3, 32, 32)
    assert torch.equal(load_weights_file(path).model(pixels), theirs(pixels))


def test_files_are_grafted(tmp_path: Path) -> None:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 1, "num_heads": 1, "num_classes": 5}
    save_file(timm.create_model("vit_small_patch16_224", **sizes).state_dict(), tmp_path / "vit.safetensors")
    assert run("graft", tmp_path / "vit.safetensors", tmp_path / "vit", "--fit-steps", 5) == 0
    assert timm.create_model(f"local-dir:{tmp_path / 'vit'}", pretrained=True).num_classes == 5

    config = transformers.GPT2Config(vocab_size=90, n_positions=16, n_embd=64, n_layer=1, n_head=1)
    torch.save(transformers.GPT2LMHeadModel(config).state_dict(), tmp_path / "gpt2.pth")
    assert run("graft", tmp_path / "gpt2.pth", tmp_path / "lm", "--fit-steps", 5) == 0
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "lm").config.vocab_size == 90


def test_file_of_another_model_needs_its_architecture(tmp_path: Path) -> None:
    path = tmp_path / "resnet.safetensors"
    save_file(timm.create_model("resnet10t", num_classes=4).state_dict(), path)
    with pytest.raises(ConversionError, match="--architecture"):
        load_weights_file(path)
    assert load_weights_file(path, "resnet10t").model.num_classes == 4


def test_model_that_cannot_have_positions_is_refused_before_its_weights_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers.BloomConfig(
        hidden_size=32, n_layer=1, n_head=2, architectures=["BloomForCausalLM"]
    ).save_pretrained(tmp_path / "bloom")
    assert run("graft", tmp_path / "bloom", tmp_path / "ours") == 2
    assert "a model of type 'bloom' cannot have another position encoding" in capsys.readouterr().err
