"""What this version does not serve: values of known keys, refused or told in a warning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tierway.middleware.config_text import Fault, Key, dotted
from tierway.middleware.settings import SettingsTree


@dataclass(frozen=True, slots=True)
class Gap:
    """A key, `*` standing for any name or index, and those of its values that nothing serves
    yet (None: every value but null and empty). They are refused, or accepted with `warning`."""

    path: str
    missing: tuple[str | int, ...] | None = None
    warning: str = ""


_UNENFORCED = "not enforced in this version"
_PLACEMENT_LATER = ("prefer_cloud", "cheapest")
GAPS = (
    Gap("server.tls.cert"),
    Gap("server.tls.key"),
    Gap("server.lenient", (True,)),
    Gap("models.*.kind", ("rerank",)),
    Gap("router.mode", ("observe", "off")),
    Gap("router.shares"),
    Gap("router.rules"),
    Gap("placement.default", _PLACEMENT_LATER),
    Gap("long_context.action", ("reject", "chunk", "truncate_middle")),
    Gap("resilience.hedge", ("on",)),
    Gap("resilience.message_status", (200,)),
    Gap("resilience.overload_wait_s", warning="nothing queues in this version"),
    Gap("tenants.*.placement", _PLACEMENT_LATER),
    Gap("tenants.*.priority", ("urgent", "batch"), warning=_UNENFORCED),
    Gap("tenants.*.weight", warning=_UNENFORCED),
    Gap("tenants.*.rpm", warning=_UNENFORCED),
    Gap("tenants.*.tpm", warning=_UNENFORCED),
    Gap("tenants.*.budget_usd_per_day", warning=_UNENFORCED),
    Gap("tenants.*.assumed_output_tokens", warning=_UNENFORCED),
    Gap("tenants.*.hit_factor", warning=_UNENFORCED),
)

_EMPTY: tuple[object, ...] = (None, "", [], {})


def gap_faults(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Values of plain `data` that are known and refused."""
    for gap, path, value in _unserved(data):
        if not gap.warning:
            yield Fault(path, "is not available in this version", value)


def gap_warnings(tree: SettingsTree) -> Iterator[str]:
    """One line for each model, tenant or section with values that were given and do nothing."""
    told: dict[tuple[str, str], dict[str, None]] = {}
    given = tree.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for gap, path, _ in _unserved(given):
        place = dotted(path[:-1][:2])
        told.setdefault((place, gap.warning), {})[str(path[-1])] = None
    for (place, warning), keys in told.items():
        yield f"{place}: {warning}: {', '.join(keys)}"


def not_served(path: Iterable[Key]) -> tuple[str, ...]:
    """The known values of a key that this version refuses."""
    steps = tuple(map(str, path))
    for gap in GAPS:
        wanted = gap.path.split(".")
        if len(wanted) == len(steps) and all(
            want in ("*", step) for want, step in zip(wanted, steps, strict=True)
        ):
            return () if gap.warning else tuple(map(str, gap.missing or ()))
    return ()


def _unserved(data: Mapping[str, Any]) -> Iterator[tuple[Gap, tuple[Key, ...], Any]]:
    for gap in GAPS:
        for path, value in _places(data, tuple(gap.path.split("."))):
            if gap.missing is None:
                hit = value not in _EMPTY
            else:
                value = _named(value, gap.missing)
                hit = value in gap.missing
            if hit:
                yield gap, path, value


def _named(value: Any, missing: tuple[str | int, ...]) -> Any:
    """YAML 1.1 reads bare `on` and `off` as booleans."""
    if isinstance(value, bool) and value not in missing:
        return "on" if value else "off"
    return value


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
