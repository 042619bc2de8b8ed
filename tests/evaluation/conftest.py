"""Small models that several tests measure."""

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from seqpe_zoo.data.byte_tokenizer import build_byte_tokenizer
from seqpe_zoo.portable.configuration_seqpe import SeqPEGPT2Config
from seqpe_zoo.portable.modeling_seqpe import SeqPEGPT2LMHeadModel


@pytest.fixture(scope="session")
def our_language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny byte-level model of ours."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("seqpe_lm")
    SeqPEGPT2LMHeadModel(SeqPEGPT2Config.tiny(vocab_size=256)).save_pretrained(folder)
    build_byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def stock_language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny GPT-2 of transformers, 64 positions."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("gpt2")
    config = GPT2Config(
        vocab_size=256, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    build_byte_tokenizer().save_pretrained(folder)
    return folder
