"""The real semantic cache for the benchmarks: what a gateway holds, without its HTTP edge.

Questions are one-turn chat calls of one tenant, `place` (the namespace) tells their partitions
apart; the store is in memory and no time passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tierway.cache.index import Arena
from tierway.cache.keys import Fingerprint, fingerprint
from tierway.cache.lookup import Found
from tierway.cache.memory_store import MemoryStore
from tierway.cache.semantic import SemanticCache
from tierway.policies.cacheability import CacheRules, Plan, lookup
from tierway.policies.equivalence import Equivalence
from tierway.policies.protocols import CacheStore, Embedder, SecondOpinion
from tierway.policies.types import Ask, Call, Controls, Source, Turn
from tierway.policies.verifier import Verifier

MODEL = "bench"
SOURCE = Source("small", MODEL, "bench@1")
ANSWER: Mapping[str, Any] = {
    "id": "chatcmpl-bench",
    "object": "chat.completion",
    "created": 1,
    "model": MODEL,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "An answer."},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11},
}
NOW_AT = 1_700_000_000.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What decides, as configured: see `cache` in the configuration. `opinion` is started. With
    `scope_is_user` all questions are one user's; else nobody's, and personal ones are neither
    kept nor found."""

    max_error_rate: float = 0.02
    scope_is_user: bool = False
    opinion: SecondOpinion | None = None
    verifiers: tuple[Verifier, ...] = ()

    def equivalence(self, max_error_rate: float | None = None) -> Equivalence:
        rate = self.max_error_rate if max_error_rate is None else max_error_rate
        return Equivalence.shipped(max_error_rate=rate, more=self.verifiers)


class Rig:
    """Start it before use; it starts and closes the store, the embedder stays the caller's."""

    def __init__(
        self, embedder: Embedder, setting: Setting, store: CacheStore | None = None
    ) -> None:
        self._store: CacheStore = store or MemoryStore()
        self._user = "bench" if setting.scope_is_user else ""
        self.equivalence = setting.equivalence()
        self.cache = SemanticCache(
            self._store,
            embedder=embedder,
            index=Arena(embedder.dim),
            equivalence=self.equivalence,
            wall=lambda: NOW_AT,
            opinion=setting.opinion,
        )

    async def start(self) -> None:
        await self._store.start()
        await self.cache.start()

    async def aclose(self) -> None:
        await self.cache.aclose()
        await self._store.aclose()

    async def find(self, text: str, place: str = "") -> Found:
        call, plan, mark = self._prepared(text, place)
        if not plan.lookup:
            return Found(None, plan.reason)
        return await self.cache.find(call, mark, plan, _any_tier)

    def keep(self, text: str, place: str = "", found: Found | None = None) -> str:
        """Stores an answer; returns the entry's id, "" where none may be stored. Findable by
        meaning once settled."""
        call, plan, mark = self._prepared(text, place)
        if not plan.store:
            return ""
        return self.cache.keep(call, mark, plan, SOURCE, ANSWER, found)

    def _prepared(self, text: str, place: str) -> tuple[Call, Plan, Fingerprint]:
        call = call_of(text, place, self._user)
        plan = lookup(call, CacheRules())
        return call, plan, fingerprint(call, names=MODEL, scope=plan.scope)


def call_of(text: str, place: str = "", user: str = "") -> Call:
    messages = [{"role": "user", "content": text}]
    return Call(
        id="bench",
        wire="chat",
        raw=b"",
        body={"model": MODEL, "messages": messages},
        ask=Ask((Turn("user", text),), text, text_bytes=len(text.encode())),
        model=MODEL,
        user=user,
        controls=Controls(namespace=place),
    )


def _any_tier(_tier: str, _probabilities: Mapping[str, float]) -> bool:
    return True
