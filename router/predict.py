"""Foretells how many tokens an answer will have, learnt from the answers so far.

In the logarithm, where lengths spread about evenly, each level of a chain keeps a running mean and
corrects the one before it as far as it has been seen:

    prior -> model -> shape -> question -> prompt by octaves -> prompt by quarter octaves
    estimate = (n * mean + BACK_OFF * estimate of the level before) / (n + BACK_OFF)

The shape is what else tells of an answer: tools, JSON, the octave of `max_tokens`. No level looks
at words, so every language is foretold alike. Last comes the session, by how much its recent
answers were longer or shorter than foretold. A mean is over at most the last 500 answers or so,
that of a session over the last 4. The levels are entries of one table and the sessions of another,
both bounded: what was not used for longest goes first. Each answer costs the same few steps.

That gives the median. Work adds up by means, and few very long answers make the mean larger, so
`expect` multiplies by a ratio for each model: the tokens that came over the medians foretold, both
sums fading. `errors` judges the medians, beside the running mean of the model alone in the same
logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from tierway.policies.types import Call, Usage
from tierway.router.learner import Learner

if TYPE_CHECKING:
    from tierway.router.balancer import Placed
    from tierway.router.lease import Lease

K = TypeVar("K", bound=Hashable)

PRIOR_TOKENS = 256
_MOST_TOKENS = 1_000_000
_PRIOR_LIMITED = (
    0.5  # an answer with a limit is expected to take half of it, without any other word
)
_BACK_OFF = 4.0
_MEMORY = 500
_SESSION_BACK_OFF = 1.0
_SESSION_MEMORY = 4
_LEVELS = 8192
_SESSIONS = 16384
_FACTOR = math.log(2.0)
_FADING = 0.995
_RATIO_RANGE = (0.5, 4.0)
_RATIO_PRIOR = 20.0  # how many answers of PRIOR_TOKENS, foretold rightly, the ratio starts with


@dataclass(frozen=True, slots=True)
class LengthHint:
    """What is known of a call beforehand that tells of the length of its answer."""

    model: str
    session: str = ""
    prompt_tokens: int = 1
    question_bytes: int = 0
    max_tokens: int | None = None
    tools: bool = False
    json: bool = False

    @classmethod
    def of(cls, call: Call, model: str, prompt_tokens: int) -> LengthHint:
        ask = call.ask
        return cls(
            model=model,
            session=f"{call.tenant}\0{call.session}" if call.session else "",
            prompt_tokens=prompt_tokens,
            question_bytes=len(ask.question),
            max_tokens=ask.max_tokens,
            tools=ask.has_tools,
            json=ask.wants_json,
        )

    def levels(self) -> tuple[Hashable, ...]:
        limit = -1 if self.max_tokens is None else max(1, self.max_tokens).bit_length()
        shape = (self.model, self.tools, self.json, limit)
        asked = (*shape, self.question_bytes.bit_length())
        octaves = math.log2(max(1, self.prompt_tokens))
        return (
            self.model,
            shape,
            asked,
            (*asked, "octave", int(octaves)),
            (*asked, "quarter", int(4.0 * octaves)),
        )


@dataclass(frozen=True, slots=True)
class LengthError:
    """How well the lengths of one model's answers were foretold, over about the last 500.

    `log_error` is the mean of |ln(foretold / real)|, `within_2` the share that was right within
    a factor of 2; `constant_...` what the running mean would have reached.
    """

    answers: int
    log_error: float
    within_2: float
    constant_log_error: float
    constant_within_2: float


@dataclass(slots=True)
class _Mean:
    count: int = 0
    mean: float = 0.0

    def add(self, value: float, memory: int) -> None:
        self.count = min(self.count + 1, memory)
        self.mean += (value - self.mean) / self.count


@dataclass(slots=True)
class _Judged:
    answers: int = 0
    foretold: float = _RATIO_PRIOR * PRIOR_TOKENS
    came: float = _RATIO_PRIOR * PRIOR_TOKENS
    means: tuple[_Mean, _Mean, _Mean, _Mean] = field(
        default_factory=lambda: (_Mean(), _Mean(), _Mean(), _Mean())
    )

    @property
    def ratio(self) -> float:
        least, most = _RATIO_RANGE
        return max(least, min(self.came / self.foretold, most))

    def add(self, tokens: int, foretold: float, constant: float) -> None:
        self.answers += 1
        self.foretold = self.foretold * _FADING + foretold
        self.came = self.came * _FADING + tokens
        off, constant_off = (abs(math.log(guess / tokens)) for guess in (foretold, constant))
        values = (off, float(off <= _FACTOR), constant_off, float(constant_off <= _FACTOR))
        for mean, value in zip(self.means, values, strict=True):
            mean.add(value, _MEMORY)


class _Table(Generic[K]):
    """Means by key, at most so many; the one not added to for longest goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._means: dict[K, _Mean] = {}

    def __len__(self) -> int:
        return len(self._means)

    def get(self, key: K) -> _Mean | None:
        return self._means.get(key)

    def add(self, key: K, value: float, memory: int) -> None:
        mean = self._means.pop(key, None) or _Mean()
        mean.add(value, memory)
        self._means[key] = mean
        if len(self._means) > self._most:
            del self._means[next(iter(self._means))]


class LengthPredictor(Learner):
    """Give one to the Balancer: it asks `expect`, and teaches it with the end of each answer."""

    def __init__(self, *, levels: int = _LEVELS, sessions: int = _SESSIONS) -> None:
        self._levels: _Table[Hashable] = _Table(levels)
        self._sessions: _Table[tuple[str, str]] = _Table(sessions)
        self._judged: dict[str, _Judged] = {}

    def __len__(self) -> int:
        """Means kept in all."""
        return len(self._levels) + len(self._sessions)

    def expect(self, hint: LengthHint) -> int:
        """Output tokens on average, at least 1, at most what the call allows."""
        judged = self._judged.get(hint.model)
        tokens = self.median(hint) * (1.0 if judged is None else judged.ratio)
        return max(1, round(_limited(tokens, hint)))

    def median(self, hint: LengthHint) -> float:
        """As many output tokens as half of such answers exceed."""
        base = self._base(hint)
        session = self._sessions.get((hint.model, hint.session)) if hint.session else None
        if session is not None:
            base += session.count * session.mean / (session.count + _SESSION_BACK_OFF)
        return _limited(math.exp(base), hint)

    def learn(self, hint: LengthHint, output_tokens: int) -> None:
        """What the answer had; an answer without tokens teaches nothing."""
        if output_tokens <= 0:
            return
        seen = math.log(output_tokens)
        model = self._levels.get(hint.model)
        constant = PRIOR_TOKENS if model is None else math.exp(model.mean)
        judged = self._judged.setdefault(hint.model, _Judged())
        judged.add(output_tokens, self.median(hint), constant)
        for level in hint.levels():
            self._levels.add(level, seen, _MEMORY)
        if hint.session:
            off = seen - self._base(hint)
            self._sessions.add((hint.model, hint.session), off, _SESSION_MEMORY)

    def errors(self) -> Mapping[str, LengthError]:
        """By model, those of which an answer was seen."""
        return {
            model: LengthError(judged.answers, *(mean.mean for mean in judged.means))
            for model, judged in self._judged.items()
        }

    def on_end(
        self,
        placed: Placed,
        lease: Lease,
        now: float,
        error: BaseException | None,
        usage: Usage | None,
    ) -> None:
        hint = placed.look.hint
        if hint is not None and error is None and usage is not None:
            self.learn(hint, usage.output_tokens)

    def _base(self, hint: LengthHint) -> float:
        estimate = math.log(_prior(hint.max_tokens))
        for level in hint.levels():
            found = self._levels.get(level)
            if found is not None:
                weighed = found.count * found.mean + _BACK_OFF * estimate
                estimate = weighed / (found.count + _BACK_OFF)
        return estimate


def _prior(max_tokens: int | None) -> float:
    if max_tokens is None:
        return PRIOR_TOKENS
    return max(1.0, min(PRIOR_TOKENS, _PRIOR_LIMITED * max_tokens))


def _limited(tokens: float, hint: LengthHint) -> float:
    most = _MOST_TOKENS if hint.max_tokens is None else min(hint.max_tokens, _MOST_TOKENS)
    return max(1.0, min(tokens, most))
