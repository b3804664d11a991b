"""`tierway serve` takes another file while traffic flows: by call, by signal, by being watched."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from e2e.servers import configuration, engines, eventually, gateway, load


def policy(running: Any) -> str:
    return str(running.state()["tiers"]["small"]["policy"])


ENGINE = {"profile": "8b-l40s", "model": "sim-7b"}


def config(urls: Sequence[str], *, watch: str = "off", **small: Any) -> dict[str, Any]:
    """The file with these keys of its tier `small`."""
    tiers = {"small": small, "medium": {}, "large": {}}
    server = {"port": 0, "watch_config": watch}
    return configuration(urls, tiers=tiers, server=server, cache={"mode": "off"})


def test_a_call_and_a_signal_take_the_file_under_load(tmp_path: Path) -> None:
    path = tmp_path / "tierway.yaml"
    with (
        engines(ENGINE, ENGINE) as urls,
        gateway(tmp_path, config(urls, policy="llm")) as running,
        load(running.url) as chose,
    ):

        def chosen(name: str) -> bool:
            seen = len(chose)
            return eventually(lambda: name in [policy for policy, _ in chose[seen:]])

        assert chosen("llm")
        path.write_text(json.dumps(config(urls, policy="random")))
        answer = running.admin("POST", "/admin/reload").json()
        assert (answer["changed"], answer["version"]) == (["tiers.small.policy"], 2)
        assert chosen("random")

        path.write_text(json.dumps(config(urls, policy="round_robin")))
        running.process.send_signal(signal.SIGHUP)
        assert chosen("round_robin")

        path.write_text("tiers: {small: {policy: ran")
        running.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: "nothing changed" in running.errors)
        assert (policy(running), running.process.poll()) == ("round_robin", None)


def test_a_watched_file_is_taken_when_it_stands_still(tmp_path: Path) -> None:
    path = tmp_path / "tierway.yaml"
    with engines(ENGINE) as urls:

        def write(**small: Any) -> None:
            path.write_text(json.dumps(config(urls, watch="on", **small)))

        with gateway(tmp_path, config(urls, watch="on", policy="llm")) as running:
            write(policy="power_of_two")
            assert eventually(lambda: policy(running) == "power_of_two")
            write(policy="power_of_twp")
            assert eventually(lambda: "did you mean 'power_of_two'" in running.errors)
            write(policy="llm", shadow_policy="random")
            assert eventually(lambda: policy(running) == "llm")
            assert running.state()["policies"]["version"] == 3
            assert running.errors.count("did you mean") == 1


@pytest.fixture
def terminal() -> Iterator[None]:
    """SIGHUP as it is on a terminal: under nohup it is ignored, and children inherit that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("terminal")
def test_the_demo_has_no_file_and_ends_with_its_terminal(tmp_path: Path) -> None:
    with gateway(tmp_path, None, demo=True) as running:
        answer = running.admin("POST", "/admin/reload")
        assert (answer.status_code, "no file" in answer.text) == (400, True)
        assert running.stop(signal.SIGHUP) == -signal.SIGHUP
