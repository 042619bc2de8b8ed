"""What the Hub asks of a card's metadata, checked offline: licence list, field types, model-index, sections.

Sources: hub-docs `repositories-licenses.md`, `model-cards.md` and `modelcard.md`, read in 2026. The real Hub
may know newer licences; `other` with `license_name` and `license_link` always works.
"""

from __future__ import annotations

import re
from typing import Any

from .card import MODEL_CLASSES
from .errors import UsageError
from .files import parse_yaml

LICENSES = frozenset(
    """apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0
    bigcode-openrail-m afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear
    c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0
    cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0
    cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 wtfpl
    ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1
    lgpl-3.0 isc lppl-1.3c ms-pl mpl-2.0 odc-by odbl openrail++ osl-3.0 postgresql ofl-1.1 ncsa
    unlicense zlib pddl lgpl-lr deepfloyd-if-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4
    gemma apple-ascl apple-amlr intel-research h-research fair-noncommercial-research-license unknown
    other""".split()
)
LIBRARIES = ("timm", "transformers")
SECTIONS = (
    "Usage",
    "Position encoding",
    "Results",
    "Training",
    "Limits",
    "Licence",
    "Citation",
    "Provenance",
)
_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_LIST_FIELDS = ("tags", "datasets", "metrics", "language")


def split_card(text: str) -> tuple[dict[str, Any], str]:
    """Return a card's metadata and body."""
    match = re.match(r"---\r?\n(.*?)\r?\n---\r?\n", text, re.DOTALL)
    if not match:
        raise UsageError("the card does not begin with a metadata block between two lines '---'")
    return parse_yaml(match[1], "the card's metadata"), text[match.end() :]


def card_problems(text: str) -> list[str]:
    """Return every reason, one sentence each, why the Hub or a reader would be unhappy with this card."""
    try:
        data, body = split_card(text)
    except UsageError as error:
        return [f"README.md: {error.args[0]}"]
    problems = _license_problems(data)
    problems += [
        f"metadata: {key} is missing" for key in ("library_name", "pipeline_tag", "tags") if not data.get(key)
    ]
    if data.get("library_name") not in (None, *LIBRARIES):
        problems.append(f"metadata: library_name {data['library_name']!r} is none of {', '.join(LIBRARIES)}")
    if data.get("pipeline_tag") not in (None, *MODEL_CLASSES):
        problems.append(f"metadata: pipeline_tag {data['pipeline_tag']!r} is unknown")
    for key in _LIST_FIELDS:
        if key in data and not _is_text_list(data[key]):
            problems.append(f"metadata: {key} must be a list of texts, without null")
    for key in ("base_model", "datasets"):
        values = data.get(key, [])
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, str) and not _REPO_ID.fullmatch(value):
                problems.append(f"metadata: {key} {value!r} is not a Hub id")
    problems += _index_problems(data.get("model-index"))
    headings = re.findall(r"^#{1,3} (.+?)\s*$", body, re.M)
    problems += [f"section {section!r} is missing" for section in SECTIONS if section not in headings]
    if "More Information Needed" in body:
        problems.append("the card has an unfilled placeholder, 'More Information Needed'")
    return [f"README.md: {problem}" for problem in problems]


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) and item for item in value)


def _license_problems(data: dict[str, Any]) -> list[str]:
    name = data.get("license")
    if not name:
        return ["metadata: license is missing"]
    if not isinstance(name, str) or name not in LICENSES:
        known = "the Hub's list has ids in lower case; for another licence write license: other"
        return [f"metadata: license {name!r} is not on the Hub's list ({known})"]
    if name == "other":
        missing = [key for key in ("license_name", "license_link") if not data.get(key)]
        return [f"metadata: license 'other' needs {key}" for key in missing]
    return []


def _index_problems(index: Any) -> list[str]:
    """Let huggingface_hub read the results, as the Hub does."""
    from huggingface_hub.repocard_data import model_index_to_eval_results

    try:
        results = model_index_to_eval_results(index)[1] if index is not None else []
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return [f"metadata: model-index is not what huggingface_hub reads ({type(error).__name__}: {error})"]
    numbers = [(result.metric_type, result.metric_value) for result in results]
    wrong = [kind for kind, value in numbers if not isinstance(value, int | float)]
    return [f"metadata: model-index: {kind} has no number" for kind in wrong]
