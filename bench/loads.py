"""What comes to a simulated fleet: requests with lengths and with text that others share.

A load tells what is there at the start and what follows when a request has ended. Two kinds:

    Turns     a closed loop of users. Each takes a session and asks its turns one after the other,
              the next when the last answer is there; every prompt holds all turns before it,
              answers included.
    Arrivals  an open loop: requests come at their times whatever the fleet does.

Nothing here has text: a prompt is what it shares with others, told by keys that stand for all
tokens up to the end of a block, at any length of block.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tierway.policies.prefix_blocks import BLOCK_BYTES

_SESSION_SHIFT = 24  # a session has fewer blocks than 2 ** 24
LOOK_TOKENS = BLOCK_BYTES // 4
"""A block of the gateway's, at four bytes a token."""

_BITS = (1 << 64) - 1
_WHOLE = 1 << 62  # far from any key of a block


class Text(Protocol):
    """`look_tokens` is the length of block in which a gateway sees this text."""

    @property
    def look_tokens(self) -> int: ...
    def keys(self, block_tokens: int, tokens: int) -> list[int]:
        """Keys of the full blocks among the first `tokens`, fewer where nothing is shared."""
        ...


@dataclass(frozen=True, slots=True)
class SessionText:
    """What one session says; the first `common_tokens` are said in all of them."""

    session: int
    common_tokens: int = 0
    look_tokens: int = LOOK_TOKENS

    def keys(self, block_tokens: int, tokens: int) -> list[int]:
        common = min(self.common_tokens, tokens) // block_tokens
        first = (self.session + 1) << _SESSION_SHIFT
        own = range(first + common, first + tokens // block_tokens)
        return [*range(common), *own]


@dataclass(frozen=True, slots=True)
class NoText:
    """Nothing is known of what is said; no two prompts share anything."""

    look_tokens: int = LOOK_TOKENS

    def keys(self, block_tokens: int, tokens: int) -> list[int]:
        return []


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `keyed_tokens` of prompt and answer may be found again by others;
    `segments` names what was said from one user's turn to the next, and the first
    `answered_tokens` end with the answer to all of it but the last."""

    number: int
    session: str
    prompt_tokens: int
    output_tokens: int
    text: Text = NoText()
    keyed_tokens: int = 0
    segments: tuple[int, ...] = ()
    turn: int = 0
    answered_tokens: int = 0

    def keys(self, block_tokens: int) -> list[int]:
        return self.text.keys(block_tokens, self.keyed_tokens)

    def blocks(self) -> tuple[int, ...]:
        """The full blocks of the prompt as a gateway sees them."""
        tokens = min(self.prompt_tokens, self.keyed_tokens)
        return tuple(map(hashed, self.text.keys(self.text.look_tokens, tokens)))

    @property
    def whole(self) -> int:
        """Stands for the whole prompt; 0 where it cannot be told."""
        return hashed(_WHOLE ^ self.segments[-1]) if self.segments else 0

    @property
    def previous(self) -> int:
        """The `whole` of the turn before, when this one goes on from its answer."""
        return hashed(_WHOLE ^ self.segments[-2]) if self.answered_tokens else 0


def hashed(key: int) -> int:
    """A key as 64 bits that look random (the finalizer of MurmurHash3)."""
    key = (key ^ key >> 33) * 0xFF51AFD7ED558CCD & _BITS
    key = (key ^ key >> 33) * 0xC4CEB9FE1A85EC53 & _BITS
    return key ^ key >> 33


Arrival = tuple[float, Asked]


class Load(Protocol):
    def begin(self) -> Sequence[Arrival]: ...
    def ended(self, asked: Asked, now_s: float) -> Sequence[Arrival]:
        """What comes because this request has ended."""
        ...

    @property
    def requests(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """Sizes of a closed loop. Lengths are drawn from a normal distribution around `prompt_tokens`
    and `output_tokens` with this relative `spread`. Between an answer and the next question a
    user takes a time drawn from an exponential distribution of mean `think_s`; users in lockstep,
    or back before anything else has ended, would make even the plainest policies look sticky."""

    sessions: int = 60
    turns: int = 5
    prompt_tokens: int = 200
    output_tokens: int = 800
    concurrency: int = 20
    spread: float = 0.1
    think_s: float = 0.5
    common_tokens: int = 0
    reuse_generated: bool = True


@dataclass(frozen=True, slots=True)
class Said:
    """One turn: its own prompt tokens, its answer's, and the time before it is asked."""

    prompt_tokens: int
    output_tokens: int
    think_s: float


@dataclass(slots=True)
class Turns:
    """The closed loop of a plan; one seed gives one set of turns, whoever answers them."""

    plan: TurnPlan
    said: list[list[Said]]
    _left: deque[int] = field(default_factory=deque)
    _made: int = 0

    @classmethod
    def drawn(cls, plan: TurnPlan, draw: random.Random) -> Turns:
        def length(mean: int) -> int:
            return max(1, round(draw.gauss(mean, plan.spread * mean)))

        def said() -> Said:
            think_s = draw.expovariate(1.0 / plan.think_s) if plan.think_s else 0.0
            return Said(length(plan.prompt_tokens), length(plan.output_tokens), think_s)

        sessions = [[said() for _ in range(plan.turns)] for _ in range(plan.sessions)]
        return cls(plan, sessions, deque(range(plan.sessions)))

    @property
    def requests(self) -> int:
        return self.plan.sessions * self.plan.turns

    def begin(self) -> list[Arrival]:
        users = min(self.plan.concurrency, len(self._left))
        return [self._next(0.0, self._left.popleft(), 0) for _ in range(users)]

    def ended(self, asked: Asked, now_s: float) -> list[Arrival]:
        if asked.turn + 1 < self.plan.turns:
            return [self._next(now_s, int(asked.session), asked.turn + 1)]
        return [self._next(now_s, self._left.popleft(), 0)] if self._left else []

    def _next(self, now_s: float, session: int, turn: int) -> Arrival:
        return now_s + self.said[session][turn].think_s, self._asked(session, turn)

    def _asked(self, session: int, turn: int) -> Asked:
        plan, said = self.plan, self.said[session]
        before = sum(one.prompt_tokens + one.output_tokens for one in said[:turn])
        prompt_tokens = plan.common_tokens + before + said[turn].prompt_tokens
        output_tokens = said[turn].output_tokens
        self._made += 1
        return Asked(
            number=self._made,
            session=str(session),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            text=SessionText(session, plan.common_tokens),
            keyed_tokens=prompt_tokens + (output_tokens if plan.reuse_generated else 0),
            segments=tuple((session << 10) + number for number in range(turn + 1)),
            turn=turn,
            answered_tokens=prompt_tokens - said[turn].prompt_tokens if turn else 0,
        )


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An open loop of requests in the order of their times, in seconds."""

    arrivals: Sequence[Arrival]

    @property
    def requests(self) -> int:
        return len(self.arrivals)

    def begin(self) -> Sequence[Arrival]:
        return self.arrivals

    def ended(self, asked: Asked, now_s: float) -> Sequence[Arrival]:
        return ()
