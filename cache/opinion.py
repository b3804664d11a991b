"""Who is asked before a doubtful hit is served (the SecondOpinion protocol).

A cross-encoder reads both questions at once and so sees what two vectors cannot tell: who does
what to whom, which of two names goes with which number. It costs tens of milliseconds a pair,
hence only pairs that the words and the cosine leave in doubt come here. The other judge, a tier
of the fleet itself, is router/opinion.py.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from tierway.policies.errors import CacheError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Pair = tuple[str, str]

_TRIAL: Pair = ("How do I reset my password?", "How can I reset my password?")


class CrossEncoderOpinion:
    """A sentence-transformers CrossEncoder, in this process, on one thread of its own.

    Needs the extra `tierway[sentence-transformers]`. The model has one output (how alike the
    questions are; its sigmoid is the probability) or two (different, same; softmax).
    """

    def __init__(self, model: str, *, device: str = "cpu") -> None:
        self._name, self._device = model, device
        self._model: Any = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="opinion")

    async def start(self) -> None:
        """Loads the model and tries it. CacheError when it cannot be used."""
        if self._model is None:
            self._model = await self._run(self._load)
            await self.judge([_TRIAL])

    async def judge(self, pairs: Sequence[Pair]) -> Sequence[float]:
        if self._model is None:
            raise CacheError("the cross-encoder was not started")
        if not pairs:
            return []
        found: list[float] = await self._run(lambda: self._probabilities(pairs))
        return found

    async def aclose(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._model = None

    def _load(self) -> Any:
        try:
            from sentence_transformers import CrossEncoder
            from torch.nn import Identity
        except ImportError as fault:
            raise CacheError(
                "second opinion cross_encoder needs: pip install 'tierway[sentence-transformers]'"
            ) from fault
        # What the model itself would put on top (a sigmoid, or nothing) differs by model.
        return CrossEncoder(self._name, device=self._device, activation_fn=Identity())

    def _probabilities(self, pairs: Sequence[Pair]) -> list[float]:
        rows = self._model.predict(
            [list(pair) for pair in pairs], convert_to_numpy=True, show_progress_bar=False
        )
        return probabilities(np.asarray(rows, np.float64), len(pairs))

    async def _run(self, work: Callable[[], Any]) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except CacheError:
            raise
        except Exception as fault:  # Whatever a foreign model raises is trouble of the cache.
            raise CacheError(f"{self._name}: {type(fault).__name__}: {fault}") from fault


def probabilities(logits: NDArray[np.float64], count: int) -> list[float]:
    """Of the logits [count], [count, 1] or [count, 2]; CacheError for any other shape."""
    if logits.shape == (count, 2):
        margins = logits[:, 1] - logits[:, 0]
    elif logits.shape in ((count,), (count, 1)):
        margins = logits.reshape(count)
    else:
        raise CacheError(f"the cross-encoder gave shape {logits.shape}: one or two numbers a pair")
    found: list[float] = (1.0 / (1.0 + np.exp(-np.clip(margins, -60.0, 60.0)))).tolist()
    return found


class ScriptedOpinion:
    """A judge for tests and benchmarks that knows the truth and errs now and then.

    `labels` maps pairs, in either order, to whether one answer serves both; a pair that is not
    among them is different. A share of `accuracy` of all pairs is judged right, which ones
    depends on `seed` and the pair alone. `before` is awaited first: make it slow or let it
    raise. `asked` lists the pairs, call by call.
    """

    def __init__(
        self,
        labels: Mapping[Pair, bool],
        accuracy: float = 1.0,
        seed: int = 0,
        *,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._labels = dict(labels)
        self._accuracy, self._seed, self._before = accuracy, seed, before
        self.asked: list[tuple[Pair, ...]] = []

    async def start(self) -> None:
        """There is nothing to start."""

    async def judge(self, pairs: Sequence[Pair]) -> Sequence[float]:
        self.asked.append(tuple(pairs))
        if self._before is not None:
            await self._before()
        return [self.opinion(*pair) for pair in pairs]

    async def aclose(self) -> None:
        """There is nothing to close."""

    def opinion(self, asked: str, stored: str) -> float:
        """0.95 for the same, 0.05 for different; the other one where it errs."""
        same = self._labels.get((asked, stored), self._labels.get((stored, asked), False))
        right = random.Random(f"{self._seed}\0{asked}\0{stored}").random() < self._accuracy
        return 0.95 if same == right else 0.05
