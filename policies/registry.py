"""Balancing policies by name: the one place that knows which there are.

A factory takes the `options` of a tier and returns a policy, or raises ConfigError with one
line per fault. To add a policy, add a line to `POLICIES`; policies of other distributions
come as a larger mapping handed to `build_policy` and `PolicySet.build`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from difflib import get_close_matches
from typing import Any

from tierway.policies.balance import Policy
from tierway.policies.errors import ConfigError
from tierway.policies.pickers import Best, Drawn, InTurn
from tierway.policies.protocols import BalancePolicy
from tierway.policies.scorers import ExpectedWait, LeastRequest, Rendezvous

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


def _plain(name: str, build: Callable[[], BalancePolicy]) -> Factory:
    def factory(options: Options) -> BalancePolicy:
        if options:
            raise ConfigError([f"options.{key}: {name} takes no options" for key in options])
        return build()

    return factory


def _llm(options: Options) -> BalancePolicy:
    scorer = ExpectedWait(**_checked(options, ExpectedWait))
    return Policy("llm", Best(), ((scorer, 1.0),))


def _checked(options: Options, shape: type[ExpectedWait]) -> dict[str, float]:
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


POLICIES: Mapping[str, Factory] = {
    "round_robin": _plain("round_robin", lambda: Policy("round_robin", InTurn())),
    "random": _plain("random", lambda: Policy("random", Drawn())),
    "least_request": _plain(
        "least_request", lambda: Policy("least_request", Best(), ((LeastRequest(), 1.0),))
    ),
    "consistent_hash": _plain(
        "consistent_hash", lambda: Policy("consistent_hash", Best(), ((Rendezvous(), 1.0),))
    ),
    "llm": _llm,
}
