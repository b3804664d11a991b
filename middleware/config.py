"""From a file and the environment to one validated `Settings`, and back to text.

    tierway.yaml  ->  TIERWAY_SECTION__KEY laid over it  ->  the tree  ->  checks of two keys
                  ->  the secrets it names are there  ->  Settings, or ConfigError with every fault

A fault is one line: the key, its value (masked where it could be a secret), what is allowed, and
the variable it came from. Values of secrets never enter the tree: `read_secret` fetches them.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TextIO, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tierway.middleware.settings import (
    Fault,
    Key,
    SecretRef,
    SettingsTree,
    cross_faults,
    gap_faults,
    idle_tiers,
    not_served,
    secret_refs,
    unenforced_limits,
)
from tierway.policies.errors import ConfigError

ADMIN_KEY = "TIERWAY_ADMIN_KEY"
CONFIG_FILE = "TIERWAY_CONFIG"
_PREFIX = "TIERWAY_"
# Kubernetes puts these into every pod beside a Service that is called tierway (or tierway-…).
_SERVICE_LINK = re.compile(
    r"TIERWAY_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"
)


class Settings(SettingsTree):
    """The whole configuration, valid and frozen."""

    @staticmethod
    def from_dict(data: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
        """Raises ConfigError. No variable is laid over `data`; the secrets it names are looked
        for only when `environ` is given."""
        return _validated(_plain(data), environ=environ)

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line for each thing that is allowed and probably not meant."""
        return (*idle_tiers(self), *unenforced_limits(self))


# ---- the way in ------------------------------------------------------------------------------


def load(path: str | Path | None, environ: Mapping[str, str]) -> Settings:
    """The file at `path` (None: nothing but defaults) under the variables of `environ`."""
    return _overlaid({} if path is None else _read(Path(path)), environ)


def resolve(
    config: str | Path | Mapping[str, Any] | Settings | None, environ: Mapping[str, str]
) -> Settings | None:
    """None looks for TIERWAY_CONFIG, then ./tierway.yaml; None comes back where neither is:
    the embedded demo is meant. Variables are laid over everything but a Settings object."""
    if isinstance(config, Settings):
        return config
    if isinstance(config, Mapping):
        return _overlaid(config, environ)
    if config is None:
        config = environ.get(CONFIG_FILE) or ("tierway.yaml" if _is_here() else None)
    if config is None:
        return None
    if not isinstance(config, str | Path):
        raise ConfigError(
            [f"config = {type(config).__name__}: must be a path, mapping or Settings"]
        )
    return load(config, environ)


def _is_here() -> bool:
    return Path("tierway.yaml").is_file()


def demo_settings(
    engine_urls: Mapping[str, Sequence[str]],
    *,
    store_path: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """The embedded demo: `engine_urls` maps the tiers small, medium and large to their simulated
    engines. The cache is in memory without `store_path`; variables of `environ` are laid over."""
    names = {"small": "sim-7b", "medium": "sim-70b", "large": "sim-175b"}
    if not engine_urls.keys() <= names.keys():
        raise ValueError(f"engine_urls has {', '.join(engine_urls)}; tiers: {', '.join(names)}")
    store = {"kind": "memory"} if store_path is None else {"path": str(store_path)}
    models = {
        names[tier]: {
            "tier": tier,
            "served_name": names[tier],
            "context_tokens": 32768,
            "capabilities": ["tools", "json"],
            "replicas": [{"url": url, "engine": "vllm"} for url in urls],
        }
        for tier, urls in engine_urls.items()
        if urls
    }
    tiers: dict[str, Any] = {tier: {} for tier in names}
    return _overlaid({"cache": {"store": store}, "models": models, "tiers": tiers}, environ or {})


def read_secret(ref: SecretRef, environ: Mapping[str, str]) -> str | None:
    """The secret that `ref` names, or None where it is missing, empty or unreadable."""
    if ref.key_file is None:
        return environ.get(ref.key_env or "") or None
    try:
        return Path(ref.key_file).read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):
        return None


# ---- the way out -----------------------------------------------------------------------------


def render(settings: SettingsTree) -> str:
    """The effective configuration as YAML that loads again, with secrets masked."""
    tree = _masked("", settings.model_dump(mode="json", by_alias=True))
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=100)


def check_main(
    path: str | Path | None, environ: Mapping[str, str], out: TextIO, err: TextIO
) -> int:
    """Prints the effective configuration, warnings as comments, and returns 0; or one line for
    each fault on `err`, and 2."""
    try:
        settings = resolve(path, environ)
        if settings is None:
            print("# no configuration file: the embedded demo, on these defaults", file=out)
            settings = load(None, environ)
    except ConfigError as error:
        print(*error.faults, sep="\n", file=err)
        return 2
    for warning in settings.warnings:
        print(f"# warning: {warning}", file=out)
    out.write(render(settings))
    return 0


_SECRET_KEY = re.compile(
    r"(?i)(^|[_-])((api)?key|token|secret|password|passwd|credentials?|authorization)$"
)
_SECRET_VALUE = re.compile(
    r"\b((sk|pk|rk|hf|gsk|ghp|xai|xox[a-z])[-_]\S{8,}|(AKIA|AIza|eyJ)\S{12,}|[Bb]earer \S+)"
)
# Parts longer than a word are no name: hexadecimal keys may be of capitals and digits too.
_ENV_NAME = re.compile(r"[A-Z][A-Z0-9]{0,19}(_[A-Z0-9]{1,19})*")
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def _masked(key: str, value: Any) -> Any:
    """`value` without what may be a secret, by the name of its key and by its looks."""
    if isinstance(value, dict):
        return {inner: _masked(str(inner), value[inner]) for inner in value}
    if isinstance(value, list):
        return [_masked(key, inner) for inner in value]
    if not isinstance(value, str) or not value:
        return value
    secret = _SECRET_KEY.search(key) or _SECRET_VALUE.search(value)
    return "***" if secret else _CREDENTIALS.sub("***", value)


def _shown(path: tuple[Key, ...], value: object) -> str:
    """` = value` for a message; nothing for values that have parts."""
    if value is None or not isinstance(value, str | int | float):
        return ""
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    masked = _masked(key, value)
    if key.endswith("_env") and not _ENV_NAME.fullmatch(str(value)):
        masked = "***"  # people put the secret itself where its variable's name belongs
    text = repr(masked) if len(str(masked)) <= 80 else repr(str(masked)[:80]) + "…"
    return f" = {text}"


def _dotted(path: Iterable[Key]) -> str:
    return ".".join(str(part) for part in path)


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


def _read(path: Path) -> Mapping[str, Any]:
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


def _overlaid(document: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    data = _plain(document)
    faults: list[Fault | str] = []
    origins: dict[tuple[Key, ...], str] = {}
    values = dict(_variables(environ))
    named = {name for _, name in _env_names(data)}
    named |= {name for value in values.values() for _, name in _env_names(value)}
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
    return _validated(data, faults, origins, environ)


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


def _env_names(value: object, path: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], str]]:
    """The variables that keys ending in `_env` name, with their paths."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(inner, str) and isinstance(key, str) and key.endswith("_env"):
                yield (*path, key), inner
            yield from _env_names(inner, (*path, key))


def _order(name: str) -> list[tuple[bool, int, str]]:
    """Whole sections before their keys, list items by number."""
    parts = name.split("__")
    return [(part.isdecimal(), len(part) if part.isdecimal() else 0, part) for part in parts]


def _put(data: dict[Key, Any], segments: list[str], value: object) -> tuple[Key, ...]:
    """Sets `value` in `data` and returns its path; ValueError says why there is no such place."""
    node: Any = data
    path: tuple[Key, ...] = ()
    for depth, segment in enumerate(segments):
        key = _key(node, segment, _dotted(path))
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


def _plain(value: Any) -> Any:
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


# ---- the verdict -----------------------------------------------------------------------------


def _validated(
    data: dict[str, Any],
    before: Iterable[Fault | str] = (),
    origins: Mapping[tuple[Key, ...], str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Raises ConfigError with the faults found `before` and all that are found here."""
    faults = [*before, *gap_faults(data)]
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        found = (_told(detail) for detail in error.errors(include_url=False))
        refused = {fault.path for fault in faults if isinstance(fault, Fault)}
        faults += [fault for fault in found if fault and fault.path not in refused]
    except RecursionError as error:
        raise ConfigError(["the configuration is nested too deeply"]) from error
    else:
        faults += cross_faults(settings)
        faults += () if environ is None else _secret_faults(settings, environ)
    if faults:
        raise ConfigError([_line(fault, origins or {}) for fault in faults])
    return settings


_WANTED = {
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "model_type": "must be a mapping of keys",
    "dict_type": "must be a mapping of names",
    "tuple_type": "must be a list",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "missing": "is required",
}
_WORDS = {
    "Input should be": "must be",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}


def _told(detail: ErrorDetails) -> Fault | None:
    """One error of pydantic in the words of this file; None for a mere consequence of others."""
    kind, value = detail["type"], detail["input"]
    path = tuple(part for part in detail["loc"] if part != "[key]")
    if kind == "default_factory_not_called":
        return None
    if kind == "invalid_key" and not _keys_at(SettingsTree, path[:-1]):
        return Fault(path, "must have text as its key")
    if kind in ("extra_forbidden", "invalid_key"):
        return _unknown_key(path, value)
    if kind == "literal_error":
        known = re.findall(r"'([^']+)'|(\d+)", detail["ctx"]["expected"])
        allowed = [a or b for a, b in known if a not in not_served(path)]
        close = difflib.get_close_matches(str(value), allowed, 1)
        nearest = f"; did you mean {close[0]!r}?" if close else ""
        return Fault(path, f"must be one of {', '.join(allowed)}{nearest}", value)
    text = detail["msg"].removeprefix("Value error, ")
    for wordy, plain in _WORDS.items():
        text = text.replace(wordy, plain)
    return Fault(path, _WANTED.get(kind, text), None if kind == "missing" else value)


def _unknown_key(path: tuple[Key, ...], value: object) -> Fault:
    """Names the nearest key at the same place, else the nearest of the whole tree."""
    *place, wrong = path
    rest: tuple[Key, ...] = ()
    while isinstance(value, dict) and len(value) == 1:
        (inner, value), *_ = value.items()
        rest = (*rest, inner)
    known = _keys_at(SettingsTree, place)
    close = difflib.get_close_matches(str(wrong), known, 1)
    exact = {full.replace(".", "_"): full for full in _static_keys().values()}
    nearest = exact.get(str(wrong)) or (
        _dotted((*place, close[0], *rest)) if close else _elsewhere(str((*path, *rest)[-1]))
    )
    hint = f"did you mean '{nearest}'?" if nearest else f"known here: {', '.join(known)}"
    return Fault(path, f"{_UNKNOWN} '{_dotted((*path, *rest))}': {hint}")


_UNKNOWN = "unknown key"


def _elsewhere(name: str) -> str:
    """The full name of a key of another section whose last part is nearest to `name`."""
    close = difflib.get_close_matches(name, _static_keys(), 1, 0.75)
    return _static_keys()[close[0]] if close else ""


@cache
def _static_keys() -> dict[str, str]:
    """Last part -> full name of the keys outside lists and named things."""
    found: dict[str, str] = {}
    todo: list[tuple[Key, ...]] = [(key,) for key in _keys_at(SettingsTree, ())]
    for path in todo:
        inner = [] if path == ("models",) else _keys_at(SettingsTree, path)
        todo += [(*path, key) for key in inner]
        if not inner:
            found.setdefault(str(path[-1]), _dotted(path))
    return found


def _keys_at(annotation: Any, path: Sequence[Key]) -> list[str]:
    """The keys of the section at `path` below a field of this type; none where it is no section."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = {item.alias or name: item for name, item in annotation.model_fields.items()}
        if not path:
            return list(fields)
        return _keys_at(fields[str(path[0])].annotation, path[1:]) if path[0] in fields else []
    if origin in (dict, tuple):
        return _keys_at(inner[-1 if origin is dict else 0], path[1:]) if path else []
    return _keys_at(inner[0], path) if inner and origin is not Literal else []


def _secret_faults(settings: Settings, environ: Mapping[str, str]) -> Iterator[Fault]:
    owners: dict[str, str] = {}
    for path, ref in secret_refs(settings):
        if (ref.key_env is None) == (ref.key_file is None):
            continue  # told as a fault of its own
        which = "key_env" if ref.key_file is None else "key_file"
        secret = read_secret(ref, environ)
        made_for_the_run = ref.key_env == ADMIN_KEY and path[0] == "admin"
        if secret is None and not made_for_the_run:
            yield _missing((*path, which), getattr(ref, which))
        elif secret is not None and owners.setdefault(secret, _dotted(path)) != _dotted(path):
            yield Fault(
                (*path, which), f"has the same key as {owners[secret]}", getattr(ref, which)
            )
    for place, name in _env_names(settings.model_dump(mode="json", by_alias=True)["models"]):
        if place[-1] == "api_key_env" and not environ.get(name):
            yield _missing(("models", *place), name)


def _missing(path: tuple[Key, ...], name: str) -> Fault:
    wanted = (
        "a readable file that is not empty" if path[-1] == "key_file" else "a variable that is set"
    )
    return Fault(path, f"must name {wanted}", name)


def _line(fault: Fault | str, origins: Mapping[tuple[Key, ...], str]) -> str:
    """One printable line: key, value, what is allowed, and the variable it came from."""
    if isinstance(fault, str):
        line = fault
    else:
        unknown = fault.text.startswith(_UNKNOWN)
        key = "" if unknown else f"{_dotted(fault.path)}{_shown(fault.path, fault.value)}: "
        blamed = [
            name
            for path, name in origins.items()
            if fault.path[: len(path)] == path
            or (unknown and path[: len(fault.path)] == fault.path)
        ]
        line = key + fault.text + "".join(f" (from {name})" for name in blamed[-1:])
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in line)
