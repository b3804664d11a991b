"""What every store of the cache has in common: the rules of its log.

The log has one line for each entry: its put while it lives, a tombstone once it is deleted.
A line is never changed, only replaced by a newer one with a higher sequence number, so a
follower that folds the lines into a map from id to entry holds what the store holds.

Tombstones must not pile up. Once there are more than `dead_limit`, the oldest lines are cut:
tombstones among them vanish, and a living entry gets a new line at the end (a follower sees
a put of an entry it knows; applying it again changes nothing). The *horizon* is the highest
number ever cut: behind it nothing is left, above it everything. So the rule for `changes`:

- `since` = 0 is a follower that holds nothing. It is given every line there is.
- `horizon` <= `since` <= the newest number: it is given the lines after `since`.
- Any other `since` (too far behind, or ahead of a store that was set back to an older state)
  may have missed a tombstone. It is given a *reset* first, then every line there is, page by
  page. On a reset, forget all entries; go on with the reset's own sequence number.

The next `since` is always the sequence number of the last change received.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tierway.policies.protocols import Change, Entry, Note

ENTRY_BYTES = 512
"""What an entry takes beside its texts and its vector: names, digests, log, search trees."""

TOMBSTONES_KEPT = 10_000
"""Deletions a follower may sleep through before it needs a full listing; about 1 MB."""

NOTES_OF_OPERATORS = ("purge", "switch")
"""Kinds of notes that hold nothing of anybody, and that a purge leaves."""

LINES_PER_CUT = 1_000
"""Lines moved, or entries deleted, in one transaction: a few milliseconds, so that a purge
does not hold up the puts of a busy process."""

NOTES_KEPT = 10_000
"""Notes of one kind and tenant, so that no tenant crowds out what others taught the cache."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Entries by their owner or age; None means any, so an empty one selects everything."""

    tenant: str | None = None
    user: str | None = None
    namespace: str | None = None
    model: str | None = None
    context_id: str | None = None
    older_than_at: float | None = None

    def given(self) -> dict[str, Any]:
        """The conditions there are, as `delete_where` takes them."""
        bound = {} if self.older_than_at is None else {"older_than_at": self.older_than_at}
        return {**self.equals(), **bound}

    @property
    def notes_too(self) -> bool:
        """Whether notes can meet the conditions: they have a tenant, a user and an age."""
        return self.namespace is None and self.model is None and self.context_id is None

    def matches_note(self, note: Note) -> bool:
        return (
            self.notes_too
            and note.kind not in NOTES_OF_OPERATORS
            and self.matches_owner(note.tenant, note.user, note.at)
        )

    def matches_owner(self, tenant: str, user: str, at: float) -> bool:
        """For what has neither namespace nor model nor context."""
        return (
            self.notes_too
            and (self.tenant is None or tenant == self.tenant)
            and (self.user is None or user == self.user)
            and (self.older_than_at is None or at < self.older_than_at)
        )

    def equals(self) -> dict[str, str]:
        """The exact conditions, by the name of the Entry's field."""
        wanted = {
            "tenant": self.tenant,
            "user": self.user,
            "namespace": self.namespace,
            "model": self.model,
            "context_id": self.context_id,
        }
        return {name: value for name, value in wanted.items() if value is not None}

    def matcher(self) -> Callable[[Entry], bool]:
        equals, limit_at = self.equals(), self.older_than_at
        return lambda entry: (
            all(getattr(entry, name) == value for name, value in equals.items())
            and (limit_at is None or entry.created_at < limit_at)
        )


def bytes_of(entry: Entry) -> int:
    """What an entry counts towards the cap of a store."""
    texts = len(entry.question.encode(errors="surrogatepass")) + len(entry.answer)
    return ENTRY_BYTES + texts + len(entry.vector or b"")


def reset(horizon: int) -> Change:
    """The change that tells a follower to forget everything."""
    return Change(sequence=horizon, entry_id="", entry=None)


def is_reset(change: Change) -> bool:
    return not change.entry_id


def start_of(since: int, *, horizon: int, newest: int) -> tuple[int, bool]:
    """Where the lines for a follower at `since` begin, and whether it needs a reset."""
    if since == 0:
        return horizon, False
    if horizon <= since <= newest:
        return since, False
    return horizon, True


def dead_limit(living: int, kept: int) -> int:
    """How many tombstones may stay. Growing with the store, it keeps the cost of moving
    living lines at about one move per deletion."""
    return max(living, kept)
