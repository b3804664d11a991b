"""What this version does not serve: values of known keys, refused or told in a warning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tierway.middleware.config_text import Fault, Key
from tierway.middleware.settings import SettingsTree


@dataclass(frozen=True, slots=True)
class Gap:
    """A key, `*` standing for any name or index, and those of its values that nothing serves
    yet (None: every value but null and empty). `refused` is False where the value is
    accepted with a warning."""

    path: str
    missing: tuple[str, ...] | None = None
    refused: bool = True


_PLAIN_LATER = ("weighted_least_request", "power_of_two")
_AWARE_LATER = ("global_least_request", "prefix", "gpu", "predicted_latency")
GAPS = (
    Gap("server.tls.cert"),
    Gap("server.tls.key"),
    Gap("state.backend", ("redis",)),
    Gap("cache.embedder.kind", ("openai",)),
    Gap("cache.index.kind", ("redis",)),
    Gap("cache.store.kind", ("redis", "memcached")),
    Gap("cache.store.key_env"),
    Gap("cache.second_opinion.kind", ("cross_encoder", "tier")),
    Gap("models.*.kind", ("rerank",)),
    Gap("tiers.*.policy", _PLAIN_LATER + _AWARE_LATER),
    Gap("tiers.*.plain_policy", _PLAIN_LATER),
    Gap("plugins"),
    Gap("router.shares"),
    Gap("router.rules"),
    Gap("placement.default", ("cheapest",)),
    Gap("long_context.action", ("reject", "chunk", "truncate_middle")),
    Gap("resilience.hedge", ("on",)),
    Gap("tenants.*.placement", ("cheapest",)),
    Gap("tenants.*.weight", refused=False),
    Gap("tenants.*.rpm", refused=False),
    Gap("tenants.*.tpm", refused=False),
    Gap("tenants.*.budget_usd_per_day", refused=False),
    Gap("tenants.*.assumed_output_tokens", refused=False),
    Gap("tenants.*.hit_factor", refused=False),
)

_EMPTY: tuple[object, ...] = (None, "", [], {})


def gap_faults(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Values of plain `data` that are known and not served yet."""
    for gap in GAPS:
        for path, value in _places(data, tuple(gap.path.split("."))) if gap.refused else ():
            named = "on" if value is True else value
            if named in gap.missing if gap.missing is not None else value not in _EMPTY:
                yield Fault(path, "is not available in this version", named)


def not_served(path: Iterable[Key]) -> tuple[str, ...]:
    """The known values of a key that this version refuses."""
    steps = tuple(map(str, path))
    for gap in GAPS:
        wanted = gap.path.split(".")
        if len(wanted) == len(steps) and all(
            want in ("*", step) for want, step in zip(wanted, steps, strict=True)
        ):
            return gap.missing or ()
    return ()


def _places(
    data: object, steps: tuple[str, ...], path: tuple[Key, ...] = ()
) -> Iterator[tuple[tuple[Key, ...], Any]]:
    """(path, value) of every place in `data` that a path with `*` means."""
    if not steps:
        yield path, data
    elif steps[0] == "*" and isinstance(data, dict | list):
        for key, inner in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _places(inner, steps[1:], (*path, key))
    elif isinstance(data, dict) and steps[0] in data:
        yield from _places(data[steps[0]], steps[1:], (*path, steps[0]))


def unenforced_limits(tree: SettingsTree) -> Iterator[str]:
    limits = [gap.path.split(".")[-1] for gap in GAPS if not gap.refused]
    for tenant in tree.tenants:
        given = [
            name
            for name in limits
            if name in tenant.model_fields_set and getattr(tenant, name) is not None
        ]
        if given:
            yield f"tenants.{tenant.name}: not enforced in this version: {', '.join(given)}"
