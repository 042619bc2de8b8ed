"""What cannot have another position encoding is refused at once, by name and with the reason."""

from pathlib import Path

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import seqpe_zoo
from seqpe_zoo.hosts import TESTED_HOSTS, UNSUPPORTED
from tests.hosts.cases import (
    ENCODINGS,
    SIZES,
    native_model,
    outputs_of,
    random_tokens,
    tiny_config,
    tiny_model,
)


@pytest.mark.parametrize("host", [name for names in UNSUPPORTED.values() for name in names.split()])
def test_unsupported_models_are_refused_by_name(host: str) -> None:
    why = next(why for why, names in UNSUPPORTED.items() if host in names.split())
    with pytest.raises(ValueError, match=f"'{host}' cannot have another position encoding") as raised:
        seqpe_zoo.with_position_encoding(CONFIG_MAPPING[host]())
    assert why in str(raised.value)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (transformers.Gemma2Config(), "attn_logit_softcapping"),
        (transformers.DeepseekV3Config(), "kv_lora_rank"),
        (transformers.T5Config(), "cross-attention"),
        (transformers.BartConfig(), "cross-attention"),
        (transformers.GPT2Config(add_cross_attention=True), "cross-attention"),
        (transformers.BertConfig(is_decoder=True, add_cross_attention=True), "cross-attention"),
        (transformers.Gemma3nTextConfig(), "num_kv_shared_layers"),
        (transformers.LlavaConfig(), "made of several"),
        (transformers.CLIPConfig(), "made of several"),
    ],
)
def test_parts_that_cannot_work_are_refused(config: transformers.PreTrainedConfig, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        seqpe_zoo.with_position_encoding(config)


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (
            lambda: transformers.CTRLModel(transformers.CTRLConfig(n_embd=32, n_head=4, n_layer=1, dff=32)),
            "pos_encoding",
        ),
        (
            lambda: transformers.LayoutLMModel(
                transformers.LayoutLMConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=1)
            ),
            "x_position_embeddings",
        ),
        (
            lambda: transformers.VideoMAEModel(
                transformers.VideoMAEConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=1)
            ),
            "position_embeddings",
        ),
        (
            lambda: transformers.MambaModel(transformers.MambaConfig(hidden_size=32, num_hidden_layers=1)),
            "no attention",
        ),
    ],
)
def test_positions_that_would_survive_are_refused(model: object, what: str) -> None:
    built = model()  # type: ignore[operator]
    kind, config = type(built), built.config
    with pytest.raises(ValueError, match=what):
        seqpe_zoo.set_position_encoding(built, "rope")
    assert type(built) is kind
    assert built.config is config


def test_a_refused_model_is_as_it_was() -> None:
    model, tokens = native_model("bert"), random_tokens(1, 8)
    before = outputs_of(model, tokens)
    with pytest.raises(ValueError, match="needs causal attention"):
        seqpe_zoo.set_position_encoding(model, "alibi")
    torch.testing.assert_close(outputs_of(model, tokens), before, atol=0, rtol=0)


def test_gpt2_cannot_keep_its_table() -> None:
    with pytest.raises(ValueError, match="keep_native"):
        seqpe_zoo.with_position_encoding(tiny_config("gpt2"), keep_native=True)


def test_wrapped_models_say_what_to_do_first() -> None:
    adapted = get_peft_model(native_model("llama"), LoraConfig(target_modules=["q_proj"], r=2))
    with pytest.raises(TypeError, match="merge_and_unload"):
        seqpe_zoo.set_position_encoding(adapted)
    with pytest.raises(TypeError, match=r"before torch\.compile"):
        seqpe_zoo.set_position_encoding(torch.compile(native_model("llama")))
    with pytest.raises(ValueError, match="before adding it"):
        seqpe_zoo.set_position_encoding(adapted.base_model.model)
    with pytest.raises(TypeError, match="before DataParallel"):
        seqpe_zoo.set_position_encoding(torch.nn.DataParallel(native_model("llama")))
    compiled = native_model("llama")
    compiled.compile(backend="eager")
    with pytest.raises(ValueError, match=r"before torch\.compile"):
        seqpe_zoo.set_position_encoding(compiled)
    partly = native_model("llama")
    partly.model.layers[0] = torch.compile(partly.model.layers[0], backend="eager")
    with pytest.raises(ValueError, match=r"before torch\.compile"):
        seqpe_zoo.set_position_encoding(partly)
    offloaded = native_model("llama")
    offloaded.forward = offloaded.forward
    with pytest.raises(ValueError, match="device_map"):
        seqpe_zoo.set_position_encoding(offloaded)
    with pytest.raises(ValueError, match="has another position encoding already"):
        seqpe_zoo.set_position_encoding(tiny_model("llama", "rope"))
    with pytest.raises(ValueError, match="has position encoding 'rope' already"):
        seqpe_zoo.with_position_encoding(tiny_model("llama", "rope").config)
    with pytest.raises(TypeError, match="no model of transformers or timm"):
        seqpe_zoo.set_position_encoding(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MyLlama"])
def test_classes_of_others_are_refused(name: str) -> None:
    model = type(name, (transformers.LlamaForCausalLM,), {"__module__": "mine"})(tiny_config("llama"))
    with pytest.raises(ValueError, match="a class of its own"):
        seqpe_zoo.set_position_encoding(model)
    assert type(model.config) is transformers.LlamaConfig
    with pytest.raises(ValueError, match="a class of its own"):
        seqpe_zoo.with_position_encoding(type(name, (transformers.LlamaConfig,), {"__module__": "mine"})())


def test_wrong_options_are_refused() -> None:
    with pytest.raises(TypeError, match=r"did you mean integration"):
        seqpe_zoo.with_position_encoding(tiny_config("llama"), "seqpe", integraton="bias")
    with pytest.raises(TypeError, match="must be a configuration of transformers"):
        seqpe_zoo.with_position_encoding({"hidden_size": 32})
    with pytest.raises(ValueError, match="rope2d_mixed"):
        seqpe_zoo.set_position_encoding(native_model("llama"), "rope2d_mixed")


def test_a_layer_called_by_itself_says_to_call_the_model() -> None:
    model = tiny_model("bert", "rope")
    with pytest.raises(RuntimeError, match="call the whole model"):
        model.encoder.layer[0](torch.randn(1, 4, SIZES["hidden_size"]))


def test_listed_hosts_are_those_of_the_tests() -> None:
    listed = seqpe_zoo.list_hosts()
    assert [one.model_type for one in listed] == [
        name for names in TESTED_HOSTS.values() for name in names.split()
    ]
    known = {given["name"] for given in ENCODINGS.values()}
    assert known <= {name for one in listed for name in one.encodings}


def test_page_shows_what_is_listed_and_refused() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "transformers-models.md").read_text().splitlines()
    for one in seqpe_zoo.list_hosts():
        assert f"| {one.model_type} | {one.kind} | {' '.join(one.encodings)} |" in page
    for why, names in UNSUPPORTED.items():
        assert f"| {why} | {', '.join(names.split())} |" in page
