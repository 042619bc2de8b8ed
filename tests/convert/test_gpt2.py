"""GPT-2 becomes ours, number for number."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import seqpe_zoo  # noqa: F401 (registers the models)
from seqpe_zoo.convert.gpt2 import build_from_gpt2, convert_gpt2
from seqpe_zoo.convert.zoo_checkpoint import ConversionError, write_checkpoint
from seqpe_zoo.data.byte_tokenizer import build_byte_tokenizer
from seqpe_zoo.data.errors import DataError


def small_gpt2(**changes) -> GPT2LMHeadModel:
    sizes = {"vocab_size": 256, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **tokens, **changes)).eval()


def test_logits_are_identical(tmp_path: Path) -> None:
    theirs = small_gpt2()
    theirs.save_pretrained(tmp_path / "gpt2")
    build_byte_tokenizer().save_pretrained(tmp_path / "gpt2")
    converted = convert_gpt2(str(tmp_path / "gpt2"))
    write_checkpoint(converted, tmp_path / "zoo")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "zoo").eval()
    tokens = torch.randint(256, (2, 32))
    with torch.no_grad():
        assert torch.equal(ours(tokens).logits, theirs(tokens).logits)
    assert (tmp_path / "zoo" / "tokenizer.json").is_file()
    assert ours.config.position_encoding == "ape_learn"


def test_source_without_tokenizer_is_converted_and_says_so(tmp_path: Path) -> None:
    small_gpt2().save_pretrained(tmp_path / "gpt2")
    assert "none found" in convert_gpt2(str(tmp_path / "gpt2")).record["tokenizer"]


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="differ in scaling"):
        build_from_gpt2(small_gpt2(scale_attn_by_inverse_layer_idx=True))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConversionError, match="is a bert, not a GPT-2"):
        convert_gpt2(str(tmp_path))
    with pytest.raises(DataError, match="does not exist"):
        convert_gpt2(str(tmp_path / "nowhere"))
