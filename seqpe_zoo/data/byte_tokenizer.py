"""A tokenizer of 256 tokens, one for each byte: the identity, in the form that `AutoTokenizer` can load.

It needs no download and no training, so models of the embedded text can be saved with it and loaded anywhere.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerFast

VOCABULARY = 256


def byte_characters() -> list[str]:
    """Returns the printable character that byte-level tokenizers (GPT-2's and later) write for each byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(hidden)) for byte in range(VOCABULARY)]


def build_byte_tokenizer(model_max_length: int | None = None) -> PreTrainedTokenizerFast:
    """Builds the tokenizer; the number of a token is the value of its byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    options = {} if model_max_length is None else {"model_max_length": model_max_length}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids"],
        **options,
    )


def is_byte_tokenizer(tokenizer: Any) -> bool:
    """Tells whether the tokens of a tokenizer are the bytes themselves."""
    if len(tokenizer) != VOCABULARY:
        return False
    return tokenizer.convert_tokens_to_ids(byte_characters()) == list(range(VOCABULARY))
