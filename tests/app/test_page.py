"""The server, asked over HTTP as a browser asks it; the look of the page is tested in test_browser.py."""

import re
import urllib.request
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("gradio", reason="the page needs gradio: pip install 'seqpe-zoo[app]'")

from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError

from seqpe_zoo.app.page import NOBODY, TITLE
from seqpe_zoo.app.texts import OWN, STDLIB


@pytest.fixture(scope="module")
def client(address: str) -> Client:
    return Client(address, verbose=False)


def plots(answer: tuple) -> list[bool]:
    """Which parts of an answer show a figure."""
    shown = [part.get("value") or {} if isinstance(part, dict) else {} for part in answer]
    return [str(value.get("plot", "")).startswith("data:image") for value in shown]


def test_two_language_models_are_shown_side_by_side(client: Client) -> None:
    answer = client.predict("text_seqpe", "text_alibi", STDLIB, "", 64, api_name="/text")
    assert "Perplexity" in answer[0]
    assert "`seqpe`" in answer[0]
    assert "`alibi`" in answer[3]
    assert "gives positions no vectors" in answer[4]
    assert plots(answer) == [False, False, True, False, False, False]


def test_error_of_one_model_leaves_the_other(client: Client) -> None:
    answer = client.predict("text_seqpe", "text_alibi", STDLIB, "", 256, api_name="/text")
    assert "This cannot be shown:" in answer[0]
    assert "position 255" in answer[0]
    assert "Perplexity" in answer[3]


def test_empty_text_is_a_sentence_on_the_page(client: Client) -> None:
    answer = client.predict("text_alibi", NOBODY, OWN, "", 64, api_name="/text")
    assert "your own text is empty" in answer[0]
    assert answer[3] == ""


def test_curves_of_language_models_are_drawn(client: Client) -> None:
    answer = client.predict("text_alibi", "text_seqpe", STDLIB, "", api_name="/text_curve")
    assert plots(answer) == [False, True]
    assert "text_seqpe cannot read 128 tokens" in answer[0]


def test_picture_is_classified_by_two_models(client: Client, tmp_path: Path) -> None:
    Image.new("RGB", (30, 20), "white").save(tmp_path / "picture.png")
    picture = handle_file(tmp_path / "picture.png")
    answer = client.predict("vit_seqpe", "vit_rope", picture, 32, api_name="/image")
    for summary, label in (answer[0:2], answer[4:6]):
        assert f"### {label['label']}: " in summary
        assert sum(row["confidence"] for row in label["confidences"]) <= 1.0001
    assert plots(answer) == [False, False, False, True, False, False, False, False]


@pytest.mark.parametrize(("size", "reason"), [(18, "not divisible into patches"), (44, "position 10")])
def test_size_that_cannot_be_seen_is_a_sentence_on_the_page(
    client: Client, tmp_path: Path, size: int, reason: str
) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "picture.png")
    answer = client.predict(
        "vit_seqpe", NOBODY, handle_file(tmp_path / "picture.png"), size, api_name="/image"
    )
    assert reason in answer[0]
    assert not answer[1]  # no prediction of an earlier size is left


def test_missing_picture_is_a_sentence_on_the_page(client: Client) -> None:
    assert "there is no picture" in client.predict("vit_rope", NOBODY, None, 16, api_name="/image")[0]
    assert "there is no picture" in client.predict("vit_rope", NOBODY, None, api_name="/image_curve")[0]


def test_model_that_is_not_there_is_refused_without_a_traceback(client: Client) -> None:
    with pytest.raises(AppError, match="gpt9") as refused:
        client.predict("gpt9", NOBODY, STDLIB, "", 64, api_name="/text")
    assert "Traceback" not in str(refused.value)


def test_page_loads_nothing_from_elsewhere(address: str) -> None:
    with urllib.request.urlopen(address) as response:
        text = response.read().decode()
    assert TITLE in text
    loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=[\"'](https?://[^\"']+)", text)
    assert [url for url in loaded if not url.startswith(address)] == []
    assert "fonts.googleapis" not in text
