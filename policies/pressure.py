"""Memory pressure of a replica, as an index in [0, 1]: how much of its KV memory is lost.

No engine publishes a fragmentation gauge. What they do publish says it together: memory that is in
use although nothing that anybody knows of uses it, requests that lose their memory although there
should be room, answers that name an out of memory.

    lost       min over the window of (KV use - explained), as a share of 0.3; explained is what the
               requests that the engine runs hold or will hold (prompt and expected answer), those
               of others being as large as the gateways' own, over the capacity. It is more than
               they hold now, so what is above it is nobody's
    needless   preemptions by request while explained was below 0.7 throughout, as a share of 0.5
    exhausted  answers that name an out of memory by request, as a share of 0.1
    leaked     framebuffer that stays taken while nothing is in flight, above the least ever seen
               so, as a share of 0.3 of the memory; of engines that do not take all at their start

    index = 1 - (1 - lost) (1 - needless) (1 - exhausted) (1 - leaked)

Each is 0 where it is not known, and the index None where nothing is: silence is neither health nor
illness. The minimum over a window is what persists: a page and the counts are never of quite the
same moment. KV use counts what requests hold in vLLM and SGLang; blocks of the prefix cache that
nobody holds count as free there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tierway.policies.errors import Rejected

WINDOW_S = 20.0
_LEAST_READINGS = 5
_ALL_LOST = 0.3
_NEEDLESS = 0.5
_EXHAUSTED = 0.1
_ROOMY = 0.7
_LEAST_REQUESTS = 5
_OUT_OF_MEMORY = (b"out of memory", b"outofmemory", b"out_of_memory")


@dataclass(frozen=True, slots=True)
class Reading:
    """What was known at `at_s`. `kv_use` and `explained` are shares of the KV memory;
    `preemptions`, `requests` and `exhausted` count since some start; `idle_use` is the share of
    the framebuffer that is taken while nothing is in flight."""

    at_s: float
    kv_use: float | None = None
    explained: float | None = None
    preemptions: int | None = None
    requests: int = 0
    exhausted: int = 0
    idle_use: float | None = None


def index(readings: Sequence[Reading], least_idle_use: float | None = None) -> float | None:
    """Of the readings of one window, oldest first."""
    parts = (
        _lost(readings),
        _needless(readings),
        _exhausted(readings),
        _leaked(readings, least_idle_use),
    )
    known = [part for part in parts if part is not None]
    if not known:
        return None
    left = 1.0
    for part in known:
        left *= 1.0 - min(1.0, max(0.0, part))
    return 1.0 - left


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an engine's error says that its memory is exhausted."""
    if not isinstance(error, Rejected) or error.status < 500:
        return False
    body = error.body[:4096].lower()
    return any(words in body for words in _OUT_OF_MEMORY)


def _lost(readings: Sequence[Reading]) -> float | None:
    gaps = [
        one.kv_use - one.explained
        for one in readings
        if one.kv_use is not None and one.explained is not None
    ]
    return min(gaps) / _ALL_LOST if len(gaps) >= _LEAST_READINGS else None


def _needless(readings: Sequence[Reading]) -> float | None:
    counts = [one.preemptions for one in readings if one.preemptions is not None]
    use = [one.explained for one in readings if one.explained is not None]
    if len(counts) < 2 or not use:
        return None
    requests = readings[-1].requests - readings[0].requests
    if requests < _LEAST_REQUESTS or max(use) >= _ROOMY:
        return 0.0
    return max(0, counts[-1] - counts[0]) / requests / _NEEDLESS


def _exhausted(readings: Sequence[Reading]) -> float | None:
    if len(readings) < 2:
        return None
    requests = readings[-1].requests - readings[0].requests
    times = readings[-1].exhausted - readings[0].exhausted
    if not requests:
        return None
    return times / max(_LEAST_REQUESTS, requests) / _EXHAUSTED


def _leaked(readings: Sequence[Reading], least: float | None) -> float | None:
    use = [one.idle_use for one in readings if one.idle_use is not None]
    return None if least is None or not use else (min(use) - least) / _ALL_LOST


class Detector:
    """Tells when an index has been at `threshold` or above for `for_s`, and when it is over: once
    it is below half of the threshold. What is not known changes nothing."""

    __slots__ = ("_for_s", "_since_s", "_threshold", "on")

    def __init__(self, threshold: float, for_s: float) -> None:
        self._threshold, self._for_s = threshold, for_s
        self._since_s: float | None = None
        self.on = False

    def note(self, now_s: float, index: float | None) -> bool:
        """`on` after this index."""
        if index is None:
            return self.on
        if index >= self._threshold:
            if self._since_s is None:
                self._since_s = now_s
            self.on = self.on or now_s - self._since_s >= self._for_s
        else:
            self._since_s = None
            self.on = self.on and index >= self._threshold / 2
        return self.on
