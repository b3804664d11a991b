"""A watched file: what is read when, through which links, and what a broken one costs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from e2e.stand import until

from tierway.middleware.watch import Watch


class Reloads:
    """Keeps what the file said each time it was to be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: list[str] = []

    async def __call__(self) -> None:
        self.found.append(self._path.read_text() if self._path.exists() else "")


def looks(path: Path, *given: str | Callable[[], object], looks_between: int = 3) -> list[str]:
    """Does each step (a text is written, anything else called), then looks some times."""
    reloads = Reloads(path)
    steps = [partial(path.write_text, one) if isinstance(one, str) else one for one in given]

    async def main() -> None:
        watch = Watch(path, reloads)
        for step in steps:
            step()
            for _ in range(looks_between):
                await watch.look()

    asyncio.run(main())
    return reloads.found


def test_each_content_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    assert looks(path, "one", "one", "two", path.touch, "one") == ["one", "two", "one"]


def test_what_is_still_being_written_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    assert looks(path, "a", "ab", "abc", looks_between=1) == []
    assert looks(path, "a", "ab", "ab", looks_between=1) == ["ab"]


def test_a_file_that_goes_and_comes_back_is_read_when_it_differs(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    assert looks(path, "one", path.unlink, "one") == ["one", "", "one"]


def test_links_are_followed_as_a_config_map_swaps_them(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tierway.yaml").write_text(name)
    data, path = tmp_path / "..data", tmp_path / "tierway.yaml"
    data.symlink_to("first")
    path.symlink_to("..data/tierway.yaml")

    def swap() -> None:
        (tmp_path / "..tmp").symlink_to("second")
        (tmp_path / "..tmp").rename(data)

    assert looks(path, lambda: None, swap) == ["first", "second"]


def test_it_runs_by_itself_and_survives_what_it_did_not_expect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("one")
    found: list[str] = []

    async def reload() -> None:
        found.append(path.read_text())
        if len(found) == 1:
            raise RuntimeError("a bug")

    async def main() -> None:
        watch = Watch(path, reload, every_s=0.001)
        watch.start()
        for count, text in enumerate(("two", "three", "three"), start=1):
            assert await until(lambda count=count: len(found) == count)
            path.write_text(text)
        await watch.aclose()

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert found == ["one", "two", "three"]
    assert "could not be looked at" in caplog.text
