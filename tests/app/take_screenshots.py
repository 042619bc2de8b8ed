"""Takes the pictures of docs/app.md.

python -m tests.app.take_screenshots docs/images [DIR_OR_ID ...]
"""

import argparse
import io
from pathlib import Path

from PIL import Image

from seqpe_zoo.app.page import build_page, launch_page
from seqpe_zoo.app.zoo import find_models

from .browser import Visitor, visit

WINDOW_FRAME = 180
"""Pixels of a window's height that are not page, and a margin."""


def photograph(visitor: Visitor, path: Path) -> None:
    """Saves the whole page; 256 colours are enough for it and make the file small."""
    visitor.wait_until_idle()
    height = visitor.driver.execute_script("return document.querySelector('gradio-app').scrollHeight")
    visitor.driver.set_window_size(1200, height + WINDOW_FRAME)
    picture = Image.open(io.BytesIO(visitor.driver.get_screenshot_as_png())).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def show_language_models(visitor: Visitor, folder: Path) -> None:
    visitor.see("text-first-summary", "Perplexity", "16 times")
    visitor.see("text-second-summary", "Perplexity", "16 times")
    visitor.see_plot("text-curve")
    photograph(visitor, folder / "app_text.png")


def show_image_models(visitor: Visitor, folder: Path) -> None:
    visitor.open_tab("Image models")
    summary = visitor.see("images-first-summary", "as in training")
    trained = int(summary.split("at ")[-1].split(" x ")[0])
    visitor.see_plot("images-curve")
    visitor.type_number("Image size", 2 * trained)
    visitor.see("images-first-summary", "2 times")
    visitor.see("images-second-summary", "2 times")
    photograph(visitor, folder / "app_images.png")
    visitor.type_number("Image size", 2 * trained + 1)
    visitor.see("images-second-summary", "not divisible")
    photograph(visitor, folder / "app_message.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    page = build_page(find_models(options.models))
    _, address, _ = launch_page(page, server_name="127.0.0.1", prevent_thread_lock=True)
    with visit(address, width=1200, height=1400) as visitor:
        show_language_models(visitor, options.folder)
        show_image_models(visitor, options.folder)
    page.close(verbose=False)


if __name__ == "__main__":
    main()
