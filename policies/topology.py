"""Where a replica stands: seconds that its zone and its group add to what a call costs there.

    distance = zone_s where the replica is known to be in another zone than the gateway
             + group_s * reach(fabric) where no replica of its group holds a part of the prompt,
               and one of another group does

`zone_s` is what crossing a zone may cost before it is worth it: replicas of other zones are used
once those of the own zone are busier than that, and at once where none of them is there. What
belongs together, a conversation or a shared prefix, stays among the GPUs of one fabric, where
engines can hand KV memory on: nvlink reaches further than rdma, and tcp hardly. Who tells nothing
of its place is near.
"""

from __future__ import annotations

from tierway.policies.types import BalanceAsk, ReplicaView

REACH = {"nvlink": 1.0, "rdma": 0.6, "tcp": 0.2, "": 0.4}


def distance_s(ask: BalanceAsk, view: ReplicaView, *, zone_s: float, group_s: float) -> float:
    seconds = zone_s if crosses(ask, view) else 0.0
    if ask.groups and view.group and view.group not in ask.groups:
        seconds += group_s * REACH.get(view.fabric, REACH[""])
    return seconds


def crosses(ask: BalanceAsk, view: ReplicaView) -> bool:
    """Whether a call would leave the gateway's zone."""
    return bool(ask.zone and view.zone and view.zone != ask.zone)


def kinds(ask: BalanceAsk, view: ReplicaView) -> list[str]:
    """What the choice of a replica was, for the count of it: zone_kept or zone_crossed, and
    group_kept or group_left, each where there was something to keep."""
    found = []
    if ask.zone and view.zone:
        found.append("zone_crossed" if crosses(ask, view) else "zone_kept")
    if ask.groups and view.group:
        found.append("group_kept" if view.group in ask.groups else "group_left")
    return found
