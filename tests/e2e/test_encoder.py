"""An encoder that is slow, broken, wrong, absent or killed never costs a request."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from e2e.conftest import EngineUrls
from e2e.servers import ask, ask_until_cached, configuration, eventually, gateway, outcome
from e2e.stand import engine, stand, until

from tierway.middleware import classes

CAPITAL, OTHER_WORDS = "What is the capital of France?", "What's France's capital?"


@pytest.fixture
def embedder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Puts a class of e2e.scripted in the place of the built-in encoder."""
    name = str(request.param)
    monkeypatch.setitem(classes.CLASSES, "embedder.builtin", f"e2e.scripted:{name}")
    return name


@pytest.mark.parametrize(
    ("embedder", "fault"),
    [
        ("Sleeping", "encoder-slow"),
        ("Raising", "encoder"),
        ("NotANumber", "encoder"),
    ],
    indirect=["embedder"],
)
def test_a_request_goes_on_without_the_encoder_and_is_counted(embedder: str, fault: str) -> None:
    async def main() -> None:
        async with stand(engine()) as made:
            assert (await made.ask(CAPITAL)).status_code == 200
            assert await until(lambda: made.cache["entries"] == 1)
            await made.settled()
            began = time.monotonic()
            answer = await made.ask(OTHER_WORDS)
            assert time.monotonic() - began < 2
            assert answer.status_code == 200
            assert answer.headers["x-tierway-cache"] == "bypass"
            assert any(name.startswith(fault) for name in made.cache["faults"])
            assert (await made.ask(CAPITAL)).headers["x-tierway-cache"] == "hit"

    asyncio.run(main())


@pytest.mark.parametrize("embedder", ["SameForAll"], indirect=True)
def test_a_cosine_of_one_alone_serves_nothing(embedder: str) -> None:
    async def main() -> None:
        async with stand(engine()) as made:
            await made.ask("How do I turn on dark mode?")
            await made.settled()
            for question in ("How do I turn off dark mode?", "What is 17 * 23?", "怎么做蛋糕?"):
                assert (await made.ask(question)).headers["x-tierway-cache"] == "miss"

    asyncio.run(main())


@pytest.mark.parametrize("embedder", ["NeverStarts"], indirect=True)
def test_without_an_encoder_the_cache_is_exact(
    embedder: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with stand(engine()) as made:
            assert (await made.ask(CAPITAL)).headers["x-tierway-cache"] == "miss"
            assert (await made.ask(CAPITAL)).headers["x-tierway-cache"] == "hit"
            assert (await made.ask(OTHER_WORDS)).headers["x-tierway-cache"] == "miss"

    asyncio.run(main())
    assert "exact only" in caplog.text


@pytest.fixture
def own_runtime_folder() -> Iterator[str]:
    """A short path: a socket's may have a hundred bytes."""
    with tempfile.TemporaryDirectory(prefix="tierway-kill-") as folder:
        yield folder


def encoders_in(folder: str) -> list[int]:
    """Process ids of the encoders whose socket is below `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if b"tierway.cache.encoder_process" in words and any(
            word.startswith(folder.encode()) for word in words
        ):
            found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds the encoder by /proc")
def test_a_killed_encoder_costs_no_request_and_comes_back(
    fleet: EngineUrls, tmp_path: Path, own_runtime_folder: str
) -> None:
    config = configuration(fleet.small)
    with (
        gateway(tmp_path, config, XDG_RUNTIME_DIR=own_runtime_folder) as running,
        httpx.Client(base_url=running.url, timeout=60) as client,
    ):
        ask(client, CAPITAL)
        assert outcome(ask_until_cached(client, OTHER_WORDS)) == "semantic-hit"
        (pid,) = encoders_in(own_runtime_folder)
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        # Without its encoder the gateway answers, by meaning or not.
        assert outcome(ask(client, "What is the capital city that France has?")) in (
            "bypass",
            "miss",
        )
        assert time.monotonic() - began < 2
        assert eventually(lambda: encoders_in(own_runtime_folder) not in ([], [pid]), within_s=20)
        only = {"cache-control": "only-if-cached"}
        assert eventually(
            lambda: ask(client, OTHER_WORDS, headers=only).status_code == 200, within_s=20
        )
