from dataclasses import dataclass, field
from pathlib import Path

import pytest

from seqpe_zoo.training.strict_config import ConfigError, apply_overrides, build_config, read_yaml


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    steps: int
    inner: Inner = field(default_factory=Inner)
    limit: int | None = None
    flag: bool = False

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps={self.steps} must not be negative")


def test_mapping_becomes_typed() -> None:
    config = build_config(Outer, {"steps": 3, "inner": {"rate": 1, "names": ["a"]}, "limit": None})
    assert config == Outer(3, Inner(1.0, ("a",)), None)
    assert isinstance(config.inner.rate, float)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"steps": 1, "stepz": 2}, "no key stepz; known keys: steps, inner"),
        ({"steps": 1, "inner": {"rat": 2}}, "inner has no key rat"),
        ({"inner": {}}, "steps is missing"),
        ({"steps": "many"}, "steps must be a whole number, not 'many'"),
        ({"steps": True}, "steps must be a whole number"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"steps": 1, "flag": "yes"}, "flag must be true or false"),
        ({"steps": 1, "inner": 4}, "inner must be a mapping"),
        ({"steps": 1, "inner": {"names": "a"}}, r"inner\.names must be a list"),
        ({"steps": -1}, "must not be negative"),
        ([], "must be a mapping"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path(content: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(Outer, content)


def test_changes_are_read_as_yaml() -> None:
    words = ["steps=5", "inner.rate=1e-3", "inner.names=[a, b]", "limit=null", "flag=true"]
    assert build_config(Outer, apply_overrides({"steps": 1}, words)) == Outer(
        5, Inner(1e-3, ("a", "b")), None, True
    )


def test_changes_leave_the_original_alone() -> None:
    content = {"inner": {"rate": 1.0}}
    apply_overrides(content, ["inner.rate=2"])
    assert content == {"inner": {"rate": 1.0}}


@pytest.mark.parametrize("word", ["steps", "=3", "a..b=1", "steps.x=1", "x=[1"])
def test_wrong_change_is_refused(word: str) -> None:
    with pytest.raises(ConfigError):
        apply_overrides({"steps": 1}, [word])


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2\n", ""])
def test_wrong_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError):
        read_yaml(tmp_path / "run.yaml")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml does not exist"):
        read_yaml(tmp_path / "absent.yaml")
