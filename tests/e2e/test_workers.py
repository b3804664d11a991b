"""`tierway serve --workers N` with a shared state: several gateways on one port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from datastores import Server, redis_server
from e2e.servers import (
    ADMIN_KEY,
    GatewayProcess,
    ask,
    configuration,
    engines,
    environment,
    eventually,
    gateway,
)

WORKERS = 2


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def urls() -> Iterator[list[str]]:
    specs = [{"profile": "8b-l40s", "model": "sim-7b", "seed": n} for n in range(2)]
    with engines(*specs) as found:
        yield found


def config(urls: list[str], redis: Server, **changes: Any) -> dict[str, Any]:
    state = {"backend": "redis", "url": redis.url, "name": "workers"}
    return configuration(urls, **{"state": state, "cache": {"mode": "off"}, **changes})


def states(running: GatewayProcess) -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    return [
        httpx.get(f"{url}/admin/state", headers=headers, timeout=30).json()
        for url in running.admin_urls
    ]


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def served(state: dict[str, Any]) -> int:
    return sum(r["served"] for tier in state["tiers"].values() for r in tier["replicas"])


def test_workers_share_a_port_and_counts_and_survive_each_other(
    tmp_path: Path, urls: list[str], redis: Server
) -> None:
    with gateway(tmp_path, config(urls, redis), workers=WORKERS) as running:
        assert len(running.admin_urls) == WORKERS
        assert eventually(lambda: [s["state"]["gateways"] for s in states(running)] == [2, 2])

        def one(number: int) -> int:
            with httpx.Client(base_url=running.url, timeout=60) as client:
                return ask(client, f"Question {number}?", max_tokens=20).status_code

        with ThreadPoolExecutor(16) as pool:
            assert set(pool.map(one, range(64))) == {200}
        assert sum(map(served, states(running))) == 64
        assert eventually(
            lambda: all(
                r["inflight"] == 0
                for s in states(running)
                for tier in s["tiers"].values()
                for r in tier["replicas"]
            )
        )
        first, second = children(running.process.pid)
        os.kill(second, signal.SIGKILL)
        assert one(1) == 200
        assert eventually(lambda: len(children(running.process.pid)) == WORKERS)
        assert first in children(running.process.pid)
        assert eventually(lambda: _answers(running.admin_urls[1]), within_s=30)
        assert "worker 2 ended with -9; it is started again" in running.errors
        workers = children(running.process.pid)
        assert running.stop() == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_a_signal_gives_the_file_to_all_workers_and_to_those_started_again(
    tmp_path: Path, urls: list[str], redis: Server
) -> None:
    with gateway(tmp_path, config(urls, redis), workers=WORKERS) as running:

        def policies() -> list[str]:
            if not all(map(_answers, running.admin_urls)):
                return []
            return [state["tiers"]["small"]["policy"] for state in states(running)]

        assert policies() == ["llm", "llm"]
        changed = config(urls, redis, tiers={"small": {"policy": "round_robin"}})
        (tmp_path / "tierway.yaml").write_text(json.dumps(changed))
        running.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: policies() == ["round_robin"] * 2)
        second = children(running.process.pid)[1]
        os.kill(second, signal.SIGKILL)
        assert eventually(lambda: not _runs(second))
        assert eventually(lambda: policies() == ["round_robin"] * 2, within_s=30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def test_workers_end_with_a_parent_that_is_killed(
    tmp_path: Path, urls: list[str], redis: Server
) -> None:
    with gateway(tmp_path, config(urls, redis), workers=WORKERS) as running:
        workers = children(running.process.pid)
        assert len(workers) == WORKERS
        running.process.kill()
        running.process.wait()
        assert eventually(lambda: not any(map(_runs, workers)), within_s=30)


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_what_stops_a_worker_at_its_start_is_told_once(
    tmp_path: Path, urls: list[str], redis: Server
) -> None:
    wrong = config(urls, redis, cache={"calibration": str(tmp_path / "nothing.json")})
    (tmp_path / "tierway.yaml").write_text(json.dumps(wrong))
    command = [sys.executable, "-P", "-m", "tierway.middleware.cli", "serve"]
    command += ["--port", "0", "--admin-port", "0", "--workers", "3"]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(TIERWAY_ADMIN_KEY=ADMIN_KEY),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.count("No such file") == 1
