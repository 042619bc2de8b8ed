"""Training, other heads, adapters, compilation and export of models with another position encoding."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model

from seqpe_zoo.training.run_config import load_run
from seqpe_zoo.training.text_jobs import build_language_model, change_positions
from tests.hosts.cases import hosts, native_model, outputs_of, random_tokens, tiny_model

RECIPES = Path(__file__).parents[2] / "train_scripts" / "recipes"

WAYS = ["seqpe_bias", "seqpe_mul", "alibi", "rope"]
every_way = pytest.mark.parametrize("encoding", WAYS)
DECODERS, TEXT_ENCODERS = hosts("decoder"), hosts("text encoder")


@pytest.mark.parametrize("host", DECODERS)
def test_loss_has_the_objectives_in_training_alone(host: str) -> None:
    model, tokens = tiny_model(host, "seqpe_bias"), random_tokens(2, 16)
    assert "position_distance_loss" not in model(tokens, labels=tokens)
    outputs = model.train()(tokens, labels=tokens)
    options = model.position_host.position_encoding.options
    weighted = options.distance_weight * outputs.position_distance_loss
    weighted = weighted + options.ood_weight * outputs.position_ood_loss
    shifted = torch.nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    auxiliary = outputs.get("aux_loss")  # of models with experts
    assert weighted > 0
    assert outputs.loss > shifted
    if auxiliary is None:
        torch.testing.assert_close(outputs.loss, shifted + weighted, atol=1e-4, rtol=1e-4)


@every_way
@pytest.mark.parametrize("host", DECODERS)
def test_gradient_checkpointing_gives_the_same_gradients(host: str, encoding: str) -> None:
    tokens, found = random_tokens(2, 16), []
    for checkpoints in (False, True):
        model = tiny_model(host, encoding).train()
        if checkpoints:
            model.gradient_checkpointing_enable()
        torch.manual_seed(1)
        model(tokens, labels=tokens).loss.backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, atol=1e-5, rtol=1e-3, msg=name)


@pytest.mark.parametrize(
    ("host", "head"),
    [
        ("bert", "SequenceClassification"),
        ("bert", "TokenClassification"),
        ("bert", "MaskedLM"),
        ("bert", "QuestionAnswering"),
        ("llama", "SequenceClassification"),
        ("llama", "TokenClassification"),
        ("llama", "QuestionAnswering"),
        ("gpt2", "SequenceClassification"),
        ("gpt2", "TokenClassification"),
        ("gpt2", "QuestionAnswering"),
        ("qwen3", "SequenceClassification"),
        *(
            pytest.param(host, head, marks=pytest.mark.slow)
            for host in ("roberta", "modernbert", "electra", "distilbert")
            for head in ("SequenceClassification", "TokenClassification", "MaskedLM", "QuestionAnswering")
        ),
    ],
)
def test_other_heads_train_and_are_saved(host: str, head: str, tmp_path: Path) -> None:
    auto_class: Any = getattr(transformers, f"AutoModelFor{head}")
    model, tokens = tiny_model(host, "seqpe_bias", auto_class).train(), random_tokens(2, 12)
    labels: dict[str, torch.Tensor] = {
        "SequenceClassification": {"labels": torch.tensor([0, 1])},
        "TokenClassification": {"labels": tokens % 2},
        "MaskedLM": {"labels": tokens},
        "QuestionAnswering": {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 4])},
    }[head]
    outputs = model(tokens, **labels)
    assert outputs.position_distance_loss > 0
    outputs.loss.backward()
    model.eval().save_pretrained(tmp_path)
    loaded = auto_class.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens)[0], model(tokens)[0], atol=0, rtol=0)


@pytest.mark.parametrize("host", ["llama", "gpt2"])
def test_lora_trains_and_saves_the_position_encoder(host: str, tmp_path: Path) -> None:
    layers = {"llama": ["q_proj", "v_proj"], "gpt2": ["c_attn"]}[host]
    tokens = random_tokens(2, 12)
    adapted = get_peft_model(
        tiny_model(host, "seqpe_bias"),
        LoraConfig(target_modules=layers, modules_to_save=["position_encoding"], r=2),
    ).train()
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=0.5)
    adapted(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    trained = outputs_of(adapted.eval(), input_ids=tokens)
    plain = tiny_model(host, "seqpe_bias")
    assert (trained - outputs_of(plain, tokens)).abs().max() > 1e-4
    adapted.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(plain, tmp_path).eval()
    torch.testing.assert_close(outputs_of(again, input_ids=tokens), trained, atol=1e-6, rtol=1e-5)
    merged = again.merge_and_unload()
    torch.testing.assert_close(outputs_of(merged, tokens), trained, atol=1e-5, rtol=1e-4)


def test_reentrant_checkpointing_is_refused() -> None:
    with pytest.raises(ValueError, match="use_reentrant"):
        tiny_model("llama", "seqpe_bias").gradient_checkpointing_enable({"use_reentrant": True})


def test_config_that_asks_for_gradient_checkpointing() -> None:
    model = tiny_model("llama", "seqpe_bias", gradient_checkpointing=True)
    assert model.is_gradient_checkpointing


@every_way
def test_compiled_model_equals_eager(encoding: str) -> None:
    torch._dynamo.reset()
    model, tokens = tiny_model("llama", encoding), random_tokens(2, 12)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(outputs_of(compiled, tokens), outputs_of(model, tokens), atol=2e-5, rtol=1e-5)


@every_way
def test_exported_model_equals_eager(encoding: str) -> None:
    model, tokens = tiny_model("llama", encoding), random_tokens(2, 12)
    exported = torch.export.export(model, (), {"input_ids": tokens, "use_cache": False}, strict=False)
    logits = exported.module()(input_ids=tokens, use_cache=False).logits
    torch.testing.assert_close(logits, outputs_of(model, tokens), atol=2e-5, rtol=1e-5)


@pytest.mark.slow
@every_way
def test_compiled_training_step(encoding: str) -> None:
    torch._dynamo.reset()
    model, tokens = tiny_model("qwen3", encoding).train(), random_tokens(2, 12)
    torch.compile(model, backend="aot_eager")(tokens, labels=tokens).loss.backward()
    for parameter in model.position_host.position_encoding.parameters():
        assert parameter.grad is not None


def test_recipe_of_a_larger_llama_has_the_size_of_smollm2() -> None:
    run = load_run(RECIPES / "llama_smol_wikitext.yaml")
    counts = {}
    for encoding, keeps in (("native", False), ("seqpe", True)):
        section = replace(run.model, position_encoding=encoding, keep_native=keeps)
        section = section if keeps else replace(section, position_encoding_args={})
        with torch.device("meta"):
            model = build_language_model(section, run.data.length, vocabulary=49152)
        counts[encoding] = sum(parameter.numel() for parameter in model.parameters())
    assert counts["native"] == 134_515_008  # HuggingFaceTB/SmolLM2-135M
    encoder = sum(parameter.numel() for parameter in model.position_host.position_encoding.parameters())
    assert counts["seqpe"] == counts["native"] + encoder


def test_recipe_that_extends_a_published_model() -> None:
    section = load_run(RECIPES / "llama_extend_published.yaml").model
    model, tokens = native_model("llama"), random_tokens(1, 12)
    expected = outputs_of(model, tokens)
    change_positions(model, section, 64)
    torch.testing.assert_close(outputs_of(model, tokens), expected, atol=1e-5, rtol=1e-5)
