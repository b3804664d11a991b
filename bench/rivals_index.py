"""What other balancers keep: an LRU of the blocks a replica was sent, and a ring of hashes."""

from __future__ import annotations

from bisect import bisect
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from zlib import crc32


class BlockLru:
    """The blocks that one replica was sent, at most `room`, the longest unused in front."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._held: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def match(self, blocks: Sequence[int]) -> int:
        """How many leading blocks are here."""
        held = self._held
        return next((at for at, block in enumerate(blocks) if block not in held), len(blocks))

    def insert(self, blocks: Sequence[int]) -> None:
        """Puts a prompt's tail before its head, which others may share."""
        held = self._held
        for block in reversed(blocks):
            held[block] = None
            held.move_to_end(block)
        while len(held) > self.room:
            held.popitem(last=False)


class Ring:
    """Consistent hashing with 160 points a replica, the number of vllm-project/router."""

    def __init__(self, replicas: int, points: int = 160) -> None:
        self._points = sorted(
            (crc32(f"{replica}#{point}".encode()), replica)
            for replica in range(replicas)
            for point in range(points)
        )

    def walk(self, key: str) -> Iterator[int]:
        """The replicas in the order in which they come after the key's place."""
        start = bisect(self._points, (crc32(key.encode()), -1))
        seen: set[int] = set()
        for _, replica in self._points[start:] + self._points[:start]:
            if replica not in seen:
                seen.add(replica)
                yield replica
