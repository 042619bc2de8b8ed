"""From a finished run to the Hub, by the one road there is: stage, check, push (seqpe_zoo/hub).

The card says what the run knows. Nothing is sent before the staged folder has been loaded and checked.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from ..evaluation.model_loading import find_position_encoding
from ..hub.card_rules import LICENSES
from .job import Job
from .strict_config import ConfigError


def check_target(repo_id: str, license_name: str) -> None:
    """Refuses a name or licence that cannot be published, before training begins.

    Raises:
        ConfigError: as said.
    """
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repo_id)
        is_full = "/" in repo_id
    except HFValidationError:
        is_full = False
    if not is_full:
        raise ConfigError(f"--push-to-hub {repo_id!r} must be OWNER/NAME")
    if license_name not in LICENSES:
        raise ConfigError(f"--license {license_name!r} is not a licence of the Hub, as apache-2.0 or mit")


def card_facts(job: Job, repo_id: str, license_name: str, command: str) -> dict[str, Any]:
    """Returns what the card of a run says (see `seqpe_zoo.hub.card.Facts`)."""
    encoding = find_position_encoding(job.model)
    is_text = job.unit == "tokens"
    source = getattr(job.run.data, "source", None) or getattr(job.run.data, "train", "")
    kind = "language model" if is_text else "vision transformer"
    name = "none of seqpe_zoo" if encoding is None else str(encoding.name)
    parameters = sum(parameter.numel() for parameter in job.model.parameters())
    return {
        "title": repo_id.split("/")[1],
        "repo_id": repo_id,
        "summary": f"A {kind} with the position encoding {name}.",
        "license": license_name,
        "libraries": ["transformers"] if is_text else ["timm"],
        "pipeline_tag": "text-generation" if is_text else "image-classification",
        "position_encoding": {"name": name},
        "trained_on": Path(source).name or str(source),
        "figures": {"parameters": f"{parameters:,}"},
        "training": {"data": Path(source).name or str(source), "recipe": job.run.task, "command": command},
        "input_size": None if is_text else [3, job.run.data.resolution, job.run.data.resolution],
        "tokenizer": is_text,
    }


def publish(job: Job, repo_id: str, license_name: str, command: str) -> int:
    """Stages, checks and pushes the finished run; returns the exit code of the first step that fails."""
    import yaml

    from ..hub.commands import main

    folder = Path(job.config.output)
    card, staged = folder / "card", folder / "staged"
    card.mkdir(exist_ok=True)
    facts = card_facts(job, repo_id, license_name, command)
    (card / "facts.yaml").write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))["results"]
    (card / "results.json").write_text(json.dumps({"results": results}, indent=1), encoding="utf-8")
    if staged.exists():
        shutil.rmtree(staged)
    for words in (
        ["stage", str(folder), str(staged), "--card", str(card)],
        ["check", str(staged)],
        ["push", str(staged), "--yes", "--create"],
    ):
        code = main(words)
        if code:
            return code
    return 0
