"""When a replica may be taken out to be mended, and when a restart is due; pure.

One at a time, never below `min_available` others of its model, each at most once in `cooldown_s`,
and no more than `most_per_hour` in all: a wrong alarm must not be able to take a fleet down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tierway.policies.types import ReplicaView

_DAY_S = 86_400.0
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Restarts:
    """A restart of each replica every `every_days`, in the `for_s` that begin `at_s` after
    midnight UTC."""

    at_s: float
    for_s: float = 7200.0
    every_days: int = 1

    def due(self, now_at: float, process_start_s: float | None) -> bool:
        """Whether a replica whose process began then is to be restarted now; both are seconds since
        the epoch. One that does not tell is never due."""
        if process_start_s is None:
            return False
        began_at = now_at - (now_at - self.at_s) % _DAY_S
        days = round((began_at - self.at_s) / _DAY_S)
        inside = now_at - began_at < self.for_s and days % self.every_days == 0
        return inside and process_start_s < began_at


@dataclass(frozen=True, slots=True)
class MaintenanceRules:
    """`threshold` of memory pressure for `for_s`; see Restarts for `restarts`, None for never."""

    threshold: float = 0.7
    for_s: float = 60.0
    min_available: int = 1
    cooldown_s: float = 1800.0
    most_per_hour: int = 4
    drain_timeout_s: float = 600.0
    health_timeout_s: float = 900.0
    restarts: Restarts | None = None


def refusal(
    replica: str,
    views: Sequence[ReplicaView],
    rules: MaintenanceRules,
    *,
    mended_s: Mapping[str, float],
    now_s: float,
) -> str:
    """Why a replica must not be taken out now, empty where it may. `views` are all replicas of its
    model, `mended_s` tells when each was mended last."""
    others = sum(view.available for view in views if view.id != replica)
    if others < rules.min_available:
        return f"only {others} others are available, min_available is {rules.min_available}"
    last_s = mended_s.get(replica)
    if last_s is not None and now_s - last_s < rules.cooldown_s:
        return f"it was mended {now_s - last_s:.0f} s ago, cooldown_s is {rules.cooldown_s:g}"
    lately = sum(now_s - at_s < _HOUR_S for at_s in mended_s.values())
    if lately >= rules.most_per_hour:
        return f"{lately} were mended within an hour, most_per_hour is {rules.most_per_hour}"
    return ""
