"""Replaces the position encoding of a trained model by SeqPE, warm, so that a short fine-tune adapts it.

GPT-2's `wpe` and the `pos_embed` of timm's ViT and DeiT are learned tables, added to the input. Integration
"input" does the same with SeqPE's vectors, fitted to the table: the model stays what it was, as far as the
fit goes. The others move positions into attention; see `warm_start.py`. The report says how far the logits
moved before any fine-tuning.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..portable.positions import grid_positions, range_positions
from .errors import ConversionError
from .gpt2 import gpt2_settings
from .state_check import load_exactly
from .warm_start import LayerWeights, fit_encoder, start_projection
from .zoo_checkpoint import Converted


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
    """Rows of the old table."""
    fit_steps: int
    fit_error: float
    """What the fit left of the table: 0 is exact, 1 is no better than its mean."""
    inputs: str
    """What the logits were compared on."""
    change: LogitChange

    def lines(self) -> list[str]:
        """Returns the report in words."""
        change = self.change
        return [
            f"SeqPE ({self.integration}) fitted to {self.positions} positions in {self.fit_steps} steps, "
            f"relative error {self.fit_error:.3f}",
            f"logits before any fine-tuning, on {self.inputs}: moved by {change.mean:.3g} on average, "
            f"{change.largest:.3g} at most ({change.relative:.1%} of their deviation); "
            f"KL {change.divergence:.3g} nats; same top choice in {change.same_top:.1%}",
        ]

    def as_dict(self) -> dict[str, Any]:
        """Returns the report for JSON."""
        return asdict(self)


def graft_gpt2(
    theirs: Any,
    integration: str = "input",
    options: dict[str, Any] | None = None,
    fit_steps: int = 500,
    probe: Tensor | None = None,
    probe_name: str = "random tokens",
    seed: int = 0,
) -> tuple[Converted, GraftReport]:
    """Grafts SeqPE onto a GPT-2.

    Args:
        theirs: transformers' `GPT2LMHeadModel`, or ours with "ape_learn".
        integration: "input", "mul", "sum" or "bias".
        options: other options of SeqPE.
        fit_steps: of the fit of the encoder to the table.
        probe: tokens (B, L) on which logits are compared, by default 4 rows of random ones.
        probe_name: what the report calls them.
        seed: of everything random.

    Raises:
        ConversionError: the model has no learned table, or options do not suit it.
    """
    from ..portable.configuration_seqpe import SeqPEGPT2Config
    from ..portable.modeling_seqpe import SeqPEGPT2LMHeadModel

    old = getattr(theirs.transformer, "position_encoding", theirs.transformer.wpe)
    table = getattr(old, "weight", None)
    if table is None:
        raise ConversionError("the model has no learned table of positions (transformer.wpe.weight)")
    rows = table.shape[0]
    try:
        config = SeqPEGPT2Config(
            **gpt2_settings(theirs.config.to_dict()),
            train_length=rows,
            position_encoding="seqpe",
            position_encoding_args=_options(integration, options),
        )
    except (ValueError, TypeError) as error:
        raise ConversionError(f"SeqPE cannot be grafted so: {error}") from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SeqPEGPT2LMHeadModel(config)
        probe = torch.randint(config.vocab_size, (4, rows)) if probe is None else probe[:, :rows]
    positional = (".wpe.", ".position_encoding.")
    own = {name: value for name, value in model.state_dict().items() if positional[1] in name}
    state = theirs.state_dict()
    kept = {name: state[name] for name in state if not any(part in name for part in positional)}
    load_exactly(model, kept | own, "the GPT-2")
    encoding = model.transformer.position_encoding
    error = fit_encoder(encoding.encoder, range_positions(rows), table, fit_steps, seed=seed)
    theirs.eval()
    if len(encoding.projection) > 0:
        width = config.n_embd
        deviations = _deviations([block.ln_1 for block in theirs.transformer.h], lambda: theirs(probe))
        weights = [block.attn.c_attn.weight.detach().T for block in theirs.transformer.h]
        layers = [
            LayerWeights(weight[:width], weight[width : 2 * width], block.ln_1.weight.detach(), sigma)
            for weight, block, sigma in zip(weights, theirs.transformer.h, deviations, strict=True)
        ]
        start_projection(encoding, layers, seed)
    with torch.no_grad():
        change = logit_change(theirs(probe).logits, model.eval()(probe).logits)
    report = GraftReport(integration, rows, fit_steps, error, probe_name, change)
    record = {"format": "graft on GPT-2", "graft": report.as_dict()}
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
    """Grafts SeqPE onto a ViT or DeiT of timm.

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

    table = getattr(theirs, "pos_embed", None)
    if not isinstance(table, nn.Parameter):
        raise ConversionError(f"{architecture} has no learned table of positions (pos_embed)")
    grid = theirs.patch_embed.grid_size
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
            channels = theirs.patch_embed.proj.in_channels
            probe = torch.randn(4, channels, *theirs.patch_embed.img_size)
    encoding = model.position_encoding
    own = {f"position_encoding.{name}": value for name, value in encoding.state_dict().items()}
    kept = {name: value for name, value in theirs.state_dict().items() if name != "pos_embed"}
    load_exactly(model, kept | own, architecture)
    prefix = table.shape[1] - grid[0] * grid[1]  # 0 where class tokens have no row
    if encoding.prefix is not None:
        with torch.no_grad():
            encoding.prefix.zero_()
            encoding.prefix[:prefix] = table[0, :prefix]
    error = fit_encoder(encoding.encoder, grid_positions(grid), table[0, prefix:], fit_steps, seed=seed)
    theirs.eval()
    if len(encoding.projection) > 0:
        start_projection(encoding, _vit_layers(theirs, probe), seed)
    with torch.no_grad():
        change = logit_change(theirs(probe), model.eval()(probe))
    report = GraftReport(integration, grid[0] * grid[1], fit_steps, error, probe_name, change)
    record = {"format": f"graft on {architecture}", "graft": report.as_dict()}
    return Converted(model, "timm", given, record), report


def _vit_layers(theirs: Any, probe: Tensor) -> list[LayerWeights]:
    width = theirs.embed_dim
    deviations = _deviations([block.norm1 for block in theirs.blocks], lambda: theirs(probe))
    layers = []
    for block, sigma in zip(theirs.blocks, deviations, strict=True):
        weight = block.attn.qkv.weight.detach()
        layers.append(
            LayerWeights(weight[:width], weight[width : 2 * width], block.norm1.weight.detach(), sigma)
        )
    return layers


def _options(integration: str, options: dict[str, Any] | None) -> dict[str, Any]:
    chosen = {"integration": integration, **(options or {})}
    if integration != "input":
        chosen.setdefault("projection", "per_layer")
    if not chosen.get("multi_head", True):
        raise ConversionError(
            "a graft needs multi_head=True: vectors are fitted to a table as wide as the model"
        )
    return chosen


@torch.no_grad()
def _deviations(norms: list[nn.Module], run: Callable[[], object]) -> list[float]:
    """Mean deviation of what each layer norm sees while `run` runs."""
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
    return seen


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
