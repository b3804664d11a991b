"""Vectors in Redis, searched there: a vector set (Redis 8) for each partition and encoder.

    VADD key FP32 … id CAS SETATTR {"x": expires_at}      VREM key id
    VSIM key FP32 … WITHSCORES COUNT k FILTER ".x > now"

A search gives (1 + cosine) / 2; here it is turned into the cosine that everything else compares.
Redis keeps eight bits of each component, as we do: a cosine is off by .002 at 512 dimensions. The
search is approximate: of the true best eight among 5,000 vectors it finds seven or eight.
Expired entries are passed over by the filter and removed when the store buries them. The set
itself ends after the longest-lived entry it ever had.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import orjson

from tierway.cache.int8_rows import floats
from tierway.cache.redis_codec import Gone, space_of
from tierway.cache.redis_link import Command, RedisLink
from tierway.cache.redis_scripts import Keys
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Clock, Entry

if TYPE_CHECKING:
    from tierway.policies.protocols import Vectors

EFFORT = 200
"""Nodes of the graph that a search visits at least; 100 is Redis's default."""

_NEVER = 1e12


class RedisIndex:
    """A RemoteIndex for the vectors of `encoder`. `wall` is seconds since the epoch."""

    def __init__(self, link: RedisLink, *, encoder: str, wall: Clock, name: str = "main") -> None:
        self._link, self._wall = link, wall
        self._keys = Keys(name)
        self._space = space_of(encoder)

    async def check(self) -> None:
        """CacheError when the server has no vector sets."""
        try:
            await self._link.command("VCARD", self._keys.vectors(self._space, b""))
        except CacheError as error:
            if "unknown command" not in error.public:
                return  # away: it is asked again with each use
            raise CacheError(
                f"{self._link.name} has no vector sets, which cache.index.kind redis"
                " needs: they came with Redis 8."
            ) from error

    async def add(self, entry: Entry, live_s: float) -> None:
        """Adds the entry's vector to a set that lives for `live_s` at least."""
        key = self._keys.vectors(space_of(entry.encoder), entry.partition)
        attributes = orjson.dumps({"x": min(entry.expires_at, _NEVER)})
        try:
            vector = floats(entry.vector or b"").astype("<f4").tobytes()
        except ValueError as error:
            raise CacheError(f"The vector of the entry {entry.id} is none: {error}") from error
        live_ms = int(live_s * 1000)
        await self._link.pipeline(
            [
                ("VADD", key, "FP32", vector, entry.id, "CAS", "SETATTR", attributes),
                ("PEXPIRE", key, live_ms, "NX"),
                ("PEXPIRE", key, live_ms, "GT"),
            ]
        )

    async def remove(self, gone: Sequence[Gone]) -> None:
        """Removes what is there of them."""
        places: dict[str, list[str]] = defaultdict(list)
        for one in gone:
            if one.encoder:
                key = self._keys.vectors(space_of(one.encoder), one.partition)
                places[key].append(one.entry_id)
        commands: list[Command] = [
            ("VREM", key, entry_id) for key, ids in places.items() for entry_id in ids
        ]
        await self._link.pipeline(commands)

    async def count(self, partition: bytes) -> int:
        key = self._keys.vectors(self._space, partition)
        return int(await self._link.command("VCARD", key, hurry=True) or 0)

    async def search(self, partition: bytes, vector: Vectors, k: int) -> list[tuple[str, float]]:
        found = await self._link.command(
            "VSIM",
            self._keys.vectors(self._space, partition),
            "FP32",
            np.asarray(vector, "<f4").tobytes(),
            "WITHSCORES",
            "COUNT",
            k,
            "EF",
            max(EFFORT, k),
            "FILTER",
            f".x > {self._wall():.3f}",
            hurry=True,
        )
        pairs = zip(found[::2], found[1::2], strict=True)
        return [(entry_id.decode(), cosine_of(float(score))) for entry_id, score in pairs]


def cosine_of(score: float) -> float:
    """From Redis's similarity, 0 for opposite and 1 for equal vectors."""
    return min(1.0, max(-1.0, 2.0 * score - 1.0))
