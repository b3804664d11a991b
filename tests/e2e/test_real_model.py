"""A real language model as a replica: its answer is cached and comes back as a stream."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from e2e import real_engine
from e2e.servers import ask, ask_until_cached, configuration, environment, gateway, outcome, said

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        bool(real_engine.missing()), reason=f"needs {', '.join(real_engine.missing())}"
    ),
]

CAPITAL = "What is the capital of France?"


@pytest.fixture(scope="module")
def model_url() -> Iterator[str]:
    command = [sys.executable, "-P", real_engine.__file__ or ""]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, "the model did not load; see standard error"
            yield json.loads(line)["url"]
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture(scope="module")
def client(model_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    config = configuration([model_url])
    (replica,) = config["models"]["sim-7b"]["replicas"]
    replica["engine"] = "generic"
    config["models"] = {"smollm": config["models"]["sim-7b"]}
    folder: Path = tmp_path_factory.mktemp("real")
    with (
        gateway(folder, config) as running,
        httpx.Client(base_url=running.url, timeout=300) as made,
    ):
        yield made


def test_its_answer_is_cached_under_its_tier_and_replayed_as_a_stream(
    client: httpx.Client,
) -> None:
    first = ask(client, CAPITAL, max_tokens=64)
    assert outcome(first) == "miss"
    assert "Paris" in said(first)
    assert first.json()["model"] == real_engine.MODEL
    assert first.headers["x-tierway-tier"] == "small"
    assert first.headers["x-tierway-replica"].startswith("smollm@")
    hit = ask(client, CAPITAL, max_tokens=64, stream=True)
    assert outcome(hit) == "hit"
    assert hit.headers["x-tierway-tier"] == "small"
    assert said(hit) == said(first)
    other = ask_until_cached(client, "What's France's capital?", max_tokens=64)
    assert outcome(other) == "semantic-hit"


def test_its_stream_arrives_in_pieces_and_is_cached(client: httpx.Client) -> None:
    question = "Say hello in one short sentence."
    first = ask(client, question, max_tokens=64, stream=True)
    assert outcome(first) == "miss"
    assert first.text.count("data: ") > 3
    again = ask(client, question, max_tokens=64)
    assert outcome(again) == "hit"
    assert said(again) == said(first) != ""
