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

from tierway.policies.affinity import LeastWork, PrefixAffinity, PrefixOptions
from tierway.policies.balance import Policy
from tierway.policies.errors import ConfigError
from tierway.policies.gpu import Coolness, GpuOptions, Idleness, MemoryRoom, Relief
from tierway.policies.latency import LlmPolicy
from tierway.policies.pickers import Best, Drawn, InTurn, TwoChoices
from tierway.policies.protocols import BalancePolicy
from tierway.policies.scorers import LeastRequest, Rendezvous, WeightedLeastRequest
from tierway.policies.work import Completion, PredictedWork

_AFFINITY = 10.0  # a tenth of the prompt held outweighs any difference of load within the bound

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


def _global_least_request(options: Options) -> BalancePolicy:
    work = PredictedWork(**_checked(options, PredictedWork))
    return Policy("global_least_request", Best(), ((work, 1.0),), predict=work.predict)


def _predicted_latency(options: Options) -> BalancePolicy:
    found = Completion(**_checked(options, Completion))
    return Policy("predicted_latency", Best(), ((found, 1.0),), predict=found.predict)


def _prefix(options: Options) -> BalancePolicy:
    rules = PrefixOptions(**_checked(options, PrefixOptions))
    load = LeastWork(rules.work())
    affinity = PrefixAffinity(rules.min_match_tokens, rules.bound, load.work)
    return Policy("prefix", Best(), ((affinity, _AFFINITY), (load, 1.0)), predict=load.predict)


def _gpu(options: Options) -> BalancePolicy:
    rules = GpuOptions(**_checked(options, GpuOptions))
    work = rules.work()
    deratings = (MemoryRoom(rules), Coolness(rules), Idleness(rules), Relief())
    return Policy("gpu", Best(), ((work, 1.0),), deratings=deratings, predict=work.predict)


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
        "least_request": Policy("least_request", Best(), least, predict=LeastRequest().predict),
        "weighted_least_request": Policy(
            "weighted_least_request",
            Best(),
            ((WeightedLeastRequest(), 1.0),),
            predict=WeightedLeastRequest().predict,
        ),
        "power_of_two": Policy("power_of_two", TwoChoices(), least),
        "consistent_hash": Policy("consistent_hash", Best(), ((Rendezvous(), 1.0),)),
    }
    aware: dict[str, Factory] = {
        "llm": _llm,
        "global_least_request": _global_least_request,
        "predicted_latency": _predicted_latency,
        "prefix": _prefix,
        "gpu": _gpu,
    }
    return {name: _plain(policy) for name, policy in plain.items()} | aware


POLICIES: Mapping[str, Factory] = MappingProxyType(_built_in())
