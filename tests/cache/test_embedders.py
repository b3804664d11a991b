"""Embedders: the contract over all of them, and the life of the shared encoder process."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tierway.cache import encoder_client
from tierway.cache.embedders import (
    BuiltinEmbedder,
    ScriptedEmbedder,
    SentenceTransformersEmbedder,
    unit_rows,
)
from tierway.cache.encoder_client import Child, check_private, launch_encoder, private_folder
from tierway.cache.encoder_models import DIM, Alone, encoder_id
from tierway.cache.encoder_process import EncoderServer
from tierway.policies.errors import CacheError

# The fake encoder puts a text's length into its vector; "die" ends the process, "fault" raises.
FAKE = """
import asyncio, os, sys
from pathlib import Path
import numpy as np
from tierway.cache.encoder_models import DIM, Alone, encoder_id
from tierway.cache.encoder_process import EncoderServer

def encode(texts):
    if "die" in texts:
        os._exit(3)
    if "fault" in texts:
        raise ValueError("bad text")
    rows = np.ones((len(texts), DIM), np.float32)
    rows[:, 0] = [len(text) for text in texts]
    return rows

path = Path(sys.argv[1])
with open(path.with_suffix(".starts"), "a") as starts:
    starts.write(f"{os.getpid()}\\n")

async def main():
    models = Alone(lambda: encode)
    await EncoderServer(path, models.encode, id=encoder_id(), dim=DIM, linger_s=0.2).run()

asyncio.run(main())
"""


def launch_code(code: str) -> Callable[[Path], Child]:
    def launch(path: Path) -> Child:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        argv = [sys.executable, "-c", code, str(path)]
        return Child(argv, environment, path.with_suffix(".log"))

    return launch


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for a socket's path, unlike tmp_path."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="tw") as name:
        yield Path(name)


def fake(folder: Path, code: str = FAKE, start_s: float = 20.0) -> BuiltinEmbedder:
    return BuiltinEmbedder(folder=folder, launch=launch_code(code), start_s=start_s)


def starts(folder: Path) -> list[int]:
    return [int(line) for line in next(folder.glob("*.starts")).read_text().split()]


async def until(condition: Callable[[], bool], bound_s: float = 15.0) -> None:
    deadline = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def encode_soon(embedder: BuiltinEmbedder, text: str, bound_s: float = 15.0) -> np.ndarray:
    deadline = time.monotonic() + bound_s
    while True:
        try:
            return await embedder.encode([text])
        except CacheError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)


class InProcess:
    """An EncoderServer in the test's own loop, with an encode that the test controls."""

    def __init__(self, folder: Path, *, linger_s: float = 30.0, rows: int | None = None) -> None:
        self.batches: list[list[str]] = []
        self.go = threading.Event()
        self.go.set()
        self._rows = rows
        self.encode_anything = False
        path = folder / f"encoder-{encoder_id()}.sock"
        self.models = Alone(lambda: self._encode)
        self.server = EncoderServer(
            path, self.models.encode, id=encoder_id(), dim=DIM, linger_s=linger_s
        )

    def _encode(self, texts: list[str]) -> np.ndarray:
        self.batches.append(texts)
        assert self.go.wait(10)
        rows = np.ones((self._rows or len(texts), DIM), np.float32)
        if self._rows is None and not self.encode_anything:
            rows[:, 0] = [float(text) for text in texts]
        return rows


def run_against(
    server: Callable[[], InProcess], test: Callable[[InProcess, BuiltinEmbedder], Awaitable[None]]
) -> None:
    async def main() -> None:
        process = server()
        task = asyncio.create_task(process.server.run())
        embedder = fake(process.server._path.parent)
        try:
            await embedder.start()
            await test(process, embedder)
        finally:
            process.go.set()
            await embedder.aclose()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


# --- the contract -------------------------------------------------------------------------


def make_scripted(folder: Path) -> ScriptedEmbedder:
    return ScriptedEmbedder({}, dim=3, otherwise=lambda text: [len(text), 1.0, 0.0])


@pytest.mark.parametrize("make", [make_scripted, fake])
def test_every_embedder_keeps_the_contract(folder: Path, make) -> None:  # type: ignore[no-untyped-def]
    async def main() -> None:
        embedder = make(folder)
        await embedder.start()
        rows = await embedder.encode(["one", "three", "one"])
        assert rows.dtype == np.float32
        assert rows.shape == (3, embedder.dim)
        assert np.allclose(np.linalg.norm(rows, axis=1), 1.0)
        assert np.array_equal(rows[0], rows[2])
        assert not np.array_equal(rows[0], rows[1])
        assert (await embedder.encode([])).shape == (0, embedder.dim)
        long = "x" * (embedder.max_chars + 1)
        assert embedder.fits(long[1:])
        assert not embedder.fits(long)
        with pytest.raises(CacheError, match="window"):
            await embedder.encode(["short", long])
        await embedder.aclose()
        await embedder.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    "rows",
    [
        np.array([[np.nan, 1.0]]),
        np.array([[np.inf, 1.0]]),
        np.zeros((1, 2)),
        np.ones((2, 2)),
        np.ones((1, 3)),
    ],
)
def test_unusable_vectors_are_refused(rows: np.ndarray) -> None:
    with pytest.raises(CacheError):
        unit_rows(rows.astype(np.float32), 1, 2)


def test_scripted_embedder_says_what_was_not_scripted() -> None:
    embedder = ScriptedEmbedder({"a": [3.0, 4.0]})

    async def main() -> None:
        assert np.allclose(await embedder.encode(["a"]), [[0.6, 0.8]])
        with pytest.raises(CacheError, match="'b'"):
            await embedder.encode(["b"])

    asyncio.run(main())
    assert embedder.texts == [("a",), ("b",)]


def test_scripted_embedder_can_fail_on_demand() -> None:
    async def fail() -> None:
        raise CacheError("down")

    with pytest.raises(CacheError, match="down"):
        asyncio.run(ScriptedEmbedder({"a": [1.0, 0.0]}, before=fail).encode(["a"]))


@pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is not None,
    reason="sentence-transformers is installed",
)
def test_a_missing_extra_is_named() -> None:
    embedder = SentenceTransformersEmbedder("some/model")
    with pytest.raises(CacheError, match=r"tierway\[sentence-transformers\]"):
        asyncio.run(embedder.start())
    with pytest.raises(CacheError, match="not started"):
        asyncio.run(embedder.encode(["a"]))


# --- batching and replies -------------------------------------------------------------------


def test_everything_queued_goes_into_batches_of_32(folder: Path) -> None:
    async def test(process: InProcess, embedder: BuiltinEmbedder) -> None:
        process.go.clear()
        first = asyncio.create_task(embedder.encode(["0"]))
        await until(lambda: len(process.batches) == 1)
        rest = [asyncio.create_task(embedder.encode([str(n), str(n)])) for n in range(1, 31)]
        await until(lambda: process.models.queued == 60)
        process.go.set()
        rows = await asyncio.gather(first, *rest)
        assert [len(batch) for batch in process.batches] == [1, 32, 28]
        for n, row in enumerate(rows):
            expected = np.float32(n) / np.sqrt(np.float32(n * n + DIM - 1))
            assert np.allclose(row[:, 0], expected)

    run_against(lambda: InProcess(folder), test)


def test_a_cancelled_call_does_not_shift_later_replies(folder: Path) -> None:
    async def test(process: InProcess, embedder: BuiltinEmbedder) -> None:
        process.go.clear()
        gone = asyncio.create_task(embedder.encode(["7"]))
        await until(lambda: len(process.batches) == 1)
        gone.cancel()
        kept = asyncio.create_task(embedder.encode(["100"]))
        process.go.set()
        assert (await kept)[0, 0] > 0.9
        with pytest.raises(asyncio.CancelledError):
            await gone

    run_against(lambda: InProcess(folder), test)


def test_what_nobody_waits_for_any_more_is_not_encoded(folder: Path) -> None:
    async def test(process: InProcess, embedder: BuiltinEmbedder) -> None:
        process.go.clear()
        first = asyncio.create_task(embedder.encode(["1"]))
        await until(lambda: len(process.batches) == 1)
        gone = asyncio.create_task(embedder.encode(["2"]))
        client_gone = fake(folder)
        await client_gone.start()
        left = asyncio.create_task(client_gone.encode(["3", "3"]))
        kept = asyncio.create_task(embedder.encode(["4"]))
        await until(lambda: process.models.queued == 4)
        gone.cancel()
        await client_gone.aclose()
        await until(lambda: process.models.queued == 1)
        process.go.set()
        await asyncio.gather(first, kept)
        await asyncio.gather(gone, left, return_exceptions=True)
        assert process.batches == [["1"], ["4"]]

    run_against(lambda: InProcess(folder), test)


def test_a_call_that_runs_into_its_deadline_withdraws_its_text(folder: Path) -> None:
    async def test(process: InProcess, embedder: BuiltinEmbedder) -> None:
        process.go.clear()
        first = asyncio.create_task(embedder.encode(["1"]))
        await until(lambda: len(process.batches) == 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await embedder.encode(["2"])
        await until(lambda: process.models.queued == 0)
        process.go.set()
        await first

    run_against(lambda: InProcess(folder), test)


def test_a_text_of_each_language_warms_and_a_fault_is_only_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(process: InProcess, embedder: BuiltinEmbedder) -> None:
        process.encode_anything = True
        await embedder.warm([])
        assert process.batches == []
        await embedder.warm(["What is it?", "Who is it?", "这是什么？", "x" * 3000])
        assert process.batches == [["Who is it?", "这是什么？"]]
        process.encode_anything = False
        await embedder.warm(["What is it?"])
        assert "ValueError" in caplog.text

    run_against(lambda: InProcess(folder), test)


def test_an_encoder_fault_fails_its_call_only(folder: Path) -> None:
    async def test(process: InProcess, embedder: BuiltinEmbedder) -> None:
        with pytest.raises(CacheError, match="ValueError"):
            await embedder.encode(["not a number"])
        assert (await embedder.encode(["100"]))[0, 0] > 0.9

    run_against(lambda: InProcess(folder), test)


def test_a_wrong_number_of_vectors_is_a_fault(folder: Path) -> None:
    async def test(process: InProcess, embedder: BuiltinEmbedder) -> None:
        with pytest.raises(CacheError, match="5 vectors for 1 texts"):
            await embedder.encode(["1"])

    run_against(lambda: InProcess(folder, rows=5), test)


def test_nan_from_the_encoder_is_a_cache_error(folder: Path) -> None:
    async def test(process: InProcess, embedder: BuiltinEmbedder) -> None:
        with pytest.raises(CacheError, match="finite"):
            await embedder.encode(["nan"])

    run_against(lambda: InProcess(folder), test)


def test_lone_surrogates_are_refused(folder: Path) -> None:
    async def test(process: InProcess, embedder: BuiltinEmbedder) -> None:
        with pytest.raises(CacheError, match="Unicode"):
            await embedder.encode(["\ud800"])
        assert (await embedder.encode(["100"]))[0, 0] > 0.9

    run_against(lambda: InProcess(folder), test)


def test_too_many_texts_are_refused_not_queued(folder: Path) -> None:
    async def test(process: InProcess, embedder: BuiltinEmbedder) -> None:
        with pytest.raises(CacheError, match="queue is full"):
            await embedder.encode(["1"] * 5000)

    run_against(lambda: InProcess(folder), test)


def test_a_broken_frame_costs_only_its_own_connection(folder: Path) -> None:
    async def test(process: InProcess, embedder: BuiltinEmbedder) -> None:
        for junk in (b"\xff\xff\xff\xff", b"\x02\x00\x00\x00ab", b"GET / HTTP/1.1\r\n\r\n"):
            reader, writer = await asyncio.open_unix_connection(process.server._path)
            writer.write(junk)
            writer.write_eof()
            async with asyncio.timeout(5):
                await reader.read()
            writer.close()
        assert (await embedder.encode(["100"]))[0, 0] > 0.9

    run_against(lambda: InProcess(folder), test)


def test_the_server_leaves_after_its_last_client(folder: Path) -> None:
    async def main() -> None:
        process = InProcess(folder, linger_s=0.05)
        task = asyncio.create_task(process.server.run())
        one, two = fake(folder), fake(folder)
        await asyncio.gather(one.start(), two.start())
        await one.aclose()
        await asyncio.sleep(0)
        assert not task.done()
        await two.encode(["1"])
        await two.aclose()
        async with asyncio.timeout(5):
            await task
        assert not process.server._path.exists()

    asyncio.run(main())


def test_the_server_leaves_when_its_folder_is_gone(folder: Path) -> None:
    async def main() -> None:
        inner = folder / "inner"
        inner.mkdir()
        process = InProcess(inner, linger_s=0.05)
        task = asyncio.create_task(process.server.run())
        embedder = fake(inner)
        await embedder.start()
        shutil.rmtree(inner)
        await embedder.aclose()
        async with asyncio.timeout(5):
            await task

    asyncio.run(main())


# --- the life of the process ------------------------------------------------------------------


def test_many_starting_together_spawn_one(folder: Path) -> None:
    async def main() -> None:
        embedders = [fake(folder) for _ in range(8)]
        await asyncio.gather(*(embedder.start() for embedder in embedders))
        rows = await asyncio.gather(*(embedder.encode(["a"]) for embedder in embedders))
        assert len(rows) == 8
        for embedder in embedders:
            await embedder.aclose()
        (pid,) = starts(folder)
        await until(lambda: not alive(pid))

    asyncio.run(main())


def test_after_a_crash_calls_fail_at_once_and_a_new_encoder_comes(folder: Path) -> None:
    async def main() -> None:
        embedder = fake(folder)
        await embedder.start()
        with pytest.raises(CacheError, match="went away"):
            await embedder.encode(["die"])
        began = time.monotonic()
        with pytest.raises(CacheError, match="not connected"):
            await embedder.encode(["a"])
        assert time.monotonic() - began < 0.1
        assert (await encode_soon(embedder, "a")).shape == (1, DIM)
        assert len(starts(folder)) == 2
        await embedder.aclose()

    asyncio.run(main())


def test_an_encoder_killed_from_outside_comes_back(folder: Path) -> None:
    async def main() -> None:
        embedder = fake(folder)
        await embedder.start()
        (pid,) = starts(folder)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not alive(pid))
        await encode_soon(embedder, "a")
        await embedder.aclose()

    asyncio.run(main())


def test_repeated_crashes_are_slowed_down(folder: Path) -> None:
    async def main() -> None:
        embedder = fake(folder)
        await embedder.start()
        began = time.monotonic()
        while time.monotonic() - began < 1.5 or len(starts(folder)) < 2:
            assert time.monotonic() - began < 20
            with pytest.raises(CacheError):
                await embedder.encode(["die"])
            await asyncio.sleep(0.01)
        await embedder.aclose()
        assert len(starts(folder)) <= 5

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "start_s", "message"),
    [
        ("raise SystemExit('no weights found')", 20.0, "ended at once: no weights found"),
        ("import time; time.sleep(60)", 0.5, "no encoder answered within 0.5 s"),
    ],
)
def test_a_start_that_cannot_work_ends_with_the_reason(
    folder: Path, code: str, start_s: float, message: str
) -> None:
    async def main() -> None:
        with pytest.raises(CacheError, match=message):
            await fake(folder, code, start_s).start()

    asyncio.run(main())


def test_another_encoder_on_the_socket_is_refused(folder: Path) -> None:
    async def main() -> None:
        path = folder / f"encoder-{encoder_id()}.sock"
        server = EncoderServer(path, Alone().encode, id="other", dim=4)
        task = asyncio.create_task(server.run())
        await until(path.exists)
        with pytest.raises(CacheError, match="serves other"):
            await fake(folder).start()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_a_stale_socket_is_replaced(folder: Path) -> None:
    async def main() -> None:
        (folder / f"encoder-{encoder_id()}.sock").touch()
        embedder = fake(folder)
        await embedder.start()
        await embedder.encode(["a"])
        await embedder.aclose()

    asyncio.run(main())


def test_not_started_and_too_long_a_path_are_cache_errors(folder: Path) -> None:
    with pytest.raises(CacheError, match="not started"):
        asyncio.run(fake(folder).encode(["a"]))
    with pytest.raises(CacheError, match="longer than"):
        asyncio.run(fake(folder / ("x" * 100)).start())


def test_the_folder_is_private(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    made = private_folder()
    assert made == folder / "tierway"
    assert made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o755)
    with pytest.raises(CacheError, match="open to other users"):
        private_folder()
    link = folder / "link"
    link.symlink_to(made)
    with pytest.raises(CacheError, match="not a folder"):
        check_private(link)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "missing"))
    monkeypatch.setattr(encoder_client.tempfile, "gettempdir", lambda: str(folder))
    assert private_folder() == folder / f"tierway-{os.getuid()}"


def test_the_real_encoder_serves_two_processes_and_leaves(folder: Path) -> None:
    """USE itself: shared with another process, English and Chinese, gone afterwards."""
    other = (
        "import asyncio, sys; from pathlib import Path\n"
        "from tierway.cache.embedders import BuiltinEmbedder\n"
        "async def main():\n"
        "    e = BuiltinEmbedder(folder=Path(sys.argv[1])); await e.start()\n"
        "    print((await e.encode(['hello'])).shape); await e.aclose()\n"
        "asyncio.run(main())"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    children: list[Child] = []

    def launch(path: Path) -> Child:
        children.append(launch_encoder(path))
        return children[-1]

    async def main() -> None:
        embedder = BuiltinEmbedder(folder=folder, launch=launch)
        assert embedder.id.startswith("usem3-")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", other, str(folder), env=environment, stdout=subprocess.PIPE
        )
        await embedder.start()
        rows = await embedder.encode(
            ["What is the capital of France?", "法国的首都是哪里？", "How do I bake bread?"]
        )
        assert rows[0] @ rows[1] > 0.5 > 0.3 > rows[0] @ rows[2]
        out, _ = await process.communicate()
        assert out.decode().strip() == f"(1, {DIM})"
        await embedder.aclose()
        await until(lambda: not list(folder.glob("*.sock")))
        assert len(children) <= 1
        if children:
            await until(children[0].exited.is_set)

    asyncio.run(main())
