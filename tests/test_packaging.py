"""The files that describe the package agree with each other, and the wheel is whole."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from seqpe_zoo import zoo_path

tomllib = pytest.importorskip("tomllib", reason="in the standard library from Python 3.11 on")

REPOSITORY = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


COPIED = ("model_cards", "train_scripts/recipes")
"""Folders beside the package that the wheel has in it."""
WHEEL_LIMIT = 10_000_000
"""Bytes. Weights of the small models are most of it."""


def declared_requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    return [requirement for line in lines if (requirement := Requirement(line)).name != PROJECT["name"]]


def pinned_versions(file: str = "constraints.txt") -> dict[str, str]:
    lines = (REPOSITORY / file).read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


@pytest.mark.parametrize("requirement", declared_requirements(), ids=lambda requirement: requirement.name)
def test_every_dependency_is_pinned_to_a_version_of_its_range(requirement: Requirement) -> None:
    assert requirement.specifier.contains(pinned_versions()[canonicalize_name(requirement.name)])


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    oldest = pinned_versions("constraints-oldest.txt")
    runtime = [Requirement(line) for line in PROJECT["dependencies"]]
    assert set(oldest) == {canonicalize_name(requirement.name) for requirement in runtime}
    for requirement in runtime:
        (lowest,) = (part.version for part in requirement.specifier if part.operator == ">=")
        assert SpecifierSet(f"=={lowest}.*").contains(oldest[canonicalize_name(requirement.name)])


@pytest.mark.parametrize("name", ["torch", "transformers", "timm"])
def test_the_front_page_names_the_lower_bounds(name: str) -> None:
    (declared,) = (line for line in PROJECT["dependencies"] if Requirement(line).name == name)
    (lowest,) = (part.version for part in Requirement(declared).specifier if part.operator == ">=")
    assert re.search(rf"\b{name} {re.escape(lowest)}(?![.\d])", (REPOSITORY / "README.md").read_text())


def test_pre_commit_formats_with_the_tested_ruff() -> None:
    hooks = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    ruffs = {line for hook in hooks for line in hook["additional_dependencies"] if line.startswith("ruff")}
    assert ruffs == {f"ruff=={pinned_versions()['ruff']}"}


def test_citation_names_the_current_version() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


def test_make_knows_the_targets_of_ci() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    asked = re.findall(r"^make (.+)$", (REPOSITORY / ".ci" / "run").read_text(), re.MULTILINE)[0].split()
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "tests.yml").read_text())
    asked += [job["target"] for job in workflow["jobs"]["make"]["strategy"]["matrix"]["include"]]
    assert {"lint", "test", "test-oldest", "test-newest", "docs"} <= set(asked)
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in asked)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    pytest.importorskip("hatchling", reason="builds the wheel; part of the dev extra")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), "."]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that has the wheel, and sees the libraries of this one."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    # Files *.pth of a folder that is added in this way are not read: an editable seqpe_zoo stays hidden.
    own = subprocess.run(
        [python, "-c", PRINT_SITE], check=True, capture_output=True, text=True
    ).stdout.strip()
    (Path(own) / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    return python


PRINT_SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"


def run_installed(python: Path, arguments: list[str], folder: Path) -> str:
    """Runs a command in a folder, with nothing of the repository on the path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment.update(HF_HUB_OFFLINE="1", COLUMNS="200")
    program = str(python.parent / arguments[0])
    done = subprocess.run(
        [program, *arguments[1:]], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_the_small_models_and_the_recipes(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "seqpe_zoo", *COPIED],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    copied = re.compile(f"^(?:train_scripts/)?(?=(?:{'|'.join(Path(path).name for path in COPIED)})/)")
    expected = {copied.sub("seqpe_zoo/", path) for path in listed}
    assert "seqpe_zoo/recipes/finetune_vit.yaml" in expected
    assert "seqpe_zoo/model_cards/tiny-gpt2-seqpe-austen/model.safetensors" in expected
    assert expected <= set(zipfile.ZipFile(wheel).namelist())
    assert wheel.stat().st_size < WHEEL_LIMIT


@pytest.mark.slow
def test_an_installed_wheel_loads_its_models_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    code = """
import seqpe_zoo, timm, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = seqpe_zoo.zoo_path("tiny-gpt2-seqpe-austen")
model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
assert type(model).__module__ == "seqpe_zoo.portable.modeling_seqpe"
text = "It is a truth universally acknowledged, that a single man in possession of a good fortune"
tokens = tokenizer(text, return_tensors="pt").input_ids
loss = model.eval()(tokens, labels=tokens).loss
assert loss < 0.8 * torch.tensor(float(len(tokenizer))).log()  # trained: better than guessing
vit = timm.create_model(f"local-dir:{seqpe_zoo.zoo_path('tiny-vit-seqpe-fashion')}", pretrained=True)
assert vit.eval()(torch.zeros(1, 1, 28, 28)).shape == (1, 10)
print(seqpe_zoo.__file__)
"""
    printed = run_installed(installed, ["python", "-c", code], tmp_path).splitlines()
    assert Path(printed[-1]).is_relative_to(installed.parents[1])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_commands_of_an_installed_wheel_find_the_models(installed: Path, tmp_path: Path) -> None:
    names = sorted(path.parent.name for path in (REPOSITORY / "model_cards").glob("*/model.safetensors"))
    printed = run_installed(installed, ["seqpe-zoo", "list"], tmp_path)
    assert all(name in printed for name in names)
    offered = "from seqpe_zoo.app.zoo import find_models; print(*(model.name for model in find_models()))"
    assert run_installed(installed, ["python", "-c", offered], tmp_path).split() == names


@pytest.mark.slow
def test_recipes_of_an_installed_wheel_are_known_by_name(installed: Path, tmp_path: Path) -> None:
    printed = run_installed(installed, ["seqpe-zoo", "recipes"], tmp_path)
    assert {"finetune_vit", "gpt2_seqpe", "mini_lm"} <= set(printed.split())
    changes = ["data.source=digits", "training.threads=1", "training.batch_size=4", "training.output=run"]
    run_installed(installed, ["seqpe-zoo", "train", "--dry-run", "vit_pico_digits", *changes], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_model_is_suggested() -> None:
    assert (zoo_path("tiny-gpt2-seqpe-austen") / "model.safetensors").is_file()
    with pytest.raises(ValueError, match=r"did you mean 'tiny-gpt2-seqpe-austen'\?.*choose one of tiny-gpt2"):
        zoo_path("tiny-gpt2-seqpe-austin")
