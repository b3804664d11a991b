"""The contracts between the parts. One to four methods each, every one with at least two
implementations (the fakes in tests/fakes.py count) and one contract test over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tierway.policies.sharing import Offer
from tierway.policies.types import (
    Ask,
    BalanceAsk,
    Call,
    Head,
    Ranking,
    ReplicaView,
    Source,
    StateStatus,
    Trace,
    Usage,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

Clock = Callable[[], float]
"""Seconds, monotonic."""


class Answer(Protocol):
    """An answer whose first real token (or whole body) is there.

    `read` returns the next bytes of the body in `head.wire`, b"" at its end, and raises
    BrokenStream or UpstreamTimeout when the upstream fails midway. Cancelling a `read` loses
    nothing: the next one continues. `aclose` frees every slot it holds, may be called twice,
    and closes the upstream if the body was not read to its end.
    """

    @property
    def head(self) -> Head: ...
    @property
    def source(self) -> Source: ...
    @property
    def usage(self) -> Usage | None: ...

    async def read(self) -> bytes: ...
    async def aclose(self) -> None: ...


class Upstream(Protocol):
    """A place that answers calls: a replica or a cloud model."""

    async def open(self, call: Call, source: Source) -> Answer:
        """Returns once the first real token or the whole body is there; until then
        everything it raises (UpstreamError) may still be tried elsewhere."""
        ...

    async def aclose(self) -> None: ...


class Embedder(Protocol):
    """Turns texts into unit vectors.

    `id` names model and version: it is part of every cache namespace, so vectors of two
    encoders never meet. `encode` returns float32 [n, dim], rows of unit length, raises
    CacheError when the encoder fails; deadlines are the caller's. `fits` is False for a text
    beyond the window, which `encode` refuses: nothing is ever truncated.
    """

    @property
    def id(self) -> str: ...
    @property
    def dim(self) -> int: ...

    def fits(self, text: str) -> bool: ...
    async def start(self) -> None: ...
    async def encode(self, texts: Sequence[str]) -> Vectors: ...
    async def aclose(self) -> None: ...


class SecondOpinion(Protocol):
    """Judges pairs of questions that everything cheaper left in doubt.

    `judge` gives, for each (asked, stored), the probability in [0, 1] that one answer serves
    both, and raises CacheError when it cannot tell; deadlines are the caller's.
    """

    async def start(self) -> None: ...
    async def judge(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]: ...
    async def aclose(self) -> None: ...


class VectorIndex(Protocol):
    """Vectors by partition; a search never leaves its partition. Synchronous and CPU-bound:
    callers run it off the event loop when a partition is large (`size`).

    `add_many` takes int8 rows [n, dim] (cache/int8_rows.py) under keys not there yet, and is as
    safe in another thread as `search`; `prepare` makes what searches would have to make first.
    """

    def add(self, partition: bytes, key: int, vector: Vectors) -> None: ...
    def add_many(
        self, partitions: Sequence[bytes], keys: Sequence[int], rows: NDArray[np.int8]
    ) -> None: ...
    def prepare(self) -> None: ...
    def remove(self, key: int) -> None: ...
    def clear(self) -> None: ...
    def search(self, partition: bytes, vector: Vectors, k: int) -> list[tuple[int, float]]:
        """The k nearest (key, cosine), best first."""
        ...

    def size(self, partition: bytes) -> int: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored answer.

    `exact` is the digest of the whole normalised request, `partition` the digest of all of
    it but the last question; both 16 bytes. `answer` is one complete OpenAI-shaped JSON
    object of `wire`. `vector` is the question's embedding as bytes, int8 as packed by
    cache/int8_rows.py (float32 of unit length is understood too), or None. `created_at`,
    `expires_at` are epoch seconds, absolute.
    """

    id: str
    exact: bytes
    partition: bytes
    wire: str
    question: str
    answer: bytes
    tier: str
    model: str
    probabilities: Mapping[str, float]
    tenant: str
    user: str
    namespace: str
    created_at: float
    expires_at: float
    encoder: str = ""
    vector: bytes | None = None
    language: str = ""
    context_id: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One line of a store's log: an entry put (without its answer) or deleted (entry None)."""

    sequence: int
    entry_id: str
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class Note:
    """One line of a store's journal beside its entries: something all gateways must know of,
    such as a mark or a blocked pair. `body` is plain JSON, `at` and `expires_at` are epoch
    seconds. `sequence` is given by the store; 0 in a note that is not written yet."""

    kind: str
    tenant: str
    user: str
    body: Mapping[str, Any]
    at: float
    expires_at: float
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class StoreSize:
    """`bytes` counts texts and vectors, and a flat amount for the rest of each entry."""

    entries: int
    bytes: int


class CacheStore(Protocol):
    """The truth of the cache: entries and a log of changes with rising sequence numbers.

    Every method raises CacheError when the store cannot be used; none blocks the event
    loop. `put` replaces an entry of the same `exact` digest (both changes in the log).
    `changes` returns what came after `since`, oldest first, at most `limit`; entries in it
    carry no answer. `delete_where` deletes what meets all conditions given, everything when
    there is none, and notes of that tenant or user; `reap` what expired before `now_at`, notes
    included, and the oldest notes of a kind and tenant that has too many. `touch` tells when
    entries were last used, `shrink` evicts those used least recently until at most `max_bytes`
    are left. Whatever deletes says how many entries went, and tells it in the log.

    `notes` returns the notes after `since` that have not expired, oldest first; their numbers
    are their own and rise. A `since` beyond the newest number, of a follower whose store was
    set back, starts again at the first: reading a note twice must do no harm.
    """

    async def start(self) -> None: ...
    async def put(self, entry: Entry) -> int: ...
    async def get(self, entry_id: str) -> Entry | None: ...
    async def delete(self, entry_ids: Sequence[str]) -> int: ...
    async def delete_where(
        self,
        *,
        tenant: str | None = None,
        user: str | None = None,
        namespace: str | None = None,
        model: str | None = None,
        context_id: str | None = None,
        older_than_at: float | None = None,
    ) -> int: ...
    async def reap(self, now_at: float) -> int: ...
    async def size(self) -> StoreSize: ...
    async def touch(self, entry_ids: Sequence[str], now_at: float) -> None: ...
    async def shrink(self, max_bytes: int) -> int: ...
    async def changes(self, since: int, limit: int = 1000) -> list[Change]: ...
    async def note(self, note: Note) -> int: ...
    async def notes(self, since: int, limit: int = 1000) -> list[Note]: ...
    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Block:
    """Entries by column, with those fields that a lookup needs, all columns equally long.
    `last` is the number of the last row, after which the next block begins."""

    last: int
    id: Sequence[str]
    exact: Sequence[bytes]
    partition: Sequence[bytes]
    question: Sequence[str]
    tier: Sequence[str]
    model: Sequence[str]
    probabilities: Sequence[Mapping[str, float]]
    created_at: Sequence[float]
    expires_at: Sequence[float]
    encoder: Sequence[str]
    vector: Sequence[bytes | None]

    def __len__(self) -> int:
        return len(self.id)

    def pick(self, places: Sequence[int]) -> Block:
        """The rows at these places only."""
        columns = (getattr(self, name) for name in self.__slots__ if name != "last")
        return Block(self.last, *([column[at] for at in places] for column in columns))


@runtime_checkable
class Table(Protocol):
    """What a CacheStore of many entries may have besides: the way of a start that is three
    times as fast as its log. The blocks, read from row 0 on, hold all that was stored up to
    `newest`, asked before, and some of what came later; the log goes on from there."""

    async def newest(self) -> int: ...
    async def block(self, after: int, limit: int) -> Block | None:
        """The entries in the rows after this one, None at the end of the table."""
        ...


class PartialStore(CacheStore, Protocol):
    """A store that can be asked, for processes that do not hold all of it. Its `changes` tell
    them only of deletions: from now on where `since` is 0, and after a reset.

    `by_exact` finds the entry of a whole request's digest; `get_many` gives None in the place
    of what is not there. Requests wait for both, so both have short deadlines.
    """

    async def by_exact(self, exact: bytes) -> Entry | None: ...
    async def get_many(self, entry_ids: Sequence[str]) -> list[Entry | None]: ...


class RemoteIndex(Protocol):
    """Vectors by partition in another process, which the store keeps in step with its entries.
    Raises CacheError, within a short deadline, when it cannot be asked."""

    async def count(self, partition: bytes) -> int: ...
    async def search(self, partition: bytes, vector: Vectors, k: int) -> list[tuple[str, float]]:
        """The k nearest entries that have not expired, with their cosines, best first."""
        ...


class Classifier(Protocol):
    """Probability per model class ("7b", "70b", "175b", "cloud") that it answers well,
    monotone over the classes in that order."""

    def classify(self, ask: Ask, vector: Vectors | None) -> Mapping[str, float]: ...


class Filter(Protocol):
    name: str

    def excludes(self, ask: BalanceAsk, view: ReplicaView) -> str | None:
        """Why this replica may not take the call, or None."""
        ...


class Scorer(Protocol):
    name: str

    def score(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Sequence[float]:
        """One number in [0, 1] per view, higher is better; permuting views permutes it."""
        ...


class Picker(Protocol):
    name: str

    def order(self, ask: BalanceAsk, scored: Sequence[tuple[ReplicaView, float]]) -> list[int]:
        """Indices into `scored`, the replica to try first in front."""
        ...


class BalancePolicy(Protocol):
    @property
    def name(self) -> str: ...

    def rank(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Ranking: ...


class SharedState(Protocol):
    """What gateways before the same replicas know of each other: how much each has in flight,
    and which replica was sent which prefix.

    `pick` gives the place of the offer to take, 0 for the first where there is no other reason,
    and lets the other gateways know; the caller counts the call as its own before anything else
    runs. It raises nothing but cancellation, and waits for a server once, for a moment, when
    that has just failed. `placed` tells the others that a replica was sent these blocks of a
    prompt (policies/prefix_blocks.py). `aclose` takes what is this gateway's out of the sums.
    """

    async def start(self) -> None: ...
    async def pick(self, offers: Iterable[Offer], draw: float) -> int: ...
    def placed(self, replica: str, blocks: Sequence[int]) -> None: ...
    def status(self) -> StateStatus: ...
    async def aclose(self) -> None: ...


class Hook(Protocol):
    """Called once a request is over; must be quick and never raise."""

    def __call__(self, trace: Trace) -> None: ...
