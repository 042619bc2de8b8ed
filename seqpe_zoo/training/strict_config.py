"""YAML into typed dataclasses, strictly: unknown keys, wrong types and sizes are errors with their path.

Changes from the command line, `training.steps=10`, go the same way, so that they are checked as the file is.
"""

from __future__ import annotations

import copy
import json
import math
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ..data.errors import DataError

T = TypeVar("T")


class ConfigError(DataError):
    """A run configuration that cannot be meant; commands print it without a traceback."""


@dataclass(frozen=True)
class Within:
    """Bounds of a number, as `Annotated[float, Within(0, 1)]`; numbers are always finite.

    Attributes:
        least: smallest value.
        most: largest value.
        open_ends: both bounds are left out themselves.
    """

    least: float = -math.inf
    most: float = math.inf
    open_ends: bool = False

    def check(self, value: float, path: str) -> None:
        """Refuses a number outside of the bounds.

        Raises:
            ConfigError: as said.
        """
        if value < self.least or (self.open_ends and value == self.least):
            side, bound = "above" if self.open_ends else "at least", self.least
        elif value > self.most or (self.open_ends and value == self.most):
            side, bound = "below" if self.open_ends else "at most", self.most
        else:
            return
        raise ConfigError(f"{path}={value} must be {side} {int(bound) if bound % 1 == 0 else bound}")


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a YAML file that holds a mapping.

    Raises:
        ConfigError: there is no such file, it is no YAML, or no mapping.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        json.dumps(content, default=str)  # refuses what contains itself
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} is not YAML that a recipe can hold: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold sections such as model, data and training")
    return content


def apply_overrides(content: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Returns a copy with changes `section.key=value`, values written as in YAML.

    Raises:
        ConfigError: a word is not of that form, or goes through a value that is no section.
    """
    changed = copy.deepcopy(dict(content))
    for word in words:
        path, separator, text = word.partition("=")
        keys = path.split(".")
        if not separator or not all(keys):
            raise ConfigError(f"{word!r} is not a change of the form section.key=value")
        place = changed
        for key in keys[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{word!r}: {key} is a value, not a section")
        place[keys[-1]] = read_value(text, word)
    return changed


def read_value(text: str, word: str) -> Any:
    """Reads a value as typed behind `key=`.

    Raises:
        ConfigError: it is no YAML; names the `word` it is part of.
    """
    import yaml

    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{word!r}: the value is not YAML") from error
    return _as_number(value) if isinstance(value, str) else value


def refuse_unknown(content: Any, known: Collection[str], where: str) -> None:
    """Refuses what is no mapping, or has other keys than the known ones.

    Raises:
        ConfigError: as said.
    """
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where} must be a mapping, not {content!r}")
    unknown = sorted(str(key) for key in content if key not in known)
    if unknown:
        raise ConfigError(f"{where} has no key {', '.join(unknown)}; known keys: {', '.join(known)}")


def build_config(kind: type[T], content: Any, where: str = "") -> T:
    """Builds a dataclass from a mapping.

    Raises:
        ConfigError: a key is unknown or missing, a value does not fit, or the dataclass refuses it.
    """
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    refuse_unknown(content, known, where or "the configuration")
    hints = get_type_hints(kind, include_extras=True)
    values = {}
    for name, field in known.items():
        path = f"{where}.{name}" if where else name
        if name in content:
            values[name] = _convert(hints[name], content[name], path)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{path} is missing")
    try:
        return kind(**values)
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where or 'the configuration'}: {error}") from error


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        number = _convert(inner[0], value, path)
        inner[1].check(number, path)
        return number
    if origin in (Union, types.UnionType):  # only ever with None
        return None if value is None else _convert(inner[0], value, path)
    if origin is Literal:
        if value not in inner:
            raise ConfigError(f"{path}={value!r} must be one of {', '.join(inner)}")
        return value
    if is_dataclass(hint):
        return build_config(hint, value, path)  # type: ignore[arg-type]
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{path} must be a list, not {value!r}")
        if inner[-1] is not Ellipsis and len(value) != len(inner):
            raise ConfigError(f"{path}={value} must be {len(inner)} values")
        return tuple(_convert(inner[0], entry, f"{path}[{place}]") for place, entry in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path} must be a mapping, not {value!r}")
        return dict(value)
    if hint is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            value = float(value)
        except (ValueError, OverflowError) as error:
            raise ConfigError(f"{path} must be a number, not {value!r}") from error
        if not math.isfinite(value):
            raise ConfigError(f"{path}={value} must be a finite number")
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    raise ConfigError(f"{path} must be {names.get(hint, hint)}, not {value!r}")


def _as_number(text: str) -> Any:
    """Reads 1e-3, which YAML 1.1 takes for a word; who types it means the number."""
    try:
        return float(text) if "e" in text.lower() and text[:1] in "+-.0123456789" else text
    except ValueError:
        return text
