"""`tierway cache`: what each command does to a store, and with which exit code it ends."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from fakes import completion

from tierway.cache.sqlite_store import SqliteStore
from tierway.middleware.cli import main
from tierway.policies.protocols import Entry

NOW_AT = time.time()


def entry(number: int, **fields: Any) -> Entry:
    made = Entry(
        id=f"e_{number}",
        exact=number.to_bytes(16, "big"),
        partition=b"p" * 16,
        wire="chat",
        question=f"question {number}",
        answer=orjson.dumps(completion(f"answer {number}")),
        tier="small",
        model="m",
        probabilities={},
        tenant="acme",
        user="",
        namespace="",
        created_at=NOW_AT - 100.0,
        expires_at=NOW_AT + 9000.0,
    )
    return replace(made, **fields)


class Shell:
    """Runs `tierway cache` on a store of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.path, self._capsys = folder, folder / "c.sqlite3", capsys
        self.config = folder / "gateway.yaml"
        self.configure()

    def configure(self, *, store: dict[str, Any] | None = None, **cache: Any) -> None:
        replica = {"url": "http://127.0.0.1:9"}
        self.config.write_text(
            yaml.safe_dump(
                {
                    "cache": {"store": store or {"path": str(self.path)}, **cache},
                    "models": {"m": {"tier": "small", "replicas": [replica]}},
                    "tiers": {"small": {}},
                }
            )
        )

    def __call__(self, command: str, *arguments: str) -> tuple[int, str, str]:
        code = main(["cache", command, "--config", str(self.config), *arguments])
        out, err = self._capsys.readouterr()
        return code, out, err

    def json(self, command: str, *arguments: str) -> Any:
        code, out, err = self(command, "--json", *arguments)
        assert code == 0, err
        return json.loads(out)

    def put(self, *entries: Entry) -> None:
        self._with(lambda store: asyncio.gather(*(store.put(one) for one in entries)))

    def get(self, entry_id: str) -> Entry | None:
        found: list[Entry | None] = []

        async def look(store: SqliteStore) -> None:
            found.append(await store.get(entry_id))

        self._with(look)
        return found[0]

    def _with(self, use: Any) -> None:
        async def work() -> None:
            store = SqliteStore(self.path)
            await store.start()
            try:
                await use(store)
            finally:
                await store.aclose()

        asyncio.run(work())

    def file(self, name: str, *lines: object) -> str:
        path = self.folder / name
        path.write_text(
            "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
        )
        return str(path)


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return Shell(tmp_path, capsys)


def test_stats_counts_what_is_there(shell: Shell) -> None:
    shell.put(
        entry(1), entry(2, model="big"), entry(3, tenant="other", expires_at=NOW_AT - 1),
        entry(4, vector=b"\0" * 8, encoder="enc"),
    )  # fmt: skip
    found = shell.json("stats")
    assert (found["store"], found["entries"], found["expired"]) == ("sqlite", 4, 1)
    assert found["by_model"] == {"m": 3, "big": 1}
    assert found["by_tenant"] == {"acme": 3, "other": 1}
    assert found["by_encoder"] == {"": 3, "enc": 1}
    assert found["bytes"] > 4 * 512
    assert 100 <= found["oldest_s"] < 3600  # a whole run may lie between
    code, out, _ = shell("stats")
    assert code == 0
    assert "entries: 4" in out
    assert "by_model big: 1" in out


def test_export_and_import_keep_ids_and_leave_the_expired(shell: Shell, tmp_path: Path) -> None:
    shell.put(entry(1), entry(2), entry(3, expires_at=NOW_AT - 1))
    for name in ("out.jsonl", "out.jsonl.gz"):
        assert shell.json("export", str(tmp_path / name)) == {"exported": 2, "skipped": 1}
    code, out, err = shell("export", "-")
    assert code == 0
    assert sorted(json.loads(line)["id"] for line in out.splitlines()) == ["e_1", "e_2"]
    assert "exported: 2" in err
    before = shell.get("e_1")
    assert shell.json("purge", "--all", "--yes") == {"deleted": 3}
    shell.put(entry(8, exact=entry(2).exact, created_at=NOW_AT - 1))
    assert shell.json("import", str(tmp_path / "out.jsonl.gz")) == {"imported": 1, "skipped": 1}
    assert shell.get("e_1") == before
    assert shell.get("e_2") is None  # what is younger in the store stays
    assert shell.json("import", str(tmp_path / "out.jsonl")) == {"imported": 1, "skipped": 1}
    assert shell.json("stats")["entries"] == 2


def test_nothing_of_a_file_with_a_bad_line_is_imported(shell: Shell, tmp_path: Path) -> None:
    shell.put(entry(1), entry(2))
    shell.json("export", str(tmp_path / "out.jsonl"))
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    shell.json("purge", "--all", "--yes")
    file = shell.file("bad.jsonl", lines[0], "{broken", lines[1])
    code, out, err = shell("import", file)
    assert (code, out) == (2, "")
    assert "bad.jsonl, line 2: " in err
    assert shell.json("stats")["entries"] == 0
    code, _, err = shell("import", str(tmp_path / "nowhere.jsonl"))
    assert code == 2
    assert "nowhere.jsonl" in err


def test_a_failed_export_leaves_no_file(shell: Shell, tmp_path: Path) -> None:
    shell.put(entry(1, question="sealed:AAAA"))
    code, _, err = shell("export", str(tmp_path / "out.jsonl"))
    assert code == 1
    assert "name its key" in err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["c.sqlite3", "gateway.yaml"]


def test_a_purge_takes_the_conditions_of_the_admin_call(shell: Shell) -> None:
    shell.put(
        entry(1, user="u1"), entry(2, namespace="docs"), entry(3, tenant="other", context_id="c1"),
        entry(4, created_at=NOW_AT - 5000),
    )  # fmt: skip
    assert shell.json("purge", "--older-than-s", "4000", "--yes") == {"deleted": 1}
    assert shell.json("purge", "--tenant", "other", "--context-id", "c2", "--yes")["deleted"] == 0
    assert shell.json("purge", "--tenant", "other", "--context-id", "c1", "--yes")["deleted"] == 1
    assert shell.json("purge", "--tenant", "acme", "--namespace", "docs", "--yes")["deleted"] == 1
    assert shell.json("stats")["entries"] == 1
    with closing(sqlite3.connect(shell.path)) as db:
        kinds = {kind for (kind,) in db.execute("SELECT kind FROM notes")}
    assert kinds == {"purge"}  # running gateways forget what they have not stored yet


@pytest.mark.parametrize(("said", "left"), [("n\n", 1), ("\n", 1), ("y\n", 0), ("YES\n", 0)])
def test_on_a_terminal_a_purge_asks_first(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, said: str, left: int
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shell.put(entry(1))
    monkeypatch.setattr(sys, "stdin", Terminal(said))
    code, out, _ = shell("purge", "--tenant", "acme")
    assert code == left
    assert "Delete 1 of 1 entries? [y/N]" in out
    assert shell.json("stats")["entries"] == left


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["purge", "--yes"], "say what to purge"),
        (["purge", "--all"], "say --yes"),
        (["warm"], "name a file"),
    ],
)
def test_wrong_use_changes_nothing(shell: Shell, command: Sequence[str], told: str) -> None:
    shell.put(entry(1))
    code, out, err = shell(*command)
    assert (code, out) == (2, "")
    assert told in err
    assert shell.json("stats")["entries"] == 1


@pytest.mark.parametrize(
    "command",
    [[], ["empty"], ["purge", "--tenant", ""], ["purge", "--older-than-s", "-1"], ["import"]],
)
def test_what_the_parser_refuses_is_wrong_use(shell: Shell, command: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["cache", *command])
    assert caught.value.code == 2


def test_a_store_that_is_not_there_or_cannot_be_shared_is_told(shell: Shell) -> None:
    for command in (["stats"], ["export", "x.jsonl"], ["purge", "--all", "--yes"]):
        code, _, err = shell(*command)
        assert code == 1
        assert "there is no cache file" in err
        assert not shell.path.exists()
    shell.path.write_text("not a database, and long enough to be seen as none " * 20)
    code, _, err = shell("stats")
    assert code == 1
    assert "not a SQLite file" in err
    shell.configure(store={"kind": "memory"})
    code, _, err = shell("stats")
    assert code == 2
    assert "cache.store.kind = memory" in err
    shell.configure(mod="off")
    assert shell("stats")[0] == 2


def test_calibrate_is_the_benchmark_s_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["cache", "calibrate", "--help"])
    assert caught.value.code == 0
    assert "--out" in capsys.readouterr().out


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("stats", "warm", "export", "import", "purge"):
        with pytest.raises(SystemExit) as caught:
            main(["cache", command, "--help"])
        assert caught.value.code == 0
        assert f"tierway cache {command}" in capsys.readouterr().out
