"""Which GPUs of a node are a replica's, and what they come to together."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tierway.router.facts import GpuFacts
from tierway.router.gpu_pages import GpuReading

# dcgm-exporter reads its fields every 30 s unless told otherwise: a shorter memory would see no
# growth between two of its readings.
_MEMORY_S = 60.0
_SLOW_SHARE = 0.05  # of the time; a GPU that is slowed less is not told from one that is not
_MOST_SHARE = 2.0  # what grows faster than time is no time; twice, as pages lag


@dataclass(frozen=True, slots=True)
class GpuSource:
    """Where a replica's GPUs are told of: a page's URL, or `nvml` for those of this host. Which
    they are: by UUID, by index, by the pod that holds them, or all there are."""

    url: str
    uuids: tuple[str, ...] = ()
    indices: tuple[int, ...] = ()
    pod: str = ""


def choose(
    source: GpuSource, gpus: int, node: str, readings: Sequence[GpuReading]
) -> tuple[list[GpuReading], str]:
    """The GPUs of a replica that has `gpus` of them on `node`; or none, and why."""
    if source.uuids:
        missing = [uuid for uuid in source.uuids if all(uuid != one.uuid for one in readings)]
        if missing:
            return [], f"no GPU {', '.join(missing)} is shown"
        return [one for one in readings if one.uuid in source.uuids], ""
    if source.pod:
        found = [one for one in readings if source.pod in one.pods]
        if len(found) != gpus:
            return [], f"{len(found)} GPUs of pod {source.pod} are shown, not {gpus}"
        return found, ""
    found, why = _on_node(node, readings)
    if why:
        return [], why
    if source.indices:
        wanted = {str(index) for index in source.indices}
        missing = sorted(wanted - {one.index for one in found})
        if missing:
            return [], f"no GPU {', '.join(missing)} is shown"
        return [one for one in found if one.index in wanted], ""
    if len(found) != gpus:
        keys = "gpu_uuids, gpu_indices or pod"
        return [], f"{len(found)} GPUs are shown, not {gpus}: tell by {keys} which are meant"
    return found, ""


def _on_node(node: str, readings: Sequence[GpuReading]) -> tuple[list[GpuReading], str]:
    hosts = sorted({one.host for one in readings})
    if len(hosts) < 2:
        return list(readings), ""
    found = [one for one in readings if node and node in (one.host, one.host.partition(".")[0])]
    why = "" if found else f"the GPUs of several nodes are shown ({', '.join(hosts)}): set node"
    return found, why


def together(gpus: Sequence[GpuReading], throttled: bool, now_s: float) -> GpuFacts:
    """What the GPUs of one replica come to, see GpuFacts. What one of them does not tell is not
    known of all."""
    shares = [
        one.memory_used_bytes / one.memory_bytes
        if one.memory_bytes and one.memory_used_bytes is not None
        else None
        for one in gpus
    ]
    fullest = max(range(len(gpus)), key=lambda at: shares[at] or 0.0)
    known = None not in shares
    utilisation = _all([one.utilisation for one in gpus])
    power, clock = _all([one.power_watts for one in gpus]), _all([one.clock_mhz for one in gpus])
    temperature = _all([one.temperature_celsius for one in gpus])
    return GpuFacts(
        model=gpus[0].model,
        utilisation=sum(utilisation) / len(utilisation) if utilisation else None,
        memory_used_bytes=gpus[fullest].memory_used_bytes if known else None,
        memory_bytes=gpus[fullest].memory_bytes if known else None,
        temperature_celsius=max(temperature, default=None),
        throttled=throttled,
        power_watts=sum(power) if power else None,
        clock_mhz=min(clock, default=None),
        read_s=now_s,
    )


def _all(values: Sequence[float | None]) -> list[float]:
    """The values when all are known, else none."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []


class Throttling:
    """Tells from page to page whether the GPUs of one source are slowed down: now by their own
    word, or in the last minute by counters of slowed time and of events that have grown."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], deque[tuple[float, GpuReading]]] = {}

    def note(self, readings: Sequence[GpuReading], now_s: float) -> None:
        seen = self._seen
        self._seen = {one.key: seen.get(one.key, deque()) for one in readings}
        for one in readings:
            history = self._seen[one.key]
            history.append((now_s, one))
            while len(history) > 2 and now_s - history[1][0] >= _MEMORY_S:
                history.popleft()

    def slows(self, one: GpuReading) -> bool:
        """Of a GPU that was noted last."""
        (then_s, then), (now_s, _) = self._seen[one.key][0], self._seen[one.key][-1]
        if one.slowed:
            return True
        elapsed_s = max(now_s - then_s, _MEMORY_S / 2)
        share = _growth(then.slow_ns, one.slow_ns) / 1e9 / elapsed_s
        slow = _SLOW_SHARE <= share <= _MOST_SHARE
        return slow or _growth(then.slow_events, one.slow_events) > 0.0


def _growth(then: float | None, now: float | None) -> float:
    """0 where a counter began anew."""
    return 0.0 if then is None or now is None else max(0.0, now - then)
