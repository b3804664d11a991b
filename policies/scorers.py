"""The plain scorers of the balancer: one number in [0, 1] per replica, higher is better.

Those that know engines and GPUs stand in files of their own: work.py, affinity.py, gpu.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from tierway.policies.types import BalanceAsk, Cost, ReplicaView


@dataclass(frozen=True, slots=True)
class LeastRequest:
    """1 / (1 + requests in flight), counted over all gateways."""

    name = "least_request"

    def score(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Sequence[float]:
        return [1.0 / (1.0 + max(0, view.inflight)) for view in views]

    def predict(
        self, ask: BalanceAsk, view: ReplicaView, score: float
    ) -> tuple[float, float, Cost]:
        """No times, and a price in requests."""
        return 0.0, 0.0, Cost(float(max(0, view.inflight)), 1.0)


@dataclass(frozen=True, slots=True)
class WeightedLeastRequest:
    """weight / (weight + requests in flight, this one included): the least load per weight."""

    name = "weighted_least_request"

    def score(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Sequence[float]:
        return [
            view.weight / (view.weight + 1.0 + max(0, view.inflight)) if view.weight > 0.0 else 0.0
            for view in views
        ]

    def predict(
        self, ask: BalanceAsk, view: ReplicaView, score: float
    ) -> tuple[float, float, Cost | None]:
        """No times, and a price in requests per weight."""
        if view.weight <= 0.0:
            return 0.0, 0.0, None
        return 0.0, 0.0, Cost((1.0 + max(0, view.inflight)) / view.weight, 1.0 / view.weight)


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Highest random weight (Thaler and Ravishankar 1998) on the session.

    A hash u of (session, replica), uniform in (0, 1), scores u ** (1 / weight), which wins
    with a share in proportion to the weight. A replica that leaves moves only its own
    sessions. A call without a session has no home and is spread by the draw.
    """

    name = "rendezvous"

    def score(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Sequence[float]:
        key = (ask.session or repr(ask.draw)).encode("utf-8", "surrogatepass")
        return [_hash_share(key, view) for view in views]


def _hash_share(key: bytes, view: ReplicaView) -> float:
    if view.weight <= 0.0:
        return 0.0
    digest = blake2b(key + b"\0" + view.id.encode("utf-8", "surrogatepass"), digest_size=8)
    uniform = (int.from_bytes(digest.digest(), "big") + 0.5) / 2.0**64
    return float(uniform ** (1.0 / view.weight))
