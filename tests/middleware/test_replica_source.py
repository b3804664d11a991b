"""The file that says who serves: taken whole or not at all."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from admins import CONFIG, ENVIRON
from fakes import FakeClock

from tierway.middleware import catalog
from tierway.middleware.config import Settings
from tierway.middleware.replica_source import FleetFile, ReplicaSource
from tierway.middleware.watch import Watch
from tierway.router.fleet import Fleet
from tierway.router.membership import Membership


class Stand:
    def __init__(self, path: Path) -> None:
        config = {**CONFIG, "fleet": {"file": str(path)}}
        settings = Settings.from_dict(config, ENVIRON)
        models = {name: catalog.model(name, one) for name, one in settings.models.items()}
        self.path, self.fleet = path, Fleet(clock=FakeClock())
        membership = Membership(self.fleet, ["file"])
        self.file = FleetFile(path, ReplicaSource(settings, models, ENVIRON), membership)

    async def says(self, text: str) -> list[str]:
        self.path.write_text(text)
        await self.file.read()
        return [spec.id for spec in self.fleet.specs()]


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path / "fleet.yaml")


def test_replicas_by_model_in_yaml_or_json(stand: Stand) -> None:
    async def main() -> None:
        assert await stand.says("m: [{url: 'http://c:1', gpu: a10}]") == ["m@c:1"]
        assert await stand.says('{"m": [{"url": "http://d:1"}]}') == ["m@d:1"]
        assert await stand.says("m: []") == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "names no model"),
        ("m: [{url: 'http://d:1'", "YAML|expected"),
        ("m: [{url: 'http://d:1', gpux: a10}]", "unknown key"),
        ("m: [{url: 'http://d:1'}, {url: 'http://d:1'}]", "stands 2 times"),
        ("n: [{url: 'http://d:1'}]", "must be one of the models"),
        ("m: {url: 'http://d:1'}", "must be a list"),
        ("- m", "must be a mapping"),
    ],
)
def test_a_wrong_file_changes_nothing_and_is_told(
    stand: Stand, text: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        await stand.says("m: [{url: 'http://c:1'}]")
        assert await stand.says(text) == ["m@c:1"]
        stand.path.unlink()
        await stand.file.read()
        assert len(stand.fleet.specs()) == 1

    asyncio.run(main())
    assert any(word in caplog.text for word in told.split("|"))
    assert "nothing changed" in caplog.text


def test_a_config_map_swaps_a_link_of_the_path(tmp_path: Path) -> None:
    """Kubernetes mounts one as file -> ..data -> a folder, and swaps `..data`."""

    def publish(name: str, url: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "fleet.yaml").write_text(f"m: [{{url: '{url}'}}]")
        (tmp_path / "..new").symlink_to(name)
        os.replace(tmp_path / "..new", tmp_path / "..data")

    publish("..1", "http://c:1")
    (tmp_path / "fleet.yaml").symlink_to("..data/fleet.yaml")
    stand = Stand(tmp_path / "fleet.yaml")

    async def main() -> None:
        watch = Watch(stand.path, stand.file.read)
        for _ in range(2):
            await watch.look()
        assert [spec.id for spec in stand.fleet.specs()] == ["m@c:1"]
        publish("..2", "http://d:1")
        for _ in range(2):
            await watch.look()
        assert [spec.id for spec in stand.fleet.specs()] == ["m@d:1"]

    asyncio.run(main())
