"""Balancing policies of other distributions: entry points of the group `tierway.policies`.

Only distributions that `plugins` names are looked at, and nothing of any other is imported. An
entry point's name is the policy's name, its object a factory: it takes the `options` of a tier
and returns a policy (policies/protocols.py, BalancePolicy), or raises ConfigError with one line
per fault. Its policies run under guard; see policies/guard.py.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution
from importlib.metadata import distributions as installed
from types import MappingProxyType

from tierway.policies.errors import ConfigError
from tierway.policies.guard import guarded
from tierway.policies.protocols import BalancePolicy
from tierway.policies.registry import POLICIES, Factory, Options

GROUP = "tierway.policies"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")  # stands in headers and metric labels


def registry(plugins: Sequence[str]) -> Mapping[str, Factory]:
    """The built-in policies and those of the distributions named; ConfigError has every fault."""
    if not plugins:
        return POLICIES
    made = dict(POLICIES)
    owners = dict.fromkeys(POLICIES, "built in")
    faults: list[str] = []
    for index, name in enumerate(plugins):
        try:
            for point in _points(name):
                _check_name(point.name, owners)
                made[point.name] = _factory(point)
                owners[point.name] = f"of {name}"
        except ConfigError as error:
            faults += [f"plugins.{index} = {name!r}: {fault}" for fault in error.faults]
    if faults:
        raise ConfigError(faults)
    return MappingProxyType(made)


def _points(name: str) -> Iterator[EntryPoint]:
    found = _distribution(name).entry_points.select(group=GROUP)
    if not found:
        raise ConfigError([f"has no entry point in the group {GROUP}"])
    yield from found


def _distribution(name: str) -> Distribution:
    try:
        return distribution(name)
    except (PackageNotFoundError, ValueError) as error:
        names = {str(one.metadata["Name"]) for one in installed()}
        close = difflib.get_close_matches(name, names, n=1)
        nearest = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError([f"no distribution of that name is installed{nearest}"]) from error


def _check_name(name: str, owners: Mapping[str, str]) -> None:
    if name in owners:
        raise ConfigError([f"its policy {name!r} has the name of one that is {owners[name]}"])
    if not _NAME.fullmatch(name):
        allowed = "a letter, then up to 63 letters, digits, '.', '_' and '-'"
        raise ConfigError([f"the name of its policy {name!r} must be {allowed}"])


def _factory(point: EntryPoint) -> Factory:
    try:
        make = point.load()
    except Exception as error:  # an import runs code of others, which may raise anything
        text = f"{type(error).__name__}: {error}"
        raise ConfigError(
            [f"its policy {point.name!r} cannot be loaded from {point.value}: {text}"]
        ) from error
    if not callable(make):
        raise ConfigError([f"its policy {point.name!r}: {point.value} is no factory"])

    def factory(options: Options) -> BalancePolicy:
        try:
            policy = make(options)
        except ConfigError:
            raise
        except Exception as error:  # as above
            text = f"{type(error).__name__}: {error}"
            raise ConfigError([f"policy = {point.name!r}: its factory failed: {text}"]) from error
        if not callable(getattr(policy, "rank", None)):
            raise ConfigError([f"policy = {point.name!r}: its factory made nothing that ranks"])
        return guarded(point.name, policy)

    return factory
