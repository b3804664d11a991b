"""From the notes of a store to what the report says: counts, pairs to read, why the rest missed.

What was marked since is left out of the pairs. Those whose shadow sample came out different stand
first, then the newest.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tierway.cache.lessons import MARK
from tierway.cache.observer import MISS, PAIR
from tierway.policies.protocols import CacheStore, Note

SHADOW, TALLY = "shadow", "tally"
_PAGE = 1000
_HITS = ("hit", "semantic-hit", "shared", "stale")


@dataclass(frozen=True, slots=True)
class Pair:
    """A question and the stored one that served it, or would have: for somebody to judge."""

    at: float
    tenant: str
    user: str
    body: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.body.get(name, "")


@dataclass(slots=True)
class Summary:
    """`counts` are the tallies' by group: cache, observed, miss, bypass, tiers, outcomes,
    tokens_spent, tokens_saved, unpriced. `elsewhere` are (times, difference)."""

    since_at: float
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    dollars: dict[str, float] = field(default_factory=dict)
    pairs: list[Pair] = field(default_factory=list)
    near_misses: list[Pair] = field(default_factory=list)
    elsewhere: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    marks: Counter[str] = field(default_factory=Counter)
    shadow: Counter[str] = field(default_factory=Counter)

    def count(self, group: str, name: str | None = None) -> int:
        counts = self.counts.get(group, Counter())
        return counts.total() if name is None else counts[name]

    def group(self, name: str) -> Mapping[str, int]:
        return self.counts.get(name, Counter())

    @property
    def lookups(self) -> int:
        return self.count("cache") - self.count("cache", "bypass")

    @property
    def hits(self) -> int:
        """Served or, in observe mode, what would have been."""
        return sum(self.count("cache", name) for name in _HITS) + self.count("observed")

    def as_json(self) -> dict[str, Any]:
        return {
            "since": self.since_at,
            "requests": self.count("cache"),
            "lookups": self.lookups,
            "hits": {name: self.count("cache", name) for name in _HITS},
            "would_hit": {name: self.count("observed", name) for name in _HITS[:2]},
            "hit_rate": round(self.hits / self.lookups, 4) if self.lookups else None,
            "misses": dict(self.counts.get("miss", {})),
            "bypasses": dict(self.counts.get("bypass", {})),
            "elsewhere": [{"times": times, **what} for times, what in self.elsewhere],
            "tiers": dict(self.counts.get("tiers", {})),
            "tokens": dict(self.counts.get("tokens_spent", {})),
            "saved_tokens": dict(self.counts.get("tokens_saved", {})),
            "would_save_tokens": dict(self.group("tokens_would_save")),
            "would_save_usd": round(self.dollars.get("would_save", 0.0), 6),
            "cost_usd": round(self.dollars.get("spent", 0.0), 6),
            "saved_usd": round(self.dollars.get("saved", 0.0), 6),
            "unpriced_models": sorted(self.counts.get("unpriced", {})),
            "marks": {"right": self.marks["right"], "wrong": self.marks["wrong"]},
            "shadow": dict(self.shadow),
            "pairs": [_as_json(pair) for pair in self.pairs],
            "near_misses": [_as_json(pair) for pair in self.near_misses],
        }


async def read(store: CacheStore, since_at: float) -> list[Note]:
    """All notes of a started store from `since_at` on. Raises CacheError."""
    found: list[Note] = []
    since = 0
    while page := await store.notes(since, _PAGE):
        since = page[-1].sequence
        found += [note for note in page if note.at >= since_at]
    return found


def summarise(notes: Sequence[Note], since_at: float) -> Summary:
    made = Summary(since_at)
    marked, doubted = set[str](), set[str]()
    for note in notes:
        if note.kind == TALLY:
            _add(made, note.body)
        elif note.kind == MARK:
            marked.add(str(note.body.get("pair")))
            made.marks["right" if note.body.get("correct") else "wrong"] += 1
        elif note.kind == SHADOW:
            made.shadow[str(note.body.get("result"))] += 1
            if note.body.get("result") == "different":
                doubted.add(str(note.body.get("pair")))
    pairs = _newest(note for note in notes if note.kind == PAIR)
    made.pairs = [pair for pair in pairs if pair["pair"] not in marked]
    made.pairs.sort(key=lambda pair: pair["pair"] not in doubted)
    missed = [note for note in notes if note.kind == MISS]
    made.near_misses = _newest(note for note in missed if "stored" in note.body)
    made.elsewhere = _elsewhere(missed)
    return made


def _add(made: Summary, body: Mapping[str, Any]) -> None:
    for group, counts in body.items():
        if group == "dollars":
            for name, value in counts.items():
                made.dollars[name] = made.dollars.get(name, 0.0) + value
        else:
            made.counts.setdefault(group, Counter()).update(counts)


def _newest(notes: Iterable[Note]) -> list[Pair]:
    """One of each pair of questions, the newest first."""
    found: OrderedDict[tuple[str, str, str], Pair] = OrderedDict()
    for note in notes:
        key = (note.tenant, str(note.body.get("asked")), str(note.body.get("stored")))
        found.pop(key, None)
        found[key] = Pair(note.at, note.tenant, note.user, note.body)
    return list(reversed(found.values()))


def _elsewhere(missed: Iterable[Note]) -> list[tuple[int, Mapping[str, Any]]]:
    """What kept equal questions apart, the most frequent first: by kind, with one example."""
    times: Counter[tuple[str, str, str]] = Counter()
    examples: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for note in missed:
        for what in note.body.get("elsewhere", ()):
            key = (str(what["what"]), str(what["kind"]), str(what["ignore"]))
            times[key] += 1
            examples[key] = what
    return [(count, examples[key]) for key, count in times.most_common()]


def _as_json(pair: Pair) -> dict[str, Any]:
    return {"at": pair.at, "tenant": pair.tenant, **pair.body}
