"""The page: a tab for language models and one for image models, each with two models side by side.

Only this file knows of gradio. What is shown is computed in `views.py`; what cannot be shown appears as a
sentence where the result would be. Nothing is fetched from or sent to the internet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr
from PIL import Image

from ..data.errors import DataError
from ..evaluation.model_loading import ImageModel, LanguageModel
from .pictures import class_names, sample_pictures
from .texts import OWN, TEXTS, default_text
from .views import (
    Curves,
    SettingRange,
    View,
    compare_pictures,
    compare_texts,
    length_range,
    size_range,
    view_picture,
    view_text,
)
from .zoo import IMAGES, TEXT, Zoo, ZooModel

NOBODY = "(none)"
"""The choice of no second model."""
TITLE = "SeqPE zoo: position encodings beyond their training length"
INTRODUCTION = (
    f"# {TITLE}\nThe curve shows two models beyond what they were trained on; the slider chooses where to "
    "look closer: what they say there, and how alike their position vectors are."
)
SCALE = "How alike position vectors are: 1 the same, 0 unrelated, -1 opposite (correlation):"
_SMALLEST_THUMBNAIL = 96
# Samples have few pixels: shown large, their pixels should stay pixels.
_STYLE = """
#picture img {image-rendering: pixelated; width: 100%; height: 100%; object-fit: contain}
#samples img {image-rendering: pixelated}
"""
# A slider whose number has been deleted, to type another, has none.
_NUMBER_AT_LAST = "(...given) => [...given.slice(0, -1), given.at(-1) ?? 0]"
# One thing is computed at a time: a model's tables are filled while it runs, and two cores are soon busy.
_ONE_AT_A_TIME: dict[str, Any] = {"concurrency_id": "models", "concurrency_limit": 1}


def build_page(models: Sequence[ZooModel]) -> gr.Blocks:
    """Builds the page for models."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    zoo = Zoo(models)
    with gr.Blocks(title=TITLE, analytics_enabled=False) as page:
        gr.Markdown(INTRODUCTION)
        if zoo.names(TEXT):
            with gr.Tab("Language models"):
                _TextTab(zoo).build(page)
        if zoo.names(IMAGES):
            with gr.Tab("Image models"):
                _ImageTab(zoo).build(page)
    return page


def launch_page(page: gr.Blocks, **options: Any) -> Any:
    """Serves the page; `options` are those of gradio's `launch`."""
    # gradio's own fonts are served by itself; nothing else on the page is from elsewhere.
    own = {"share": False, "quiet": True, "ssr_mode": False, "footer_links": [], "run_history": False}
    theme = gr.themes.Default(primary_hue="emerald")
    return page.launch(**own, theme=theme, css=_STYLE, max_file_size="10mb", **options)


class _Tab:
    """What both tabs have in common: two models, a slider, a curve, two columns of results."""

    kind: str
    slider_label: str

    def __init__(self, zoo: Zoo) -> None:
        self.zoo = zoo
        # SeqPE is what visitors come for: it is chosen at first, and RoPE of the same data beside it.
        self.names = zoo.names(self.kind)
        self.opening = zoo.opening_pair(self.kind)

    def build_choices(self) -> None:
        """Makes the two menus."""
        first, second = self.opening
        with gr.Row():
            self.first = gr.Dropdown(self.names, value=first, label="Model")
            self.second = gr.Dropdown([NOBODY, *self.names], value=second or NOBODY, label="Beside it")

    def build_results(self, outputs_of_column: Callable[[str], list[Any]]) -> tuple[list[Any], list[Any]]:
        """Makes slider, curve and columns; returns the components of the curve and of the columns."""
        self.setting = gr.Slider(label=self.slider_label, precision=0, **self.slider(*self.opening))
        curve = [gr.Markdown(elem_id=f"{self.kind}-curve-note"), _place_of_plot(f"{self.kind}-curve")]
        columns: list[Any] = []
        with gr.Row():
            for side in ("first", "second"):
                with gr.Column():
                    columns += outputs_of_column(f"{self.kind}-{side}")
        return curve, columns

    def connect(
        self, page: gr.Blocks, given: list[Any], changes: list[Any], curve: list[Any], columns: list[Any]
    ) -> None:
        """Says what is computed when: columns at every change, the curve at all but the slider's."""
        inputs, api = [self.first, self.second, *given], self.kind.removesuffix("s")
        changes = [page.load, self.first.change, self.second.change, *changes]
        shared = {"trigger_mode": "always_last", **_ONE_AT_A_TIME}
        gr.on(
            [*changes, self.setting.change],
            self.show,
            [*inputs, self.setting],
            columns,
            js=_NUMBER_AT_LAST,
            api_name=api,
            **shared,
        )
        gr.on(changes, self.compare, inputs, curve, api_name=f"{api}_curve", **shared)

    def slider(self, first: str, second: str | None) -> dict[str, Any]:
        """Returns the slider's options for the chosen models; a model that cannot be loaded has no say."""
        loaded = []
        for name in _chosen(first, second):
            try:
                loaded.append(self.load(name))
            except DataError:
                continue  # its column says why
        reach = self.reach(loaded) if loaded else SettingRange(1, 1, 1)
        # From 0, which is answered by a sentence: gradio refuses what is below the minimum, and a number is
        # below it as long as only its first digit is typed.
        return {"minimum": 0, "maximum": reach.largest, "step": reach.step, "value": reach.start}

    load: Callable[[str], Any]
    reach: Callable[[list[Any]], SettingRange]
    show: Callable[..., list[Any]]
    compare: Callable[..., tuple[str, Any]]


class _TextTab(_Tab):
    kind, slider_label = TEXT, "Context length (tokens)"

    def load(self, name: str) -> LanguageModel:
        return self.zoo.language_model(name)

    def reach(self, models: list[LanguageModel]) -> SettingRange:
        return length_range(models)

    def build(self, page: gr.Blocks) -> None:
        """Makes the tab and says what happens when something is changed."""
        self.build_choices()
        text = gr.Radio(TEXTS, value=self._text_for(self.opening[0]), label="Text")
        own = gr.Textbox(label=OWN, lines=5, visible=False, placeholder="Paste some pages of text here.")
        measure = gr.Button("Measure my text", visible=False)
        curve, columns = self.build_results(
            lambda name: [
                gr.Markdown(elem_id=f"{name}-summary"),
                gr.Markdown(elem_id=f"{name}-note"),
                _place_of_plot(f"{name}-heatmap"),
            ]
        )
        gr.on(
            [self.first.input, self.second.input],
            lambda first, second: (gr.update(**self.slider(first, second)), self._text_for(first)),
            [self.first, self.second],
            [self.setting, text],
            api_visibility="private",
            **_ONE_AT_A_TIME,
        )
        text.change(
            lambda chosen: [gr.update(visible=chosen == OWN)] * 2,
            text,
            [own, measure],
            api_visibility="private",
        )
        self.connect(page, [text, own], [text.change, measure.click], curve, columns)

    def show(self, first: str, second: str, text: str, own: str, length: int) -> list[Any]:
        """Perplexity and heatmap of both models."""
        outputs: list[Any] = []
        for name in (first, second):
            view = _view(name, lambda name=name: view_text(self.load(name), text, own, int(length)))
            outputs += [view.summary, view.note, _plot(view.heatmap)]
        return outputs

    def compare(self, first: str, second: str, text: str, own: str) -> tuple[str, Any]:
        """Perplexity of both models over lengths."""
        return _curves(
            lambda: compare_texts({name: self.load(name) for name in _chosen(first, second)}, text, own)
        )

    def _text_for(self, name: str) -> str:
        try:
            return default_text(self.load(name))
        except DataError:
            return TEXTS[0]


class _ImageTab(_Tab):
    kind, slider_label = IMAGES, "Image size (pixels)"

    def load(self, name: str) -> ImageModel:
        return self.zoo.image_model(name)

    def reach(self, models: list[ImageModel]) -> SettingRange:
        return size_range(models)

    def build(self, page: gr.Blocks) -> None:
        """Makes the tab and says what happens when something is changed."""
        self.build_choices()
        samples = self._samples(self.opening[0])
        plain = {"show_label": False, "format": "png", "buttons": []}
        with gr.Row():
            with gr.Column():
                gr.Markdown("Click a sample,")
                gallery = gr.Gallery(
                    [_enlarged(sample) for sample in samples],
                    columns=4,
                    height=310,
                    allow_preview=False,
                    interactive=False,
                    elem_id="samples",
                    **plain,
                )
            with gr.Column():
                gr.Markdown("or upload a picture; its central square is resized.")
                picture = gr.Image(
                    samples[0] if samples else None,
                    type="pil",
                    image_mode=None,
                    height=310,
                    sources=["upload", "clipboard"],
                    elem_id="picture",
                    **plain,
                )
        curve, columns = self.build_results(
            lambda name: [
                gr.Markdown(elem_id=f"{name}-summary"),
                gr.Label(num_top_classes=5, show_label=False, show_heading=False),
                gr.Markdown(elem_id=f"{name}-note"),
                _place_of_plot(f"{name}-heatmap"),
            ]
        )
        gr.on(
            [self.first.input, self.second.input],
            lambda first, second: gr.update(**self.slider(first, second)),
            [self.first, self.second],
            self.setting,
            api_visibility="private",
            **_ONE_AT_A_TIME,
        )
        self.first.input(self._offer, self.first, [gallery, picture], api_visibility="private")
        gallery.select(self._pick, self.first, picture, api_visibility="private")
        self.connect(page, [picture], [picture.change], curve, columns)

    def show(self, first: str, second: str, picture: Image.Image | None, size: int) -> list[Any]:
        """Prediction and heatmap of both models."""
        outputs: list[Any] = []
        for name in (first, second):
            view = _view(
                name,
                lambda name=name: view_picture(
                    self.load(name), self._classes(name), _given(picture), int(size)
                ),
            )
            outputs += [view.summary, dict(view.probabilities) or None, view.note, _plot(view.heatmap)]
        return outputs

    def compare(self, first: str, second: str, picture: Image.Image | None) -> tuple[str, Any]:
        """Probability of the first model's answer over sizes, to both."""
        return _curves(
            lambda: compare_pictures(
                {name: (self.load(name), self._classes(name)) for name in _chosen(first, second)},
                _given(picture),
            )
        )

    def _classes(self, name: str) -> list[str] | None:
        return class_names(self.zoo.model(name, IMAGES).source)

    def _samples(self, name: str) -> list[Image.Image]:
        try:
            return sample_pictures(self.zoo.model(name, IMAGES))
        except DataError:
            return []  # uploads still work

    def _offer(self, name: str) -> tuple[list[Image.Image], Image.Image | None]:
        samples = self._samples(name)
        return [_enlarged(sample) for sample in samples], samples[0] if samples else None

    def _pick(self, name: str, event: gr.SelectData) -> Image.Image:
        return self._samples(name)[event.index]


def _chosen(first: str, second: str | None) -> list[str]:
    return [first] if second in (NOBODY, None, first) else [first, second]


def _given(picture: Image.Image | None) -> Image.Image:
    if picture is None:
        raise DataError("there is no picture: click a sample, or upload one")
    return picture


def _enlarged(picture: Image.Image) -> Image.Image:
    times = max(1, -(-_SMALLEST_THUMBNAIL // max(picture.size)))
    return picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)


def _place_of_plot(element: str) -> gr.Plot:
    return gr.Plot(show_label=False, format="png", visible=False, elem_id=element)


def _plot(figure: Any | None) -> Any:
    """What a place of a plot becomes; without a figure it disappears."""
    return gr.update(value=figure, visible=figure is not None)


def _view(name: str, compute: Callable[[], View]) -> View:
    """What a column shows, below the model's name; an error about the input is a sentence in it."""
    if name == NOBODY:
        return View("", None)
    try:
        view = compute()
    except DataError as error:
        return View(f"#### {name}\n**This cannot be shown:** {error}", None)
    note = view.note or SCALE
    return replace(view, summary=f"#### {name}\n{view.summary}", note=note)


def _curves(compute: Callable[[], Curves]) -> tuple[str, Any]:
    try:
        curves = compute()
    except DataError as error:
        return f"**This cannot be drawn:** {error}", _plot(None)
    return curves.note, _plot(curves.figure)
