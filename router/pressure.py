"""Follows the memory pressure of each replica: see policies/pressure.py for the index.

Fed by each page that an engine tells and by the end of each call; the index goes into the view of
the replica, for policies, metrics and maintenance.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tierway.policies.pressure import WINDOW_S, Detector, Reading, index, out_of_memory
from tierway.policies.types import ReplicaView, Usage
from tierway.router.facts import Facts
from tierway.router.fleet import Fleet
from tierway.router.follower import Follower
from tierway.router.learner import Learner
from tierway.router.lease import Lease
from tierway.router.replica import ReplicaSpec

if TYPE_CHECKING:
    from tierway.router.balancer import Placed

logger = logging.getLogger(__name__)


_LONGER = 1.25  # those that run are longer than those that come, as they stay longer


@dataclass(slots=True)
class _Seen:
    alarm: Detector
    readings: deque[Reading] = field(default_factory=deque)
    requests: int = 0
    exhausted: int = 0
    least_idle_use: float | None = None


class PressureWatch(Follower, Learner):
    """A Learner too. An index of `alert` or more for `for_s` is logged, and its end."""

    def __init__(self, fleet: Fleet, *, alert: float = 0.5, for_s: float = 20.0) -> None:
        self._fleet, self._alert, self._for_s = fleet, alert, for_s
        self._seen: dict[str, _Seen] = {}

    def on_join(self, spec: ReplicaSpec) -> None:
        self._seen[spec.id] = _Seen(Detector(self._alert, self._for_s))

    def on_leave(self, spec: ReplicaSpec) -> None:
        self._seen.pop(spec.id, None)

    def on_restart(self, spec: ReplicaSpec) -> None:
        self.on_join(spec)
        self._fleet.set_pressure(spec.id, None)

    def on_facts(self, spec: ReplicaSpec, facts: Facts) -> None:
        seen = self._seen.get(spec.id)
        if seen is None:
            return
        view, now = self._fleet.view(spec.id), self._fleet.clock()
        reading = _reading(view, facts, seen, now)
        seen.readings.append(reading)
        while seen.readings[0].at_s < now - WINDOW_S:
            seen.readings.popleft()
        if reading.idle_use is not None:
            least = seen.least_idle_use
            seen.least_idle_use = min(reading.idle_use, 1.0 if least is None else least)
        found = index(tuple(seen.readings), seen.least_idle_use)
        self._fleet.set_pressure(spec.id, found)
        self._tell(spec, seen.alarm, now, found)

    def on_end(
        self,
        placed: Placed,
        lease: Lease,
        now: float,
        error: BaseException | None,
        usage: Usage | None,
    ) -> None:
        seen = self._seen.get(lease.replica)
        if seen is not None:
            seen.requests += 1
            seen.exhausted += out_of_memory(error)

    def _tell(self, spec: ReplicaSpec, alarm: Detector, now: float, found: float | None) -> None:
        was = alarm.on
        if alarm.note(now, found) != was:
            text = "%s: its memory %s (index %.2f)"
            logger.warning(text, spec.id, "recovered" if was else "is under pressure", found or 0.0)


def _reading(view: ReplicaView, facts: Facts, seen: _Seen, now: float) -> Reading:
    return Reading(
        at_s=now,
        kv_use=facts.kv_usage,
        explained=_explained(view, facts),
        preemptions=facts.preemptions,
        requests=seen.requests,
        exhausted=seen.exhausted,
        idle_use=_idle_use(view),
    )


def _explained(view: ReplicaView, facts: Facts) -> float | None:
    """The share of its KV memory that the requests it runs hold or will hold, None where nobody
    knows of them. Those that wait for memory hold none; they say how large a request is."""
    if not view.kv_capacity_tokens:
        return None
    if not view.inflight:
        return None if facts.running else 0.0
    tokens = float(view.context_tokens)
    if facts.running is not None:
        tokens *= _LONGER * facts.running / view.inflight
        if facts.running <= view.inflight:
            tokens = min(tokens, view.context_tokens)
    return tokens / view.kv_capacity_tokens


def _idle_use(view: ReplicaView) -> float | None:
    used, total = view.gpu_memory_used_bytes, view.gpu_memory_bytes
    if view.preallocates or view.inflight or view.unseen or used is None or not total:
        return None
    return used / total
