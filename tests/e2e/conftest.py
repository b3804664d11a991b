"""The running things that the end-to-end tests share."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from e2e.servers import GatewayProcess, configuration, engines, gateway

_numbers = itertools.count(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of a real model run only when asked for with `-m real`."""
    if "real" in config.getoption("markexpr"):
        return
    left_out = [item for item in items if item.get_closest_marker("real")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@dataclass(frozen=True, slots=True)
class EngineUrls:
    """The addresses of the simulated engines, by tier."""

    small: list[str]
    medium: list[str]
    large: list[str]

    @property
    def all(self) -> list[str]:
        return [*self.small, *self.medium, *self.large]


@pytest.fixture(scope="session", autouse=True)
def runtime_folder() -> Iterator[str]:
    """A folder of our own for the encoder's socket, so that no other gateway shares it."""
    folder = tempfile.mkdtemp(prefix="tierway-e2e-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def fleet() -> Iterator[EngineUrls]:
    """Three tiers of simulated engines in a process of their own."""
    with engines(
        {"profile": "8b-l40s", "model": "sim-7b", "seed": 0},
        {"profile": "8b-l40s", "model": "sim-7b", "seed": 1},
        {"profile": "70b-h100x4", "model": "sim-70b"},
        {"profile": "175b-h100x8", "model": "sim-175b"},
    ) as urls:
        yield EngineUrls(urls[:2], urls[2:3], urls[3:])


@pytest.fixture(scope="session")
def tierway(
    fleet: EngineUrls, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """`tierway serve` before the fleet, with its cache in memory."""
    embedding = {
        "tier": "small",
        "kind": "embedding",
        "served_name": "sim-7b",
        "replicas": [{"url": fleet.small[0], "engine": "vllm"}],
    }
    config = configuration(fleet.small, fleet.medium, fleet.large)
    config["models"]["sim-embed"] = embedding
    config["models"]["sim-175b"]["capabilities"] += ["vision"]
    config["aliases"] = {"gpt-*": "auto"}
    with gateway(tmp_path_factory.mktemp("gateway"), config) as running:
        yield running


@pytest.fixture
def namespace() -> str:
    """A part of the cache that no other test uses."""
    return f"test-{next(_numbers)}"


@pytest.fixture
def client(tierway: GatewayProcess, namespace: str) -> Iterator[httpx.Client]:
    headers = {"x-tierway-namespace": namespace}
    with httpx.Client(base_url=tierway.url, headers=headers, timeout=60) as made:
        yield made
