"""Real processes for the end-to-end tests: simulated engines and the gateway's own command.

Every process is ended by its id and takes free ports; what the gateway wrote stays in files
beside its configuration.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ADMIN_KEY = "an-admin-key-of-the-tests"
SPEED = 50.0
"""Engines run so many times faster than the machines they stand for."""

_START_S = 90.0
_STOP_S = 40.0
_ADDRESS = re.compile(r"http://[\d.]+:\d+")


def environment(**more: str) -> dict[str, str]:
    """What a child needs to find the packages where this process found them."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIERWAY_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


def eventually(condition: Callable[[], bool], *, within_s: float = 5.0) -> bool:
    """Polls until the condition holds; False when the time is over."""
    until_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def engines(*specs: Mapping[str, Any]) -> Iterator[list[str]]:
    """Simulated engines in one child process; their base URLs in the order of the specs."""
    wanted = json.dumps([{"speed": SPEED, **spec} for spec in specs])
    command = [sys.executable, "-P", "-m", "tierway.bench.fleet", "--engines", wanted]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment()) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield json.loads(child.stdout.readline())["urls"]
        finally:
            child.stdin.close()
            child.wait(_STOP_S)


def ask(
    client: httpx.Client,
    question: Any,
    *,
    headers: Mapping[str, str] | None = None,
    path: str = "/v1/chat/completions",
    **fields: Any,
) -> httpx.Response:
    """One request with one user turn, unless `fields` say otherwise."""
    body = {"model": "auto", "messages": [{"role": "user", "content": question}], **fields}
    return client.post(path, json=body, headers=headers)


def outcome(answer: httpx.Response) -> str:
    """What the cache said of an answer that must be a good one."""
    assert answer.status_code == 200, answer.text
    return answer.headers["x-tierway-cache"]


def said(answer: httpx.Response) -> str:
    """The text of an OpenAI chat answer, whole or streamed."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return str(answer.json()["choices"][0]["message"]["content"])
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]", answer.text
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def ask_until_cached(client: httpx.Client, question: Any, **fields: Any) -> httpx.Response:
    """The answer to a question once the cache holds one; nothing goes upstream.

    The vector of a stored question is made in the background, so other words hit a little
    later than the same ones.
    """
    only = {"cache-control": "only-if-cached", "x-tierway-debug": "1"}
    answers: list[httpx.Response] = []

    def cached() -> bool:
        answers.append(ask(client, question, headers=only, **fields))
        return answers[-1].status_code != 504

    assert eventually(cached), answers[-1].text
    return answers[-1]


@contextmanager
def load(url: str) -> Iterator[list[tuple[str, str]]]:
    """Requests one after the other in three threads, each of which must be answered whole; gives
    the (policy, replica) of the answers so far."""
    chose: list[tuple[str, str]] = []
    failed: list[str] = []
    over = threading.Event()

    def client() -> None:
        with httpx.Client(base_url=url, timeout=30) as http:
            while not over.is_set():
                answer = ask(http, "Q [[answer 5]]", stream=True, headers={"x-tierway-debug": "1"})
                if answer.status_code != 200 or not said(answer):
                    failed.append(answer.text)
                    return
                why = json.loads(answer.headers["x-tierway-reason"])
                chose.append((why["policy"], answer.headers["x-tierway-replica"]))

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


def metric(url: str, name: str) -> float:
    """The sum of one metric over its labels, read from a metrics page."""
    page = httpx.get(f"{url}/metrics").text
    lines = [line for line in page.splitlines() if line.startswith((name + "{", name + " "))]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def generated(*urls: str) -> int:
    """How many requests these engines have ended so far, whatever their end."""
    return int(sum(metric(url, "vllm:request_success_total") for url in urls))


def set_fault(url: str, fault: str | None, **options: Any) -> None:
    httpx.put(f"{url}/faults", json={"fault": fault, **options}).raise_for_status()


def configuration(
    small: Sequence[str], medium: Sequence[str] = (), large: Sequence[str] = (), **changes: Any
) -> dict[str, Any]:
    """The file of a gateway before these engines; `changes` are laid over it by section."""

    def model(tier: str, urls: Sequence[str], **fields: Any) -> dict[str, Any]:
        replicas = [{"url": url, "engine": "vllm"} for url in urls]
        return {"tier": tier, "capabilities": ["tools", "json"], "replicas": replicas, **fields}

    models = {"sim-7b": model("small", small)}
    if medium:
        models["sim-70b"] = model("medium", medium)
    if large:
        models["sim-175b"] = model("large", large)
    made: dict[str, Any] = {
        "server": {"port": 0},
        "admin": {"port": 0},
        "cache": {"store": {"kind": "memory"}},
        "models": models,
        "tiers": {"small": {}, "medium": {}, "large": {}},
    }
    for section, value in changes.items():
        merged = {**made.get(section, {}), **value} if isinstance(value, dict) else value
        made[section] = merged
    return made


@dataclass(slots=True)
class GatewayProcess:
    """A running `tierway serve` or `tierway demo`. `url` and `admin_url` end before the path."""

    process: subprocess.Popen[bytes]
    url: str
    admin_url: str
    folder: Path
    admin_urls: Sequence[str] = ()

    @property
    def errors(self) -> str:
        return (self.folder / "stderr").read_text()

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.admin("GET", "/admin/state").json()
        return found

    def admin(self, method: str, path: str, *, key: str = ADMIN_KEY, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.request(method, self.admin_url + path, headers=headers, timeout=30, **more)

    def inflight(self) -> int:
        tiers = self.state()["tiers"].values()
        return sum(replica["inflight"] for tier in tiers for replica in tier["replicas"])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ends the process and gives its exit code."""
        self.process.send_signal(number)
        return self.process.wait(_STOP_S)


@contextmanager
def gateway(
    folder: Path,
    config: Mapping[str, Any] | None,
    *,
    demo: bool = False,
    python: str = sys.executable,
    workers: int = 1,
    **env: str,
) -> Iterator[GatewayProcess]:
    """Runs the command in `folder`; the test may stop it itself, else it must end well."""
    arguments = ["demo"] if demo else ["serve", "--config", "tierway.yaml"]
    if workers > 1:
        arguments += ["--workers", str(workers)]
    if config is not None:
        (folder / "tierway.yaml").write_text(json.dumps(config))
    command = [python, "-P", "-m", "tierway.middleware.cli", *arguments]
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = subprocess.Popen(
            [*command, "--port", "0", "--admin-port", "0"],
            cwd=folder,
            stdout=out,
            stderr=err,
            env=environment(**{"TIERWAY_ADMIN_KEY": ADMIN_KEY, **env}),
        )
    try:
        url, *admin_urls = _addresses(process, folder, workers)
        running = GatewayProcess(process, url, admin_urls[0], folder, admin_urls)
        yield running
        if process.poll() is None:
            assert running.stop() == 0, running.errors
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(_STOP_S)


def _addresses(process: subprocess.Popen[bytes], folder: Path, workers: int) -> list[str]:
    """What the command printed: where the API is, and each worker's admin listener."""

    def printed() -> str:
        return (folder / "stdout").read_text()

    def ready() -> bool:
        return printed().count("/metrics") == workers

    eventually(lambda: ready() or process.poll() is not None, within_s=_START_S)
    assert ready(), (folder / "stderr").read_text()
    found = list(dict.fromkeys(_ADDRESS.findall(printed())))
    assert len(found) == 1 + workers, printed()
    return found
