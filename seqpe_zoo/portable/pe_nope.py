"""No position encoding at all: causal attention alone tells order (paper, "NoPE"); in a ViT, nothing does."""

from .pe_base import PositionEncoding


class NoPositionEncoding(PositionEncoding):
    """Does nothing at any stage."""

    name = "nope"
