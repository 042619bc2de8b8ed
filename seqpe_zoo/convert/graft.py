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
from .errors import ConversionError
from .sources import PROBE_LENGTH, PROBE_ROWS, check_vit
from .state_check import load_exactly
from .warm_start import (
    LayerWeights,
    fit_to_table,
    mean_queries_and_keys,
    rotary_frequencies,
    start_from_rotation,
    start_projection,
)
from .zoo_checkpoint import Converted

FIT_LENGTH = 4096
"""Positions of a rotation that the encoder is fitted to, at most."""


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
        return [
            f"SeqPE ({self.integration}) {fit}",
            f"logits before any fine-tuning, on {self.inputs}: moved by {change.mean:.3g} on average, "
            f"{change.largest:.3g} at most ({change.relative:.1%} of their deviation); "
            f"KL {change.divergence:.3g} nats; same top choice in {change.same_top:.1%}",
        ]


def graft_transformers(
    theirs: Any,
    integration: str | None = None,
    options: dict[str, Any] | None = None,
    keep_native: bool = False,
    fit_steps: int = 500,
    probe: Tensor | None = None,
    probe_name: str = "random inputs",
    seed: int = 0,
) -> tuple[Converted, GraftReport]:
    """Gives a model of transformers SeqPE, in place, fitted to its table of positions if it has one.

    Args:
        theirs: a language model or image classifier; or our GPT-2 with "ape_learn".
        integration: "input", "mul", "sum" or "bias"; by default "input" for a table, else "bias".
        options: other options of SeqPE.
        keep_native: keep the model's own positions, and start as a change of nothing.
        fit_steps: of the fit of the encoder to the table.
        probe: tokens (B, L) or images on which logits are compared, by default 4 random ones.
        probe_name: what the report calls them.
        seed: of everything random.

    Raises:
        ConversionError: the model cannot have SeqPE, or options do not suit it.
    """
    from ..hosts import set_position_encoding

    theirs = (plain_gpt2(theirs) if hasattr(theirs, "position_host") else theirs).eval()
    table = None if keep_native else learned_table(theirs)
    integration = integration or ("bias" if table is None else "input")
    chosen = (
        _options(integration, options)
        if table is not None
        else {"integration": integration, **(options or {})}
    )
    rows = getattr(theirs.config, "max_position_embeddings", None)
    in_attention = integration != "input" and chosen.get("projection") != "none"
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        probe = _random_probe(theirs.config) if probe is None else probe
        old = theirs(probe).logits
        frequencies, layers, means = torch.empty(0), [], []
        if table is not None and in_attention:
            layers = _transformers_layers(theirs, probe)
        elif in_attention and rows is not None and not keep_native and integration != "mul":
            frequencies = rotary_frequencies(theirs)
            means = mean_queries_and_keys(theirs, lambda: theirs(probe)) if len(frequencies) else []
        try:
            length = {} if rows is None else {"train_length": rows}
            model = set_position_encoding(theirs, "seqpe", keep_native=keep_native, **length, **chosen)
        except (ValueError, TypeError) as error:
            raise ConversionError(f"SeqPE cannot be grafted so: {error}") from error
    # Saved under the names of its modules: older ones, that it was loaded from, belong to its old model type.
    model._weight_conversions = None
    encoding, error, count = model.position_host.position_encoding, None, 0
    if table is not None:
        error, count = _fit(encoding, table, fit_steps, seed), len(table)
    elif means:
        count = min(rows, FIT_LENGTH)
        error = start_from_rotation(encoding, frequencies, means, count, fit_steps, seed)
    if layers:
        start_projection(encoding, layers, seed)
    with torch.no_grad():
        change = logit_change(old, model(probe).logits)
    report = GraftReport(integration, count, fit_steps, error, probe_name, change, keep_native)
    record = {"format": f"graft on {model.config.native_model_type}", "graft": asdict(report)}
    return Converted(model, "transformers", record=record), report


def graft_vit(
    theirs: Any,
    architecture: str,
    model_args: dict[str, Any] | None = None,
    integration: str = "input",
    options: dict[str, Any] | None = None,
    fit_steps: int = 500,
    probe: Tensor | None = None,
    probe_name: str = "random images",
    seed: int = 0,
) -> tuple[Converted, GraftReport]:
    """Gives a ViT or DeiT of timm SeqPE, fitted to its table of positions.

    Args:
        theirs: a timm `VisionTransformer` with its learned table `pos_embed`.
        architecture: its name in timm.
        model_args: arguments it was built with beyond those of its name.
        integration: "input", "mul", "sum" or "bias".
        options: other options of SeqPE.
        fit_steps: of the fit of the encoder to the table.
        probe: images (B, channels, height, width) on which logits are compared, by default 4 of noise.
        probe_name: what the report calls them.
        seed: of everything random.

    Raises:
        ConversionError: the model has no learned table, or options do not suit it.
    """
    import timm

    from .. import timm_models  # noqa: F401 (the pos_embed= hook)

    check_vit(theirs, architecture)
    given = {**(model_args or {}), "num_classes": theirs.num_classes, "dynamic_img_size": True}
    given |= {"pos_embed": "seqpe", "pos_embed_args": _options(integration, options)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = timm.create_model(architecture, pretrained=False, **given)
        except (ValueError, TypeError) as error:
            raise ConversionError(f"SeqPE cannot be grafted so: {error}") from error
        if not hasattr(model, "position_encoding"):
            raise ConversionError(f"{architecture} is no ViT or DeiT of timm that takes pos_embed='seqpe'")
        if probe is None:
            probe = torch.randn(PROBE_ROWS, theirs.patch_embed.proj.in_channels, *theirs.patch_embed.img_size)
    encoding = model.position_encoding
    own = {f"position_encoding.{name}": value for name, value in encoding.state_dict().items()}
    kept = {name: value for name, value in theirs.state_dict().items() if name != "pos_embed"}
    load_exactly(model, kept | own, architecture)
    error = _fit(encoding, theirs.pos_embed[0].detach(), fit_steps, seed)
    theirs.eval()
    if len(encoding.projection) > 0:
        width = theirs.embed_dim
        weights = [block.attn.qkv.weight for block in theirs.blocks]
        norms = [block.norm1 for block in theirs.blocks]
        layers = _layers([(w[:width], w[width : 2 * width]) for w in weights], norms, lambda: theirs(probe))
        start_projection(encoding, layers, seed)
    with torch.no_grad():
        change = logit_change(theirs(probe), model.eval()(probe))
    rows = theirs.patch_embed.grid_size
    report = GraftReport(integration, rows[0] * rows[1], fit_steps, error, probe_name, change)
    record = {"format": f"graft on {architecture}", "graft": asdict(report)}
    return Converted(model, "timm", given, record), report


def learned_table(model: Any) -> Tensor | None:
    """Returns the table of positions (N, C) that a model of transformers adds to its input; None without one.

    Of images it has the rows of class tokens first.
    """
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


def _options(integration: str, options: dict[str, Any] | None) -> dict[str, Any]:
    chosen = {"integration": integration, **(options or {})}
    if integration != "input":
        chosen.setdefault("projection", "per_layer")
    if not chosen.get("multi_head", True):
        raise ConversionError(
            "a graft needs multi_head=True: vectors are fitted to a table as wide as the model"
        )
    return chosen


def _random_probe(config: Any) -> Tensor:
    if getattr(config, "vocab_size", None) is None:
        height, width = (config.image_size,) * 2 if isinstance(config.image_size, int) else config.image_size
        return torch.randn(PROBE_ROWS, config.num_channels, height, width)
    return torch.randint(config.vocab_size, (PROBE_ROWS, min(config.max_position_embeddings, PROBE_LENGTH)))


def _transformers_layers(model: Any, probe: Tensor) -> list[LayerWeights]:
    from ..portable.transformers_host import attention_layers

    base = model.base_model
    attention = attention_layers(base)
    lists = [part for part in base.modules() if isinstance(part, nn.ModuleList)]
    blocks = next(blocks for blocks in lists if attention[0] in blocks[0].modules())
    pairs, norms = [], []
    for layer, block in zip(attention, blocks, strict=True):
        if hasattr(layer, "c_attn"):  # GPT-2 has one matrix, [in, out]
            query, key, _ = layer.c_attn.weight.T.chunk(3)
        else:
            query, key = layer.q_proj.weight, layer.k_proj.weight
        pairs.append((query, key))
        norms.append(next(part for part in block.modules() if "Norm" in type(part).__name__))
    return _layers(pairs, norms, lambda: model(probe))


@torch.no_grad()
def _layers(
    pairs: list[tuple[Tensor, Tensor]], norms: list[Any], run: Callable[[], object]
) -> list[LayerWeights]:
    """Weights of each layer, and the mean deviation of what its norm sees while `run` runs."""
    seen: list[float] = []
    hooks = [
        norm.register_forward_pre_hook(
            lambda module, inputs: seen.append(float(inputs[0].std(dim=-1).mean()))
        )
        for norm in norms
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return [
        LayerWeights(query.detach(), key.detach(), norm.weight.detach(), sigma)
        for (query, key), norm, sigma in zip(pairs, norms, seen, strict=True)
    ]


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
