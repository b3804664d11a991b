"""The load benchmark against a simulated engine in a thread of its own."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tierway.bench.engine_server import EngineServer
from tierway.bench.load import bar, main, questions, summary, table
from tierway.bench.load_clients import Result, Sample, Target, load
from tierway.router.transport import Origin


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """The address of an engine that is fast enough not to be waited for."""
    loop = asyncio.new_event_loop()
    server = EngineServer("8b-a100", model="m", speed=500.0)
    port = loop.run_until_complete(server.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield f"http://127.0.0.1:{port}"
    asyncio.run_coroutine_threadsafe(server.aclose(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def options(url: str, *more: str) -> list[str]:
    return [
        *("--url", url, "--model", "m", "--concurrency", "3", "--requests", "12"),
        *("--max-tokens", "6", *more),
    ]


def test_json_is_the_one_object_of_the_contract(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(engine, "--stream", "--json")) == 0
    printed = capsys.readouterr()
    figures = json.loads(printed.out)
    assert printed.out.count("\n") == 1
    assert printed.err == ""
    assert list(figures) == ["rps", "latency_ms", "ttft_ms", "tpot_ms", "errors"]
    for name in ("latency_ms", "ttft_ms", "tpot_ms"):
        assert list(figures[name]) == ["mean", "p50", "p99"]
        assert 0 < figures[name]["p50"] <= figures[name]["p99"]
    assert figures["ttft_ms"]["mean"] <= figures["latency_ms"]["mean"]
    assert figures["rps"] > 0
    assert figures["errors"] == 0


def test_whole_answers_have_a_latency_only(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(options(engine + "/v1", "--json")) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["latency_ms"]["p50"] > 0
    assert figures["ttft_ms"] == figures["tpot_ms"] == {"mean": None, "p50": None, "p99": None}


def test_the_table_names_each_time_and_the_faults(
    engine: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.txt"
    faults = ("429 1", "refuse", "cut 2", "error-event 2", "broken-json 2")
    lines = ["fine", *(f"[[answer 9]] [[fault:{fault}]]" for fault in faults)]
    prompts.write_text("\n\n".join(lines), "utf-8")
    arguments = ("--stream", "--prompt-file", str(prompts), "--timeout-s", "20")
    assert main(options(engine, *arguments)) == 0
    printed = capsys.readouterr()
    assert [line.split()[0] for line in printed.out.splitlines()[1:4]] == [
        "latency_ms",
        "ttft_ms",
        "tpot_ms",
    ]
    assert printed.out.splitlines()[4].endswith("10 errors")
    for fault in ("2 x status 429", "2 x an error event", "2 x an answer that is not JSON"):
        assert fault in printed.err.splitlines()
    assert sum(int(line.split()[0]) for line in printed.err.splitlines()) == 10


def test_nothing_right_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(options("http://127.0.0.1:1", "--json")) == 1
    printed = capsys.readouterr()
    figures = json.loads(printed.out)
    assert figures["errors"] == 12
    assert (figures["rps"], figures["latency_ms"]["mean"]) == (0.0, None)
    assert printed.err.startswith("12 x ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--url", "ftp://x", "--model", "m"), "ftp://x"),
        (("--url", "http://x", "--model", "m", "--api-key-env", "NO_SUCH"), "NO_SUCH"),
        (("--url", "http://x", "--model", "m", "--prompt-file", "/no/such"), "/no/such"),
        (("--url", "http://x", "--model", "m", "--prompt-file", "/dev/null"), "no question"),
    ],
)
def test_wrong_use_is_told_in_one_line(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert told in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--url", "http://x", "--model", "m", "--requests", "0"),
        ("--url", "http://x", "--model", "m", "--concurrency", "many"),
        ("--url", "http://x", "--model", "m", "--timeout-s", "0"),
        ("--url", "http://x", "--model", "m", "--timeout-s", "nan"),
        ("--url", "http://x", "--model", "m", "--nonsense"),
    ],
)
def test_unknown_or_missing_options_exit_with_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: tierway bench gateway" in capsys.readouterr().err


class Recorder:
    """A server that answers at once and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: set[bytes] = set()
        self.open = self.most_open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).lower():
                length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.asked.append(json.loads(await reader.readexactly(length)))
                self.keys.add(head.partition(b"authorization: ")[2].split(b"\r\n")[0])
                body = b'{"choices": [{}]}'
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.open -= 1
        finally:
            writer.close()


def recorded(prompts: list[str], concurrency: int, **fields: Any) -> tuple[Recorder, Result]:
    async def run() -> tuple[Recorder, Result]:
        recorder = Recorder()
        server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        target = Target(Origin("http", "127.0.0.1", port), "m", stream=False, **fields)
        seen: list[int] = []
        result = await load(
            target,
            iter(prompts),
            concurrency=concurrency,
            timeout_s=20.0,
            clock=asyncio.get_running_loop().time,
            progress=seen.append,
        )
        server.close()
        await server.wait_closed()
        assert seen == list(range(1, len(prompts) + 1))
        return recorder, result

    return asyncio.run(run())


def test_every_prompt_is_asked_once_by_as_many_clients_as_told() -> None:
    prompts = [f"prompt {number}" for number in range(40)]
    recorder, result = recorded(prompts, 4, api_key="sk-1", max_tokens=5)
    asked = sorted(ask["messages"][0]["content"] for ask in recorder.asked)
    assert asked == sorted(prompts)
    assert all(ask == {**ask, "model": "m", "max_tokens": 5} for ask in recorder.asked)
    assert all("stream" not in ask for ask in recorder.asked)
    assert recorder.keys == {b"bearer sk-1"}
    assert recorder.most_open == 4
    assert len(result.samples) == 40
    assert not result.faults


def test_a_server_that_stays_silent_is_a_fault_after_the_timeout() -> None:
    async def run() -> Result:
        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(hold, "127.0.0.1", 0)
        origin = Origin("http", "127.0.0.1", server.sockets[0].getsockname()[1])
        result = await load(
            Target(origin, "m", stream=True),
            iter(["a", "b"]),
            concurrency=2,
            timeout_s=0.1,
            clock=asyncio.get_running_loop().time,
            progress=lambda done: None,
        )
        server.close()
        await server.wait_closed()
        return result

    assert asyncio.run(run()).faults == {"no answer in time": 2}


def test_questions_differ_unless_one_is_asked_for() -> None:
    made = list(questions(200, random.Random(1)))
    assert len(set(made)) == 200
    assert made == list(questions(200, random.Random(1)))
    words = [set(question.split()[7:]) for question in made]
    shared = [len(a & b) for a, b in itertools.pairwise(words)]
    assert max(shared) <= 3


def test_the_figures_follow_their_definitions() -> None:
    samples = [Sample(1.0 + number / 100, 0.5, 11) for number in range(100)]
    result = Result(samples, Counter({"status 500": 2}), wall_s=50.0)
    figures = summary(result)
    assert figures["rps"] == 2.0
    assert figures["errors"] == 2
    assert figures["latency_ms"] == {"mean": 1495.0, "p50": 1490.0, "p99": 1980.0}
    assert figures["ttft_ms"] == {"mean": 500.0, "p50": 500.0, "p99": 500.0}
    assert figures["tpot_ms"] == {"mean": 99.5, "p50": 99.0, "p99": 148.0}
    assert "1980.00" in table(figures)


def test_an_answer_of_one_event_has_no_time_per_token() -> None:
    figures = summary(Result([Sample(1.0, 1.0, 1)], wall_s=1.0))
    assert figures["ttft_ms"]["p50"] == 1000.0
    assert figures["tpot_ms"]["p50"] is None


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_moves_on_a_terminal_and_ends_its_line() -> None:
    now = iter([0.0, 0.05, 0.2, 0.21])
    screen = Screen()
    show = bar(4, screen, lambda: next(now))
    for done in (1, 2, 3, 4):
        show(done)
    shown = screen.getvalue().split("\r")[1:]
    assert [line.split()[-1] for line in shown] == ["1/4", "3/4", "4/4"]
    assert shown[-1].endswith("\n")


def test_no_bar_in_a_pipe() -> None:
    pipe = io.StringIO()
    bar(4, pipe, lambda: 0.0)(4)
    assert pipe.getvalue() == ""
