"""Configuration of the Vision Transformer with any position encoding, for transformers (paper, section 4.3).

Sizes have transformers' names; `vit_arguments` translates them for timm's model, which does the work. What
contradicts itself is refused here, before a model is built.
"""

from typing import Any

from transformers.configuration_utils import PreTrainedConfig, strict

AUTO_MAP = {
    "AutoConfig": "configuration_seqpe_vit.SeqPEViTConfig",
    "AutoModel": "modeling_seqpe_vit.SeqPEViTModel",
    "AutoModelForImageClassification": "modeling_seqpe_vit.SeqPEViTForImageClassification",
}
"""Where the Auto classes find their code in a checkpoint; all of it is saved, whichever class is."""


def auto_map_of(config: Any) -> dict[str, str]:
    """Where the Auto classes find their code in a checkpoint, as of every configuration of ours."""
    return AUTO_MAP


TIMM_NAMES = {
    "patch_size": "patch_size",
    "num_channels": "in_chans",
    "hidden_size": "embed_dim",
    "num_hidden_layers": "depth",
    "num_attention_heads": "num_heads",
    "mlp_ratio": "mlp_ratio",
    "qkv_bias": "qkv_bias",
    "class_token": "class_token",
    "num_register_tokens": "reg_tokens",
    "global_pool": "global_pool",
    "hidden_dropout_prob": "proj_drop_rate",
    "attention_probs_dropout_prob": "attn_drop_rate",
    "drop_path_rate": "drop_path_rate",
    "patch_drop_rate": "patch_drop_rate",
    "dynamic_image_size": "dynamic_img_size",
    "dynamic_image_pad": "dynamic_img_pad",
    "position_encoding": "pos_embed",
    "position_encoding_args": "pos_embed_args",
}
"""Fields of the configuration, and the arguments of timm's `VisionTransformer` that they are."""

REMOVED_OPTIONS = ("projection_init", "chunk_size", "objective_probability", "sequence_model", "distance")
"""Options of edition one that checkpoints may name and that do not change what their weights mean."""


@strict
class SeqPEViTConfig(PreTrainedConfig):
    """Configuration of `SeqPEViTModel` and `SeqPEViTForImageClassification`.

    Most fields are arguments of timm's `VisionTransformer`, see `TIMM_NAMES`. The others are these.

    Args:
        image_size: height and width of training images, or one number for both.
        initializer_range: standard deviation of initial weights.
        position_encoding: a name of `list_position_encodings(2, causal=False)`.
        position_encoding_args: options of that encoding, as `{"integration": "mul"}` for "seqpe".
        vit_args: further arguments of timm's `VisionTransformer`, as `{"init_values": 1e-5}`.
        image_mean: of the pixels, by channel, for the image processor.
        image_std: likewise.
    """

    model_type = "seqpe_vit"
    _auto_class = "AutoConfig"

    image_size: int | list[int] | tuple[int, ...] = 224
    patch_size: int = 16
    num_channels: int = 3
    hidden_size: int = 384
    num_hidden_layers: int = 12
    num_attention_heads: int = 6
    mlp_ratio: float | int = 4.0
    qkv_bias: bool = True
    class_token: bool = True
    num_register_tokens: int = 0
    global_pool: str = "token"
    hidden_dropout_prob: float | int = 0.0
    attention_probs_dropout_prob: float | int = 0.0
    drop_path_rate: float | int = 0.0
    patch_drop_rate: float | int = 0.0
    dynamic_image_size: bool = True
    dynamic_image_pad: bool = False
    initializer_range: float | int = 0.02
    position_encoding: str = "seqpe"
    position_encoding_args: dict[str, Any] | None = None
    vit_args: dict[str, Any] | None = None
    image_mean: list[float] | tuple[float, ...] = (0.485, 0.456, 0.406)
    image_std: list[float] | tuple[float, ...] = (0.229, 0.224, 0.225)

    def __post_init__(self, **kwargs: Any) -> None:
        given = self.position_encoding_args or {}
        self.position_encoding_args = {k: v for k, v in given.items() if k not in REMOVED_OPTIONS}
        self.vit_args = dict(self.vit_args or {})
        auto_map = kwargs.pop("auto_map", None)
        super().__post_init__(**kwargs)
        self.auto_map = dict(auto_map or AUTO_MAP)
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not divisible by "
                f"num_attention_heads={self.num_attention_heads}; choose heads that divide the width"
            )
        height, width = self.image_height_width
        if min(height, width) < self.patch_size:
            raise ValueError(f"an image of {height} x {width} is smaller than patch_size={self.patch_size}")

    @property
    def image_height_width(self) -> tuple[int, int]:
        """Size of training images."""
        if isinstance(self.image_size, int):
            return self.image_size, self.image_size
        height, width = self.image_size
        return height, width

    def vit_arguments(self) -> dict[str, Any]:
        """Arguments of our timm model: `timm.create_model("vit_small_patch16_pe_224", **these)` is equal."""
        renamed = {theirs: getattr(self, ours) for ours, theirs in TIMM_NAMES.items()}
        return {"img_size": self.image_height_width, **renamed, **(self.vit_args or {})}

    @classmethod
    def tiny(cls, **changes: Any) -> "SeqPEViTConfig":
        """A model that runs in milliseconds, for tests and first steps."""
        given = changes.pop("position_encoding_args", None)
        name = changes.setdefault("position_encoding", "seqpe")
        small = {"num_pivots": 4, "num_candidates": 8, "num_starts": 4, "num_transfer": 8}
        args = {**(small if name == "seqpe" else {}), **(given or {})}
        sizes = {"image_size": 16, "patch_size": 4, "hidden_size": 32}
        heads = {"num_hidden_layers": 2, "num_attention_heads": 2}
        return cls(**{**sizes, **heads, "position_encoding_args": args, **changes})


__all__ = ["SeqPEViTConfig"]
