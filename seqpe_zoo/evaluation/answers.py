"""Question answering over long contexts (paper, Table 2): perplexity of the answer, and generated answers.

Two matches are reported under their own names: the strict exact match, and the release's "EM", which accepts
any generation that contains the answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..data.errors import DataError
from ..data.squad_documents import GENERATED_TOKENS, DocumentQuestion, encode_row
from .model_loading import LanguageModel
from .perplexity import check_lengths, has_plain_head, token_losses


@dataclass(frozen=True)
class Answers:
    """Result of a set of questions; matches in percent."""

    length: int
    perplexity: float
    exact_match: float
    containment_match: float
    questions: int


def is_exact_match(generated: str, answers: Sequence[str]) -> bool:
    """Tells whether the generation is one of the answers, case and outer blanks aside."""
    return generated.strip().lower() in {answer.strip().lower() for answer in answers}


def is_containment_match(generated: str, answers: Sequence[str]) -> bool:
    """Tells whether the generation contains one of the answers: what the release calls exact match."""
    text = generated.strip().lower()
    return any(answer.strip().lower() in text for answer in answers)


@torch.inference_mode()
def evaluate_answers(
    language_model: LanguageModel, rows: Sequence[DocumentQuestion], length: int, generate: bool = True
) -> Answers:
    """Measures a model on questions, one at a time, so that nothing is padded.

    Args:
        language_model: with a tokenizer.
        rows: from `build_document_questions` or `read_rows`.
        length: what the set is called; prompts are at most so long.
        generate: whether to generate; otherwise matches are NaN.

    Raises:
        DataError: the model has no tokenizer, or the prompts are beyond its positions.
    """
    model, tokenizer = language_model.model, language_model.tokenizer
    if tokenizer is None:
        raise DataError(f"{language_model.name} has no tokenizer; questions cannot be read")
    check_lengths(model, [length])
    device, is_plain = next(model.parameters()).device, has_plain_head(model)
    total = targets = exact = contained = 0.0
    for row in rows:
        prompt, answer = (part.to(device) for part in encode_row(row, tokenizer))
        ids = torch.cat([prompt, answer])
        losses = token_losses(model, ids[None, :-1], ids[None, 1:], is_plain)[0, len(prompt) - 1 :]
        total += float(losses.double().sum())
        targets += len(answer)
        if generate:
            text = greedy_answer(language_model, prompt)
            exact += is_exact_match(text, row.outputs)
            contained += is_containment_match(text, row.outputs)
    count = len(rows)
    shares = [100 * hits / count if generate else math.nan for hits in (exact, contained)]
    return Answers(length, math.exp(min(total / targets, 700.0)), shares[0], shares[1], count)


def greedy_answer(language_model: LanguageModel, prompt: torch.Tensor) -> str:
    """Generates 16 tokens greedily, with the cache, up to the end of text."""
    tokenizer = language_model.tokenizer
    output = language_model.model.generate(
        prompt[None],
        attention_mask=torch.ones_like(prompt[None]),
        max_new_tokens=GENERATED_TOKENS,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
    )
    return str(tokenizer.decode(output[0, len(prompt) :], skip_special_tokens=True))
