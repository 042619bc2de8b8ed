"""SeqPE and every position encoding it is compared with, for timm and transformers.

Importing this package tells timm and transformers of its models (see `after_import.py`) and imports neither
of them, nor torch; public names are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .after_import import run_after_import

if TYPE_CHECKING:  # the same names for editors and type checkers
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

_NAMES = {
    "auto_classes": "register_auto_classes",
    "hosts": "Host list_hosts set_position_encoding with_position_encoding",
    "portable.configuration_seqpe": "SeqPEGPT2Config",
    "portable.configuration_seqpe_vit": "SeqPEViTConfig",
    "portable.encodings": "build_position_encoding list_position_encodings register_position_encoding",
    "portable.modeling_seqpe": "SeqPEGPT2LMHeadModel SeqPEGPT2Model",
    "portable.modeling_seqpe_vit": "SeqPEViTForImageClassification SeqPEViTModel",
    "portable.position_encoding": "AttentionOperation PositionEncoding PositionLosses",
    "portable.positions": "ABSENT Positions grid_positions positions_from_mask range_positions",
    "portable.seqpe": "SeqPE SeqPEOptions",
    "timm_models": "register_timm unregister_timm",
    "zoo": "zoo_path",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOME)


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
