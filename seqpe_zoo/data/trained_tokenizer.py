"""A small byte-level BPE tokenizer trained on the text at hand, for runs too small for GPT-2's vocabulary."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

END_OF_TEXT = "<|endoftext|>"


def train_tokenizer(lines: Iterable[str], vocabulary: int) -> Any:
    """Trains a tokenizer of GPT-2's kind, `vocabulary` tokens with the end of text among them."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        lines, vocab_size=vocabulary, special_tokens=[END_OF_TEXT], show_progress=False
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT
    )
