"""Gives a trained model SeqPE, warm, so that a short fine-tune adapts it.

Where a model has a learned table of positions, added to its input (GPT-2, ViT, DeiT, DINOv2), SeqPE is fitted
to it: with integration "input" the model stays what it was, as far as the fit goes; the others move positions
into attention. In place of a rotation (Llama, Qwen) "bias" and "sum" start from what it does on average
(`warm_start.py`); with `keep_native` the model starts as what it was. Any other model of transformers gets
SeqPE as `set_position_encoding` gives it. The report says how far the logits moved before any fine-tuning.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..portable.positions import grid_positions, range_positions
from .sources import PROBE_ROWS, check_vit, probe_length
from .warm_start import (
    LayerWeights,
    fit_to_table,
    mean_queries_and_keys,
    rotary_frequencies,
    start_from_rotation,
    start_projection,
)
from .zoo_checkpoint import ConversionError, Converted, load_exactly

FIT_LENGTH = 4096
"""Positions of a rotation that the encoder is fitted to, at most."""


Builder = Callable[[Any, dict[str, Any], bool], Converted]


@dataclass(frozen=True)
class LogitChange:
    """How far a graft moved the logits of some inputs, before any fine-tuning."""

    mean: float
    """Mean absolute difference."""
    largest: float
    relative: float
    """Root mean square of the difference, divided by the deviation of the old logits."""
    divergence: float
    """Mean KL divergence of the new predictions from the old ones, in nats."""
    same_top: float
    """Share of predictions whose most probable class or token stayed the same."""


@dataclass(frozen=True)
class GraftReport:
    """What a graft did."""

    integration: str
    positions: int
    """That the encoder was fitted to: rows of the old table, or lengths of a rotation; 0 without a fit."""
    fit_steps: int
    fit_error: float | None
    """What the fit left: 0 is exact, 1 is no better than the mean."""
    inputs: str
    """What the logits were compared on."""
    change: LogitChange
    keep_native: bool = False
    in_place_of_rotation: bool = False

    def lines(self) -> list[str]:
        """Returns the report in words."""
        change = self.change
        fit = (
            f"fitted to {self.positions} positions in {self.fit_steps} steps, relative error "
            f"{self.fit_error:.3f}"
            if self.fit_error is not None
            else "beside the model's own positions"
            if self.keep_native
            else "in place of the model's own positions, untrained: fine-tune before use"
        )
        advice = (
            "; a rotation is imitated only on average: keep_native (--keep-native) changes nothing at first"
            if self.in_place_of_rotation
            else ""
        )
        return [
            f"SeqPE ({self.integration}) {fit}{advice}",
            f"logits before any fine-tuning, on {self.inputs}: moved by {change.mean:.3g} on average, "
            f"{change.largest:.3g} at most ({change.relative:.1%} of their deviation); "
            f"KL {change.divergence:.3g} nats; same top choice in {change.same_top:.1%}",
        ]


def graft_vit(
    theirs: Any,
    architecture: str,
    model_args: dict[str, Any] | None = None,
    integration: str | None = None,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[Converted, GraftReport]:
    """`graft` for a model of timm.

    Args:
        theirs: a ViT, DeiT or DINOv2 of timm, or a model of its Eva family; stays as it is.
        architecture: its name in timm.
        model_args: arguments it was built with beyond those of its name.
        integration: see `graft`.
        options: see `graft`.
        **settings: see `graft`.
    """
    return graft(
        theirs, integration, options, build=_timm_builder(theirs, architecture, model_args), **settings
    )


def graft(
    theirs: Any,
    integration: str | None = None,
    options: dict[str, Any] | None = None,
    keep_native: bool = False,
    fit_steps: int = 500,
    probe: Tensor | None = None,
    probe_name: str = "random inputs",
    seed: int = 0,
    build: Builder | None = None,
) -> tuple[Converted, GraftReport]:
    """Gives a model SeqPE, fitted to its table of positions or started from its rotation if it has one.

    Args:
        theirs: a language model or image classifier of transformers, which is changed; or our GPT-2 with
            "ape_learn".
        integration: "input", "mul", "sum" or "bias"; by default "input" for a table, else "bias".
        options: other options of SeqPE.
        keep_native: keep the model's own positions, and start as a change of nothing.
        fit_steps: of the fit of the encoder.
        probe: tokens (B, L) or images on which logits are compared, by default 4 random ones.
        probe_name: what the report calls them.
        seed: of everything random.
        build: makes the new model; for models of timm, see `graft_vit`.

    Raises:
        ConversionError: the model cannot have SeqPE, or options do not suit it.
    """
    theirs = (plain_gpt2(theirs) if hasattr(theirs, "position_host") else theirs).eval()
    table = None if keep_native else learned_table(theirs)
    integration = integration or ("bias" if table is None else "input")
    chosen = {"integration": integration, **(options or {})}
    if table is not None and integration != "input":
        chosen.setdefault("projection", "per_layer")
    if table is not None and (not chosen.get("multi_head", True) or chosen.get("position_dim")):
        raise ConversionError(
            "a graft needs multi_head=True and no position_dim: vectors are fitted to a table as wide as the "
            "model"
        )
    is_text = getattr(getattr(theirs, "config", None), "vocab_size", None) is not None
    in_attention = integration != "input" and chosen.get("projection") != "none"
    frequencies, layers, means = torch.empty(0), [], []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        probe = _random_probe(theirs) if probe is None else probe
        old = _logits(theirs, probe)
        if table is not None and in_attention:
            layers = _layer_weights(theirs, probe)
        elif (
            is_text and in_attention and not (keep_native or integration == "mul" or "position_dim" in chosen)
        ):
            frequencies = rotary_frequencies(theirs)
            means = mean_queries_and_keys(theirs, lambda: theirs(probe)) if len(frequencies) else []
        try:
            converted = (build or _equip_transformers)(theirs, chosen, keep_native)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ConversionError(f"SeqPE cannot be grafted so: {error}") from error
    model = converted.model.eval()
    encoding, error, count = getattr(model, "position_host", model).position_encoding, None, 0
    if table is not None:
        error, count = _fit(encoding, table, fit_steps, seed), len(table)
    elif means:
        count = min(*encoding.train_shape, FIT_LENGTH)
        error = start_from_rotation(encoding, frequencies, means, count, fit_steps, seed)
    if layers:
        start_projection(encoding, layers, seed)
    with torch.no_grad():
        change = logit_change(old, _logits(model, probe))
    about = (probe_name, change, keep_native, bool(means))
    report = GraftReport(integration, count, fit_steps, error, *about)
    converted.record["graft"] = asdict(report)
    return converted, report


def _equip_transformers(theirs: Any, options: dict[str, Any], keep_native: bool) -> Converted:
    from ..hosts import set_position_encoding

    rows = getattr(theirs.config, "max_position_embeddings", None)
    length = {} if rows is None else {"train_length": rows}
    model = set_position_encoding(theirs, "seqpe", keep_native=keep_native, **length, **options)
    # Saved under the names of its modules: older ones, that it was loaded from, belong to its old model type.
    model._weight_conversions = None
    return Converted(model, "transformers", record={"format": f"graft on {model.config.native_model_type}"})


def _timm_builder(theirs: Any, architecture: str, model_args: dict[str, Any] | None) -> Builder:
    """Returns what builds a model of timm anew, for images of any size, with SeqPE and its other weights."""
    check_vit(theirs, architecture)

    def build(theirs: Any, options: dict[str, Any], keep_native: bool) -> Converted:
        import timm

        from .. import timm_models  # noqa: F401 (the pos_embed= hook)

        args = {**(model_args or {}), "num_classes": theirs.num_classes, "dynamic_img_size": True}
        args |= {"pos_embed": "seqpe", "pos_embed_args": options}
        args |= {"keep_native": True} if keep_native else {}
        model = timm.create_model(architecture, pretrained=False, **args)
        if keep_native:
            model.position_encoding.start_neutral()
        state, own = theirs.state_dict(), model.state_dict()
        replaced = [name for name in state if name == "pos_embed" or name.startswith("rope.")]
        state = {name: value for name, value in state.items() if name in own or name not in replaced}
        load_exactly(model, own | state, architecture)
        return Converted(model, "timm", args, {"format": f"graft on {architecture}"})

    return build


def learned_table(model: Any) -> Tensor | None:
    """Returns the table of positions (N, C) that a model adds to its input; None without one.

    Of images it has the rows of class tokens first.
    """
    if hasattr(model, "pos_embed"):  # of timm
        return None if model.pos_embed is None else model.pos_embed[0].detach().clone()
    base = model.base_model
    table = getattr(getattr(base, "wpe", None), "weight", None)
    if table is None:
        table = getattr(getattr(base, "embeddings", None), "position_embeddings", None)
    if table is None and isinstance(
        embed := getattr(getattr(base, "decoder", None), "embed_positions", None), nn.Embedding
    ):
        table = embed.weight[getattr(embed, "offset", 0) :]
    if not isinstance(table, Tensor):
        return None
    return table.detach().reshape(-1, table.shape[-1]).clone()


def plain_gpt2(ours: Any) -> Any:
    """Returns transformers' GPT-2 with the weights of ours, whose positions are a learned table.

    Raises:
        ConversionError: it has other positions.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    from .gpt2 import gpt2_settings

    config = ours.config
    if config.native_model_type != "gpt2" or config.position_encoding != "ape_learn":
        raise ConversionError(
            "the model has no learned table of positions: its position encoding is "
            f"{config.position_encoding!r}"
        )
    table = ours.position_host.position_encoding.weight
    settings = {**gpt2_settings(config.to_dict()), "n_positions": len(table)}
    model = GPT2LMHeadModel(GPT2Config(**settings))
    state = {name: t for name, t in ours.state_dict().items() if ".position_encoding." not in name}
    load_exactly(model, {**state, "transformer.wpe.weight": table.detach()}, "the GPT-2")
    return model


def _fit(encoding: Any, table: Tensor, steps: int, seed: int) -> float:
    """Fits the encoder to a table whose first rows may be those of class tokens."""
    shape = encoding.train_shape
    positions = grid_positions(shape) if len(shape) == 2 else range_positions(len(table))
    prefix = len(table) - len(positions)  # 0 where class tokens have no row
    if encoding.prefix is not None:
        with torch.no_grad():
            encoding.prefix.zero_()
            encoding.prefix[:prefix] = table[:prefix]
    return fit_to_table(encoding.encoder, positions, table[prefix:], steps, seed)


def check_options(integration: str | None, options: dict[str, Any]) -> None:
    """Raises ConversionError for options that SeqPE does not have."""
    from ..portable.position_encoding import parse_options
    from ..portable.seqpe import SeqPEOptions

    try:
        parse_options("seqpe", SeqPEOptions, {"integration": integration or "bias", **options})
    except (ValueError, TypeError) as error:
        raise ConversionError(f"SeqPE cannot be grafted so: {error}") from error


def _logits(model: Any, inputs: Tensor) -> Tensor:
    output = model(inputs)
    return output if isinstance(output, Tensor) else output.logits


def _random_probe(model: Any) -> Tensor:
    if hasattr(model, "patch_embed"):
        channels = model.patch_embed.proj.in_channels
        return torch.randn(PROBE_ROWS, channels, *model.patch_embed.img_size)
    config = model.config
    if getattr(config, "vocab_size", None) is None:
        size = config.image_size
        return torch.randn(
            PROBE_ROWS, config.num_channels, *((size, size) if isinstance(size, int) else size)
        )
    return torch.randint(config.vocab_size, (PROBE_ROWS, probe_length(config)))


@torch.no_grad()
def _layer_weights(model: Any, probe: Tensor) -> list[LayerWeights]:
    """Weights of each layer, and the mean deviation of what its norm sees on the probe."""
    if hasattr(model, "blocks"):
        blocks, attention = model.blocks, [block.attn for block in model.blocks]
    else:
        from ..portable.transformers_host import attention_layers

        attention = attention_layers(model.base_model)
        lists = [part for part in model.base_model.modules() if isinstance(part, nn.ModuleList)]
        blocks = next(blocks for blocks in lists if attention[0] in blocks[0].modules())
    norms = [next(part for part in block.modules() if "Norm" in type(part).__name__) for block in blocks]
    seen: list[float] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(float(inputs[0].std(dim=-1).mean()))

    hooks = [norm.register_forward_pre_hook(note) for norm in norms]
    try:
        model(probe)
    finally:
        for hook in hooks:
            hook.remove()
    queries_and_keys = map(_query_and_key, attention)
    return [
        LayerWeights(query.detach(), key.detach(), norm.weight.detach(), sigma)
        for (query, key), norm, sigma in zip(queries_and_keys, norms, seen, strict=True)
    ]


def _query_and_key(layer: Any) -> tuple[Tensor, Tensor]:
    """The weights of queries and keys, rows are outputs."""
    if hasattr(layer, "c_attn"):  # of GPT-2, [in, out]
        return layer.c_attn.weight.T.chunk(3)[:2]
    if hasattr(layer, "qkv"):  # of timm
        return layer.qkv.weight.chunk(3)[:2]
    return layer.q_proj.weight, layer.k_proj.weight


def logit_change(old: Tensor, new: Tensor) -> LogitChange:
    """Compares logits (..., classes)."""
    old, new = old.flatten(0, -2).double(), new.flatten(0, -2).double()
    difference = new - old
    old_log, new_log = old.log_softmax(-1), new.log_softmax(-1)
    divergence = (old_log.exp() * (old_log - new_log)).sum(-1).mean()
    return LogitChange(
        mean=float(difference.abs().mean()),
        largest=float(difference.abs().max()),
        relative=float(difference.pow(2).mean().sqrt() / old.std().clamp_min(1e-12)),
        divergence=float(divergence),
        same_top=float((old.argmax(-1) == new.argmax(-1)).double().mean()),
    )
