"""The page in a real browser: what a visitor sees and does."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("gradio", reason="the page needs gradio: pip install 'seqpe-zoo[app]'")
pytest.importorskip("selenium", reason="the browser is driven by selenium: pip install selenium")

from selenium.webdriver.common.by import By

from .browser import Visitor, missing_program, visit

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing_program()), reason=missing_program())]


@pytest.fixture
def visitor(address: str) -> Iterator[Visitor]:
    with visit(address) as somebody:
        yield somebody


def test_page_opens_far_out_with_its_curve(visitor: Visitor) -> None:
    visitor.see(
        "text-first-summary", "Perplexity", "text_seqpe", "2 times the 32 tokens"
    )  # it has 99 positions
    visitor.see("text-second-summary", "Perplexity", "text_alibi")
    visitor.see_plot("text-curve")


def test_longer_context_changes_perplexity_and_heatmap(visitor: Visitor) -> None:
    visitor.type_number("Context length", 32)
    short = visitor.see("text-first-summary", "Perplexity", "as in training", "seqpe")
    heatmap = visitor.see_plot("text-first-heatmap")
    visitor.type_number("Context length", 64)
    long = visitor.see("text-first-summary", "Perplexity", "2 times the 32 tokens")
    assert short.splitlines()[1] != long.splitlines()[1]
    visitor.wait(lambda: visitor.see_plot("text-first-heatmap") != heatmap, "the heatmap stays as it was")


def test_length_beyond_capacity_is_a_sentence_beside_the_other_model(visitor: Visitor) -> None:
    visitor.see("text-second-summary", "Perplexity")
    visitor.type_number("Context length", 256)
    visitor.see("text-first-summary", "This cannot be shown", "the largest allowed position is 99")
    visitor.see("text-second-summary", "Perplexity", "8 times")


def test_number_is_deleted_and_typed_anew(visitor: Visitor) -> None:
    visitor.see("text-first-summary", "Perplexity")
    visitor.type_number("Context length", None)
    visitor.see("text-first-summary", "must be positive numbers of tokens")
    visitor.type_number("Context length", 40)
    visitor.see("text-first-summary", "Perplexity", "in contexts of 40 tokens")


def test_model_is_changed_and_curves_are_drawn(visitor: Visitor) -> None:
    visitor.see("text-first-summary", "text_seqpe")
    visitor.choose("Model", "text_alibi")
    visitor.see("text-first-summary", "Perplexity", "text_alibi")
    visitor.choose("Beside it", "text_seqpe")
    visitor.see("text-second-summary", "Perplexity", "text_seqpe")
    visitor.see("text-curve-note", "text_seqpe cannot read 128 tokens")
    visitor.see_plot("text-curve")


def test_size_that_patches_do_not_divide_is_a_sentence(visitor: Visitor) -> None:
    visitor.open_tab("Image models")
    visitor.see("images-first-summary", "%", "at 16 x 16 pixels")
    visitor.type_number("Image size", 18)
    visitor.see("images-first-summary", "not divisible into patches of 4 pixels; use 16 or 20")


def test_sample_is_clicked_and_picture_uploaded(visitor: Visitor, tmp_path: Path) -> None:
    visitor.open_tab("Image models")
    first = visitor.see("images-first-summary", "%", "at 16 x 16 pixels")
    visitor.driver.find_elements(By.CSS_SELECTOR, "#samples button.thumbnail-item")[5].click()
    visitor.wait(lambda: visitor.see("images-first-summary", "%") != first, "another sample, the same answer")
    second = visitor.see("images-first-summary", "%")
    Image.effect_noise((40, 40), 90).save(tmp_path / "noise.png")
    visitor.upload("picture", tmp_path / "noise.png")
    visitor.wait(lambda: visitor.see("images-first-summary", "%") != second, "an upload, the same answer")


def test_browser_asks_nobody_but_the_server(visitor: Visitor, address: str) -> None:
    visitor.see("text-first-summary", "Perplexity")
    visitor.open_tab("Image models")
    visitor.see("images-first-summary", "%")
    asked = visitor.asked_addresses()
    assert asked
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
