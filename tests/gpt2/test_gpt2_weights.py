"""Nothing but the position encoding differs from transformers' GPT-2."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from seqpe_zoo.portable.configuration_seqpe import SeqPEGPT2Config
from seqpe_zoo.portable.modeling_seqpe import SeqPEGPT2LMHeadModel
from tests.gpt2.cases import enlarge_weights, random_tokens, tiny_config

SIZES = {"vocab_size": 128, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


@pytest.fixture
def gpt2(tmp_path):
    model = GPT2LMHeadModel(GPT2Config(**SIZES, **TOKENS)).eval()
    enlarge_weights(model)
    model.save_pretrained(tmp_path)
    return model


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@torch.no_grad()
def test_gpt2_weights_load_by_name_and_give_identical_logits(gpt2, tmp_path, attention: str) -> None:
    ours, report = SeqPEGPT2LMHeadModel.from_pretrained(
        tmp_path,
        config=tiny_config("ape_learn"),
        attn_implementation=attention,
        output_loading_info=True,
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    gpt2.set_attn_implementation(attention)
    tokens = random_tokens(3, 40)
    assert torch.equal(ours(tokens).logits, gpt2(tokens).logits)
    assert torch.equal(ours(tokens, labels=tokens).loss, gpt2(tokens, labels=tokens).loss)
    settings = {"max_new_tokens": 8, "do_sample": False}
    assert torch.equal(ours.generate(tokens, **settings), gpt2.generate(tokens, **settings))


def test_training_step_equals_that_of_gpt2(gpt2, tmp_path) -> None:
    ours = SeqPEGPT2LMHeadModel.from_pretrained(tmp_path, config=tiny_config("ape_learn"))
    tokens = random_tokens(3, 40)
    for model in (ours.train(), gpt2.train()):
        torch.manual_seed(1)
        model(tokens, labels=tokens).loss.backward()
    gradients = dict(gpt2.named_parameters())
    for name, parameter in ours.named_parameters():
        native = name.replace("position_encoding", "wpe")
        torch.testing.assert_close(parameter.grad, gradients[native].grad)


def test_configuration_of_gpt2_is_understood(gpt2, tmp_path) -> None:
    config = SeqPEGPT2Config.from_pretrained(tmp_path, position_encoding="ape_learn")
    assert (config.n_embd, config.n_head, config.vocab_size) == (32, 4, 128)
    assert config.model_type == "seqpe_gpt2"


def test_paper_preset_has_the_sizes_of_the_release() -> None:
    """GPT-2 with a shared W_PE has 124,834,560 parameters, its encoder 14,780,160 (reference, section 2)."""
    with torch.device("meta"):
        model = SeqPEGPT2LMHeadModel(SeqPEGPT2Config.paper())
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    encoder = sum(
        size for name, size in sizes.items() if name.startswith("transformer.position_encoding.encoder.")
    )
    assert encoder == 14_780_160
    assert sum(sizes.values()) - encoder == 124_834_560


@pytest.mark.parametrize("preset", [SeqPEGPT2Config.paper, SeqPEGPT2Config.tiny])
@pytest.mark.parametrize("name", ["nope", "ape_learn", "rope", "seqpe"])
def test_presets_take_any_encoding_and_changes(preset, name: str) -> None:
    config = preset(position_encoding=name, n_layer=1, vocab_size=50)
    assert (config.position_encoding, config.n_layer, config.vocab_size) == (name, 1, 50)
