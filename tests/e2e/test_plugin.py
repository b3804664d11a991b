"""A policy of another distribution, installed into an environment of its own and switched under
load. The wheel is zipped by hand, as nothing can be built without a network; the check of our own
wheel installs the same folder the usual way."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from e2e.servers import configuration, engines, environment, eventually, gateway, load

from tierway.policies.types import BalanceAsk, ReplicaView

FOLDER = Path(__file__).parents[1] / "plugin_app"
POLICY = "/admin/tiers/small/policy"
ENGINE = {"profile": "8b-l40s", "model": "sim-7b"}


def wheel(folder: Path) -> Path:
    """The distribution as a wheel: its module, metadata and entry points."""
    given = tomllib.loads((FOLDER / "pyproject.toml").read_text())
    project, (module,) = given["project"], given["tool"]["setuptools"]["py-modules"]
    name, version = project["name"].replace("-", "_"), project["version"]
    points = project["entry-points"]["tierway.policies"]
    lines = ["[tierway.policies]", *(f"{key} = {value}" for key, value in points.items())]
    files = {
        f"{module}.py": (FOLDER / f"{module}.py").read_text(),
        "METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": "\n".join(lines) + "\n",
        "RECORD": "",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            place = file if file.endswith(".py") else f"{name}-{version}.dist-info/{file}"
            archive.writestr(place, text)
    return path


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of a second environment that has the plugin, and us by PYTHONPATH."""
    folder = tmp_path_factory.mktemp("second")
    venv.create(folder / "venv", symlinks=True)
    found = str(folder / "venv" / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", found, "install", "-q", "--no-deps"]
    options = ["--no-index", "--no-cache-dir", "--disable-pip-version-check"]
    subprocess.run([*pip, *options, str(wheel(folder))], check=True, capture_output=True)
    return found


def check(python: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [python, "-P", "-m", "tierway.middleware.cli", "check"]
    return subprocess.run(
        command, cwd=folder, env=environment(), check=False, capture_output=True, text=True
    )


def near(zone: str) -> dict[str, Any]:
    return {"policy": "near", "options": {"zone": zone}}


def test_it_is_switched_on_and_off_and_no_request_fails(python: str, tmp_path: Path) -> None:
    with engines(ENGINE, ENGINE) as urls:
        config = configuration(urls, plugins=["tierway-near"], cache={"mode": "off"})
        for replica, zone in zip(config["models"]["sim-7b"]["replicas"], "ab", strict=True):
            replica["zone"] = zone
        config["tiers"]["small"] = near("b")
        first, second = (f"sim-7b@{url.removeprefix('http://')}" for url in urls)
        with (
            gateway(tmp_path, config, python=python) as running,
            load(running.url) as chose,
        ):

            def chosen(*wanted: tuple[str, str]) -> bool:
                """Whether the next twelve choices, some in flight apart, are these and no other."""
                seen = len(chose) + 3
                return eventually(lambda: len(chose) >= seen + 12) and {*chose[seen:]} == {*wanted}

            assert chosen(("near", second))
            assert running.admin("PUT", POLICY, json=near("a")).status_code == 200
            assert chosen(("near", first))
            running.admin("PUT", POLICY, json={"policy": "round_robin"})
            assert chosen(("round_robin", first), ("round_robin", second))
            running.admin("PUT", POLICY, json={**near("a"), "shadow": True})
            assert chosen(("round_robin", first), ("round_robin", second))
            shadow = running.state()["tiers"]["small"]["shadow"]
            assert (shadow["policy"], shadow["errors"]) == ("near", 0)
            assert 0.3 < shadow["agreement"] < 0.7
            wrong = running.admin("PUT", POLICY, json={"policy": "neer"})
            assert (wrong.status_code, "did you mean near?" in wrong.text) == (400, True)


def test_without_being_named_it_is_not_there(python: str, tmp_path: Path) -> None:
    (tmp_path / "tierway.yaml").write_text("tiers: {small: {policy: near, options: {zone: a}}}")
    done = check(python, tmp_path)
    assert done.returncode == 2
    assert "tiers.small.policy = 'near': must be one of" in done.stderr
    with (tmp_path / "tierway.yaml").open("a") as file:
        file.write("\nplugins: [tierway-near]\n")
    assert check(python, tmp_path).returncode == 0


def test_the_page_shows_the_distribution_as_it_is() -> None:
    page = (FOLDER.parents[1] / "docs" / "extending.md").read_text()
    for name in ("pyproject.toml", "tierway_near.py"):
        assert (FOLDER / name).read_text() in page


def test_its_policy_is_one_of_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page says of trying a policy out: no gateway is needed."""
    monkeypatch.syspath_prepend(str(FOLDER))
    views = [ReplicaView("a", "m", "small", zone="a"), ReplicaView("b", "m", "small", zone="b")]
    factory = importlib.import_module("tierway_near").near
    ranking = factory({"zone": "b"}).rank(BalanceAsk("s", 10, 0, 0.5), views)
    assert [candidate.replica for candidate in ranking.candidates] == ["b", "a"]
