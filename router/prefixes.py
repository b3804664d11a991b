"""Which replica's KV cache is believed to hold which leading blocks of prompts.

Filled at dispatch: a replica given a prompt will hold its blocks. Per replica the blocks lie in
the order of their last use and the oldest go when there are more than its engine has room for;
a use touches a prompt's last block first, as engines free tails before heads, so what is held of
a prompt is always a beginning of it. One table for all replicas maps a block to a bit for each
replica that holds it: a match walks the prompt once, whatever the number of replicas.

A block that four different blocks were seen to follow is common, and so is all before it: a
system prompt that everybody shares. A conversation that grows adds no second follower but for
a first prompt's tail, shorter than a block. The
followers stand in the table beside the replicas' bits, as fingerprints of 12 bits.

Hashes come from policies/prefix_blocks.py; what an engine really held is learnt in trust.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tierway.router.follower import Follower
from tierway.router.replica import ReplicaSpec
from tierway.router.trust import Trust

DEFAULT_BLOCKS = 15_625
"""Of a replica whose engine does not tell its room: two million tokens of 128 a block, as
llm-d's index has by default."""

_PRINT = 0xFFF  # one follower's fingerprint
_PRINT_BITS = 12
_FOURTH = _PRINT << (3 * _PRINT_BITS)
_FIRST_REPLICA = 1 << (4 * _PRINT_BITS)
_SWEPT = 256  # entries of removed replicas cleaned up at each insertion, beside its own number
_SAME_ROOM = 0.1  # a room that changes by less is the same
_ENTRY_BYTES = 72  # two int objects of a table's entry


@dataclass(frozen=True, slots=True)
class Match:
    """`held`: leading blocks by replica, those with none left out. `common`: leading blocks
    that everybody shares."""

    held: Mapping[str, int]
    common: int = 0


@dataclass(frozen=True, slots=True)
class PrefixStats:
    """`blocks` by replica, `distinct` over all; `hit_share` of the blocks asked for that the
    best replica held; `trust` by replica in a match of a thousand tokens."""

    blocks: Mapping[str, int]
    trust: Mapping[str, float]
    distinct: int
    approx_bytes: int
    hit_share: float


@dataclass(slots=True)
class _Holder:
    """`held` is ordered by last use, the oldest first."""

    bit: int
    room: int
    trust: Trust
    held: dict[int, None] = field(default_factory=dict)


class PrefixIndex(Follower):
    """Replicas appear with their first insertion or resize."""

    def __init__(self, *, default_blocks: int = DEFAULT_BLOCKS) -> None:
        self._default = default_blocks
        self._table: dict[int, int] = {}
        self._holders: dict[str, _Holder] = {}
        self._names: dict[int, str] = {}
        self._live = 0
        self._free_bits: list[int] = []
        self._retired: list[tuple[int, list[int]]] = []
        self._asked = self._found = 0

    def match(self, blocks: Sequence[int]) -> Match:
        """Who holds how much of a prompt."""
        get = self._table.get
        mask = self._live
        depth = common = 0
        left_at: list[tuple[int, int]] = []
        for block in blocks if mask else ():
            value = get(block, 0)
            stay = mask & value
            if stay != mask:
                left_at.append((depth, mask ^ stay))
                mask = stay
                if not stay:
                    break
            depth += 1
            if value & _FOURTH:
                common = depth
        left_at.append((depth, mask))
        held = {name: at for at, gone in left_at if at for name in self._named(gone)}
        self._asked += len(blocks)
        self._found += depth
        return Match(held, common)

    def insert(self, replica: str, blocks: Sequence[int], tail: int = 0) -> None:
        """The replica was given a prompt with these blocks. What has no room is not held.
        `tail` stands for the rest of a conversation's first prompt, too short for a block: it
        follows the last one, and is not held."""
        self._sweep(_SWEPT + len(blocks))  # more than any insertion can leave behind
        holder = self._holder(replica)
        held, table, bit = holder.held, self._table, holder.bit
        follower = (tail & _PRINT) or 1 if tail and len(blocks) <= holder.room else 0
        for block in reversed(blocks[: holder.room]):
            old = table.get(block, 0)
            held.pop(block, None)
            held[block] = None
            new = old | bit
            if follower:
                new = _followed(new, follower) if new & _PRINT else new | follower
            if new != old:
                table[block] = new
            # A block that is known is among its parent's followers already.
            follower = 0 if old else (block & _PRINT) or 1
        self._shrink(holder)

    def resize(self, replica: str, blocks: int) -> None:
        """The replica's engine has room for so many blocks."""
        holder = self._holder(replica)
        if abs(blocks - holder.room) > _SAME_ROOM * holder.room:
            holder.room = max(0, blocks)
            self._shrink(holder)

    def on_leave(self, spec: ReplicaSpec) -> None:
        self.remove(spec.id)

    def on_restart(self, spec: ReplicaSpec) -> None:
        self.forget(spec.id)

    def remove(self, replica: str) -> None:
        """The replica is gone; nothing of it is matched any more."""
        holder = self._holders.pop(replica, None)
        if holder is not None:
            self._retire(holder)

    def forget(self, replica: str) -> None:
        """The replica has lost its cache."""
        holder = self._holders.get(replica)
        if holder is not None:
            self._retire(holder)
            holder.bit, holder.held = self._new_bit(replica), {}

    def trust(self, replica: str, tokens: int) -> float:
        """The share in [0, 1] of `tokens` believed to be held that the engine makes true."""
        holder = self._holders.get(replica)
        return 1.0 if holder is None else holder.trust.factor(tokens)

    def correct(self, replica: str, predicted_tokens: int, reported_tokens: int | None) -> None:
        """What an answer's usage said of cached tokens (None: nothing) where a match had
        promised `predicted_tokens`, not scaled by trust."""
        holder = self._holders.get(replica)
        if holder is not None and holder.trust.learn(predicted_tokens, reported_tokens):
            self.forget(replica)

    def stats(self) -> PrefixStats:
        sizes = sum(sys.getsizeof(holder.held) for holder in self._holders.values())
        sizes += sum(sys.getsizeof(keys) for _, keys in self._retired)
        return PrefixStats(
            blocks={name: len(holder.held) for name, holder in self._holders.items()},
            trust={
                name: round(holder.trust.factor(1000), 3) for name, holder in self._holders.items()
            },
            distinct=len(self._table),
            approx_bytes=sizes + sys.getsizeof(self._table) + _ENTRY_BYTES * len(self._table),
            hit_share=self._found / self._asked if self._asked else 0.0,
        )

    def _named(self, mask: int) -> list[str]:
        names = []
        while mask:
            bit = mask & -mask
            names.append(self._names[bit])
            mask ^= bit
        return names

    def _holder(self, replica: str) -> _Holder:
        holder = self._holders.get(replica)
        if holder is None:
            holder = _Holder(self._new_bit(replica), self._default, Trust())
            self._holders[replica] = holder
        return holder

    def _new_bit(self, replica: str) -> int:
        used = len(self._names) + len(self._retired)
        bit = self._free_bits.pop() if self._free_bits else _FIRST_REPLICA << used
        self._names[bit] = replica
        self._live |= bit
        return bit

    def _shrink(self, holder: _Holder) -> None:
        """Makes room, and a little more, as each walk passes what is gone already."""
        over = len(holder.held) - holder.room
        if over > 0:
            for block in list(islice(holder.held, over + holder.room // 64)):
                del holder.held[block]
                self._clear(block, holder.bit)

    def _clear(self, block: int, bit: int) -> None:
        left = self._table[block] & ~bit
        if left >= _FIRST_REPLICA:
            self._table[block] = left
        else:
            del self._table[block]

    def _retire(self, holder: _Holder) -> None:
        self._live &= ~holder.bit
        del self._names[holder.bit]
        self._retired.append((holder.bit, list(reversed(holder.held))))

    def _sweep(self, entries: int) -> None:
        """Cleans up after removed replicas, tails first and a bounded number at a time."""
        while self._retired and entries > 0:
            bit, keys = self._retired[-1]
            for block in reversed(keys[-entries:]):
                self._clear(block, bit)
            taken = min(entries, len(keys))
            del keys[len(keys) - taken :]
            entries -= taken
            if not keys:
                self._retired.pop()
                self._free_bits.append(bit)


def _followed(value: int, follower: int) -> int:
    """Adds a follower's fingerprint to the up to four that a block has."""
    for shift in range(0, 4 * _PRINT_BITS, _PRINT_BITS):
        print_ = value >> shift & _PRINT
        if not print_:
            return value | follower << shift
        if print_ == follower:
            return value
    return value
