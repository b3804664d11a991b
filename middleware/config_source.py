"""Where a configuration comes from: a YAML file, and the variables laid over it."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tierway.middleware.config_text import Fault, Key, dotted
from tierway.middleware.settings import SettingsTree
from tierway.policies.errors import ConfigError

ADMIN_KEY = "TIERWAY_ADMIN_KEY"
CONFIG_FILE = "TIERWAY_CONFIG"
_PREFIX = "TIERWAY_"
# Kubernetes puts these into every pod beside a Service that is called tierway (or tierway-…).
_SERVICE_LINK = re.compile(
    r"TIERWAY_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"
)


# ---- the file --------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key given twice is a fault, and a date stays text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.twice: list[str] = []

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        first: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                continue
            line = key.start_mark.line + 1
            if key.value in first:
                where = f"line {line}, column {key.start_mark.column + 1}"
                self.twice.append(
                    f"{where}: key {key.value!r} is given twice (first in line {first[key.value]})"
                )
            first.setdefault(key.value, line)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Deep, so that a structure that holds itself is an error instead of a loop."""
        try:
            value = super().construct_object(node, deep=True)
            if isinstance(value, int) and value.bit_length() > 64:
                raise OverflowError
        except (ValueError, OverflowError, AttributeError, TypeError) as error:
            raise yaml.constructor.ConstructorError(
                None, None, "a value that cannot be read", node.start_mark
            ) from error
        return value


_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_file(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: byte {error.start} is not UTF-8 text"]) from error
    except ValueError as error:
        raise ConfigError([f"{str(path)!r}: not a path: {error}"]) from error
    data, twice = _parse(text, str(path))
    if twice:
        raise ConfigError([f"{path}: {line}" for line in twice])
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError([f"{path}: must be a mapping of sections, not {type(data).__name__}"])
    return data


def _parse(text: str, source: str) -> tuple[Any, list[str]]:
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data(), loader.twice
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        fault = f"{source}: line {line}, column {column}: a character that YAML does not allow"
        raise ConfigError([fault]) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        # The name of an undefined alias is part of the value, and a secret may begin with "*".
        problem = re.sub(r"alias '.*'", "alias", error.problem or "not YAML")
        if problem.startswith("but "):
            problem = f"{error.context}, {problem}"
        fault = f"{source}: {where}{' '.join(problem.split())}"
        raise ConfigError([fault]) from error
    except RecursionError as error:
        raise ConfigError([f"{source}: nested too deeply"]) from error


# ---- the environment -------------------------------------------------------------------------


class Overlaid(NamedTuple):
    """A document with variables laid over it: `origins` tells which of them set what."""

    data: dict[str, Any]
    faults: list[Fault | str]
    origins: Mapping[tuple[Key, ...], str]


def overlaid(document: Mapping[str, Any], environ: Mapping[str, str]) -> Overlaid:
    data = plain(document)
    faults: list[Fault | str] = []
    origins: dict[tuple[Key, ...], str] = {}
    values = dict(_variables(environ))
    named = {name for _, name in env_names(data)}
    named |= {name for value in values.values() for _, name in env_names(value)}
    named |= {str(value) for name, value in values.items() if name.endswith("_ENV")}
    for name in sorted(values, key=_order):
        if name in named:
            continue
        if isinstance(values[name], ConfigError):
            faults += values[name].faults
            continue
        try:
            origins[_put(data, name.removeprefix(_PREFIX).split("__"), values[name])] = name
        except ValueError as error:
            faults.append(f"{name}: {error}")
    return Overlaid(data, faults, origins)


def _variables(environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """(name, value as YAML, or the ConfigError that says why it is none)."""
    for name, text in environ.items():
        link = _SERVICE_LINK.fullmatch(name) or ("://" in text and name.endswith("_PORT"))
        if not name.startswith(_PREFIX) or name in (ADMIN_KEY, CONFIG_FILE) or link:
            continue
        try:
            value, twice = _parse(text, name)
        except ConfigError as error:
            yield name, error
        else:
            yield name, ConfigError([f"{name}: {line}" for line in twice]) if twice else value


def env_names(value: object, path: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], str]]:
    """The variables that keys ending in `_env` name, with their paths."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(inner, str) and isinstance(key, str) and key.endswith("_env"):
                yield (*path, key), inner
            yield from env_names(inner, (*path, key))


def _order(name: str) -> list[tuple[bool, int, str]]:
    """Whole sections before their keys, list items by number."""
    parts = name.split("__")
    return [(part.isdecimal(), len(part) if part.isdecimal() else 0, part) for part in parts]


def _put(data: dict[Key, Any], segments: list[str], value: object) -> tuple[Key, ...]:
    """Sets `value` in `data` and returns its path; ValueError says why there is no such place."""
    node: Any = data
    path: tuple[Key, ...] = ()
    for depth, segment in enumerate(segments):
        key = _key(node, segment, dotted(path))
        path = (*path, key)
        if depth == len(segments) - 1:
            child = value
        else:
            child = (dict(enumerate(node)) if isinstance(node, list) else node).get(key)
            child = _empty(path, segments[depth + 1]) if child is None else child
        if isinstance(node, list):
            node[int(key) : int(key) + 1] = [child]
        else:
            node[key] = child
        node = child
    return path


def _key(node: object, segment: str, where: str) -> Key:
    """The key that a variable's segment means: case does not count, `_` stands for any sign."""
    if isinstance(node, list):
        if segment.isdecimal() and len(segment) < 10 and int(segment) <= len(node):
            return int(segment)
        raise ValueError(f"{where} has {len(node)} items: the index must be 0 to {len(node)}")
    if not isinstance(node, dict):
        raise ValueError(f"{where} has no keys: its value is set as a whole")
    if not segment:
        raise ValueError("the form is TIERWAY_SECTION__KEY")
    same = [key for key in node if re.sub(r"\W", "_", str(key)).lower() == segment.lower()]
    if len(same) > 1:
        raise ValueError(f"{segment} may mean {' or '.join(map(repr, same))}: set it in the file")
    return same[0] if same else segment.lower()


def _empty(path: tuple[Key, ...], following: str) -> Any:
    """What a variable's inner key is set in where the file says nothing: lists and tiers begin
    with their defaults, as in "the default, but for this"."""
    default: Any = _defaults()
    for key in path:
        default = default.get(key) if isinstance(default, dict) else None
    if isinstance(default, list) or path == ("tiers",):
        return copy.deepcopy(default)
    return [] if following.isdecimal() and default is None else {}


@cache
def _defaults() -> dict[str, Any]:
    return SettingsTree().model_dump(mode="json", by_alias=True)


def plain(value: Any) -> Any:
    """A copy in dicts and lists, without empty sections."""
    try:
        return {_copied(key): _copied(inner) for key, inner in value.items() if inner is not None}
    except RecursionError as error:
        raise ConfigError(["the configuration holds itself or is nested too deeply"]) from error


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_copied(key): _copied(inner) for key, inner in value.items()}
    if isinstance(value, int) and value.bit_length() > 64:
        raise ConfigError(["a number in the configuration is beyond 64 bits"])
    return [_copied(inner) for inner in value] if isinstance(value, list | tuple) else value
