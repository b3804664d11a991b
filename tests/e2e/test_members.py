"""Replicas join and leave a gateway under load, by each road, and no request fails of it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.servers import GatewayProcess, configuration, engines, eventually, gateway, load

FAST = {"profile": "8b-h100", "speed": 20.0, "model": "sim-7b"}


def publish(path: Path, urls: Sequence[str]) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"sim-7b": [{"url": url} for url in urls]}))
    os.replace(new, path)


def sources(running: GatewayProcess) -> dict[str, str]:
    replicas = running.state()["tiers"]["small"]["replicas"]
    return {one["id"].rpartition(":")[2]: one["source"] for one in replicas}


def port(url: str) -> str:
    return url.rpartition(":")[2]


def served(chose: list[tuple[str, str]], since: int) -> set[str]:
    return {port(replica) for _, replica in chose[since:]}


def stand(file: Path, first: Sequence[str], **fleet: Any) -> dict[str, Any]:
    config = configuration(first, cache={"mode": "off"}, fleet={"file": str(file), **fleet})
    config["models"]["sim-7b"] |= {"served_name": "sim-7b", "context_tokens": 32768}
    return config


def test_by_file_by_call_and_by_reload_under_load(tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    with engines(*[{**FAST, "seed": seed} for seed in range(4)]) as (one, two, three, four):
        publish(file, [two])
        config = stand(file, [one], allowed_networks=["127.0.0.0/8"])
        with gateway(tmp_path, config) as running, load(running.url) as chose:
            assert eventually(lambda: served(chose, 0) == {port(one), port(two)})
            publish(file, [three])
            assert eventually(lambda: port(two) not in sources(running), within_s=15)
            since = len(chose)
            assert eventually(lambda: served(chose, since) >= {port(one), port(three)})
            assert port(two) not in served(chose, since + 3)

            added = running.admin(
                "POST", "/admin/models/sim-7b/replicas", json={"url": four, "gpu": "h100"}
            )
            assert added.status_code == 201
            since = len(chose)
            assert eventually(lambda: port(four) in served(chose, since))
            removed = running.admin("DELETE", f"/admin/replicas/{added.json()['id']}")
            assert removed.status_code == 200
            since = len(chose)
            assert eventually(lambda: len(chose) > since + 60)
            assert port(four) not in served(chose, since + 3)

            config["models"]["sim-7b"]["replicas"] = [{"url": two}]
            (tmp_path / "tierway.yaml").write_text(json.dumps(config))
            assert running.admin("POST", "/admin/reload").json()["changed"] == [
                "models.sim-7b.replicas"
            ]
            assert sources(running) == {port(two): "configuration", port(three): "file"}
            page = running.admin("GET", "/metrics").text
            assert port(one) not in page
            assert running.inflight() <= 3


def test_a_gateway_may_start_without_any_replica(tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    with engines(FAST) as (url,), gateway(tmp_path, stand(file, [])) as running:
        assert sources(running) == {}
        assert not running.errors.count("Traceback")
        publish(file, [url])
        assert eventually(lambda: sources(running) == {port(url): "file"}, within_s=15)


def test_a_name_is_a_replica_for_each_of_its_addresses(tmp_path: Path) -> None:
    with engines(FAST) as (url,):
        config = configuration([], cache={"mode": "off"})
        named = {"url": f"http://localhost:{port(url)}", "dns": True}
        config["models"]["sim-7b"] |= {"served_name": "sim-7b", "context_tokens": 32768}
        config["models"]["sim-7b"]["replicas"] = [named]
        with gateway(tmp_path, config) as running, load(running.url) as chose:
            assert f"127.0.0.1:{port(url)}" in str(running.state()["tiers"]["small"]["replicas"])
            assert eventually(lambda: len(chose) > 5)
