"""Measures models on data by name: what `evaluate`, `compare` and the demo have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..data.errors import DataError
from ..data.image_sources import open_small_images
from ..data.images import class_names, open_image_split
from ..data.squad_documents import DocumentQuestion, build_document_questions, load_questions, read_rows
from ..data.text_sources import WIKITEXT, describe_text, open_token_stream
from .accuracy import evaluate_accuracy
from .answers import evaluate_answers
from .defaults import number_of_classes
from .model_loading import ImageModel, LanguageModel
from .perplexity import evaluate_perplexity
from .report import Measurement

GPT2_VOCABULARY = 50257
IMAGENET_NAMES = ("/ILSVRC/imagenet-1k", "/timm/imagenet-1k-wds")
IMAGENET_IMAGES = 50_000
RELEASED_QUESTIONS = "squad_qa"
"""Folder of the authors' questions, `validation.LENGTH.jsonl`; other draws are other data."""
RELEASED_COUNT = 500
"""Questions at each length: the paper's percentages are multiples of 0.2."""
QUESTION_TABLES = {
    "answer_perplexity": "question_answering",
    "containment_match": "question_answering_match",
}


def measure_text(
    model: LanguageModel,
    label: str,
    source: str,
    split: str,
    lengths: Sequence[int],
    max_tokens: int | None = None,
    tokens_at_once: int = 8192,
) -> list[Measurement]:
    """Perplexity of a language model at each length."""
    stream = open_token_stream(source, split, model.tokenizer, None if max_tokens is None else max_tokens + 1)
    dataset = describe_text(source, split)
    # Perplexity is per token: it compares with the paper's only where GPT-2's tokens are counted.
    has_gpt2_tokens = model.tokenizer is not None and len(model.tokenizer) == GPT2_VOCABULARY
    is_papers = (source, split, max_tokens) == (WIKITEXT, "test", None) and has_gpt2_tokens
    paper = "language_modelling" if is_papers else None
    results = evaluate_perplexity(model.model, stream, lengths, tokens_at_once)
    measured = partial(Measurement, label, "text-generation", dataset, "perplexity", paper_table=paper)
    return [measured({"length": r.length}, r.perplexity) for r in results]


def measure_images(
    model: ImageModel,
    label: str,
    source: str,
    split: str,
    resolutions: Sequence[int],
    batch_size: int = 64,
    workers: int = 0,
    max_images: int | None = None,
    root: Path | None = None,
) -> list[Measurement]:
    """Accuracy of a classifier at each resolution; `root` as of `open_image_split`.

    Raises:
        DataError: the model has another number of classes than the pictures.
    """
    small, is_imagenet = open_small_images(source), False
    if small is not None:
        dataset = {"name": small.name, "id": small.identifier, "split": split}
        _check_classes(model, len(small.class_names), small.name)
        images: Any = (small, split)
    else:
        from timm.data import ImageNetInfo

        name = Path(source).name or source
        # Results name a folder, also behind the name of a reader, without where it lies on this machine.
        places = filter(None, (source, source.partition("/")[2]))
        is_local = any(Path(place).exists() for place in places)
        dataset = {"name": name, "id": name if is_local else source, "split": split}
        images = open_image_split(source, split, root)
        names = class_names(images)
        if names is not None:
            _check_classes(model, len(names), name)
        named = source.endswith(IMAGENET_NAMES) or names == ImageNetInfo("imagenet-1k").label_names()
        is_imagenet = named and split in ("val", "validation")
    results = evaluate_accuracy(model, images, resolutions, batch_size, workers, max_images)
    measured = []
    result = partial(Measurement, label, "image-classification", dataset)
    for r in results:
        paper = "image_classification" if is_imagenet and r.images == IMAGENET_IMAGES else None
        setting = {"resolution": r.resolution}
        measured.append(result("accuracy", setting, r.top1, paper_table=paper))
        if (number_of_classes(model) or math.inf) > 5:  # of five classes the first five are always right
            measured.append(result("top5_accuracy", setting, r.top5))
    return measured


def _check_classes(model: ImageModel, count: int, data: str) -> None:
    """Refuses a classifier of other classes: what it calls number i is something else."""
    known = number_of_classes(model)
    if known is not None and known != count:
        raise DataError(
            f"{model.name} tells {known} classes apart and {data} has {count}: accuracy would compare "
            "numbers that mean different things. Give --data of the model's own classes, or a model of these"
        )


def open_questions(
    source: str, length: int, model: LanguageModel, count: int | None, seed: int = 42
) -> list[DocumentQuestion]:
    """Opens questions at a length: made from SQuAD JSON, or rows `NAME.LENGTH.jsonl` of a folder.

    Raises:
        DataError: there is no such file, or it is of another form.
    """
    path = Path(source)
    if path.suffix == ".json":
        if model.tokenizer is None:
            raise DataError(f"{model.name} has no tokenizer; questions cannot be cut to length")
        return build_document_questions(load_questions(path), model.tokenizer, length, count, seed)
    return read_rows(path / f"validation.{length}.jsonl" if path.is_dir() else path)[:count]


def measure_questions(
    model: LanguageModel,
    label: str,
    source: str,
    lengths: Sequence[int],
    count: int | None = None,
    generate: bool = True,
    seed: int = 42,
) -> list[Measurement]:
    """Answer perplexity and both matches of a language model at each length."""
    name = Path(source).name
    dataset = {"name": name, "id": name, "split": "validation"}
    is_release = Path(source).is_dir() and name == RELEASED_QUESTIONS
    result = partial(Measurement, label, "question-answering", dataset)
    measured = []
    for length in lengths:
        rows = open_questions(source, length, model, count, seed)
        r = evaluate_answers(model, rows, length, generate)
        values = [("answer_perplexity", r.perplexity)]
        if generate:
            values += [("exact_match", r.exact_match), ("containment_match", r.containment_match)]
        whole = is_release and r.questions == RELEASED_COUNT
        for metric, value in values:
            paper = QUESTION_TABLES.get(metric) if whole else None
            measured.append(result(metric, {"length": length}, value, paper_table=paper))
    return measured
