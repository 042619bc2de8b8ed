"""Vision models of transformers with any position encoding in place of, or beside, their own.

As `modeling_seqpe.py`, for models that read images: positions are rows and columns of the grid of patches,
class and register tokens have none, and any resolution that patches divide is taken.
"""

import functools
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from .modeling_seqpe import make_position_class
from .positions import Positions
from .transformers_host import PositionContext, PositionHost, spec_of_attention


class VisionHost(PositionHost):
    """Gives a vision model of transformers the position encoding that its config names."""

    def add_positions(self) -> None:
        super().add_positions()
        if self.position_encoding.changes_input:
            blocks = [part for part in self.modules() if isinstance(part, nn.ModuleList)]  # type: ignore[attr-defined]
            block = next(
                part[0] for part in blocks if any(hasattr(m, "position_layer") for m in part[0].modules())
            )
            block.register_forward_pre_hook(add_to_input, with_kwargs=True)

    def host_spec(self, layers: list[Any]) -> dict[str, Any]:
        config: Any = self.config  # type: ignore[attr-defined]
        (height, width), patch = _pair(config.image_size), _pair(config.patch_size)
        shape = {"num_dims": 2, "train_shape": (height // patch[0], width // patch[1])}
        return spec_of_attention(self, layers) | shape | {"num_prefix": self._count_prefix_tokens()}

    def _count_prefix_tokens(self) -> int:
        """Counts class, distillation and register tokens, which come before the patches."""
        embeddings: Any = getattr(self, "embeddings", None)
        if embeddings is None:
            raise ValueError(
                f"{type(self).__name__} has no module `embeddings`, so that the tokens before its patches "
                "are not known; position encodings cannot be added to it"
            )
        single = ("cls_token", "class_embedding", "distillation_token")
        registers = getattr(embeddings, "register_tokens", None)
        count = sum(getattr(embeddings, name, None) is not None for name in single)
        return count + (registers.shape[1] if isinstance(registers, Tensor) else 0)

    def remove_native_positions(self) -> None:
        super().remove_native_positions()
        for part in self.modules():  # type: ignore[attr-defined]
            if hasattr(part, "interpolate_pos_encoding"):
                _remove_image_table(part)

    def make_context(self, given: dict[str, Any], tokens: Tensor, cache: Any) -> PositionContext:
        """Makes the context of images (B, channels, height, width); patches have their places in the grid."""
        patch = _pair(self.config.patch_size)  # type: ignore[attr-defined]
        size = (tokens.shape[-2] // patch[0], tokens.shape[-1] // patch[1])
        inputs = self.position_encoding(
            Positions(size, (0, 0)), tokens.shape[0], tokens.device, self.wants_objectives
        )
        if "interpolate_pos_encoding" in self.argument_names and not self.config.keep_native:  # type: ignore[attr-defined]
            given["interpolate_pos_encoding"] = True  # any size; what would be interpolated is zero
        if "noise" in self.argument_names:
            inputs = inputs.map(functools.partial(self._kept_rows, self._kept_patches(given, tokens, size)))
        return self.context(inputs, inputs.layers)

    def _kept_patches(self, given: dict[str, Any], pixels: Tensor, size: tuple[int, int]) -> Tensor:
        """Patches (B, kept) that a masked autoencoder keeps: those of least noise, in that order."""
        count = size[0] * size[1]
        if given.get("noise") is None:
            given["noise"] = torch.rand(pixels.shape[0], count, device=pixels.device)
        return given["noise"].argsort(dim=1)[:, : int(count * (1 - self.config.mask_ratio))]  # type: ignore[attr-defined]

    def _kept_rows(self, kept: Tensor, inputs: Tensor) -> Tensor:
        """Rows (B, prefix + kept, T) of class tokens and kept patches."""
        prefix = self.position_encoding.host.num_prefix
        rows = torch.cat([kept.new_tensor(range(prefix)).expand(kept.shape[0], prefix), kept + prefix], dim=1)
        inputs = inputs.expand(kept.shape[0], *inputs.shape[-2:])
        return inputs.gather(1, rows.unsqueeze(-1).expand(*rows.shape, inputs.shape[-1]))


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)


def _remove_image_table(embeddings: Any) -> None:
    """Leaves the table of an image model out of its sums; its weights stay in the checkpoint, unused."""
    clip = getattr(embeddings, "position_embedding", None)
    table = getattr(embeddings, "position_embeddings", None) if clip is None else clip.weight
    if table is None:
        return
    table.requires_grad_(False)
    patches = embeddings if clip is not None else embeddings.patch_embeddings
    extra = table.shape[-2] - patches.num_patches
    # In the instance, where it is found before the method of the class.
    zeros = functools.partial(no_image_table, embeddings.patch_size, extra)
    embeddings.__dict__["interpolate_pos_encoding"] = zeros


def no_image_table(patch_size: Any, extra: int, embeddings: Tensor, height: int, width: int) -> Tensor:
    """Zeros that are added to patches and the tokens before them, (1, tokens, 1)."""
    patch = _pair(patch_size)
    return embeddings.new_zeros(1, (height // patch[0]) * (width // patch[1]) + extra, 1)


def add_to_input(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A hook of a model's first block: adds what the encoding adds to embedded tokens."""
    context = kwargs["position_context"]
    x = kwargs["hidden_states"] if not args else args[0]
    x = context.encoding.on_input(x, context.inputs.encoded.to(x.device))
    return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": x})


def position_model_class(native: Any) -> Any:
    """The class of a vision model with a position encoding, as `SeqPEDinov2Model` of `Dinov2Model`."""
    name = f"SeqPE{native.__name__}"
    if name not in globals():
        globals()[name] = make_position_class(native, VisionHost, __name__, position_model_class)
    return globals()[name]


def __getattr__(name: str) -> Any:
    native = getattr(transformers, name.removeprefix("SeqPE"), None) if name.startswith("SeqPE") else None
    if not (isinstance(native, type) and issubclass(native, transformers.PreTrainedModel)):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return position_model_class(native)
