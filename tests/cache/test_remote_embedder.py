"""Vectors from a server of the OpenAI wire: its answers, its faults, its silence."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import orjson
import pytest

from tierway.cache.remote_embedder import MAX_CHARS, PARALLEL, OpenAIEmbedder
from tierway.policies.errors import CacheError, Refused

Test = Callable[["Server", OpenAIEmbedder], Awaitable[None]]


class Server:
    """Answers as a test wants; a vector is (length of the text, 1, 0)."""

    def __init__(self, *, floats_only: bool = False) -> None:
        self.floats_only = floats_only
        self.asked: list[dict[str, Any]] = []
        self.fault: Exception | None = None
        self.status = 200
        self.answer: bytes | None = None
        self.free = asyncio.Event()
        self.free.set()

    async def __call__(self, body: bytes) -> tuple[int, bytes]:
        asked = orjson.loads(body)
        self.asked.append(asked)
        await self.free.wait()
        if self.fault is not None:
            raise self.fault
        packed = asked["encoding_format"] == "base64"
        if packed and self.floats_only:
            return 400, b'{"error": "encoding_format must be float"}'
        if "refused" in asked["input"]:
            return 413, b'{"error": "too many tokens"}'
        if self.answer is not None or self.status != 200:
            return self.status, self.answer or b"{}"
        rows = [np.array([len(text), 1, 0], "<f4") for text in asked["input"]]
        data = [
            {"index": at, "embedding": base64.b64encode(row).decode() if packed else row.tolist()}
            for at, row in enumerate(rows)
        ]
        return 200, orjson.dumps({"object": "list", "data": data[::-1]})


def run(test: Test, *, server: Callable[[], Server] = Server, **options: Any) -> None:
    async def main() -> None:
        made = server()
        embedder = OpenAIEmbedder(made, "bge-m3", **options)
        await embedder.start()
        made.asked.clear()
        try:
            async with asyncio.timeout(20):
                await test(made, embedder)
        finally:
            made.free.set()
            await embedder.aclose()
            await embedder.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("floats_only", [False, True])
def test_vectors_come_at_unit_length_in_the_order_of_the_texts(floats_only: bool) -> None:
    async def test(server: Server, embedder: OpenAIEmbedder) -> None:
        rows = await embedder.encode(["one", "three"])
        assert rows.dtype == np.float32
        lengths = np.array([[3, 1, 0], [5, 1, 0]], np.float32)
        assert np.allclose(rows, lengths / np.linalg.norm(lengths, axis=1, keepdims=True))
        form = "float" if floats_only else "base64"
        assert server.asked == [
            {"model": "bge-m3", "input": ["one", "three"], "encoding_format": form}
        ]
        assert (await embedder.encode([])).shape == (0, 3)

    run(test, server=lambda: Server(floats_only=floats_only))


def test_its_id_is_of_the_model_and_the_size_it_learnt() -> None:
    async def test(server: Server, embedder: OpenAIEmbedder) -> None:
        assert (embedder.id, embedder.dim) == ("openai-bge-m3-3", 3)

    run(test)
    with pytest.raises(CacheError, match="once it has started"):
        _ = OpenAIEmbedder(Server(), "bge-m3").id


def test_callers_share_calls_once_all_are_under_way() -> None:
    async def test(server: Server, embedder: OpenAIEmbedder) -> None:
        server.free.clear()
        tasks = [asyncio.create_task(embedder.encode(["x" * n])) for n in range(1, 41)]
        await asyncio.sleep(0.05)
        assert len(server.asked) == PARALLEL
        server.free.set()
        rows = await asyncio.gather(*tasks)
        assert [round(float(row[0, 0] / row[0, 1])) for row in rows] == list(range(1, 41))
        assert len(server.asked) < 16

    run(test)


def test_a_long_text_does_not_fit_and_is_never_sent() -> None:
    async def test(server: Server, embedder: OpenAIEmbedder) -> None:
        assert embedder.fits("x" * 50)
        assert not embedder.fits("x" * 51)
        with pytest.raises(CacheError, match="window"):
            await embedder.encode(["short", "x" * 51])
        assert server.asked == []

    run(test, max_chars=50)
    assert OpenAIEmbedder(Server(), "m").fits("x" * MAX_CHARS)


def test_a_text_the_server_refuses_costs_its_own_caller_only() -> None:
    async def test(server: Server, embedder: OpenAIEmbedder) -> None:
        server.free.clear()
        busy = [asyncio.create_task(embedder.encode(["busy"])) for _ in range(PARALLEL)]
        await asyncio.sleep(0)
        texts = ("good", "refused", "fine")
        tasks = [asyncio.create_task(embedder.encode([text])) for text in texts]
        await asyncio.sleep(0.01)
        server.free.set()
        await asyncio.gather(*busy)
        good, refused, fine = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(good, np.ndarray)
        assert isinstance(fine, np.ndarray)
        assert isinstance(refused, CacheError)
        assert "too many tokens" in str(refused)

    run(test)


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (500, b"oops", "status 500"),
        (401, b"{}", "status 401"),
        (200, b"not json", "no sense"),
        (200, b"{}", "no sense: KeyError"),
        (200, b'{"data": []}', "0 vectors for 1 texts"),
        (200, b'{"data": [{"embedding": "%%%"}]}', "no sense: Error"),
        (200, b'{"data": [{"embedding": "AAA="}]}', "no sense"),
        (200, b'{"data": [{"embedding": [[1]]}]}', "no list of numbers"),
        (200, b'{"data": [{"embedding": ["a", 1, 2]}]}', "no sense"),
        (200, b'{"data": [{"embedding": [null, 1, 2]}]}', "no sense|finite"),
        (200, b'{"data": [{"embedding": [1e300, 1, 2]}]}', "not finite"),
        (200, b'{"data": [{"embedding": [0, 0, 0]}]}', "is zero"),
        (200, b'{"data": [{"embedding": [1, 2]}]}', "shape"),
        (200, b'{"data": [{"index": 4, "embedding": [1, 2, 3]}]}', "no sense: KeyError"),
    ],
)
def test_what_is_no_vector_is_a_cache_error(status: int, answer: bytes, message: str) -> None:
    async def test(server: Server, embedder: OpenAIEmbedder) -> None:
        server.status, server.answer = status, answer
        with pytest.raises(CacheError, match=message):
            await embedder.encode(["a"])
        server.status, server.answer = 200, None
        assert (await embedder.encode(["a"])).shape == (1, 3)

    run(test)


def test_vectors_of_two_sizes_and_lone_surrogates_are_cache_errors() -> None:
    async def test(server: Server, embedder: OpenAIEmbedder) -> None:
        server.answer = b'{"data": [{"embedding": [1, 2, 3]}, {"embedding": [1]}]}'
        with pytest.raises(CacheError, match="differ in size"):
            await embedder.encode(["a", "b"])
        with pytest.raises(CacheError, match="Unicode"):
            await embedder.encode(["\ud800"])

    run(test)


def test_a_server_that_cannot_be_reached_is_a_cache_error() -> None:
    async def test(server: Server, embedder: OpenAIEmbedder) -> None:
        server.fault = Refused("The upstream could not be reached.")
        with pytest.raises(CacheError, match="could not be reached"):
            await embedder.encode(["a"])
        server.fault = None
        await embedder.encode(["a"])

    run(test)


async def waiting(embedder: OpenAIEmbedder) -> str:
    """What a text with a deadline of 10 ms ends in."""
    try:
        async with asyncio.timeout(0.01):
            await embedder.encode(["a"])
    except TimeoutError:
        return "deadline"
    except CacheError as fault:
        return fault.public
    return "vector"


def test_a_server_that_hangs_costs_only_the_first_their_deadline() -> None:
    async def test(server: Server, embedder: OpenAIEmbedder) -> None:
        server.free.clear()
        waits = [await waiting(embedder) for _ in range(50)]
        assert 1 <= waits.count("deadline") <= 10
        assert set(waits[10:]) == {"the embedding server does not answer"}
        server.free.set()
        await asyncio.sleep(0.01)
        assert (await embedder.encode(["a"])).shape == (1, 3)

    run(test, timeout_s=0.01)


def test_without_a_server_it_starts_only_where_the_size_is_known() -> None:
    async def main() -> None:
        server = Server()
        server.fault = Refused("The upstream could not be reached.")
        with pytest.raises(CacheError, match="could not be reached"):
            await OpenAIEmbedder(server, "m").start()
        embedder = OpenAIEmbedder(server, "m", dim=3)
        await embedder.start()
        server.fault = None
        assert (await embedder.encode(["a"])).shape == (1, 3)
        await embedder.aclose()
        with pytest.raises(CacheError, match="not started"):
            await embedder.encode(["a"])

    asyncio.run(main())


def test_a_wrong_size_is_told_at_the_start() -> None:
    with pytest.raises(CacheError, match=r"cache.embedder.dim is 5; m has 3"):
        asyncio.run(OpenAIEmbedder(Server(), "m", dim=5).start())


def test_a_server_that_refuses_every_text_is_told_at_the_start() -> None:
    server = Server()
    server.status, server.answer = 422, b"no such model"
    with pytest.raises(CacheError, match="refuses every text: status 422: no such model"):
        asyncio.run(OpenAIEmbedder(server, "m").start())
