"""The texts that the page measures language models on; all of them are there without a download."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from torch import Tensor

from ..data.byte_tokenizer import VOCABULARY
from ..data.errors import DataError
from ..data.text_blocks import tokenize_stream
from ..data.text_sources import EMBEDDED, open_token_stream
from ..evaluation.model_loading import LanguageModel

STDLIB = "Source of Python's standard library, held-out files"
PERSUASION = "Jane Austen, Persuasion, chapters 1 to 3"
OWN = "My own text"
TEXTS = (STDLIB, PERSUASION, OWN)

PREDICTED = 4096
"""Tokens that are predicted at every length, so that lengths can be compared; more for longer contexts."""


@lru_cache(maxsize=1)
def read_persuasion() -> str:
    """Returns the bundled passage, of the novel that the zoo's models were tested and not trained on."""
    return (Path(__file__).parent / "persuasion.txt").read_text(encoding="utf-8")


def default_text(model: LanguageModel) -> str:
    """Returns the text that fits a model: Python source for models of bytes, prose for others."""
    return STDLIB if model.model.get_input_embeddings().num_embeddings == VOCABULARY else PERSUASION


def read_text(model: LanguageModel, text: str, own: str, longest: int) -> Tensor:
    """Returns a text as the model's tokens (N,): its beginning, enough for contexts of `longest` tokens.

    Args:
        model: its tokenizer cuts the text.
        text: one of `TEXTS`.
        own: the user's text, used for `OWN`.
        longest: tokens of the longest context that will be measured.

    Raises:
        DataError: the text is unknown or empty, or the model has no tokenizer for it.
    """
    most = max(PREDICTED, longest) + 1  # the last token is predicted only
    if text == STDLIB:
        return open_token_stream(EMBEDDED, "test", model.tokenizer, most)
    if text not in TEXTS:
        raise DataError(f"there is no text {text!r}; choose one of: {'; '.join(TEXTS)}")
    if text == OWN and not own.strip():
        raise DataError("your own text is empty: paste some into the box, then measure")
    if model.tokenizer is None:
        raise DataError(f"{Path(model.name).name} has no tokenizer for this text; choose {STDLIB!r}")
    chosen = own if text == OWN else read_persuasion()
    # Tokens are seldom longer than 16 characters: a whole novel need not be cut.
    return tokenize_stream(chosen[: 16 * most].splitlines(keepends=True), model.tokenizer)[:most]


def check_text(stream: Tensor, length: int) -> None:
    """Refuses a text that does not fill one context.

    Raises:
        DataError: as said.
    """
    if stream.numel() <= length:
        raise DataError(
            f"the text has {stream.numel():,} tokens, and a context of {length:,} needs at least "
            f"{length + 1:,}: choose a shorter context or a longer text"
        )
