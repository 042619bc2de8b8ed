"""SeqPE and every position encoding it is compared with, for timm and transformers."""

from .portable.pe_seqpe import SeqPE
from .portable.registry import build_position_encoding, list_position_encodings

__version__ = "0.1.0"
__all__ = ["SeqPE", "build_position_encoding", "list_position_encodings"]
