"""The python snippets of a card. `check` runs them word for word, with the folder in the Hub's cache."""

from __future__ import annotations

from .card_facts import Facts

LOCAL_DIR = "model_folder"
"""Where the snippet for offline use downloads to."""

MODEL_CLASSES = {
    "text-generation": "AutoModelForCausalLM",
    "question-answering": "AutoModelForCausalLM",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "fill-mask": "AutoModelForMaskedLM",
    "image-classification": "AutoModelForImageClassification",
    "feature-extraction": "AutoModel",
    "image-feature-extraction": "AutoModel",
}
"""The class of transformers that loads a model, by the Hub's name of its task (`pipeline_tag`)."""


def usage(facts: Facts) -> str:
    """Return the snippets a card shows: each library; with the first, pinned to the release and offline."""
    tag, place = facts.tag, f'"{facts.repo_id}"'
    each = {
        "transformers": ("transformers (seqpe_zoo need not be installed)", _transformers(facts, place)),
        "timm": (
            "timm (needs `pip install seqpe_zoo`; the import registers the architecture)",
            _timm(facts, f'"hf-hub:{facts.repo_id}"'),
        ),
    }
    blocks = [each[library] for library in facts.libraries]
    if tag and facts.libraries[0] == "transformers":
        pinned = f', revision="{tag}", code_revision="{tag}"'
        blocks.append((f"Pinned to the release {tag}", _transformers(facts, place, pinned)))
    elif tag:
        blocks.append((f"Pinned to the release {tag}", _timm(facts, f'"hf-hub:{facts.repo_id}@{tag}"')))
    blocks.append(("Offline, from a folder", _offline(facts)))
    return "\n\n".join(f"{title}:\n\n```python\n{code}\n```" for title, code in blocks)


def _image(facts: Facts) -> str:
    return f"torch.rand(1, {', '.join(map(str, facts.input_size or [3, 224, 224]))})"


def _program(imports: list[str], *body: str) -> str:
    return "\n".join([*sorted(imports, key=lambda line: (line.startswith("from"), line)), "", *body])


def _transformers(facts: Facts, place: str, pinned: str = "", first: str = "", more: str = "") -> str:
    """Return a program that loads with transformers; `first` runs before it and needs the import `more`."""
    vision, kind = facts.pipeline_tag.startswith("image"), MODEL_CLASSES.get(facts.pipeline_tag, "AutoModel")
    names, lines, inputs = kind, [first] if first else [], "torch.arange(16)[None]"
    revision = pinned.split(", code_revision")[0]
    imports = ["import torch", *([more] if more else [])]
    if vision:
        names, inputs = f"AutoImageProcessor, {kind}", "**inputs"
        imports.append("from PIL import Image")
        lines.append(f"processor = AutoImageProcessor.from_pretrained({place}{revision})")
        mode = "L" if facts.input_size and facts.input_size[0] == 1 else "RGB"
        lines.append(f'picture = Image.new("{mode}", (300, 200), "white")  # or Image.open("yours.jpg")')
        lines.append('inputs = processor(picture, return_tensors="pt")')
    elif facts.tokenizer:
        names, inputs = f"{kind}, AutoTokenizer", "**inputs"
        lines.append(f"tokenizer = AutoTokenizer.from_pretrained({place}{revision})")
        lines.append('inputs = tokenizer("Where is this word?", return_tensors="pt")')
    lines += [
        f"model = {kind}.from_pretrained({place}, trust_remote_code=True{pinned}).eval()",
        "with torch.no_grad():",
        f"    print(model({inputs}){'[0]' if kind == 'AutoModel' else '.logits'}.shape)",
    ]
    return _program([*imports, f"from transformers import {names}"], *lines)


def _timm(facts: Facts, place: str, first: str = "", more: str = "") -> str:
    """Return a program that loads with timm; `first` runs before it and needs the import `more`."""
    lines = [first] if first else []
    lines += [
        f"model = timm.create_model({place}, pretrained=True).eval()",
        "with torch.no_grad():",
        f"    print(model({_image(facts)}).shape)",
    ]
    return _program(["import seqpe_zoo, timm, torch", *([more] if more else [])], *lines)


def _offline(facts: Facts) -> str:
    download = f'folder = snapshot_download("{facts.repo_id}", local_dir="{LOCAL_DIR}")  # once, online'
    more = "from huggingface_hub import snapshot_download"
    if facts.libraries[0] == "transformers":
        return _transformers(facts, "folder", first=download, more=more)
    return _timm(facts, 'f"local-dir:{folder}"', first=download, more=more)
