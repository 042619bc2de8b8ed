"""RULER-style multi-document question answering from SQuAD-format JSON, with the prompt of the paper.

Each question gets its own paragraph among others (of the same article first, then of any), in random order,
as many as fit into the wanted number of tokens. Rows have the fields of the release's jsonl files: index,
input, outputs.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from .errors import DataError
from .names import read_json

INSTRUCTION = (
    "Answer the question based on the given documents. "
    "Only give me the answer and do not output any other words."
)
PROMPT = (
    f"{INSTRUCTION}\n\nThe following are given documents.\n\n{{documents}}\n\n"
    f"{INSTRUCTION}\n\nQuestion: {{question}} Answer:"
)
DOCUMENT = "Document {number}:\n{text}"
GENERATED_TOKENS = 16
"""Room left for the answer, and what evaluation generates."""
IGNORED = -100
_FEW_PARAGRAPHS = 1000


@dataclass(frozen=True)
class Question:
    """A question, its accepted answers, its paragraph and the other paragraphs of the same article."""

    text: str
    answers: tuple[str, ...]
    paragraph: int
    same_article: tuple[int, ...]


@dataclass(frozen=True)
class QuestionSet:
    """All questions of a file and all its different paragraphs."""

    questions: tuple[Question, ...]
    paragraphs: tuple[str, ...]


@dataclass(frozen=True)
class DocumentQuestion:
    """One row: the whole prompt, ending with "Answer:", and the accepted answers."""

    index: int
    input: str
    outputs: tuple[str, ...]
    length: int


def load_questions(path: Path) -> QuestionSet:
    """Reads a SQuAD 1.1 or 2.0 file; questions without an answer are left out, as in RULER.

    Raises:
        DataError: there is no such file, it is no JSON, of another structure, or without questions.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a SQuAD-format JSON file, as train-v1.1.json")
    content = read_json(path)
    try:
        articles = [[(p["context"], p["qas"]) for p in article["paragraphs"]] for article in content["data"]]
        paragraphs = sorted({context for article in articles for context, _ in article})
        number = {context: place for place, context in enumerate(paragraphs)}
        questions = []
        for article in articles:
            here = sorted({number[context] for context, _ in article})
            for context, entries in article:
                others = tuple(place for place in here if place != number[context])
                for entry in entries:
                    answers = tuple(dict.fromkeys(answer["text"].strip() for answer in entry["answers"]))
                    if answers and not entry.get("is_impossible", False):
                        questions.append(
                            Question(entry["question"].strip(), answers, number[context], others)
                        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not of SQuAD's structure, data[].paragraphs[].(context, qas[].(question, "
            "answers[].text)): "
            f"missing or wrong {error}"
        ) from error
    if not questions:
        raise DataError(f"{path} has no question with an answer")
    return QuestionSet(tuple(questions), tuple(paragraphs))


def build_document_questions(
    questions: QuestionSet, tokenizer: Any, length: int, count: int | None = None, seed: int = 42
) -> list[DocumentQuestion]:
    """Makes prompts of at most `length - 16` tokens.

    Args:
        questions: from `load_questions`.
        tokenizer: counts tokens.
        length: tokens of prompt and answer together.
        count: how many questions, drawn at random; by default all.
        seed: of the draw and of the documents; a question's documents do not depend on `count`.

    Raises:
        DataError: no question fits.
    """
    sizes = [
        len(ids)
        for ids in tokenizer(list(questions.paragraphs), add_special_tokens=False, verbose=False)["input_ids"]
    ]
    order = list(range(len(questions.questions)))
    random.Random(seed).shuffle(order)
    rows: list[DocumentQuestion] = []
    for place in order:
        if count is not None and len(rows) == count:
            break
        row = _build_row(
            questions,
            place,
            tokenizer,
            sizes,
            length - GENERATED_TOKENS,
            random.Random(seed * 1_000_003 + place),
        )
        if row is not None:
            rows.append(row)
    if not rows:
        raise DataError(f"no question fits into {length} tokens with its own paragraph; use a larger length")
    return rows


def _build_row(
    questions: QuestionSet, place: int, tokenizer: Any, sizes: Sequence[int], limit: int, draw: random.Random
) -> DocumentQuestion | None:
    question = questions.questions[place]
    same = list(question.same_article)
    draw.shuffle(same)
    others = _others(len(questions.paragraphs), {question.paragraph, *same}, limit, draw)
    overhead = 8  # tokens of "Document 12:" and the blank lines, estimated; the exact count is checked below
    used = sizes[question.paragraph] + overhead + 64 + len(question.text) // 3
    chosen = [question.paragraph]
    for number in same + others:
        if used + sizes[number] + overhead <= limit:
            chosen.append(number)
            used += sizes[number] + overhead
        elif limit - used < 40:
            break
    while True:
        shuffled = list(chosen)
        random.Random(draw.random()).shuffle(shuffled)
        texts = [DOCUMENT.format(number=n + 1, text=questions.paragraphs[p]) for n, p in enumerate(shuffled)]
        prompt = PROMPT.format(documents="\n\n".join(texts), question=question.text)
        length = len(tokenizer(prompt, add_special_tokens=False, verbose=False)["input_ids"])
        if length <= limit:
            return DocumentQuestion(place, prompt, question.answers, length)
        if len(chosen) == 1:
            return None
        chosen.pop()


def _others(count: int, taken: set[int], limit: int, draw: random.Random) -> list[int]:
    """Returns paragraphs of other articles in random order, of a large set as many as can fill the prompt.

    To shuffle all 18,896 paragraphs of SQuAD for each of its questions would take a quarter of an hour.
    """
    if count > _FEW_PARAGRAPHS:
        some = draw.sample(range(count), min(count, limit // 8 + len(taken)))
        return [number for number in some if number not in taken]
    others = [number for number in range(count) if number not in taken]
    draw.shuffle(others)
    return others


def read_rows(path: Path) -> list[DocumentQuestion]:
    """Reads rows of RULER and the release: JSON lines with index, input, outputs.

    Raises:
        DataError: there is no such file, a line is no JSON or lacks a field, or there is no line.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist; make it from SQuAD JSON first (data.source in the recipe)")
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            outputs = tuple(str(answer) for answer in row["outputs"])
            rows.append(
                DocumentQuestion(int(row["index"]), str(row["input"]), outputs, int(row.get("length", 0)))
            )
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}, line {number}: expected index, input and outputs ({error})") from error
    if not rows:
        raise DataError(f"{path} has no rows")
    return rows


def encode_row(row: DocumentQuestion, tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Tokenizes prompt and first answer apart, as the release, and adds the end of text to the answer."""
    prompt = tokenizer(row.input.strip(), add_special_tokens=False, verbose=False)["input_ids"]
    answer = tokenizer(" " + row.outputs[0].strip(), add_special_tokens=False, verbose=False)["input_ids"]
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return torch.tensor(prompt), torch.tensor(answer + end)


class AnswerSpans(Dataset[dict[str, Tensor]]):
    """Rows for training: targets are the tokens of the answer and the end of text.

    Args:
        rows: questions.
        tokenizer: of the model.
        longest: rows with more tokens are left out.
    """

    def __init__(self, rows: Sequence[DocumentQuestion], tokenizer: Any, longest: int) -> None:
        self.items = []
        for row in rows:
            prompt, answer = encode_row(row, tokenizer)
            if len(prompt) + len(answer) <= longest:
                ids = torch.cat([prompt, answer])
                labels = ids.clone()
                labels[: len(prompt)] = IGNORED
                self.items.append({"input_ids": ids, "labels": labels})
        self.left_out = len(rows) - len(self.items)
        if not self.items:
            raise DataError(f"all {len(rows)} questions are longer than {longest} tokens")

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.items[index]


def pad_answer_spans(items: Sequence[dict[str, Tensor]], pad: int = 0) -> dict[str, Tensor]:
    """Joins items by padding on the right, where causal attention never looks.

    The release pads on the left without moving positions, so that in training answers sit at other positions
    than in evaluation; on the right every token keeps the position that it has alone.
    """
    longest = max(len(item["input_ids"]) for item in items)
    batch: dict[str, list[Tensor]] = {"input_ids": [], "labels": [], "attention_mask": []}
    for item in items:
        missing = longest - len(item["input_ids"])
        batch["input_ids"].append(torch.nn.functional.pad(item["input_ids"], (0, missing), value=pad))
        batch["labels"].append(torch.nn.functional.pad(item["labels"], (0, missing), value=IGNORED))
        mask = torch.ones_like(item["input_ids"])
        batch["attention_mask"].append(torch.nn.functional.pad(mask, (0, missing)))
    return {name: torch.stack(parts) for name, parts in batch.items()}
