"""What a run is: typed sections for each kind of run, read from a YAML recipe and the command line.

Contradictions are refused here, with the values and the remedy, before any data is read. Defaults are those
of the paper's runs where it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..data.recipes import find_recipe
from .strict_config import ConfigError, apply_overrides, build_config, read_yaml

SCHEDULES = ("linear", "cosine", "constant")
PRECISIONS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class TrainingConfig:
    """How to train, whatever the model.

    Attributes:
        output: run folder.
        steps: optimizer steps; or give epochs.
        epochs: passes over the data.
        batch_size: examples a process and step.
        evaluation_batch_size: by default batch_size.
        accumulate: steps whose gradients are summed before an update.
        learning_rate: peak rate.
        position_learning_rate: peak rate of the position encoding; by default the same, as in the paper.
        schedule: "linear", "cosine" or "constant", after warm-up.
        warmup_steps: steps of linear warm-up; or give warmup_epochs.
        warmup_epochs: the same in epochs.
        warmup_start: rate at which warm-up begins.
        minimum_rate: rate at which the schedule ends.
        weight_decay: of matrices; never of the position encoder, norms and biases.
        decay_position_projection: W_PE is decayed as the host's matrices are (release: yes).
        betas: of AdamW.
        epsilon: of AdamW.
        clip: largest gradient norm of the host; 0 does not clip.
        position_clip: largest gradient norm of the position encoder, clipped by itself as in the release.
        layer_decay: learning rates fall by this factor from the last layer to the first.
        freeze_position_encoder: leave the position encoding as it is.
        precision: "fp32", "bf16" or "fp16".
        seed: of everything random.
        log_every: steps between lines of the log.
        evaluate_every: steps between evaluations; 0 evaluates at the end only.
        save_every: steps between checkpoints.
        keep_checkpoints: how many complete ones stay, beside the best.
        select_best: the model of the best validation is the result; else the last.
        ema_decay: keep an exponential moving average of the weights and evaluate it.
        workers: processes that load data.
        threads: threads of torch on the CPU; by default torch's choice. 1 is fastest for tiny models.
        gradient_checkpointing: trade time for memory.
        compile: torch.compile the model.
        report_to: loggers of transformers: "tensorboard", "wandb", "trackio".
        deepspeed: path of a DeepSpeed configuration.
        fsdp: shard weights, gradients and optimizer over the GPUs (FSDP2).
        fsdp_config: options of transformers for it, as {cpu_offload: true}.
    """

    output: str
    steps: int | None = None
    epochs: float | None = None
    batch_size: int = 32
    evaluation_batch_size: int | None = None
    accumulate: int = 1
    learning_rate: float = 5e-5
    position_learning_rate: float | None = None
    schedule: str = "linear"
    warmup_steps: int | None = None
    warmup_epochs: float | None = None
    warmup_start: float = 0.0
    minimum_rate: float = 0.0
    weight_decay: float = 0.0
    decay_position_projection: bool = True
    betas: tuple[float, ...] = (0.9, 0.999)
    epsilon: float = 1e-8
    clip: float = 5.0
    position_clip: float = 5.0
    layer_decay: float = 1.0
    freeze_position_encoder: bool = False
    precision: str = "fp32"
    seed: int = 0
    log_every: int = 50
    evaluate_every: int = 0
    save_every: int = 1000
    keep_checkpoints: int = 2
    select_best: bool = False
    ema_decay: float | None = None
    workers: int = 0
    threads: int | None = None
    gradient_checkpointing: bool = False
    compile: bool = False
    report_to: tuple[str, ...] = ()
    deepspeed: str | None = None
    fsdp: bool = False
    fsdp_config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ConfigError(
                f"give training.steps or training.epochs, one of them; got {self.steps}, {self.epochs}"
            )
        if self.warmup_steps is not None and self.warmup_epochs is not None:
            raise ConfigError("give training.warmup_steps or training.warmup_epochs, not both")
        for name in ("batch_size", "accumulate", "save_every", "keep_checkpoints", "log_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"training.{name}={getattr(self, name)} must be at least 1")
        for name in ("steps", "epochs"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise ConfigError(f"training.{name}={getattr(self, name)} must be positive")
        if self.learning_rate <= 0 or self.minimum_rate > self.learning_rate:
            raise ConfigError(
                f"training.learning_rate={self.learning_rate} must be positive and not below "
                f"minimum_rate={self.minimum_rate}"
            )
        if self.schedule not in SCHEDULES:
            raise ConfigError(f"training.schedule={self.schedule!r} must be one of {', '.join(SCHEDULES)}")
        if self.precision not in PRECISIONS:
            raise ConfigError(f"training.precision={self.precision!r} must be one of {', '.join(PRECISIONS)}")
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(f"training.layer_decay={self.layer_decay} must be above 0 and at most 1")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise ConfigError(f"training.ema_decay={self.ema_decay} must lie between 0 and 1")
        if self.fsdp and self.deepspeed is not None:
            raise ConfigError("give training.fsdp or training.deepspeed, not both: each shards the model")
        if self.ema_decay is not None and (self.fsdp or self.deepspeed is not None):
            raise ConfigError(
                f"training.ema_decay={self.ema_decay} does not work with fsdp and deepspeed, where no "
                "process has all weights; leave it out, or train without sharding"
            )
        if self.fsdp_config and not self.fsdp:
            raise ConfigError("training.fsdp_config is given, but training.fsdp is not true")
        if len(self.betas) != 2:
            raise ConfigError(f"training.betas={self.betas} must be two numbers")
        if self.select_best and (self.evaluate_every < 1 or self.evaluate_every % self.save_every):
            raise ConfigError(
                "training.select_best needs a checkpoint of every evaluated step: evaluate_every="
                f"{self.evaluate_every} must be a multiple of save_every={self.save_every}"
            )


@dataclass(frozen=True)
class TextModelConfig:
    """A language model with a position encoding, from scratch.

    Attributes:
        model_type: of transformers, as "gpt2", "llama" or "qwen3".
        position_encoding: a name of the registry, or "native" for the model's own.
        position_encoding_args: its options.
        keep_native: keep the model's own positions, and add the encoding to them.
        tokenizer: "bytes", a Hub id as "gpt2", or a folder.
        architecture: fields of the model's configuration that differ from its defaults, as n_layer, n_embd.
    """

    model_type: str = "gpt2"
    position_encoding: str = "seqpe"
    position_encoding_args: dict[str, Any] = field(default_factory=dict)
    keep_native: bool = False
    tokenizer: str = "gpt2"
    architecture: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TextDataConfig:
    """Text to train on.

    Attributes:
        source: `stdlib`, `wikitext-103`, `ORG/NAME:CONFIG`, a text file or a folder.
        length: tokens of a training block.
        max_train_tokens: use no more.
        max_validation_tokens: use no more.
    """

    source: str = "wikitext-103"
    length: int = 512
    max_train_tokens: int | None = None
    max_validation_tokens: int | None = None


@dataclass(frozen=True)
class TextEvaluationConfig:
    """What is measured after training.

    Attributes:
        lengths: chunk lengths; empty measures nothing.
        split: of the data.
        max_tokens: use no more.
    """

    lengths: tuple[int, ...] = ()
    split: str = "test"
    max_tokens: int | None = None


@dataclass(frozen=True)
class PretrainedConfig:
    """A checkpoint to start from.

    Attributes:
        checkpoint: folder, Hub id or, for images, a name of timm.
        trust_remote_code: run code that comes with the weights.
        position_encoding: refuse a checkpoint of another encoding; by default any.
        new_encoding: give the model this encoding before training (`seqpe_zoo.set_position_encoding`).
        new_encoding_args: its options; `keep_native: true` adds it to the model's own positions.
        rope_parameters: of transformers, for a model with its own rotation, as {rope_theta: 5.0e5}.
    """

    checkpoint: str
    trust_remote_code: bool = False
    position_encoding: str | None = None
    new_encoding: str | None = None
    new_encoding_args: dict[str, Any] = field(default_factory=dict)
    rope_parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ImageModelConfig:
    """A vision transformer with a position encoding, from scratch.

    Attributes:
        name: of timm, as `vit_small_patch16_224`.
        position_encoding: a name of the registry.
        position_encoding_args: its options.
        num_classes: by default those of the data.
        architecture: further arguments of the model, as img_size, embed_dim, depth.
    """

    name: str = "vit_small_patch16_224"
    position_encoding: str = "seqpe"
    position_encoding_args: dict[str, Any] = field(default_factory=dict)
    num_classes: int | None = None
    architecture: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AugmentationConfig:
    """Random changes of training pictures, by timm.data; the values are DeiT's.

    Attributes:
        scale: share of the picture that is cropped.
        ratio: aspect of the crop.
        flip: probability of a horizontal flip.
        colour_jitter: without automatic augmentation only.
        auto_augment: policy of timm.
        erase: probability of random erasing.
        mixup: alpha; 0 turns it off.
        cutmix: alpha; 0 turns it off.
        switch: probability of cutmix where both are on.
        smoothing: of labels.
    """

    scale: tuple[float, ...] = (0.08, 1.0)
    ratio: tuple[float, ...] = (0.75, 1.3333333333333333)
    flip: float = 0.5
    colour_jitter: float = 0.4
    auto_augment: str | None = "rand-m9-mstd0.5-inc1"
    erase: float = 0.25
    mixup: float = 0.8
    cutmix: float = 1.0
    switch: float = 0.5
    smoothing: float = 0.1


@dataclass(frozen=True)
class ImageDataConfig:
    """Pictures to train on.

    Attributes:
        source: folder, tar files, or a reader of timm and a name (`hfds/...`, `wds/...`).
        root: cache or shard folder of named readers.
        train_split: name of a split.
        validation_split: name of a split.
        resolution: of training.
        train_images: size of a streamed training set.
    """

    source: str
    root: str | None = None
    train_split: str = "train"
    validation_split: str = "validation"
    resolution: int = 224
    train_images: int | None = None


@dataclass(frozen=True)
class ImageEvaluationConfig:
    """What is measured after training.

    Attributes:
        resolutions: sides in pixels; empty measures nothing.
        split: by default the validation split of the data.
        max_images: use no more.
    """

    resolutions: tuple[int, ...] = ()
    split: str | None = None
    max_images: int | None = None


@dataclass(frozen=True)
class QuestionDataConfig:
    """Multi-document questions to train on.

    Attributes:
        train: SQuAD-format JSON, or rows as .jsonl.
        validation: the same.
        length: tokens of a training example.
        train_questions: how many, by default all (the paper has 86,820).
        validation_questions: how many.
    """

    train: str
    validation: str
    length: int = 1024
    train_questions: int | None = None
    validation_questions: int | None = 500


@dataclass(frozen=True)
class QuestionEvaluationConfig:
    """What is measured after training.

    Attributes:
        lengths: of the contexts; empty measures nothing.
        source: SQuAD-format JSON; by default the validation file of the data.
        questions: how many at each length.
        generate: also generate answers.
    """

    lengths: tuple[int, ...] = ()
    source: str | None = None
    questions: int | None = 500
    generate: bool = True


@dataclass(frozen=True)
class TrainGPT2Run:
    """`task: train_gpt2`."""

    task: str
    training: TrainingConfig
    model: TextModelConfig = field(default_factory=TextModelConfig)
    data: TextDataConfig = field(default_factory=TextDataConfig)
    evaluation: TextEvaluationConfig = field(default_factory=TextEvaluationConfig)


@dataclass(frozen=True)
class FinetuneGPT2Run:
    """`task: finetune_gpt2`."""

    task: str
    training: TrainingConfig
    model: PretrainedConfig
    data: TextDataConfig
    evaluation: TextEvaluationConfig = field(default_factory=TextEvaluationConfig)


@dataclass(frozen=True)
class FinetuneQARun:
    """`task: finetune_gpt2_qa`."""

    task: str
    training: TrainingConfig
    model: PretrainedConfig
    data: QuestionDataConfig
    evaluation: QuestionEvaluationConfig = field(default_factory=QuestionEvaluationConfig)


@dataclass(frozen=True)
class TrainViTRun:
    """`task: train_vit`."""

    task: str
    training: TrainingConfig
    data: ImageDataConfig
    model: ImageModelConfig = field(default_factory=ImageModelConfig)
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    evaluation: ImageEvaluationConfig = field(default_factory=ImageEvaluationConfig)


@dataclass(frozen=True)
class FinetuneViTRun:
    """`task: finetune_vit`."""

    task: str
    training: TrainingConfig
    model: PretrainedConfig
    data: ImageDataConfig
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    evaluation: ImageEvaluationConfig = field(default_factory=ImageEvaluationConfig)


RUNS: dict[str, type[Any]] = {
    "train_gpt2": TrainGPT2Run,
    "finetune_gpt2": FinetuneGPT2Run,
    "finetune_gpt2_qa": FinetuneQARun,
    "train_vit": TrainViTRun,
    "finetune_vit": FinetuneViTRun,
}


def load_run(path: str | Path, changes: Sequence[str] = (), task: str | None = None) -> Any:
    """Reads a recipe.

    Args:
        path: YAML file, or the name of a recipe of the package.
        changes: words `section.key=value`.
        task: refuse a recipe of another task.

    Raises:
        ConfigError: the recipe is wrong in any way.
        DataError: there is none.
    """
    content = apply_overrides(read_yaml(find_recipe(path)), changes)
    name = content.get("task")
    if "contestants" in content:
        raise ConfigError(f"{path} is a comparison of several runs: seqpe-zoo compare --recipe {path}")
    if name not in RUNS:
        raise ConfigError(f"{path}: task {name!r} must be one of {', '.join(RUNS)}")
    if task is not None and name != task:
        raise ConfigError(f"{path} is a recipe of the task {name!r}; this script runs {task!r}")
    return build_config(RUNS[name], content)
