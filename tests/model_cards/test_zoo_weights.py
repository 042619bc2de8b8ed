"""The trained models of the repository load by one line and do what their cards say."""

import json
from pathlib import Path

import pytest

from seqpe_zoo.evaluation.measure import measure_text
from seqpe_zoo.evaluation.model_loading import load_language_model

CARDS = Path(__file__).parents[2] / "model_cards"
EXCERPT = Path(__file__).parents[1] / "fixtures" / "persuasion_excerpt.txt"
"""Of the novel that was held out for the test."""
LARGEST = 4 * 2**20


def perplexities(name: str, lengths: list[int]) -> dict[int, float]:
    model = load_language_model(str(CARDS / name))
    return {m.setting["length"]: m.value for m in measure_text(model, name, str(EXCERPT), "test", lengths)}


def test_weights_in_the_repository_are_small_and_safe() -> None:
    weights = sorted(CARDS.glob("*/model.safetensors"))
    assert weights
    assert all(path.stat().st_size <= LARGEST for path in weights)
    assert not [path for path in CARDS.rglob("*") if path.suffix in (".bin", ".pt", ".pth", ".pkl")]


def test_text_model_loads_in_one_line_and_writes() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import seqpe_zoo  # noqa: F401  (tells transformers of our models)

    folder = CARDS / "tiny-gpt2-seqpe-austen"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("She had been forced into prudence in her youth", return_tensors="pt").input_ids
    written = model.generate(ids, max_new_tokens=60, do_sample=False)
    assert written.shape[1] == ids.shape[1] + 60  # beyond the 32 tokens of training
    assert model.config.use_cache


def test_seqpe_stays_flat_where_rope_does_not() -> None:
    seqpe = perplexities("tiny-gpt2-seqpe-austen", [32, 512])
    rope = perplexities("tiny-gpt2-rope-austen", [32, 512])
    alibi = perplexities("tiny-gpt2-alibi-austen", [32, 512])
    assert seqpe[512] < 1.03 * seqpe[32]
    assert seqpe[512] < 0.95 * alibi[512]
    assert rope[512] > 1.5 * rope[32]


@pytest.mark.parametrize("name", ["seqpe", "rope", "alibi"])
def test_excerpt_agrees_with_the_card(name: str) -> None:
    """The whole novel gave the card's number; a tenth of it must come near."""
    folder = f"tiny-gpt2-{name}-austen"
    results = json.loads((CARDS / folder / "results.json").read_text())["results"]
    on_card = {entry["setting"]["length"]: entry["value"] for entry in results}
    measured = perplexities(folder, [32, 256])
    for length, value in measured.items():
        assert value == pytest.approx(on_card[length], rel=0.1), length


@pytest.mark.parametrize("size", [28, 56])
def test_image_model_loads_in_one_line_and_names_clothes_at_other_sizes(size: int) -> None:
    import timm
    from PIL import Image
    from timm.data import create_transform, resolve_data_config

    import seqpe_zoo  # noqa: F401  (tells timm of our models)

    folder = CARDS / "tiny-vit-seqpe-fashion"
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    names = json.loads((folder / "config.json").read_text())["label_names"]
    config = {**resolve_data_config({}, model=model), "input_size": (1, size, size)}
    transform = create_transform(**config)
    right = 0
    for path in sorted((folder / "samples").glob("*.png")):
        answer = model(transform(Image.open(path)).unsqueeze(0)).argmax().item()
        right += names[answer].lower().replace(" ", "_") == path.stem
    assert right >= 4, "of 8 pictures, chance is below 1"
