"""Small image sets by one word: `digits`, `glyphs`, `fashion-mnist`, `fashion-mnist:FOLDER`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from .digits_images import load_digit_images
from .glyph_images import load_glyph_images
from .idx_images import load_fashion_mnist
from .small_images import SmallImages

LOADERS = {"digits": load_digit_images, "glyphs": load_glyph_images, "fashion-mnist": load_fashion_mnist}


@lru_cache(maxsize=1)
def open_small_images(source: str) -> SmallImages | None:
    """Opens a set that fits into memory; None for any other source, which the readers of timm open.

    Raises:
        DataError: the set cannot be read.
    """
    name, _, folder = source.partition(":")
    if folder and name == "fashion-mnist":
        return load_fashion_mnist(Path(folder))
    return LOADERS[source]() if source in LOADERS else None
