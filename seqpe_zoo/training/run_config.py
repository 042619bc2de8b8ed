"""What a run is: typed sections for each task, read from a YAML recipe and the command line.

Contradictions are refused here, with the values and the remedy, before any data is read. Defaults are those
of the paper's runs where it has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from ..data.recipes import find_recipe
from .strict_config import ConfigError, Within, apply_overrides, build_config, read_yaml, refuse_unknown

Count = Annotated[int, Within(1, 10**12)]
Number = Annotated[int, Within(0, 10**12)]
Rate = Annotated[float, Within(0)]
Positive = Annotated[float, Within(0, open_ends=True)]
Share = Annotated[float, Within(0, 1)]
Decay = Annotated[float, Within(0, 1, open_ends=True)]


@dataclass(frozen=True)
class TrainingConfig:
    """How to train, whatever the model."""

    output: str  # run folder
    steps: Count | None = None  # optimizer steps; or give epochs
    epochs: Positive | None = None  # passes over the data
    batch_size: Count = 32  # examples a process and step
    evaluation_batch_size: Count | None = None  # by default batch_size
    accumulate: Count = 1  # steps whose gradients are summed before an update
    learning_rate: Positive = 5e-5  # peak rate
    position_learning_rate: Rate | None = (
        None  # of the position encoding; by default the same, as in the paper
    )
    schedule: Literal["linear", "cosine", "constant"] = "linear"  # after warm-up
    warmup_steps: Number | None = None  # steps of linear warm-up; or give warmup_epochs
    warmup_epochs: Rate | None = None  # the same in epochs
    warmup_start: Rate = 0.0  # rate at which warm-up begins
    minimum_rate: Rate = 0.0  # rate at which the schedule ends
    weight_decay: Rate = 0.0  # of matrices; never of the position encoder, norms and biases
    decay_position_projection: bool = True  # W_PE is decayed as the host's matrices are (release: yes)
    betas: tuple[Share, Share] = (0.9, 0.999)  # of AdamW
    epsilon: Positive = 1e-8  # of AdamW
    clip: Rate = 5.0  # largest gradient norm of the host; 0 does not clip
    position_clip: Rate = 5.0  # of the position encoder, clipped by itself as in the release
    layer_decay: Share = 1.0  # learning rates fall by this factor from the last layer to the first
    freeze_position_encoder: bool = False  # leave the position encoding as it is
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    seed: Annotated[int, Within(0, 2**32 - 1)] = 0  # of everything random
    log_every: Count = 50  # steps between lines of the log
    evaluate_every: Number = 0  # steps between evaluations; 0 evaluates at the end only
    save_every: Count = 1000  # steps between checkpoints
    keep_checkpoints: Count = 2  # how many complete ones stay, beside the best
    select_best: bool = False  # the model of the best validation is the result; else the last
    ema_decay: Decay | None = None  # keep an exponential moving average of the weights and evaluate it
    workers: Annotated[int, Within(0, 1024)] = 0  # processes that load data
    threads: Annotated[int, Within(1, 4096)] | None = (
        None  # of torch on the CPU; 1 is fastest for tiny models
    )
    gradient_checkpointing: bool = False  # trade time for memory
    compile: bool = False  # torch.compile the model
    report_to: tuple[str, ...] = ()  # loggers of transformers: "tensorboard", "wandb", "trackio"
    deepspeed: str | None = None  # path of a DeepSpeed configuration
    fsdp: bool = False  # shard weights, gradients and optimizer over the GPUs (FSDP2)
    fsdp_config: dict[str, Any] = field(default_factory=dict)  # of transformers, as {cpu_offload: true}

    def __post_init__(self) -> None:
        if not self.output.strip() or "\0" in self.output:
            raise ConfigError(f"training.output={self.output!r} must name a folder")
        if (self.steps is None) == (self.epochs is None):
            raise ConfigError(
                f"give training.steps or training.epochs, one of them; got {self.steps}, {self.epochs}"
            )
        if self.warmup_steps is not None and self.warmup_epochs is not None:
            raise ConfigError("give training.warmup_steps or training.warmup_epochs, not both")
        if self.warmup_epochs is not None and self.epochs is None:
            raise ConfigError(
                "training.warmup_epochs goes with training.epochs; with steps give warmup_steps"
            )
        for name in ("minimum_rate", "warmup_start"):
            if getattr(self, name) > self.learning_rate:
                raise ConfigError(
                    f"training.{name}={getattr(self, name)} is above learning_rate={self.learning_rate}"
                )
        if self.layer_decay == 0 or 1 in self.betas:
            raise ConfigError(
                f"training.layer_decay={self.layer_decay} must be above 0, and betas={self.betas} below 1"
            )
        if self.fsdp and self.deepspeed is not None:
            raise ConfigError("give training.fsdp or training.deepspeed, not both: each shards the model")
        if self.ema_decay is not None and (self.fsdp or self.deepspeed is not None):
            raise ConfigError(
                f"training.ema_decay={self.ema_decay} does not work with fsdp and deepspeed, where no "
                "process has all weights; leave it out, or train without sharding"
            )
        if self.fsdp_config and not self.fsdp:
            raise ConfigError("training.fsdp_config is given, but training.fsdp is not true")
        if self.select_best and (self.evaluate_every < 1 or self.evaluate_every % self.save_every):
            raise ConfigError(
                "training.select_best needs a checkpoint of every evaluated step: evaluate_every="
                f"{self.evaluate_every} must be a multiple of save_every={self.save_every}"
            )


@dataclass(frozen=True)
class TextModelConfig:
    """A language model with a position encoding, from scratch."""

    model_type: str = "gpt2"  # of transformers, as "gpt2", "llama" or "qwen3"
    position_encoding: str = "seqpe"  # a name of the registry, or "native" for the model's own
    position_encoding_args: dict[str, Any] = field(default_factory=dict)  # its options
    keep_native: bool = False  # keep the model's own positions, and add the encoding to them
    tokenizer: str = "gpt2"  # "bytes", a Hub id as "gpt2", or a folder
    architecture: dict[str, Any] = field(default_factory=dict)  # fields of its configuration, as n_layer


@dataclass(frozen=True)
class TextDataConfig:
    """Text to train on."""

    source: str = "wikitext-103"  # `stdlib`, `wikitext-103`, `ORG/NAME:CONFIG`, a text file or a folder
    length: Annotated[int, Within(2, 10**9)] = 512  # tokens of a training block
    max_train_tokens: Count | None = None  # use no more
    max_validation_tokens: Count | None = None  # use no more


@dataclass(frozen=True)
class TextEvaluationConfig:
    """What is measured after training."""

    lengths: tuple[Count, ...] = ()  # of chunks; empty measures nothing
    split: str = "test"  # of the data
    max_tokens: Count | None = None  # use no more


@dataclass(frozen=True)
class PretrainedConfig:
    """A checkpoint to start from."""

    checkpoint: str  # folder, Hub id or, for images, a name of timm
    trust_remote_code: bool = False  # run code that comes with the weights
    # Refuse a checkpoint of another encoding; "native" for one with positions of its own.
    position_encoding: str | None = None
    # Give a language model this encoding before training (`seqpe_zoo.set_position_encoding`).
    new_encoding: str | None = None
    # Its options; `keep_native: true` adds it to the model's own positions.
    new_encoding_args: dict[str, Any] = field(default_factory=dict)
    # Of transformers, for a language model with its own rotation, as {rope_theta: 5.0e5}.
    rope_parameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.new_encoding_args and self.new_encoding is None:
            raise ConfigError("model.new_encoding_args is given, but model.new_encoding is not")


@dataclass(frozen=True)
class ImageModelConfig:
    """A vision transformer with a position encoding, from scratch."""

    name: str = "vit_small_patch16_224"  # of timm
    position_encoding: str = "seqpe"  # a name of the registry
    position_encoding_args: dict[str, Any] = field(default_factory=dict)  # its options
    num_classes: Count | None = None  # by default those of the data
    architecture: dict[str, Any] = field(default_factory=dict)  # arguments of the model, as img_size, depth


@dataclass(frozen=True)
class AugmentationConfig:
    """Random changes of training pictures, by timm.data; the values are DeiT's."""

    scale: tuple[Share, Share] = (0.08, 1.0)  # share of the picture that is cropped
    ratio: tuple[Positive, Positive] = (0.75, 1.3333333333333333)  # aspect of the crop
    flip: Share = 0.5  # probability of a horizontal flip
    colour_jitter: Share = 0.4  # without automatic augmentation only
    auto_augment: str | None = "rand-m9-mstd0.5-inc1"  # policy of timm
    erase: Share = 0.25  # probability of random erasing
    mixup: Rate = 0.8  # alpha; 0 turns it off
    cutmix: Rate = 1.0  # alpha; 0 turns it off
    switch: Share = 0.5  # probability of cutmix where both are on
    smoothing: Share = 0.1  # of labels

    def __post_init__(self) -> None:
        for name in ("scale", "ratio"):
            low, high = getattr(self, name)
            if low > high or high == 0:
                raise ConfigError(f"augmentation.{name}={[low, high]} must be a range from low to high")


@dataclass(frozen=True)
class ImageDataConfig:
    """Pictures to train on."""

    source: str  # folder, tar files, or a reader of timm and a name (`hfds/...`, `wds/...`)
    root: str | None = None  # cache or shard folder of named readers
    train_split: str = "train"
    validation_split: str = "validation"
    resolution: Count = 224  # of training
    train_images: Count | None = None  # size of a streamed training set


@dataclass(frozen=True)
class ImageEvaluationConfig:
    """What is measured after training."""

    resolutions: tuple[Count, ...] = ()  # sides in pixels; empty measures nothing
    split: str | None = None  # by default the validation split of the data
    max_images: Count | None = None  # use no more


@dataclass(frozen=True)
class QuestionDataConfig:
    """Multi-document questions to train on."""

    train: str  # SQuAD-format JSON, or rows as .jsonl
    validation: str  # the same
    length: Annotated[int, Within(2, 10**9)] = 1024  # tokens of a training example
    train_questions: Count | None = None  # how many, by default all (the paper has 86,820)
    validation_questions: Count | None = 500  # how many


@dataclass(frozen=True)
class QuestionEvaluationConfig:
    """What is measured after training."""

    lengths: tuple[Count, ...] = ()  # of the contexts; empty measures nothing
    source: str | None = None  # SQuAD-format JSON; by default the validation file of the data
    questions: Count | None = 500  # how many at each length
    generate: bool = True  # also generate answers


@dataclass(frozen=True)
class Run:
    """A run of any task; the types of its sections are in `TASKS`."""

    task: str
    training: TrainingConfig
    model: Any
    data: Any
    evaluation: Any
    augmentation: AugmentationConfig | None = None


TASKS: dict[str, dict[str, type[Any]]] = {
    "train_gpt2": {"model": TextModelConfig, "data": TextDataConfig, "evaluation": TextEvaluationConfig},
    "finetune_gpt2": {"model": PretrainedConfig, "data": TextDataConfig, "evaluation": TextEvaluationConfig},
    "finetune_gpt2_qa": {
        "model": PretrainedConfig,
        "data": QuestionDataConfig,
        "evaluation": QuestionEvaluationConfig,
    },
    "train_vit": {
        "model": ImageModelConfig,
        "data": ImageDataConfig,
        "evaluation": ImageEvaluationConfig,
        "augmentation": AugmentationConfig,
    },
    "finetune_vit": {
        "model": PretrainedConfig,
        "data": ImageDataConfig,
        "evaluation": ImageEvaluationConfig,
        "augmentation": AugmentationConfig,
    },
}


def build_run(content: Mapping[str, Any]) -> Run:
    """Builds a run from the content of a recipe.

    Raises:
        ConfigError: the recipe is wrong in any way.
    """
    task = content.get("task")
    if not isinstance(task, str) or task not in TASKS:
        raise ConfigError(f"task={task!r} must be one of {', '.join(TASKS)}")
    kinds = {"training": TrainingConfig, **TASKS[task]}
    refuse_unknown(content, ["task", *kinds], "the recipe")
    return Run(
        task, **{name: build_config(kind, content.get(name, {}), name) for name, kind in kinds.items()}
    )


def load_run(path: str | Path, changes: Sequence[str] = (), task: str | None = None) -> Run:
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
    if "runs" in content:
        raise ConfigError(f"{path} is a comparison of several runs: seqpe-zoo compare --recipe {path}")
    run = build_run(content)
    if task is not None and run.task != task:
        raise ConfigError(f"{path} is a recipe of the task {run.task!r}; this script runs {task!r}")
    return run
