"""What a lookup costs, part by part: CPU and wall clock, by size of the cache and callers.

    hash     the call to its digests (cache/keys.py)
    encode   the question to its vector, in the encoder's own process (wall only)
    search   the vector to its nearest neighbours (the index as configured by default)
    verify   the question's features, and the verdict on as many candidates as a lookup judges

Vectors of the index are random directions. A query is one of them turned until their cosine is
NEAR, so that the share of queries that find it says what the sign codes lose. CPU is the process's
own (all threads); where callers wait for each other, wall clock tells.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierway.bench.cache_rig import ANSWER, NOW_AT, Rig, Setting, call_of
from tierway.bench.labelled import quantiles
from tierway.bench.made_misses import made_misses
from tierway.cache.holding import Holding
from tierway.cache.index import Arena
from tierway.cache.int8_rows import quantise
from tierway.cache.keys import fingerprint
from tierway.cache.lookup import CANDIDATES, LARGE_PARTITION, Found
from tierway.cache.replay import as_stored
from tierway.cache.sqlite_store import SqliteStore
from tierway.policies.equivalence import Equivalence
from tierway.policies.protocols import Embedder, Entry
from tierway.policies.questions import Features, features

DIM = 512
NEAR = 0.85
SEARCHES = 320
_CHUNK = 8192
_TEXTS = 300
_AT_ONCE = 200

Floats = NDArray[np.float32]


class Timer:
    """CPU and wall seconds of single operations."""

    def __init__(self) -> None:
        self._cpu: list[float] = []
        self._wall: list[float] = []

    def time(self, action: Callable[[], Any]) -> Any:
        cpu, wall = time.process_time(), time.perf_counter()
        result = action()
        self.add(time.process_time() - cpu, time.perf_counter() - wall)
        return result

    def add(self, cpu_s: float, wall_s: float) -> None:
        self._cpu.append(cpu_s)
        self._wall.append(wall_s)

    def figures(self) -> dict[str, Any]:
        return {
            "cpu_ms": quantiles([1e3 * seconds for seconds in self._cpu], digits=4),
            "wall_ms": quantiles([1e3 * seconds for seconds in self._wall], digits=4),
        }


# ---- the parts that do not depend on the cache's size ----------------------------------------


async def stages(embedder: Embedder) -> dict[str, Any]:
    """Hash, encode and verify, each over some hundred questions, half of them Chinese."""
    pairs = made_misses()
    pairs = pairs[:: max(1, len(pairs) // _TEXTS)]
    hashing, encoding, verifying = Timer(), Timer(), Timer()
    equivalence = Equivalence.shipped()
    stored = [features(pair.a) for pair in pairs]
    for number, pair in enumerate(pairs):
        hashing.time(partial(fingerprint, call_of(pair.b), names="bench"))
        near = [stored[(number + step) % len(stored)] for step in range(CANDIDATES)]
        verifying.time(partial(_verify, pair.b, near, equivalence, embedder.id))
        if embedder.fits(pair.b):
            began = time.perf_counter()
            await embedder.encode([pair.b])
            encoding.add(0.0, time.perf_counter() - began)
    return {
        "hash": hashing.figures(),
        "encode": {"wall_ms": encoding.figures()["wall_ms"]},
        "verify": verifying.figures(),
    }


def _verify(text: str, near: Sequence[Features], equivalence: Equivalence, encoder: str) -> None:
    asked = features(text)
    for candidate in near:
        equivalence.judge(asked, candidate, 0.95, encoder)


# ---- the search, by size ---------------------------------------------------------------------


def measure(entries: int, partitions: int, callers: int, *, dim: int = DIM) -> dict[str, Any]:
    """Searches of an index of `entries` vectors spread evenly over `partitions`, `callers` at
    once; bytes an entry beside its question and its answer; recall of the near neighbour."""
    return Filled(entries, partitions, dim=dim).measure(callers)


class Filled:
    """An index and the entries beside it, filled once and measured with any number of callers."""

    def __init__(self, entries: int, partitions: int, *, dim: int = DIM) -> None:
        self.entries, self.partitions = entries, partitions
        self._dim = dim
        self._rng = np.random.default_rng(3)
        self._arena = Arena(dim)
        began = time.process_time()
        self._queries = self._fill(SEARCHES)
        self._arena.prepare()
        self.fill_cpu_s = time.process_time() - began
        self._holding_bytes = self._hold()

    def measure(self, callers: int) -> dict[str, Any]:
        timer = Timer()
        began, cpu = time.perf_counter(), time.process_time()
        found = asyncio.run(self._search_all(callers, timer))
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        figures = timer.figures()
        if callers > 1:
            # Of one among many only the mean is known.
            figures["cpu_ms"] = {"mean": round(1e3 * cpu_s / len(found), 4)}
        return {
            "entries": self.entries,
            "partitions": self.partitions,
            "callers": callers,
            **figures,
            "searches_per_s": round(len(found) / wall_s, 1),
            "near_found": round(sum(found) / len(found), 4),
            "index_bytes_per_entry": round(self._arena.nbytes / self.entries, 1),
            "entry_bytes": round(self._holding_bytes, 1),
            "fill_cpu_s": round(self.fill_cpu_s, 2),
        }

    def _fill(self, queries: int) -> list[tuple[int, bytes, Floats]]:
        """Adds all vectors; of some of them a turned copy comes back: (key, partition, copy)."""
        chosen = set(self._rng.choice(self.entries, min(queries, self.entries), replace=False))
        turned = []
        for start in range(0, self.entries, _CHUNK):
            rows = self._directions(min(_CHUNK, self.entries - start))
            keys = range(start, start + len(rows))
            names = [self._name(key) for key in keys]
            self._arena.add_many(names, keys, quantise(rows))
            turned += [
                (key, self._name(key), self._turn(rows[key - start]))
                for key in keys
                if key in chosen
            ]
        return turned

    def _name(self, key: int) -> bytes:
        return (key % self.partitions).to_bytes(16, "big")

    def _directions(self, number: int) -> Floats:
        rows = self._rng.standard_normal((number, self._dim), np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows

    def _turn(self, row: Floats) -> Floats:
        other = self._directions(1)[0]
        other -= (other @ row) * row
        other /= np.linalg.norm(other)
        turned: Floats = np.float32(NEAR) * row + np.float32((1 - NEAR**2) ** 0.5) * other
        return turned

    def _hold(self) -> float:
        """Bytes of what is kept of an entry beside its vector; of a sample, as all are alike."""
        number = min(self.entries, 20_000)
        holding = Holding(Arena(self._dim), entries=number, answers_bytes=0)
        for key in range(number):
            holding.hold(_entry(key, self._name(key)))
        return holding.nbytes / number

    async def _search_all(self, callers: int, timer: Timer) -> list[bool]:
        waiting = list(self._queries)
        found: list[bool] = []

        async def caller() -> None:
            while waiting:
                key, name, query = waiting.pop()
                cpu, wall = time.process_time(), time.perf_counter()
                near = await self._search(name, query)
                timer.add(time.process_time() - cpu, time.perf_counter() - wall)
                found.append(key in {one for one, _ in near})
                await asyncio.sleep(0)

        await asyncio.gather(*(caller() for _ in range(callers)))
        return found

    async def _search(self, name: bytes, query: Floats) -> list[tuple[int, float]]:
        """As cache/lookup.py does: a large partition off the loop."""
        if self._arena.size(name) >= LARGE_PARTITION:
            return await asyncio.to_thread(self._arena.search, name, query, CANDIDATES)
        return self._arena.search(name, query, CANDIDATES)


def _entry(number: int, partition: bytes) -> Entry:
    return Entry(
        id=f"e_{number:020x}",
        exact=number.to_bytes(16, "little"),
        partition=partition,
        wire="chat",
        question=f"What is the answer to question number {number}?",
        answer=as_stored(ANSWER),
        tier="small",
        model="bench",
        probabilities={"small": 0.8},
        tenant="",
        user="",
        namespace="",
        created_at=NOW_AT,
        expires_at=NOW_AT + 86400.0,
    )


# ---- the start -------------------------------------------------------------------------------


async def restart(entries: int, embedder: Embedder) -> dict[str, Any]:
    """What filling a SQLite file with so many entries costs, and taking it in again."""
    with tempfile.TemporaryDirectory(prefix="tierway-speed-") as folder:
        path = Path(folder, "cache.sqlite3")
        filled = await _filled(path, entries, embedder)
        rig = Rig(embedder, Setting(), store=SqliteStore(path))
        began = _now()
        try:
            await rig.start()
            await rig.cache.taken_in()
            cpu_s, wall_s = (now - then for now, then in zip(_now(), began, strict=True))
            taken_in = len(rig.cache)
        finally:
            await rig.aclose()
        return {
            "entries": taken_in,
            "cpu_s": round(cpu_s, 3),
            "wall_s": round(wall_s, 3),
            "keep_cpu_ms": round(1e3 * filled / entries, 3),
            "file_bytes_per_entry": _size(path) // entries,
        }


async def _filled(path: Path, entries: int, embedder: Embedder) -> float:
    """Keeps entries with random vectors; the CPU seconds of it."""
    rng = np.random.default_rng(5)
    rig = Rig(embedder, Setting(), store=SqliteStore(path))
    await rig.start()
    cpu_s, _ = _now()
    try:
        for start in range(0, entries, _AT_ONCE):
            for number in range(start, min(start + _AT_ONCE, entries)):
                row = rng.standard_normal(embedder.dim, np.float32)
                found = Found(None, "nothing-near", row / np.linalg.norm(row))
                rig.keep(f"What is the answer to question number {number}?", found=found)
            await rig.cache.settled()
        return _now()[0] - cpu_s
    finally:
        await rig.aclose()


def _now() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.parent.iterdir())
