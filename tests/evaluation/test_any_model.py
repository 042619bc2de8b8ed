"""`evaluate` and `diagnose` on models of transformers and timm with our positions, beside plain ones."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from safetensors.torch import save_file

import seqpe_zoo
from seqpe_zoo.cli import main
from seqpe_zoo.data.byte_tokenizer import build_byte_tokenizer
from seqpe_zoo.evaluation.model_loading import load_language_model
from seqpe_zoo.evaluation.perplexity import evaluate_perplexity, has_plain_head

SIZES = {
    "vocab_size": 256,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def run(*words: object) -> int:
    return main([str(word) for word in words])


def save_decoder(folder: Path, family: str, changed: bool, **options: Any) -> Path:
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**SIZES))
    if changed:
        seqpe_zoo.set_position_encoding(model, "seqpe", integration="bias", num_digits=3, **options)
    model.save_pretrained(folder)
    build_byte_tokenizer().save_pretrained(folder)
    return folder


def save_classifier(folder: Path, changed: bool) -> Path:
    config = transformers.Dinov2Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=8, num_labels=10
    )
    model = transformers.Dinov2ForImageClassification(config)
    if changed:
        seqpe_zoo.set_position_encoding(model, "seqpe", integration="bias", num_digits=2)
    model.save_pretrained(folder)
    return folder


def test_llama_with_our_positions_is_measured_beside_plain_ones(tmp_path: Path) -> None:
    models = [
        save_decoder(tmp_path / "ours", "Llama", True),
        save_decoder(tmp_path / "both", "Llama", True, keep_native=True),
        save_decoder(tmp_path / "plain", "Llama", False),
        save_decoder(tmp_path / "opt", "OPT", False),
    ]
    words = ["--max-tokens", 300, "--no-plot", "--output", tmp_path / "out"]
    assert run("evaluate", *words, *models) == 0
    table = json.loads((tmp_path / "out" / "results.json").read_text())["by_model"]
    lengths = {model: list(values["perplexity"]) for model, values in table.items()}
    assert lengths["seqpe"] == ["32", "64", "128", "256", "512"]  # three digits end before 1,024
    assert lengths["llama + seqpe"] == lengths["llama"] == lengths["seqpe"]
    assert lengths["opt"] == ["32"]  # it has learned no more positions


def test_classifiers_of_transformers_are_measured(tmp_path: Path) -> None:
    models = [save_classifier(tmp_path / "ours", True), save_classifier(tmp_path / "plain", False)]
    words = ["--resolutions", 32, 48, "--max-images", 4, "--no-plot", "--output", tmp_path / "out"]
    assert run("evaluate", *words, *models) == 0
    table = json.loads((tmp_path / "out" / "results.json").read_text())["by_model"]
    assert set(table) == {"seqpe", str(models[1])}
    assert set(table["seqpe"]["accuracy"]) == {"32", "48"}


def test_weights_files_are_measured(tmp_path: Path) -> None:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 1, "num_heads": 1, "num_classes": 10}
    save_file(timm.create_model("vit_small_patch16_224", **sizes).state_dict(), tmp_path / "vit.safetensors")
    words = ["--resolutions", 32, "--max-images", 4, "--no-plot", "--output", tmp_path / "out"]
    assert run("evaluate", f"vit={tmp_path / 'vit.safetensors'}", *words) == 0

    config = transformers.GPT2Config(vocab_size=256, n_positions=16, n_embd=64, n_layer=1, n_head=1)
    save_file(transformers.GPT2Model(config).state_dict(), tmp_path / "gpt2.safetensors")
    words = ["--max-tokens", 100, "--no-plot", "--output", tmp_path / "out"]
    assert run("evaluate", tmp_path / "gpt2.safetensors", *words) == 0


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_models_with_our_positions_are_diagnosed(family: str, tmp_path: Path) -> None:
    folder = save_decoder(tmp_path / "model", family, True)
    assert run("diagnose", folder, "--positions", 200, "--no-plot", "--output", tmp_path / "out") == 0
    content = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert content["scores"]["training_context"] == 32


def test_vision_model_with_our_positions_is_diagnosed(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "model", True)
    assert run("diagnose", folder, "--no-plot", "--output", tmp_path / "out") == 0
    content = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert content["scores"]["positions"] == 64


def test_plain_llama_has_no_vectors_to_diagnose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diagnose", save_decoder(tmp_path / "model", "Llama", False)) == 2
    assert "no position encoding of seqpe_zoo" in capsys.readouterr().err


def test_heads_that_do_more_than_multiply_are_told_apart(tmp_path: Path) -> None:
    plain = load_language_model(str(save_decoder(tmp_path / "llama", "Llama", False))).model
    scaled = load_language_model(str(save_decoder(tmp_path / "cohere", "Cohere", False))).model
    assert has_plain_head(plain)
    assert not has_plain_head(scaled)
    stream = torch.arange(100) % 256
    nll = torch.nn.functional.cross_entropy(scaled(stream[None, :-1]).logits[0], stream[1:])
    assert evaluate_perplexity(scaled, stream, [99])[0].mean_nll == pytest.approx(float(nll), rel=1e-4)


def test_bert_is_no_language_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
    assert run("evaluate", tmp_path) == 2
    assert "is a BertForMaskedLM" in capsys.readouterr().err
