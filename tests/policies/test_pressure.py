"""The index of memory pressure: what raises it, what does not, and the alarm on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierway.policies.errors import BrokenStream, Rejected
from tierway.policies.pressure import Detector, Reading, index, out_of_memory
from tierway.policies.registry import build_policy
from tierway.policies.types import BalanceAsk, ReplicaView


def readings(count: int = 10, **each: Any) -> list[Reading]:
    return [Reading(float(n), **each) for n in range(count)]


def test_nothing_known_is_no_index() -> None:
    assert index([]) is None
    assert index([Reading(0.0)]) is None
    assert index(readings(3, kv_use=0.9, explained=0.1)) is None  # too few to tell


@pytest.mark.parametrize(
    ("kv_use", "explained", "wanted"),
    [(0.5, 0.5, 0.0), (0.3, 0.9, 0.0), (0.45, 0.3, 0.5), (0.6, 0.3, 1.0), (1.0, 0.0, 1.0)],
)
def test_memory_that_no_request_explains_is_lost(
    kv_use: float, explained: float, wanted: float
) -> None:
    assert index(readings(kv_use=kv_use, explained=explained)) == pytest.approx(wanted)


def test_only_what_persists_counts() -> None:
    moment = readings(9, kv_use=0.9, explained=0.1)
    moment.insert(4, Reading(3.5, kv_use=0.2, explained=0.2))
    assert index(moment) == 0.0


def preempting(times: int, requests: int, explained: float) -> list[Reading]:
    return [
        Reading(0.0, explained=explained, preemptions=10),
        Reading(9.0, explained=explained, preemptions=10 + times, requests=requests),
    ]


@pytest.mark.parametrize(
    ("times", "requests", "explained", "wanted"),
    [
        (5, 20, 0.3, 0.5),
        (40, 20, 0.3, 1.0),
        (40, 20, 0.8, 0.0),  # full: preemption is how it copes
        (3, 2, 0.3, 0.0),  # of two requests nothing can be said
        (-10, 20, 0.3, 0.0),  # its counter began anew
    ],
)
def test_preemptions_without_need(
    times: int, requests: int, explained: float, wanted: float
) -> None:
    assert index(preempting(times, requests, explained)) == pytest.approx(wanted)


def test_answers_that_name_an_exhausted_memory() -> None:
    seen = [Reading(0.0, requests=10, exhausted=1), Reading(9.0, requests=50, exhausted=3)]
    assert index(seen) == pytest.approx(2 / 40 / 0.1)


def test_a_framebuffer_that_stays_full_while_idle() -> None:
    seen = [Reading(0.0, idle_use=0.9), Reading(1.0), Reading(2.0, idle_use=0.55)]
    assert index(seen, least_idle_use=0.4) == pytest.approx(0.5)
    assert index([Reading(0.0), Reading(1.0)], least_idle_use=0.4) is None


shares = st.none() | st.floats(0.0, 1.0)
counts = st.integers(0, 1000)


@given(
    st.lists(
        st.builds(
            Reading,
            st.just(0.0),
            kv_use=shares,
            explained=st.none() | st.floats(0.0, 3.0),
            preemptions=st.none() | counts,
            requests=counts,
            exhausted=counts,
            idle_use=shares,
        ),
        max_size=20,
    ),
    shares,
)
def test_it_is_a_share(seen: Sequence[Reading], least: float | None) -> None:
    found = index(seen, least)
    assert found is None or 0.0 <= found <= 1.0


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (Rejected(500, (), b'{"error":{"message":"CUDA out of memory. Tried to ..."}}'), True),
        (Rejected(503, (), b"torch.OutOfMemoryError"), True),
        (Rejected(500, (), b"internal error"), False),
        (Rejected(400, (), b"out of memory is what the prompt was about"), False),
        (BrokenStream("cut"), False),
        (None, False),
    ],
)
def test_which_errors_name_it(error: BaseException | None, wanted: bool) -> None:
    assert out_of_memory(error) is wanted


def test_the_alarm_waits_and_does_not_flutter() -> None:
    alarm = Detector(0.5, 10.0)
    assert not any(alarm.note(float(at), 0.6) for at in range(10))
    assert alarm.note(10.0, 0.6)
    assert alarm.note(11.0, 0.3)  # above half of the threshold
    assert alarm.note(12.0, None)
    assert not alarm.note(13.0, 0.2)
    assert not alarm.note(14.0, 0.9)


def view(name: str, **more: Any) -> ReplicaView:
    return ReplicaView(name, "m", "small", kv_capacity_tokens=100_000, **more)


def ask(tokens: int) -> BalanceAsk:
    return BalanceAsk("s", tokens, 0, 0.5, output_tokens=100)


@pytest.mark.parametrize("policy", ["llm", "gpu"])
def test_a_replica_under_pressure_gets_fewer_calls(policy: str) -> None:
    ranking = build_policy(policy, {}).rank(ask(500), [view("a", pressure=0.8), view("b")])
    assert ranking.candidates[0].replica == "b"


def test_long_calls_leave_first() -> None:
    """With the same queue before the other replica, only the long call goes there."""
    policy = build_policy("llm", {"pressure_s": 0.2})
    views = [view("a", pressure=0.4), view("b", prefill_tokens=900, inflight=1)]
    first = {
        tokens: policy.rank(ask(tokens), views).candidates[0].replica for tokens in (100, 40_000)
    }
    assert first == {100: "a", 40_000: "b"}


def test_without_pressure_nothing_changes() -> None:
    policy = build_policy("llm", {})
    plain = policy.rank(ask(500), [view("a"), view("b", inflight=2)])
    calm = policy.rank(ask(500), [view("a", pressure=0.0), view("b", inflight=2, pressure=0.0)])
    assert plain == calm
