"""The paged KV cache of a simulated engine, with prefix reuse.

Blocks (16 tokens in most engines) are counted by reference. A block that is full and computed
may carry a key, which stands for all tokens up to its end; a later sequence with the same
leading keys takes those blocks instead of computing them. Freed blocks keep their key and wait
in a queue, the longest free in front; a sequence returns its blocks last to first, so that its
tail goes before the head that others may share (as vLLM's block pool does).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence


class Block:
    __slots__ = ("key", "references")

    def __init__(self) -> None:
        self.key: Hashable | None = None
        self.references = 0


class BlockPool:
    """`total` blocks; those never used yet are taken before any that holds a prefix."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._fresh = total
        self._free: OrderedDict[Block, None] = OrderedDict()
        self._cached: dict[Hashable, Block] = {}

    @property
    def free(self) -> int:
        return self._fresh + len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks held by requests, in [0, 1]."""
        return 1.0 - self.free / self.total

    def lose(self, count: int) -> int:
        """Makes free blocks unusable until the engine restarts, as fragmentation does; how many
        there were to lose."""
        lost = min(count, self.free)
        for _ in range(lost):
            if self._fresh:
                self._fresh -= 1
            else:
                self._evict()
        return lost

    def match(self, keys: Sequence[Hashable], limit: int) -> list[Block]:
        """The leading cached blocks, at most `limit`; nothing is held yet."""
        found = []
        for key in keys[:limit]:
            block = self._cached.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: Sequence[Block]) -> int:
        """How many of these blocks nobody holds, so that holding them takes free ones."""
        return sum(1 for block in blocks if not block.references)

    def hold(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            if not block.references:
                del self._free[block]
            block.references += 1

    def take(self, count: int) -> list[Block]:
        """New blocks, held once; the caller has checked that `count` are free."""
        return [self.take_one() for _ in range(count)]

    def take_one(self) -> Block:
        block = self._fresh_block() if self._fresh else self._evict()
        block.references = 1
        return block

    def release(self, blocks: Sequence[Block]) -> None:
        for block in reversed(blocks):
            block.references -= 1
            if not block.references:
                self._free[block] = None

    def commit(self, block: Block, key: Hashable) -> None:
        """Makes a computed block findable; the first block of a key stays the one found."""
        if block.key is None and key not in self._cached:
            block.key = key
            self._cached[key] = block

    def _fresh_block(self) -> Block:
        self._fresh -= 1
        return Block()

    def _evict(self) -> Block:
        block, _ = self._free.popitem(last=False)
        if block.key is not None:
            del self._cached[block.key]
            block.key = None
        return block
