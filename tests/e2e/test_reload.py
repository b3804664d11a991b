"""`tierway serve` takes another file while traffic flows: by call, by signal, by being watched."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from e2e.servers import ask, configuration, engines, eventually, gateway, said


def policy(running: Any) -> str:
    return str(running.state()["tiers"]["small"]["policy"])


@contextmanager
def load(url: str) -> Iterator[list[str]]:
    """Requests one after the other, in three threads; gives the policies that chose."""
    chose: list[str] = []
    failed: list[str] = []
    over = threading.Event()

    def client() -> None:
        with httpx.Client(base_url=url, timeout=30) as http:
            while not over.is_set():
                answer = ask(http, "Q [[answer 5]]", stream=True, headers={"x-tierway-debug": "1"})
                if answer.status_code != 200 or not said(answer):
                    failed.append(answer.text)
                chose.append(json.loads(answer.headers["x-tierway-reason"])["policy"])

    threads = [threading.Thread(target=client) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield chose
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failed == []


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
            return eventually(lambda: name in chose[seen:])

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


def test_the_demo_has_no_file_and_ends_with_its_terminal(tmp_path: Path) -> None:
    with gateway(tmp_path, None, demo=True) as running:
        answer = running.admin("POST", "/admin/reload")
        assert (answer.status_code, "no file" in answer.text) == (400, True)
        assert running.stop(signal.SIGHUP) == -signal.SIGHUP
