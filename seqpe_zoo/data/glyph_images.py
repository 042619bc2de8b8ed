"""Letters and digits in the fonts that matplotlib ships: images that every installation can draw at any size.

Each is drawn at 64 pixels, moved, turned and scaled at random; smaller sizes are averages of those pixels. So
a larger picture shows more, as with photographs, and not the same pixels again. Test pictures are in fonts of
which no training picture is.
"""

from __future__ import annotations

import random
from pathlib import Path

import torch

from .errors import DataError
from .small_images import LabelledImages, SmallImages

SIDE = 64
CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ23456789"
"""Without 0 and 1, which are O and I in some fonts."""
FONTS = {
    "train": "DejaVuSans DejaVuSans-Oblique DejaVuSans-Bold DejaVuSansMono DejaVuSansMono-Bold DejaVuSerif "
    "DejaVuSerif-Italic DejaVuSerif-Bold STIXGeneral STIXGeneralBol cmr10 cmtt10",
    "validation": "DejaVuSansMono-Oblique DejaVuSerif-BoldItalic",
    "test": "DejaVuSans-BoldOblique STIXGeneralItalic cmss10",
}
COPIES = {"train": 16, "validation": 8, "test": 10}
"""Pictures of each character in each font."""


def load_glyph_images(seed: int = 0) -> SmallImages:
    """Draws the pictures, the same ones for the same seed.

    Raises:
        DataError: matplotlib is not installed.
    """
    draw = random.Random(seed)
    splits = {}
    for split, fonts in FONTS.items():
        pictures, labels = [], []
        for font in fonts.split():
            for label, character in enumerate(CHARACTERS):
                for _ in range(COPIES[split]):
                    pictures.append(draw_character(character, font_file(font), draw))
                    labels.append(label)
        splits[split] = LabelledImages(torch.stack(pictures), torch.tensor(labels))
    train = splits["train"].images
    mean, std = float(train.mean()), float(train.std())
    name = "letters and digits in matplotlib's fonts"
    return SmallImages(name, "matplotlib-glyphs", tuple(CHARACTERS), mean, std, splits)


def font_file(name: str) -> Path:
    """Where matplotlib keeps a font.

    Raises:
        DataError: matplotlib is not installed, or has no such font.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise DataError(
            "the pictures of letters are drawn with matplotlib's fonts: pip install 'seqpe-zoo[plot]'"
        ) from error
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"
    if not path.is_file():
        raise DataError(f"this matplotlib has no font {name}; reinstall it")
    return path


def draw_character(character: str, font: Path, draw: random.Random) -> torch.Tensor:
    """Draws a character, white on black, (1, 64, 64) with values 0..1, at a random place, size and angle."""
    import numpy
    from PIL import Image, ImageDraw, ImageFont

    height = draw.uniform(0.55, 0.8) * SIDE
    face = ImageFont.truetype(str(font), round(1.3 * height))
    picture = Image.new("L", (SIDE, SIDE))
    middle = [SIDE / 2 + draw.uniform(-0.1, 0.1) * SIDE for _ in range(2)]
    left, top, right, bottom = face.getbbox(character)
    corner = (middle[0] - (left + right) / 2, middle[1] - (top + bottom) / 2)
    ImageDraw.Draw(picture).text(corner, character, fill=255, font=face)
    picture = picture.rotate(draw.gauss(0, 8) % 360, Image.Resampling.BILINEAR)
    return torch.from_numpy(numpy.array(picture)).float().div(255).unsqueeze(0)
