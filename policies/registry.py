"""Balancing policies by name: the one place that knows which there are.

A factory takes the `options` of a tier and returns a policy, or raises ConfigError with one
line per fault. To add a policy, add a line to `_built_in`; policies of other distributions
come as a larger mapping handed to `build_policy` and `PolicySet.build`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from tierway.policies.balance import Policy
from tierway.policies.errors import ConfigError
from tierway.policies.latency import LlmPolicy
from tierway.policies.pickers import Best, Drawn, InTurn, TwoChoices
from tierway.policies.protocols import BalancePolicy
from tierway.policies.scorers import LeastRequest, Rendezvous, WeightedLeastRequest

Options = Mapping[str, Any]
Factory = Callable[[Options], BalancePolicy]


def build_policy(
    name: str, options: Options, *, registry: Mapping[str, Factory] | None = None
) -> BalancePolicy:
    """Raises ConfigError for an unknown name (told with the nearest) or wrong options."""
    known = POLICIES if registry is None else registry
    factory = known.get(name)
    if factory is None:
        raise ConfigError([f"policy = {name!r}: {_suggest(name, known)}"])
    return factory(options)


def _suggest(name: str, known: Mapping[str, object]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    nearest = f"did you mean {close[0]}? " if close else ""
    return f"{nearest}known: {', '.join(sorted(known)) or 'none'}"


def _plain(policy: Policy) -> Factory:
    def factory(options: Options) -> BalancePolicy:
        if options:
            raise ConfigError([f"options.{key}: {policy.name} takes no options" for key in options])
        return policy

    return factory


def _llm(options: Options) -> BalancePolicy:
    return LlmPolicy(**_checked(options, LlmPolicy))


def _checked(options: Options, shape: type[Any]) -> dict[str, float]:
    """The options as floats, checked against the fields of `shape` and their ranges."""
    allowed = {item.name: item for item in fields(shape)}
    faults, values = [], {}
    for key, value in options.items():
        fault = _fault(key, value, allowed)
        if fault is None:
            values[key] = float(value)
        else:
            faults.append(f"options.{key} = {value!r}: {fault}")
    if faults:
        raise ConfigError(faults)
    return values


def _fault(key: str, value: object, allowed: Mapping[str, Field[Any]]) -> str | None:
    if key not in allowed:
        return f"no such option; {_suggest(key, allowed)}"
    limits = allowed[key].metadata
    above, most = limits.get("above", -math.inf), limits.get("most", 1e9)
    least = limits.get("least", 0.0)
    number = math.nan if isinstance(value, bool) else value
    if isinstance(number, int | float) and number > above and least <= number <= most:
        return None
    lower = f"above {above:g}" if above > -math.inf else f"at least {least:g}"
    upper = f", at most {most:g}" if most < 1e9 else ""
    return f"must be a number, {lower}{upper}"


def _built_in() -> dict[str, Factory]:
    least = ((LeastRequest(), 1.0),)
    plain = {
        "round_robin": Policy("round_robin", InTurn()),
        "random": Policy("random", Drawn()),
        "least_request": Policy("least_request", Best(), least),
        "weighted_least_request": Policy(
            "weighted_least_request", Best(), ((WeightedLeastRequest(), 1.0),)
        ),
        "power_of_two": Policy("power_of_two", TwoChoices(), least),
        "consistent_hash": Policy("consistent_hash", Best(), ((Rendezvous(), 1.0),)),
    }
    return {name: _plain(policy) for name, policy in plain.items()} | {"llm": _llm}


POLICIES: Mapping[str, Factory] = MappingProxyType(_built_in())
