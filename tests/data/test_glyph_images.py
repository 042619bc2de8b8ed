import torch

from seqpe_zoo.data.glyph_images import CHARACTERS, COPIES, FONTS, load_glyph_images
from seqpe_zoo.data.image_sources import open_small_images


def test_every_character_is_drawn_in_every_font_and_no_font_is_in_two_splits() -> None:
    splits = load_glyph_images().splits
    fonts = {split: names.split() for split, names in FONTS.items()}
    for split, chosen in splits.items():
        counts = torch.bincount(chosen.labels, minlength=len(CHARACTERS))
        assert counts.tolist() == [COPIES[split] * len(fonts[split])] * len(CHARACTERS)
        assert bool((chosen.images.flatten(1).sum(1) > 0).all()), "an empty picture"
    used = [name for names in fonts.values() for name in names]
    assert len(used) == len(set(used))


def test_the_same_seed_draws_the_same_pictures() -> None:
    first, again = (load_glyph_images(3).split("validation").images for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, load_glyph_images(4).split("validation").images)


def test_larger_pictures_show_more() -> None:
    glyphs = open_small_images("glyphs")
    images = glyphs.split("validation").images[:50]
    small, large = (glyphs.pixels(images, side, channels=1) for side in (16, 64))
    enlarged = torch.nn.functional.interpolate(small, size=64, mode="bicubic")
    assert float((enlarged - large).abs().mean()) > 0.1
