"""SeqPE and every position encoding it is compared with, for timm and transformers.

Importing this package tells timm and transformers of its models (see `after_import.py`) and imports neither
of them, nor torch; public names are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .after_import import run_after_import

if TYPE_CHECKING:
    from .auto_classes import register_auto_classes
    from .hosts import Host, list_hosts, set_position_encoding, with_position_encoding
    from .portable.configuration_seqpe import SeqPEGPT2Config
    from .portable.configuration_seqpe_vit import SeqPEViTConfig
    from .portable.encodings import (
        build_position_encoding,
        list_position_encodings,
        register_position_encoding,
    )
    from .portable.modeling_seqpe import SeqPEGPT2LMHeadModel, SeqPEGPT2Model
    from .portable.modeling_seqpe_vit import SeqPEViTForImageClassification, SeqPEViTModel
    from .portable.position_encoding import AttentionOperation, PositionEncoding, PositionLosses
    from .portable.positions import (
        ABSENT,
        Positions,
        grid_positions,
        positions_from_mask,
        range_positions,
    )
    from .portable.seqpe import SeqPE, SeqPEOptions
    from .timm_models import register_timm, unregister_timm
    from .zoo import zoo_path

__version__ = "0.2.0"

_HOME = {
    "Host": "hosts",
    "list_hosts": "hosts",
    "set_position_encoding": "hosts",
    "with_position_encoding": "hosts",
    "ABSENT": "portable.positions",
    "AttentionOperation": "portable.position_encoding",
    "PositionEncoding": "portable.position_encoding",
    "PositionLosses": "portable.position_encoding",
    "Positions": "portable.positions",
    "SeqPE": "portable.seqpe",
    "SeqPEGPT2Config": "portable.configuration_seqpe",
    "SeqPEGPT2LMHeadModel": "portable.modeling_seqpe",
    "SeqPEGPT2Model": "portable.modeling_seqpe",
    "SeqPEOptions": "portable.seqpe",
    "SeqPEViTConfig": "portable.configuration_seqpe_vit",
    "SeqPEViTForImageClassification": "portable.modeling_seqpe_vit",
    "SeqPEViTModel": "portable.modeling_seqpe_vit",
    "build_position_encoding": "portable.encodings",
    "grid_positions": "portable.positions",
    "list_position_encodings": "portable.encodings",
    "positions_from_mask": "portable.positions",
    "range_positions": "portable.positions",
    "register_auto_classes": "auto_classes",
    "register_position_encoding": "portable.encodings",
    "register_timm": "timm_models",
    "unregister_timm": "timm_models",
    "zoo_path": "zoo",
}
__all__ = [
    "ABSENT",
    "AttentionOperation",
    "Host",
    "PositionEncoding",
    "PositionLosses",
    "Positions",
    "SeqPE",
    "SeqPEGPT2Config",
    "SeqPEGPT2LMHeadModel",
    "SeqPEGPT2Model",
    "SeqPEOptions",
    "SeqPEViTConfig",
    "SeqPEViTForImageClassification",
    "SeqPEViTModel",
    "build_position_encoding",
    "grid_positions",
    "list_hosts",
    "list_position_encodings",
    "positions_from_mask",
    "range_positions",
    "register_auto_classes",
    "register_position_encoding",
    "register_timm",
    "set_position_encoding",
    "unregister_timm",
    "with_position_encoding",
    "zoo_path",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _register_timm() -> None:
    # Where that module is itself what imports timm, it is half loaded here, and registers at its end.
    getattr(import_module(".timm_models", __name__), "register_timm", lambda: None)()


run_after_import("timm", _register_timm)
import_module(".auto_classes", __name__).register_auto_classes()
