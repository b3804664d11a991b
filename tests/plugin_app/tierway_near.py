"""`near`: the least busy replica of one zone, or of the others where that zone has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tierway.policies.balance import Policy
from tierway.policies.errors import ConfigError
from tierway.policies.pickers import Best
from tierway.policies.scorers import LeastRequest
from tierway.policies.types import BalanceAsk, ReplicaView


@dataclass(frozen=True, slots=True)
class InZone:
    zone: str
    name = "in_zone"

    def score(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Sequence[float]:
        return [float(view.zone == self.zone) for view in views]


def near(options: Mapping[str, Any]) -> Policy:
    if set(options) != {"zone"} or not isinstance(options["zone"], str):
        raise ConfigError([f"options = {dict(options)!r}: must be {{zone: NAME}}"])
    return Policy("near", Best(), ((InZone(options["zone"]), 10.0), (LeastRequest(), 1.0)))
