"""A model card is generated: `facts.yaml` + `results.json` + one template = README.md. Nobody types a number.

`facts.yaml` holds what is known of a model, `results.json` what was measured or what the paper reports. A
number that is in neither reads "not measured". Every number says where it is from: "measured here" with the
command, or "reported in the paper" with the table. Unknown keys in either file are errors.

    model_cards/<id>/facts.yaml      see Facts below; model_cards/README.md explains each key
    model_cards/<id>/results.json    {"results": [Result, ...]}
    model_cards/<id>/README.md       render_card(folder), tested for freshness
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from .card_facts import Facts, Result, load_card

NOT_MEASURED = "not measured"
PAPER_URL = "https://arxiv.org/abs/2506.13277"

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

TEMPLATE = """\
---
{{metadata}}
---

# {{title}}

{{summary}}

{{facts_table}}

## Usage

{{usage}}

## Position encoding

{{position_encoding}}

## Results

{{results}}

## Training

{{training}}

## Limits

{{limits}}

## Licence

{{licence}}

## Citation

```bibtex
{{citation}}
```

## Provenance

{{provenance}}
"""

CITATION = """\
@article{li2025seqpe,
  title   = {{SeqPE}: Transformer with Sequential Position Encoding},
  author  = {Li, Huayang and Liu, Yahui and Sun, Hongyu and Cai, Deng and Cui, Leyang and Bi, Wei
             and Zhao, Peilin and Watanabe, Taro},
  journal = {arXiv preprint arXiv:2506.13277},
  year    = {2025}
}"""


def render_card(folder: Path) -> str:
    """Return the README for a folder with `facts.yaml` and `results.json`."""
    return render(*load_card(folder))


def render(facts: Facts, results: list[Result]) -> str:
    """Return the README for these facts and results."""
    parts = {
        "metadata": _metadata(facts, results),
        "title": facts.title,
        "summary": facts.summary.strip(),
        "facts_table": _facts_table(facts),
        "usage": usage(facts),
        "position_encoding": _position_encoding(facts),
        "results": _results(results),
        "training": _mapping(facts.training, ("data", "recipe", "hardware", "command")),
        "limits": _limits(facts),
        "licence": _licence(facts),
        "citation": facts.citation or CITATION,
        "provenance": _mapping(facts.provenance, ("source", "package_version", "git_sha")),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], TEMPLATE)


def _metadata(facts: Facts, results: list[Result]) -> str:
    import yaml

    data: dict[str, Any] = {"license": facts.license}
    for key in ("license_name", "license_link"):
        if getattr(facts, key):
            data[key] = getattr(facts, key)
    data["library_name"] = facts.libraries[0]
    data["pipeline_tag"] = facts.pipeline_tag
    data["tags"] = list(dict.fromkeys([*facts.libraries, "seqpe_zoo", "position-encoding", *facts.tags]))
    for key in ("datasets", "base_model", "base_model_relation", "language", "metrics"):
        if getattr(facts, key):
            data[key] = getattr(facts, key)
    if index := _model_index(facts, results):
        data["model-index"] = index
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110).strip()


def _model_index(facts: Facts, results: list[Result]) -> list[dict[str, Any]]:
    entries = []
    for result in results:
        if result.value is None:
            continue
        where = result.dataset
        dataset = {"name": where["name"], "type": where["id"]}
        dataset |= {key: where[key] for key in ("config", "split", "revision") if where.get(key)}
        if result.setting:
            dataset["args"] = dict(result.setting)
        metric = {"type": result.metric, "value": result.value, "name": _metric_name(result)}
        entry: dict[str, Any] = {"task": {"type": result.task}, "dataset": dataset, "metrics": [metric]}
        if result.origin == "paper":
            entry["source"] = {"name": f"SeqPE paper, {result.where}", "url": PAPER_URL}
        entries.append(entry)
    return [{"name": facts.repo_id.split("/")[-1], "results": entries}] if entries else []


def _metric_name(result: Result) -> str:
    setting = ", ".join(f"{key} {value}" for key, value in result.setting.items())
    origin = "measured by seqpe_zoo" if result.origin == "measured" else "reported in the paper"
    return f"{result.metric}{' at ' + setting if setting else ''} ({origin})"


def _facts_table(facts: Facts) -> str:
    rows = {key.replace("_", " "): value for key, value in facts.figures.items()}
    rows |= {"libraries": ", ".join(facts.libraries), "trained on": facts.trained_on}
    rows["extrapolation"] = _tested(facts)
    lines = [f"| {key} | {NOT_MEASURED if value is None else value} |" for key, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def _position_encoding(facts: Facts) -> str:
    options = ", ".join(f"{k} = {v}" for k, v in facts.position_encoding.items() if k != "name")
    lines = [f"`{facts.position_encoding['name']}`" + (f" with {options}." if options else ".")]
    base, digits = facts.position_encoding.get("base"), facts.position_encoding.get("num_digits")
    if base and digits:
        lines.append(
            f"Capacity: positions 0 to {base**digits - 1} a dimension ({base}**{digits}); beyond, it raises."
        )
    lines.append(f"Trained on {facts.trained_on}; extrapolation {_tested(facts)}.")
    return "\n".join(lines)


def _tested(facts: Facts) -> str:
    return f"tested up to {facts.tested_up_to}" if facts.tested_up_to else NOT_MEASURED


def _results(results: list[Result]) -> str:
    if not results:
        return f"Results: {NOT_MEASURED}."
    commands = list(dict.fromkeys(r.command for r in results if r.origin == "measured" and r.command))
    lines = ["| dataset | setting | metric | value | origin |", "|---|---|---|---|---|"]
    for result in results:
        setting = ", ".join(f"{key} {value}" for key, value in result.setting.items()) or "-"
        value = NOT_MEASURED if result.value is None else f"{result.value:.6g}"
        if result.mean is not None:
            value += f"; {result.mean:.4g} ± {result.spread:.2g} over {len(result.seeds)} seeds"
        split = result.dataset.get("split")
        name = result.dataset["name"] + (f" ({split})" if split else "")
        lines.append(f"| {name} | {setting} | {result.metric} | {value} | {_origin(result, commands)} |")
    if repeated := next((result for result in results if result.mean is not None), None):
        seeds = ", ".join(map(str, repeated.seeds))
        lines += [
            "",
            f"The first number is of these weights; mean ± standard deviation are over seeds {seeds}.",
        ]
    for number, command in enumerate(commands, 1):
        lines += ["", f"Command {number}:", "```", command.strip(), "```"]
    return "\n".join(lines)


def _origin(result: Result, commands: list[str | None]) -> str:
    if result.origin == "paper":
        return f"reported in the paper, {result.where}"
    if result.value is None:
        return NOT_MEASURED
    details = [f"command {commands.index(result.command) + 1}"]
    details += [f"commit {result.git_sha[:12]}"] if result.git_sha else []
    details += [f"seed {result.seed}"] if result.seed is not None else []
    details += [result.note] if result.note else []
    return f"measured here, {', '.join(details)}"


def _mapping(values: dict[str, Any], expected: tuple[str, ...]) -> str:
    rows = {**dict.fromkeys(expected), **values}
    return "\n".join(
        f"- {key.replace('_', ' ')}: {'not recorded' if v is None else v}" for key, v in rows.items()
    )


def _limits(facts: Facts) -> str:
    lines = [f"Trained on {facts.trained_on}; tested up to {facts.tested_up_to or NOT_MEASURED}."]
    return "\n".join(f"- {line}" for line in [*lines, *facts.limits])


def _licence(facts: Facts) -> str:
    name = facts.license_name if facts.license == "other" else facts.license
    link = f" ({facts.license_link})" if facts.license_link else ""
    weights = f"- weights: {facts.weights_license or name}{link}"
    return f"{weights}\n- code files in this repository: {facts.code_license}"


# The python snippets. `check` runs them word for word, with the folder in the Hub's cache.


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
    shown = [f"{title}:\n\n```python\n{code}\n```" for title, code in blocks]
    if facts.sample:
        shown.insert(1, f"It prints:\n\n```\n{facts.sample.strip()}\n```")
    return "\n\n".join(shown)


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
        lines.append(f'inputs = tokenizer({json.dumps(facts.prompt)}, return_tensors="pt")')
    lines += [
        f"model = {kind}.from_pretrained({place}, trust_remote_code=True{pinned}).eval()",
        "with torch.no_grad():",
    ]
    if kind == "AutoModelForCausalLM" and facts.tokenizer:
        lines.append("    tokens = model.generate(**inputs, max_new_tokens=20, do_sample=False)")
        lines.append("print(tokenizer.decode(tokens[0]))")
    elif facts.pipeline_tag in ("image-classification", "text-classification"):
        lines.append(f"    print(model.config.id2label[model({inputs}).logits.argmax(-1).item()])")
    else:
        lines.append(f"    print(model({inputs}){'[0]' if kind == 'AutoModel' else '.logits'}.shape)")
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
