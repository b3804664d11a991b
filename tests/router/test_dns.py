"""A replica for each address of a name; a resolver may be wrong, partial or silent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tierway.router.dns import DnsSource, Named
from tierway.router.replica import ReplicaSpec
from tierway.router.transport import Origin


class Resolver:
    def __init__(self, *answers: Sequence[str] | OSError) -> None:
        self.answers = list(answers)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        assert (host, port) == ("pods", 8000)
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer


def looked(*answers: Sequence[str] | OSError) -> list[list[str]]:
    """What was wanted, after each look at these answers."""
    wanted: list[list[str]] = []

    def make(address: str) -> ReplicaSpec:
        return ReplicaSpec(address, "m", "small", f"http://{address}:8000")

    async def main() -> None:
        named = Named(Origin.parse("http://pods:8000"), make)
        source = DnsSource(
            [named],
            lambda specs: wanted.append([spec.id for spec in specs]),
            resolve=Resolver(*answers),
        )
        for _ in answers:
            await source.look()

    asyncio.run(main())
    return wanted


def test_each_address_is_a_replica_and_order_means_nothing() -> None:
    assert looked(["b", "a"], ["a", "b", "a"], ["c", "b", "a"]) == [["a", "b"], ["a", "b", "c"]]


def test_an_address_leaves_once_it_was_missing_twice() -> None:
    assert looked(["a", "b"], ["a"], ["a"]) == [["a", "b"], ["a"]]
    assert looked(["a", "b"], ["a"], ["a", "b"], ["a"]) == [["a", "b"]]


def test_no_answer_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert looked(["a"], OSError("away"), [], OSError("away"), ["a"]) == [["a"]]
    assert caplog.text.count("cannot be resolved") == 1


def test_it_is_asked_again_until_closed() -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def resolve(host: str, port: int) -> Sequence[str]:
            if names:
                asked.set()
            names.append(host)
            return ["a"]

        names: list[str] = []
        named = Named(Origin.parse("http://pods"), lambda a: ReplicaSpec(a, "m", "small", a))
        source = DnsSource([named], lambda specs: None, resolve=resolve, every_s=0.0)
        await source.start()
        await asyncio.wait_for(asked.wait(), 5)
        await source.aclose()

    asyncio.run(main())
