"""The files that describe the package agree with each other."""

import re
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

tomllib = pytest.importorskip("tomllib", reason="in the standard library from Python 3.11 on")

REPOSITORY = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def declared_requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    return [requirement for line in lines if (requirement := Requirement(line)).name != PROJECT["name"]]


def pinned_versions() -> dict[str, str]:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


@pytest.mark.parametrize("requirement", declared_requirements(), ids=lambda requirement: requirement.name)
def test_every_dependency_is_pinned_to_a_version_of_its_range(requirement: Requirement) -> None:
    assert requirement.specifier.contains(pinned_versions()[canonicalize_name(requirement.name)])


def test_pre_commit_formats_with_the_tested_ruff() -> None:
    hooks = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    ruffs = {line for hook in hooks for line in hook["additional_dependencies"] if line.startswith("ruff")}
    assert ruffs == {f"ruff=={pinned_versions()['ruff']}"}


def test_citation_names_the_current_version() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


def test_make_and_ci_know_the_same_targets() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    asked = re.findall(r"^make (.+)$", (REPOSITORY / ".ci" / "run").read_text(), re.MULTILINE)
    assert asked
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in asked[0].split())
