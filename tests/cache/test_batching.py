"""Many callers, few calls: who goes with whom, who goes first, who is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tierway.cache.batching import Lane, Room
from tierway.policies.errors import CacheError


class Model:
    """A model whose calls end when the test lets them; a row is the text's length."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.free = asyncio.Event()
        self.free.set()
        self.faults: dict[str, Exception] = {}
        self.short_by = 0

    async def __call__(self, texts: list[str]) -> list[int]:
        self.calls.append(texts)
        await self.free.wait()
        for text in texts:
            if text in self.faults:
                raise self.faults[text]
        return [len(text) for text in texts][self.short_by :]


def run(
    test: Callable[[Model, Lane[int]], Awaitable[None]],
    *,
    room: Room | None = None,
    parallel: int = 1,
    gather_s: float = 0.0,
    queued_texts: int = 100,
) -> None:
    async def main() -> None:
        model = Model()
        lane = Lane(
            model, room=room, parallel=parallel, gather_s=gather_s, queued_texts=queued_texts
        )
        try:
            async with asyncio.timeout(10):
                await test(model, lane)
        finally:
            model.free.set()
            await lane.aclose()

    asyncio.run(main())


def asks(lane: Lane[int], *groups: list[str]) -> list[asyncio.Task[list[int]]]:
    return [asyncio.create_task(lane.encode(texts)) for texts in groups]


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_lone_text_starts_at_once_and_nothing_costs_no_call() -> None:
    async def test(model: Model, lane: Lane[int]) -> None:
        assert await lane.encode([]) == []
        for _ in range(3):
            (task,) = asks(lane, ["one"])
            await turns(2)
            assert model.calls.pop() == ["one"]
            assert await task == [3]

    run(test, gather_s=60.0)


def test_what_comes_during_a_call_shares_the_next() -> None:
    async def test(model: Model, lane: Lane[int]) -> None:
        model.free.clear()
        first = asks(lane, ["a"])
        await turns()
        rest = asks(lane, ["bb"], ["ccc", "d"], ["eeee"])
        await turns()
        assert model.calls == [["a"]]
        model.free.set()
        assert await asyncio.gather(*first, *rest) == [[1], [2], [3, 1], [4]]
        assert model.calls[1:] == [["bb", "ccc", "d", "eeee"]]

    run(test)


def test_who_was_answered_is_waited_for_when_others_wait_too() -> None:
    async def test(model: Model, lane: Lane[int]) -> None:
        model.free.clear()
        (first,) = asks(lane, ["first"])
        await turns()
        waiting = asks(lane, ["a"], ["b"], ["c"])
        await turns()
        model.free.set()
        await first
        await turns()
        assert model.calls == [["first"]]
        waiting += asks(lane, ["back"])
        await asyncio.gather(*waiting)
        assert model.calls.pop() == ["a", "b", "c", "back"]
        again = asks(lane, ["d"], ["e"], ["f"])
        await turns()
        assert model.calls == [["first"]]  # three of four are there
        again += asks(lane, ["g"])
        await asyncio.gather(*again)
        assert model.calls.pop() == ["d", "e", "f", "g"]

    run(test, gather_s=60.0)


def test_a_full_call_is_followed_at_once() -> None:
    async def test(model: Model, lane: Lane[int]) -> None:
        await asyncio.gather(*asks(lane, ["a"] * 20))
        assert [len(call) for call in model.calls] == [8, 8, 4]

    run(test, room=Room(texts=8), gather_s=60.0)


def test_company_that_does_not_come_is_waited_for_only_a_moment() -> None:
    async def test(model: Model, lane: Lane[int]) -> None:
        model.free.clear()
        waiting = asks(lane, ["first"], ["a"], ["b"])
        await turns()
        model.free.set()
        await asyncio.gather(*waiting)
        assert await lane.encode(["alone"]) == [5]
        assert model.calls.pop() == ["alone"]

    run(test, gather_s=0.002)


@pytest.mark.parametrize(
    ("room", "sizes"),
    [(Room(texts=3, chars=100), [1, 3, 3, 1]), (Room(texts=9, chars=25), [1, 2, 2, 2, 1])],
)
def test_a_call_holds_what_there_is_room_for(room: Room, sizes: list[int]) -> None:
    async def test(model: Model, lane: Lane[int]) -> None:
        model.free.clear()
        waiting = asks(lane, *([f"text {n:05}"] for n in range(8)))
        await turns()
        model.free.set()
        assert await asyncio.gather(*waiting) == [[10]] * 8
        assert [len(call) for call in model.calls] == sizes

    run(test, room=room)


def test_a_text_longer_than_the_room_goes_alone() -> None:
    async def test(model: Model, lane: Lane[int]) -> None:
        model.free.clear()
        waiting = asks(lane, ["x"], ["y" * 50], ["z"])
        await turns()
        model.free.set()
        assert await asyncio.gather(*waiting) == [[1], [50], [1]]
        assert [len(call) for call in model.calls] == [1, 1, 1]

    run(test, room=Room(texts=8, chars=10))


def test_a_long_batch_holds_a_waiting_text_up_by_one_call() -> None:
    async def test(model: Model, lane: Lane[int]) -> None:
        model.free.clear()
        (storing,) = asks(lane, [f"store {n}" for n in range(40)])
        await turns()
        (asking,) = asks(lane, ["question"])
        await turns()
        model.free.set()
        assert await asking == [8]
        assert [len(call) for call in model.calls] == [8, 3]
        assert model.calls[1] == ["question", "store 8", "store 9"]
        assert await storing == [len(f"store {n}") for n in range(40)]

    run(test, room=Room(texts=8))


def test_a_stream_of_waiting_texts_does_not_starve_a_long_batch() -> None:
    async def test(model: Model, lane: Lane[int]) -> None:
        stop = asyncio.Event()

        async def ask_on() -> None:
            while not stop.is_set():
                await lane.encode(["question"])

        askers = [asyncio.create_task(ask_on()) for _ in range(6)]
        await turns()
        assert len(await lane.encode([f"store {n}" for n in range(40)])) == 40
        stop.set()
        await asyncio.gather(*askers)
        assert max(len(call) for call in model.calls) <= 8

    run(test, room=Room(texts=8))


def test_who_is_cancelled_leaves_the_queue() -> None:
    async def test(model: Model, lane: Lane[int]) -> None:
        model.free.clear()
        running, gone, half_gone, kept = asks(lane, ["a"], ["b"], ["c"] * 5, ["d"])
        await turns()
        gone.cancel()
        half_gone.cancel()
        await asyncio.gather(gone, half_gone, return_exceptions=True)
        assert lane.queued == 1
        model.free.set()
        assert [await running, await kept] == [[1], [1]]
        assert model.calls == [["a"], ["d"]]
        assert lane.queued == 0

    run(test)


def test_too_many_texts_are_refused_not_queued() -> None:
    async def test(model: Model, lane: Lane[int]) -> None:
        with pytest.raises(CacheError, match="queue is full"):
            await lane.encode(["x"] * 11)
        assert await lane.encode(["x"] * 10) == [1] * 10

    run(test, queued_texts=10)


def test_a_bad_text_costs_its_own_caller_only() -> None:
    async def test(model: Model, lane: Lane[int]) -> None:
        model.faults["bad"] = ValueError("no such text")
        model.free.clear()
        tasks = asks(lane, ["first"], ["good"], ["bad"], ["fine", "too"])
        await turns()
        model.free.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert found[:2] == [[5], [4]]
        assert found[3] == [4, 3]
        assert isinstance(found[2], CacheError)
        assert "ValueError: no such text" in str(found[2])

    run(test)


def test_a_model_in_trouble_is_not_asked_again_for_each() -> None:
    async def test(model: Model, lane: Lane[int]) -> None:
        model.faults["a"] = CacheError("down")
        model.free.clear()
        tasks = asks(lane, ["first"], ["a"], ["b"], ["c"] * 3)
        await turns()
        model.free.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [str(fault) for fault in found[1:]] == ["down"] * 3
        assert len(model.calls) == 2
        assert await lane.encode(["b"]) == [1]

    run(test)


def test_a_wrong_number_of_rows_is_a_fault() -> None:
    async def test(model: Model, lane: Lane[int]) -> None:
        model.short_by = 1
        with pytest.raises(CacheError, match="1 vectors for 2 texts"):
            await lane.encode(["a", "b"])

    run(test)


def test_calls_run_side_by_side_up_to_the_limit() -> None:
    async def test(model: Model, lane: Lane[int]) -> None:
        model.free.clear()
        tasks = asks(lane, ["a"], ["b"], ["c"], ["d"])
        await turns()
        assert model.calls == [["a"], ["b"]]
        model.free.set()
        assert await asyncio.gather(*tasks) == [[1]] * 4
        assert model.calls[2:] == [["c", "d"]]

    run(test, parallel=2)


def test_closing_ends_every_wait() -> None:
    async def test(model: Model, lane: Lane[int]) -> None:
        model.free.clear()
        tasks = asks(lane, ["running"], ["queued"], ["many"] * 5)
        await turns()
        await lane.aclose()
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(found, CacheError)
            assert "closed" in str(found)

    run(test)
