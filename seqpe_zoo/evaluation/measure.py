"""Measures models on data by name: what `evaluate`, `compare` and the demo have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from ..data.errors import DataError
from ..data.image_sources import open_small_images
from ..data.images import class_names, open_image_split
from ..data.squad_documents import DocumentQuestion, build_document_questions, load_questions, read_rows
from ..data.text_sources import describe_text, open_token_stream
from .accuracy import evaluate_accuracy, evaluate_small_images
from .answers import evaluate_answers
from .defaults import number_of_classes
from .model_loading import ImageModel, LanguageModel
from .perplexity import evaluate_perplexity
from .report import Measurement


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
    results = evaluate_perplexity(model.model, stream, lengths, tokens_at_once)
    return [
        Measurement(label, "text-generation", dataset, "perplexity", {"length": r.length}, r.perplexity)
        for r in results
    ]


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
    remark: Callable[[str], None] | None = None,
) -> list[Measurement]:
    """Accuracy of a classifier at each resolution; `root` as of `open_image_split`.

    `remark` is called with a sentence where the pictures have another number of classes than the model.
    """
    small = open_small_images(source)
    if small is not None:
        dataset = {"name": small.name, "id": small.identifier, "split": split}
        results = evaluate_small_images(model, small, split, resolutions, batch_size, max_images)
    else:
        name = Path(source).name or source
        # Results name a folder, also behind the name of a reader, without where it lies on this machine.
        places = filter(None, (source, source.partition("/")[2]))
        is_local = any(Path(place).exists() for place in places)
        dataset = {"name": name, "id": name if is_local else source, "split": split}
        images = open_image_split(source, split, root)
        known, names = number_of_classes(model), class_names(images)
        if remark is not None and known is not None and names is not None and known != len(names):
            remark(
                f"warning: {model.name} tells {known} classes apart, the pictures have {len(names)}: class "
                "number i of the model counts as folder number i, so accuracy says nothing unless they are "
                "the same things"
            )
        results = evaluate_accuracy(model, images, resolutions, batch_size, workers, max_images)
    measured = []
    for r in results:
        metrics = {"accuracy": r.top1}
        if (number_of_classes(model) or math.inf) > 5:  # of five classes the first five are always right
            metrics["top5_accuracy"] = r.top5
        for metric, value in metrics.items():
            setting = {"resolution": r.resolution}
            measured.append(Measurement(label, "image-classification", dataset, metric, setting, value))
    return measured


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
    dataset = {"name": Path(source).name, "id": Path(source).name, "split": "validation"}
    measured = []
    for length in lengths:
        rows = open_questions(source, length, model, count, seed)
        r = evaluate_answers(model, rows, length, generate)
        values = [("answer_perplexity", r.perplexity)]
        if generate:
            values += [("exact_match", r.exact_match), ("containment_match", r.containment_match)]
        for metric, value in values:
            setting = {"length": length}
            measured.append(Measurement(label, "question-answering", dataset, metric, setting, value))
    return measured
