"""The types of the settings: what a value may be, and in which words it is refused."""

from __future__ import annotations

import ipaddress
import math
import re
import warnings as python_warnings
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _text(value: object) -> object:
    """YAML reads `revision: 2` as a number; a float would lose digits (1.10), an int does not."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
        return str(value)
    if isinstance(value, bool | float):
        raise ValueError("must be text: put it in quotes")
    return value


def _switch(on: str) -> BeforeValidator:
    """YAML 1.1 reads bare `on` and `off` as booleans."""
    return BeforeValidator(
        lambda value: (on if value else "off") if isinstance(value, bool) else value
    )


def _http_url(value: str) -> str:
    """`value` without its last slash; http or https, a host, nothing secret, no query."""
    parts, wanted = urlsplit(value), "must be an http:// or https:// address with a host"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(wanted)
    if parts.port == 0 or " " in value or not value.isprintable():
        raise ValueError(f"{wanted}, a port from 1 to 65535 and no blanks")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold credentials: name their variable in api_key_env")
    if parts.query or parts.fragment:
        raise ValueError("must be a base address, without ? and #")
    return value.rstrip("/")


def _telemetry(value: str) -> str:
    return value if value == "nvml" else _http_url(value)


def _regex(value: str) -> str:
    try:
        with python_warnings.catch_warnings():
            python_warnings.simplefilter("ignore")
            re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"must be a regular expression: {error}") from error
    return value


def _network(value: str) -> str:
    try:
        ipaddress.ip_network(value)
    except ValueError as error:
        raise ValueError(f"must be a network such as 10.0.0.0/8: {error}") from error
    return value


def _path(value: str) -> str:
    try:
        return str(Path(value).expanduser())
    except RuntimeError as error:
        raise ValueError(f"must be a path: {error}") from error


def _json(value: Any) -> Any:
    """What is sent on as JSON: neither NaN nor infinity nor more than 64 bits."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for inner in value.values():
            _json(inner)
    elif isinstance(value, list):
        for inner in value:
            _json(inner)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"must be JSON, which has no {value}")
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ValueError("must be JSON with numbers of at most 64 bits")
    elif not isinstance(value, str | int | float | None):
        raise ValueError("must be JSON: names, text, numbers, true, false, null, lists, mappings")
    return value


def _named(pattern: str, allowed: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"must be {allowed}")
        return value

    return AfterValidator(check)


Number = Annotated[float, BeforeValidator(_number)]
Integer = Annotated[int, BeforeValidator(_number)]
Seconds = Annotated[Number, Field(gt=0)]
Weight = Annotated[Number, Field(gt=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
Count = Annotated[Integer, Field(ge=1, lt=2**63)]
Port = Annotated[Integer, Field(ge=0, le=65535)]
Text = Annotated[str, BeforeValidator(_text), Field(min_length=1)]
Label = Annotated[str, BeforeValidator(_text)]
Url = Annotated[str, AfterValidator(_http_url)]
# An exporter's page, or the word for the driver of this host.
Telemetry = Annotated[str, AfterValidator(_telemetry)]
# A last /v1 goes: it is what the paths of the wire begin with anyway. Another version, such as
# the /v4 of https://host/api/paas/v4, stands in its place and stays.
BaseUrl = Annotated[Url, AfterValidator(lambda url: url.removesuffix("/v1"))]
Regex = Annotated[str, Field(min_length=1), AfterValidator(_regex)]
Network = Annotated[str, AfterValidator(_network)]
FilePath = Annotated[str, Field(min_length=1), AfterValidator(_path)]
EnvName = Annotated[str, _named(r"[A-Za-z_][A-Za-z0-9_]*", "the NAME of an environment variable")]
# Tiers and models stand in response headers and metric labels.
TierName = Annotated[
    str, _named(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name of letters, digits, '.', '_' and '-'")
]
StateName = Annotated[
    str, _named(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name of letters, digits, '.', '_' and '-'")
]
ModelName = Annotated[Text, _named(r"[!-~]+", "a name of visible ASCII characters")]
LitellmName = Annotated[str, _named(r"[^/\s]+/\S+", "provider/name, such as openai/gpt-5-mini")]
TimeOfDay = Annotated[
    str,
    BeforeValidator(_text),
    _named(r"([01]\d|2[0-3]):[0-5]\d", "a time of the day such as 03:00, in quotes"),
]
Workload = Annotated[
    str, _named(r"(deployment|statefulset)/[a-z0-9.-]+", "deployment/NAME or statefulset/NAME")
]
JsonFields = Annotated[dict[Text, Any], AfterValidator(_json)]

Switch = Annotated[Literal["off", "on"], _switch("on")]
Mode = Annotated[Literal["serve", "observe", "off"], _switch("serve")]
Placement = Literal["prefer_on_prem", "prefer_cloud", "cheapest", "on_prem_only"]
PlainPolicy = Literal[
    "round_robin",
    "random",
    "least_request",
    "weighted_least_request",
    "consistent_hash",
    "power_of_two",
]
# Whether there is one of that name is told by the checks: a configuration may add some.
EngineName = Annotated[
    str, _named(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name of letters, digits, '.', '_' and '-'")
]
UrlPath = Annotated[str, _named(r"/\S*", "a path that begins with /")]
DegradeStep = Literal["other_replica", "other_tier", "cloud", "stale_cache", "message"]
