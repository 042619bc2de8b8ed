"""YAML into typed dataclasses, strictly: an unknown key or a value of another type is an error with its path.

Changes from the command line, `training.steps=10`, go the same way, so that they are checked as the file is.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union

from ..data.errors import DataError

T = TypeVar("T")


class ConfigError(DataError):
    """A run configuration that cannot be meant; commands print it without a traceback."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a YAML file that holds a mapping.

    Raises:
        ConfigError: there is no such file, it is no YAML, or no mapping.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold sections such as model, data and training")
    return content


def apply_overrides(content: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Returns a copy with changes `section.key=value`, values written as in YAML.

    Raises:
        ConfigError: a word is not of that form, or goes through a value that is no section.
    """
    import yaml

    changed = _copy(content)
    for word in words:
        path, separator, text = word.partition("=")
        keys = path.split(".")
        if not separator or not all(keys):
            raise ConfigError(f"{word!r} is not a change of the form section.key=value")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{word!r}: the value is not YAML") from error
        # YAML 1.1 reads 1e-3 as a word; who types it means the number.
        value = _as_number(value) if isinstance(value, str) else value
        place = changed
        for key in keys[:-1]:
            place = place.setdefault(key, {})
            if place is None or not isinstance(place, dict):
                raise ConfigError(f"{word!r}: {key} is a value, not a section")
        place[keys[-1]] = value
    return changed


def build_config(kind: type[T], content: Any, where: str = "") -> T:
    """Builds a dataclass from a mapping.

    Raises:
        ConfigError: a key is unknown or missing, a value has another type, or the dataclass refuses it.
    """
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where or 'the configuration'} must be a mapping, not {content!r}")
    hints = typing.get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(str(key) for key in content if key not in known)
    if unknown:
        listed = ", ".join(known)
        raise ConfigError(
            f"{where or 'the configuration'} has no key {', '.join(unknown)}; known keys: {listed}"
        )
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


def config_to_dict(config: Any) -> dict[str, Any]:
    """Returns a configuration as plain values, for YAML and JSON."""
    return asdict(config)


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        choices = typing.get_args(hint)
        if value is None and type(None) in choices:
            return None
        rest = [choice for choice in choices if choice is not type(None)]
        for choice in rest[:-1]:
            try:
                return _convert(choice, value, path)
            except ConfigError:
                continue
        return _convert(rest[-1], value, path)
    if is_dataclass(hint):
        return build_config(typing.cast(type, hint), value, path)
    if origin in (list, tuple):
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{path} must be a list, not {value!r}")
        inner = typing.get_args(hint)[0]
        return origin(_convert(inner, entry, f"{path}[{place}]") for place, entry in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path} must be a mapping, not {value!r}")
        return dict(value)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint is float and isinstance(value, str) and isinstance(_as_number(value), float):
        return _as_number(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise ConfigError(f"{path} must be {_name(hint)}, not {value!r}")


def _name(hint: type) -> str:
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return words.get(hint, str(hint))


def _as_number(text: str) -> Any:
    try:
        return float(text) if "e" in text.lower() and text[:1] in "+-.0123456789" else text
    except ValueError:
        return text


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(entry) for key, entry in value.items()}
    return [_copy(entry) for entry in value] if isinstance(value, list) else value
