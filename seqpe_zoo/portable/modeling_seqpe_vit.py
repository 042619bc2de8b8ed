"""The Vision Transformer with any position encoding, for transformers: a thin cover over our timm model.

There is one architecture, `PositionVisionTransformer`. Here it gets transformers' configuration, outputs and
loss; its weights have timm's names behind `vit.`. In training with labels the position objectives of the
encoding, if it has any, are part of the loss.
"""

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_seqpe_vit import SeqPEViTConfig
from .objectives import share_of_batch
from .position_encoding import PositionEncoding
from .vit import PositionBlock, PositionVisionTransformer


@dataclass
class SeqPEViTImageClassifierOutput(ImageClassifierOutput):
    """Output of `SeqPEViTForImageClassification`.

    Attributes:
        loss: loss of the classes; in training with the weighted position objectives added.
        position_distance_loss: L_delta of the paper, not weighted; in training, for encodings that have it.
        position_ood_loss: L_OOD of the paper, likewise.
    """

    position_distance_loss: Tensor | None = None
    position_ood_loss: Tensor | None = None


class SeqPEViTPreTrainedModel(PreTrainedModel):
    """Base of the models: what transformers must know of them, and how weights start."""

    config_class = SeqPEViTConfig
    base_model_prefix = ""
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    supports_gradient_checkpointing = True
    _no_split_modules = ["PositionBlock"]
    _supports_sdpa = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": PositionBlock}

    def __init__(self, config: SeqPEViTConfig, num_classes: int) -> None:
        super().__init__(config)
        self.vit = PositionVisionTransformer(
            **config.vit_arguments(), num_classes=num_classes, weight_init="skip"
        )
        for block in self.vit.blocks:
            block.attn.fused_attn = config._attn_implementation != "eager"
        self.gradient_checkpointing = False
        self._no_split_modules = ["PositionBlock", type(self.vit.position_encoding).__name__]
        self.post_init()
        # Checkpoints of the first edition do not say what their weights are for.
        self._keys_to_ignore_on_load_missing = {r"position_encoding\.kind$"}

    def get_input_embeddings(self) -> nn.Module:
        return self.vit.patch_embed

    def _set_gradient_checkpointing(self, enable: bool = True, *args: Any, **kwargs: Any) -> None:
        super()._set_gradient_checkpointing(enable, *args, **kwargs)
        self.vit.set_grad_checkpointing(enable)

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # In custom code transformers skips modules without parameters of their own, as an encoding made of
        # parts. All initialisers below leave loaded weights alone, so none need be skipped.
        super()._initialize_weights(module)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, PositionVisionTransformer):
            for token in (module.cls_token, module.reg_token):
                if token is not None:
                    init.normal_(token, std=1e-6)
        elif isinstance(module, PositionEncoding):
            module.initialize()
        elif hasattr(module, "gamma") and hasattr(module, "init_values"):  # timm's layer scale
            init.constant_(module.gamma, module.init_values)
        elif hasattr(module, "latent"):  # timm's attention pooling
            init.normal_(module.latent, std=self.config.hidden_size**-0.5)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; weights of another encoding or integration are refused."""
        loaded = super().from_pretrained(*args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model.vit.position_encoding.check_kind()
        return loaded

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        """As in transformers; also saves an image processor where there is none, so that pipelines work."""
        saved = super().save_pretrained(save_directory, *args, **kwargs)
        if not os.path.isfile(os.path.join(save_directory, "preprocessor_config.json")):
            image_processor(self.config).save_pretrained(save_directory)
        return saved


def image_processor(config: SeqPEViTConfig) -> Any:
    """Returns the image processor of a model, for images of its training size."""
    from transformers import ViTImageProcessor

    height, width = config.image_height_width
    return ViTImageProcessor(
        size={"height": height, "width": width},
        resample=3,  # bicubic
        image_mean=list(config.image_mean),
        image_std=list(config.image_std),
    )


class SeqPEViTModel(SeqPEViTPreTrainedModel):
    """The ViT without a head."""

    _auto_class = "AutoModel"

    _keys_to_ignore_on_load_unexpected = [r"^vit\.head\."]

    def __init__(self, config: SeqPEViTConfig) -> None:
        super().__init__(config, num_classes=0)

    @merge_with_config_defaults  # type: ignore[untyped-decorator]
    @capture_outputs  # type: ignore[untyped-decorator]
    def forward(
        self, pixel_values: Tensor, start: tuple[int, int] = (0, 0), **kwargs: Any
    ) -> BaseModelOutputWithPooling:
        """Encodes images (B, channels, height, width); `start` is the row and column of the first patch."""
        self.vit.set_grid_start(start)
        hidden = self.vit.forward_features(pixel_values)
        pooled = self.vit.forward_head(hidden, pre_logits=True)
        return BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=pooled)


class SeqPEViTForImageClassification(SeqPEViTPreTrainedModel):
    """The ViT with a classifier."""

    _auto_class = "AutoModelForImageClassification"

    def __init__(self, config: SeqPEViTConfig) -> None:
        super().__init__(config, num_classes=config.num_labels)
        self.num_labels = config.num_labels

    @can_return_tuple  # type: ignore[untyped-decorator]
    @merge_with_config_defaults  # type: ignore[untyped-decorator]
    @capture_outputs  # type: ignore[untyped-decorator]
    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        start: tuple[int, int] = (0, 0),
        **kwargs: Any,
    ) -> SeqPEViTImageClassifierOutput:
        """Classifies images (B, channels, height, width); arguments as in transformers' models.

        In training with labels the loss has the encoding's position objectives added. `start` is the row and
        column of the first patch, which training may shift.
        """
        self.vit.set_grid_start(start)
        has_objectives = self.training and labels is not None and self.vit.position_encoding.has_objectives()
        self.vit.wants_objectives = has_objectives
        logits = self.vit(pixel_values)
        loss = losses = None
        if labels is not None:
            loss = self.loss_function(labels, logits, self.config, **kwargs)
            if has_objectives:
                losses = self.vit.position_losses()
                share = share_of_batch(labels, kwargs.get("num_items_in_batch"))
                loss = loss + losses.weighted.to(loss.device) * share
        return SeqPEViTImageClassifierOutput(
            loss=loss,
            logits=logits,
            position_distance_loss=None if losses is None else losses.distance.detach(),
            position_ood_loss=None if losses is None else losses.ood.detach(),
        )


__all__ = ["SeqPEViTForImageClassification", "SeqPEViTModel", "SeqPEViTPreTrainedModel"]
