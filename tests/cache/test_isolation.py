"""Nobody gets what was made for somebody else, however near two questions may stand.

The encoder calls all texts the same and the judge serves everything, so only the keys are left to
keep people apart: what is found must have been stored by one who differs in nothing but the
wording of the last question. Requests are drawn at random from a small world in which most of
them nearly agree.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from fakes import FakeClock, completion

from tierway.cache.embedders import ScriptedEmbedder
from tierway.cache.index import Arena
from tierway.cache.keys import fingerprint
from tierway.cache.lookup import Found
from tierway.cache.memory_store import MemoryStore
from tierway.cache.semantic import SemanticCache
from tierway.middleware.openai import chat_ask, completion_ask
from tierway.policies.cacheability import CacheRules, Scope, lookup
from tierway.policies.equivalence import Equivalence, Verdict
from tierway.policies.types import CacheControl, Call, Controls, Source

REQUESTS = 34_000
"""For each of three scopes: 102,000 in all."""
CPU_S = 20.0
SETTLE_EVERY = 250
SOURCE = Source("small", "m", "m@a:1")

T = TypeVar("T")
Turns = tuple[str, ...]

QUESTIONS = {  # question -> whether it is its asker's own, said by hand
    "What is the capital of France?": False,
    "Which city is the capital of France?": False,
    "法国的首都是哪里": False,
    "What is my account balance?": True,
    "我的订单到哪了": True,
    "And the second one?": False,
    "How old is he?": False,
    "What is 17 * 23?": False,
    "tell me a joke": False,
}
LEANING = ("And the second one?", "How old is he?")
HISTORIES: Mapping[Turns, bool] = {  # human and other turns -> whether it speaks of its asker
    (): False,
    ("Tell me of France.", "It is a country."): False,
    ("Tell me of Spain.", "It is a country."): False,
    ("Tell me of France.", "It is a country!"): False,
    ("What is on my invoice?", "Two things."): True,
}
FRANCE, BALANCE = "What is the capital of France?", "What is my account balance?"
TENANTS = ("acme", "globex", "", "acme\0", "ac", "me")
USERS = ("ann", "bob", "", "acme")
NAMESPACES = ("", "docs", "acme")
NAMES = ("auto|m", "small|m", "m|r1", "m|r2")
SYSTEMS = (None, "Answer in French.", "Answer in German.", "法语回答", "")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
FIELDS: Sequence[Mapping[str, Any]] = (
    {},
    {"temperature": 0},
    {"temperature": 0.5, "top_p": 0.5},
    {"max_tokens": 5},
    {"seed": 1},
    {"stop": ["\n"]},
    {"tools": [TOOL]},
    {"tools": [TOOL], "tool_choice": "none"},
    {"response_format": {"type": "json_object"}},
    {"reasoning_effort": "low"},
    {"logit_bias": {"1": 5}},
    {"unknown_field": "x"},
)
CONTROLS = (
    CacheControl(),
    CacheControl(context_id="doc-1"),
    CacheControl(context_id="doc-1", query=FRANCE),
    CacheControl(context_id="doc-1", query=BALANCE),
    CacheControl(context_id="doc-2", query=FRANCE),
    CacheControl(query=FRANCE),
)
PARTS = (0, 1, 2)  # of the last turn: plain text, one part, two parts


class Generous(Equivalence):
    """Serves every pair."""

    def __init__(self) -> None:
        super().__init__(())

    def floor(self, encoder: str, language: str) -> float:
        return -1.0

    def judge(self, *pair: Any, **rates: Any) -> Verdict:
        return Verdict(True, "generous", 1.0)


@dataclass(frozen=True, slots=True)
class Asked:
    """All that a request is made of."""

    question: str
    parts: int
    system: str | None
    history: Turns
    fields: int
    control: CacheControl
    tenant: str
    user: str
    namespace: str
    names: str
    wire: Any

    def call(self) -> Call:
        body = {**FIELDS[self.fields], **self._said()}
        return Call(
            id="r",
            wire=self.wire,
            raw=b"",
            body=body,
            ask=chat_ask(body) if self.wire == "chat" else completion_ask(body),
            model="auto",
            tenant=self.tenant,
            user=self.user,
            controls=Controls(namespace=self.namespace, cache=self.control),
        )

    def _said(self) -> dict[str, Any]:
        if self.wire == "completions":
            return {"prompt": self.question}
        halves = (self.question[:5], self.question[5:])
        texts = halves if self.parts == 2 else (self.question,)
        content = [{"type": "text", "text": text} for text in texts]
        turns = [
            {"role": "assistant" if at % 2 else "user", "content": text}
            for at, text in enumerate(self.history)
        ]
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        last = {"role": "user", "content": content if self.parts else self.question}
        return {"messages": [*system, *turns, last]}

    @property
    def own(self) -> bool:
        """Whether it is asked about the asker."""
        asked = self.control.query or self.question
        leans = asked in LEANING and self.wire == "chat" and HISTORIES[self.history]
        return QUESTIONS[asked] or QUESTIONS[self.question] or leans

    def apart(self, scope: Scope) -> tuple[Any, ...]:
        """What must be equal in those who share an answer."""
        private = self.own or scope == "user"
        return (
            self.wire,
            self.tenant if private or scope != "shared" else None,
            self.user if private else None,
            self.namespace,
            self.names,
            self.fields,
            self.control.context_id,
            self._beside_the_query,
            (self.system, self.history) if self.wire == "chat" else None,
        )

    @property
    def words(self) -> str:
        return self.control.query or self.question

    @property
    def _beside_the_query(self) -> Any:
        """What is left of the last turn: the documents' id stands for all of it."""
        query, chat = self.control.query, self.wire == "chat"
        if query is None:
            return chat and self.parts == 2
        if self.control.context_id is not None:
            return "documents"
        whole = self.parts != 2 or not chat
        return self.question.replace(query, "") if whole else (self.question, query)


class Crowd:
    """Draws requests; about half of the ingredients of each are the first of their kind."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def one(self) -> Asked:
        draw = self._draw
        return Asked(
            question=draw.choice(list(QUESTIONS)),
            parts=self._mostly(PARTS),
            system=self._mostly(SYSTEMS),
            history=self._mostly(list(HISTORIES)),
            fields=self._mostly(range(len(FIELDS))),
            control=self._mostly(CONTROLS),
            tenant=self._mostly(TENANTS),
            user=self._mostly(USERS),
            namespace=self._mostly(NAMESPACES),
            names=self._mostly(NAMES),
            wire="completions" if draw.random() < 0.05 else "chat",
        )

    def _mostly(self, values: Sequence[T]) -> T:
        return values[0] if self._draw.random() < 0.6 else self._draw.choice(values)


class World:
    """A cache, and what each of its entries was made of."""

    def __init__(self, scope: Scope) -> None:
        self.rules, self.wall = CacheRules(scope=scope, max_turns=6), FakeClock(1_700_000_000.0)
        self.store, self.stored = MemoryStore(), dict[str, Asked]()
        self.cache = SemanticCache(
            self.store,
            embedder=ScriptedEmbedder({}, otherwise=lambda _: [1.0, 0.0]),
            index=Arena(2),
            equivalence=Generous(),
            wall=self.wall,
        )
        self.counts = Counter[str]()

    async def ask(self, asked: Asked) -> None:
        call, scope = asked.call(), self.rules.scope
        plan = lookup(call, self.rules)
        if not plan.lookup:
            assert asked.own or scope == "user"
            assert not asked.user
            self.counts["bypass"] += 1
            return
        mark = fingerprint(call, names=asked.names, scope=plan.scope)
        found = await self.cache.find(call, mark, plan, lambda tier, shares: True)
        self.counts[found.reason] += 1
        if found.hit is not None:
            self._check(asked, found)
        else:
            answer = completion(asked.words)
            kept = self.cache.keep(call, mark, plan, SOURCE, answer, found)
            self.stored[kept] = asked

    def _check(self, asked: Asked, found: Found) -> None:
        assert found.hit is not None
        made_for, scope = self.stored[found.hit.entry_id], self.rules.scope
        assert made_for.apart(scope) == asked.apart(scope)
        if found.hit.similarity is None:
            assert made_for.words == asked.words
        if scope != "shared" or asked.own:
            assert made_for.tenant == asked.tenant
        if asked.own or made_for.own:
            assert made_for.user == asked.user != ""


@pytest.mark.parametrize("scope", ["tenant", "user", "shared"])
def test_no_answer_crosses_a_tenant_a_user_or_a_partition(scope: Scope) -> None:
    async def main() -> None:
        world, crowd = World(scope), Crowd(seed=len(scope))
        await world.store.start()
        await world.cache.start()
        for number in range(REQUESTS):
            await world.ask(crowd.one())
            if number % SETTLE_EVERY == 0:
                await world.cache.settled()
        await world.cache.aclose()
        # Neither kind of hit is rare here, and what is refused is refused for several reasons.
        counts = world.counts
        assert counts["exact"] > REQUESTS / 20, counts
        assert counts["generous"] > REQUESTS / 20, counts
        assert counts["nothing-near"] > REQUESTS / 20, counts
        assert min(counts[why] for why in ("not-self-contained", "arithmetic", "bypass")) > 100
        print(scope, dict(counts))

    began = time.process_time()
    asyncio.run(main())
    assert time.process_time() - began < CPU_S
