"""Jobs of language models: GPT-2 from scratch, fine-tuning on text, fine-tuning on questions."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from transformers import set_seed

from ..data.byte_tokenizer import build_byte_tokenizer
from ..data.errors import DataError
from ..data.squad_documents import (
    AnswerSpans,
    DocumentQuestion,
    build_document_questions,
    load_questions,
    pad_answer_spans,
    read_rows,
)
from ..data.text_blocks import TextBlocks
from ..data.text_sources import open_token_stream
from ..evaluation.measure import measure_questions, measure_text
from ..evaluation.model_loading import LanguageModel, find_position_encoding, load_language_model
from ..evaluation.perplexity import check_lengths
from ..evaluation.report import Measurement
from .job import Job
from .run_config import PretrainedConfig, Run, TextModelConfig
from .strict_config import ConfigError
from .trainer import stack_items, text_statistics

logger = logging.getLogger(__name__)
GPT2_VOCABULARY = 50257


def load_tokenizer(name: str) -> Any:
    """Loads the tokenizer of a recipe: "bytes", a Hub id or a folder.

    Raises:
        DataError: it cannot be found.
    """
    if name == "bytes":
        return build_byte_tokenizer()
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"cannot load the tokenizer {name!r}: {reason}. Without access to the Hub, set model.tokenizer "
            "to a folder with vocab.json and merges.txt, or to bytes"
        ) from error


def build_language_model(
    model: TextModelConfig, length: int, vocabulary: int = GPT2_VOCABULARY, end: int | None = None
) -> nn.Module:
    """Builds the language model of a recipe with its own positions, another encoding, or both.

    Args:
        model: section of the recipe.
        length: of the training blocks.
        vocabulary: tokens.
        end: number of the end-of-text token.

    Raises:
        ConfigError: the encoding is unknown, does not suit text, or does not have an option.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    from ..hosts import with_position_encoding

    try:
        native = AutoConfig.for_model(model.model_type)
        unknown = sorted(set(model.architecture) - set(native.to_dict()))
        if unknown:
            raise ConfigError(
                f"model.architecture: {type(native).__name__} has no field {', '.join(unknown)}"
            )
        fixed = {"vocab_size": vocabulary, "bos_token_id": end, "eos_token_id": end, "pad_token_id": None}
        defaults = {"max_position_embeddings": length}
        if getattr(native, "activation_function", None) == "gelu_new":
            # The same function; by its other name transformers computes it several times as slowly.
            defaults["activation_function"] = "gelu_pytorch_tanh"
        config = AutoConfig.for_model(model.model_type, **{**defaults, **fixed, **model.architecture})
        if model.position_encoding != "native":
            options = {"train_length": length, **model.position_encoding_args}
            config = with_position_encoding(config, model.position_encoding, model.keep_native, **options)
        return AutoModelForCausalLM.from_config(config)
    except (ValueError, TypeError, ArithmeticError, RuntimeError, KeyError) as error:
        raise ConfigError(f"model: {error}") from error


def train_gpt2_job(run: Run) -> Job:
    """Builds the job of `task: train_gpt2`."""
    tokenizer = load_tokenizer(run.model.tokenizer)
    set_seed(run.training.seed)
    model = build_language_model(run.model, run.data.length, len(tokenizer), tokenizer.eos_token_id)
    return _text_job(run, model, tokenizer)


def finetune_gpt2_job(run: Run) -> Job:
    """Builds the job of `task: finetune_gpt2`."""
    loaded = open_checkpoint(run.model, run.data.length, run.training.seed)
    if loaded.tokenizer is None and run.data.source != "stdlib":
        raise DataError(
            f"{run.model.checkpoint} has no tokenizer; only the embedded bytes can be read without"
        )
    return _text_job(run, loaded.model, loaded.tokenizer)


def finetune_qa_job(run: Run) -> Job:
    """Builds the job of `task: finetune_gpt2_qa`."""
    loaded = open_checkpoint(run.model, run.data.length, run.training.seed)
    tokenizer, data, evaluation = loaded.tokenizer, run.data, run.evaluation
    if tokenizer is None:
        raise DataError(f"{run.model.checkpoint} has no tokenizer; questions cannot be read")
    check_lengths(loaded.model, [data.length, *evaluation.lengths])
    sides = []
    for name, source, count in (
        ("training", data.train, data.train_questions),
        ("validation", data.validation, data.validation_questions),
    ):
        spans = AnswerSpans(_questions(source, tokenizer, data.length, count), tokenizer, data.length)
        if spans.left_out:
            logger.warning("%d %s questions are longer than %d tokens", spans.left_out, name, data.length)
        sides.append(spans)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    what = (evaluation.source or data.validation, evaluation.lengths, evaluation.questions)

    def measure(finished: LanguageModel) -> list[Measurement]:
        return measure_questions(finished, finished.label, *what, evaluation.generate)

    return _language_job(
        run, loaded.model, tokenizer, *sides, partial(pad_answer_spans, pad=pad or 0), measure
    )


def _text_job(run: Run, model: nn.Module, tokenizer: Any | None) -> Job:
    data, evaluation = run.data, run.evaluation
    check_lengths(model, [data.length, *evaluation.lengths])
    train = open_token_stream(data.source, "train", tokenizer, data.max_train_tokens)
    validation = open_token_stream(data.source, "validation", tokenizer, data.max_validation_tokens)
    what = (data.source, evaluation.split, evaluation.lengths, evaluation.max_tokens)
    blocks = (TextBlocks(side, data.length) for side in (train, validation))

    def measure(finished: LanguageModel) -> list[Measurement]:
        return measure_text(finished, finished.label, *what)

    return _language_job(run, model, tokenizer, *blocks, stack_items, measure)


def _language_job(
    run: Run, model: Any, tokenizer: Any | None, train: Any, validation: Any, collate: Any, measure: Any
) -> Job:
    finished = LanguageModel(run.training.output, model, tokenizer)
    return Job(
        run=run,
        model=model,
        train=train,
        validation=validation,
        collate=collate,
        statistics=text_statistics,
        metric="perplexity",
        units_an_example=run.data.length,
        unit="tokens",
        save=partial(save_language_model, model, tokenizer),
        measure=lambda: measure(finished) if run.evaluation.lengths else [],
    )


def open_checkpoint(section: PretrainedConfig, length: int, seed: int) -> LanguageModel:
    """Loads the language model that a fine-tuning starts from, with the positions that the recipe wants.

    Raises:
        DataError: it cannot be loaded, or has another encoding than the recipe expects.
        ConfigError: it cannot have these positions.
    """
    loaded = load_language_model(section.checkpoint, trust_remote_code=section.trust_remote_code)
    check_encoding(loaded.model, section)
    set_seed(seed)
    change_positions(loaded.model, section, length)
    return loaded


def change_positions(model: Any, section: PretrainedConfig, length: int) -> None:
    """Gives a loaded language model the positions that a recipe wants it to be tuned with.

    Raises:
        ConfigError: the model cannot have them.
    """
    from ..hosts import set_position_encoding

    try:
        if section.rope_parameters:
            rotary = model.base_model.rotary_emb
            model.config.rope_parameters = {**model.config.rope_parameters, **section.rope_parameters}
            model.base_model.rotary_emb = type(rotary)(model.config)
        if section.new_encoding is not None:
            options = {"train_length": length, **section.new_encoding_args}
            set_position_encoding(model, section.new_encoding, **options)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ConfigError(f"model: {error}") from error


def check_encoding(model: nn.Module, section: PretrainedConfig) -> None:
    """Refuses a checkpoint of another encoding than the recipe says.

    Raises:
        DataError: as said.
    """
    encoding = find_position_encoding(model)
    found = "native" if encoding is None else str(encoding.name)
    if section.position_encoding is not None and section.position_encoding != found:
        raise DataError(
            f"{section.checkpoint} has the position encoding {found!r}; the recipe expects "
            f"model.position_encoding={section.position_encoding!r}. To change an encoding, graft the "
            "weights first"
        )


def save_language_model(model: nn.Module, tokenizer: Any | None, folder: Path) -> None:
    """Writes a language model with its tokenizer, loadable by transformers with or without this package."""
    model.config.use_cache = True  # the trainer of transformers turns it off; generation needs it
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def _questions(source: str, tokenizer: Any, length: int, count: int | None) -> list[DocumentQuestion]:
    path = Path(source)
    if path.suffix == ".jsonl":
        return read_rows(path)[:count]
    return build_document_questions(load_questions(path), tokenizer, length, count)
