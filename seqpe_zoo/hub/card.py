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
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .card_template import CITATION, PAPER_URL, TEMPLATE
from .errors import UsageError

NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Facts:
    """What is known of a model. The first block is required; everything else has an honest default."""

    title: str
    repo_id: str
    summary: str
    license: str
    libraries: list[str]
    pipeline_tag: str
    position_encoding: dict[str, Any]
    trained_on: str

    tag: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    weights_license: str | None = None
    code_license: str = "apache-2.0"
    tags: list[str] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)
    base_model: str | None = None
    base_model_relation: str | None = None
    language: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)  # shown as a table: parameters, GMACs, context, ...
    tested_up_to: str | None = None
    training: dict[str, Any] = field(default_factory=dict)  # data, recipe, hardware, command, ...
    limits: list[str] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)
    citation: str | None = None
    input_size: list[int] | None = None  # of images, (3, H, W)
    tokenizer: bool = True

    def __post_init__(self) -> None:
        unknown = [library for library in self.libraries if library not in ("timm", "transformers")]
        if unknown or not self.libraries:
            raise UsageError(f"facts.yaml: libraries {self.libraries} must be among timm and transformers")
        if "name" not in self.position_encoding:
            raise UsageError("facts.yaml: position_encoding needs a name, one of the registry's")


@dataclass(frozen=True)
class Result:
    """One number: what was measured, on what, at which length or resolution, and where the number is from."""

    task: str
    dataset: dict[str, Any]  # name, id, and if known config, split, revision
    metric: str
    value: float | None
    origin: str  # "measured" or "paper"
    setting: dict[str, Any] = field(default_factory=dict)  # {"length": 4096}, {"resolution": 448}
    command: str | None = None
    where: str | None = None  # the paper's table
    git_sha: str | None = None
    seed: int | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if self.origin not in ("measured", "paper"):
            raise UsageError(f"results.json: origin {self.origin!r} must be 'measured' or 'paper'")
        if self.origin == "measured" and self.value is not None and not self.command:
            raise UsageError(
                f"results.json: the measured {self.metric} on {self.dataset.get('name')} has no command"
            )
        if self.origin == "paper" and not self.where:
            raise UsageError(f"results.json: the paper's {self.metric} needs 'where', the table it stands in")
        if not self.dataset.get("name") or not self.dataset.get("id"):
            raise UsageError("results.json: a dataset needs name and id")


def _strict(kind: type, values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise UsageError(f"{where} must be a mapping")
    known = {f.name for f in fields(kind)}
    if unknown := sorted(set(values) - known):
        raise UsageError(f"{where}: unknown key(s) {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    try:
        return kind(**values)
    except TypeError as error:
        raise UsageError(f"{where}: {error}") from None


def load_facts(path: Path) -> Facts:
    """Read `facts.yaml`."""
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"{path.name} not found in {path.parent.name}", "write it; see model_cards/README.md"
        ) from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path.name} is not YAML: {error}") from error
    return _strict(Facts, values, path.name)


def load_results(path: Path) -> list[Result]:
    """Read `results.json`; a missing file means that nothing was measured."""
    if not path.is_file():
        return []
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path.name} is not JSON: {error}") from error
    return [_strict(Result, value, f"{path.name}, result {n}") for n, value in enumerate(values["results"])]


def render_card(folder: Path) -> str:
    """Return the README for a folder with `facts.yaml` and `results.json`."""
    return render(load_facts(folder / "facts.yaml"), load_results(folder / "results.json"))


def render(facts: Facts, results: list[Result]) -> str:
    """Return the README for these facts and results."""
    parts = {
        "metadata": _metadata(facts, results),
        "title": facts.title,
        "summary": facts.summary.strip(),
        "facts_table": _facts_table(facts),
        "usage": _usage(facts),
        "position_encoding": _position_encoding(facts),
        "results": _results(results),
        "training": _mapping(facts.training, ("data", "recipe", "hardware", "command")),
        "limits": _limits(facts),
        "licence": _licence(facts),
        "citation": facts.citation or CITATION,
        "provenance": _mapping(facts.provenance, ("source", "converter", "package_version", "git_sha")),
    }

    def fill(match: re.Match[str]) -> str:
        if match[1] not in parts:
            raise UsageError(f"the card template names {match[1]!r}, which card.py does not know")
        return parts[match[1]]

    return re.sub(r"\{\{(\w+)\}\}", fill, TEMPLATE)


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
        dataset = {"name": result.dataset["name"], "type": result.dataset["id"]}
        dataset.update(
            {key: result.dataset[key] for key in ("config", "split", "revision") if result.dataset.get(key)}
        )
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
    rows = {**{key.replace("_", " "): value for key, value in facts.figures.items()}}
    rows["libraries"] = ", ".join(facts.libraries)
    rows["trained on"] = facts.trained_on
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
    lines = ["| dataset | setting | metric | value | origin |", "|---|---|---|---|---|"]
    for result in results:
        setting = ", ".join(f"{key} {value}" for key, value in result.setting.items()) or "-"
        value = NOT_MEASURED if result.value is None else f"{result.value:.6g}"
        name = result.dataset["name"] + (
            f" ({result.dataset['split']})" if result.dataset.get("split") else ""
        )
        lines.append(f"| {name} | {setting} | {result.metric} | {value} | {_origin(result)} |")
    commands = list(dict.fromkeys(r.command for r in results if r.origin == "measured" and r.command))
    for number, command in enumerate(commands, 1):
        lines += ["", f"Command {number}:", "```", command.strip(), "```"]
    text = "\n".join(lines)
    for number, command in enumerate(commands, 1):
        text = text.replace(f"<command of {command}>", f"command {number}")
    return text


def _origin(result: Result) -> str:
    if result.origin == "paper":
        return f"reported in the paper, {result.where}"
    if result.value is None:
        return NOT_MEASURED
    details = [f"<command of {result.command}>"]
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


# Usage snippets: `check` runs them word for word against a rehearsal of the repository ---------------------


def _usage(facts: Facts) -> str:
    tag, place = facts.tag, f'"{facts.repo_id}"'
    blocks = []
    if "transformers" in facts.libraries:
        blocks.append(("transformers (seqpe_zoo need not be installed)", _transformers(facts, place)))
    if "timm" in facts.libraries:
        title = "timm (needs `pip install seqpe_zoo`; the import registers the architecture)"
        blocks.append((title, _timm(facts, f'"hf-hub:{facts.repo_id}"')))
    if tag and "transformers" in facts.libraries:
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
    vision = facts.pipeline_tag.startswith("image")
    kind = "AutoModelForImageClassification" if vision else "AutoModelForCausalLM"
    names, lines, inputs = kind, [first] if first else [], "torch.arange(16)[None]"
    if vision:
        inputs = f"pixel_values={_image(facts)}"
    elif facts.tokenizer:
        names, inputs = f"{kind}, AutoTokenizer", "**inputs"
        revision = pinned.split(", code_revision")[0]
        lines.append(f"tokenizer = AutoTokenizer.from_pretrained({place}{revision})")
        lines.append('inputs = tokenizer("Where is this word?", return_tensors="pt")')
    lines += [
        f"model = {kind}.from_pretrained({place}, trust_remote_code=True{pinned}).eval()",
        "with torch.no_grad():",
        f"    print(model({inputs}).logits.shape)",
    ]
    return _program(["import torch", f"from transformers import {names}", *([more] if more else [])], *lines)


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
    download = f'folder = snapshot_download("{facts.repo_id}", local_dir="model_folder")  # once, online'
    more = "from huggingface_hub import snapshot_download"
    if "transformers" in facts.libraries:
        return _transformers(facts, "folder", first=download, more=more)
    return _timm(facts, 'f"local-dir:{folder}"', first=download, more=more)
