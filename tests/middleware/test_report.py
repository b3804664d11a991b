"""`tierway report`: from the notes of a store to a text, a JSON object, marks and pairs."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tierway.cache.lessons import Near
from tierway.cache.report import Pair, Summary, read, summarise
from tierway.cache.sqlite_store import SqliteStore
from tierway.middleware.cli import main as command
from tierway.middleware.report import export, mark, since, write_text
from tierway.policies.protocols import Entry, Note

NOW_AT = 1_764_547_200.0
SEEN = {
    "request": "r1", "asked": "What's France's capital?", "stored": "Capital of France?",
    "cosine": 0.98, "probability": 0.99, "judged": True, "language": "en", "entry": "e_1",
    "reason": "equal", "served": True, "pair": "p1",
}  # fmt: skip
CLOCK = {
    "what": "system", "kind": "a date", "ignore": "Date: (?:\\d+)",
    "detail": "the system prompt differs at character 7",
}  # fmt: skip
TALLY = {
    "cache": {"hit": 2, "semantic-hit": 1, "miss": 6, "bypass": 1}, "observed": {"hit": 1},
    "miss": {"nothing-near": 4, "numbers": 1}, "tiers": {"small": 7},
    "tokens_saved": {"input": 30, "output": 3}, "tokens_spent": {"input": 70, "output": 700},
    "unpriced": {"bare": 2}, "dollars": {"spent": 0.5, "saved": 0.25},
}  # fmt: skip


def note(kind: str, body: Any, *, at: float = NOW_AT, tenant: str = "acme") -> Note:
    return Note(kind, tenant, "u1", body, at, at + 1e9)


ENTRY = Entry(
    "e_1", b"e" * 16, b"p" * 16, "chat", "Capital of France?", b"{}", "small", "m", {}, "acme",
    "u1", "", NOW_AT, NOW_AT + 1e9,
)  # fmt: skip
NOTES = [
    note("tally", TALLY, tenant=""),
    note("tally", {"cache": {"hit": 1}, "dollars": {}}, tenant=""),
    note("seen-pair", SEEN),
    note("seen-pair", {**SEEN, "request": "r2"}),
    note("seen-pair", {**SEEN, "asked": "Marked?", "pair": "p2"}),
    note("mark", {"pair": "p2", "correct": False}),
    note("seen-miss", {"asked": "What?", "reason": "nothing-near", "elsewhere": [CLOCK]}),
    note("seen-miss", {"asked": "What?", "reason": "nothing-near", "elsewhere": [CLOCK]}),
    note("seen-miss", {**SEEN, "reason": "numbers", "elsewhere": []}),
]


def test_notes_are_summed_up() -> None:
    found = summarise(NOTES, 5.0).as_json()
    assert found["since"] == 5.0
    assert (found["requests"], found["lookups"]) == (11, 10)
    assert found["hits"] == {"hit": 3, "semantic-hit": 1, "shared": 0, "stale": 0}
    assert (found["would_hit"], found["hit_rate"]) == ({"hit": 1, "semantic-hit": 0}, 0.5)
    assert found["misses"] == {"nothing-near": 4, "numbers": 1}
    assert found["tiers"] == {"small": 7}
    assert found["saved_tokens"] == {"input": 30, "output": 3}
    assert (found["cost_usd"], found["saved_usd"]) == (0.5, 0.25)
    assert found["unpriced_models"] == ["bare"]
    assert found["marks"] == {"right": 0, "wrong": 1}
    assert [pair["request"] for pair in found["pairs"]] == ["r2"]
    assert [pair["reason"] for pair in found["near_misses"]] == ["numbers"]
    assert found["elsewhere"] == [{"times": 2, **CLOCK}]


def test_the_text_says_what_to_do() -> None:
    out = io.StringIO()
    write_text(summarise(NOTES, NOW_AT), out)
    text = out.getvalue()
    for line in (
        "Since 2025-12-01 00:00 UTC: 11 requests",
        "Looked up 10, answered from the cache: 50.0%",
        "  would be a hit",
        "  nothing-near                    4   80.0%",
        "Saved: 30 input and 3 output tokens, 0.2500 USD",
        "  without a price, and not in these dollars: bare",
        "  2 times: the system prompt differs at character 7",
        'cache.ignore could take it out: {in: system, regex: "Date: (?:\\\\d+)"}',
        "  served (equal, cosine 0.98)",
        "    asked   What's France's capital?",
    ):
        assert line in text, line


def test_nothing_noted_is_said_so() -> None:
    out = io.StringIO()
    write_text(Summary(NOW_AT), out)
    assert "no gateway of this store had a request" in out.getvalue()


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("30m", NOW_AT - 1800),
        ("1.5h", NOW_AT - 5400),
        ("7d", NOW_AT - 604800),
        ("1764547200", NOW_AT),
        ("2025-12-01T00:00:00+00:00", NOW_AT),
    ],
)
def test_since_is_a_span_or_a_time(text: str, at: float) -> None:
    assert since(text, NOW_AT) == at


@pytest.mark.parametrize("text", ["", "yesterday", "-3h", "3 h", "24"])
def test_a_wrong_since_says_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="must be 30m, 24h"):
        since(text, NOW_AT)


def with_store(path: Path, body: Callable[[SqliteStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = SqliteStore(path)
        await store.start()
        try:
            await body(store)
        finally:
            await store.aclose()

    asyncio.run(main())


def test_pairs_are_marked_in_the_store(tmp_path: Path) -> None:
    answers = iter(["y", "x", "No", "q"])
    pairs = [Pair(NOW_AT, "acme", "u1", {**SEEN, "pair": f"p{at}"}) for at in range(5)]

    async def body(store: SqliteStore) -> None:
        await store.put(ENTRY)
        out = io.StringIO()
        told = await mark(store, pairs, ask=lambda _: next(answers), out=out, now_at=time.time())
        assert told == {"right": 1, "skipped": 1, "wrong": 1}
        assert "1 right, 1 wrong, 1 skipped" in out.getvalue()
        marks = await store.notes(0)
        assert [(one.body["pair"], one.body["correct"]) for one in marks] == [
            ("p0", True),
            ("p2", False),
        ]
        assert (marks[0].tenant, marks[0].user, marks[0].body["probability"]) == (
            "acme",
            "u1",
            0.99,
        )
        assert await store.get("e_1") is None

    with_store(tmp_path / "c.db", body)


def test_a_would_be_hit_marked_wrong_leaves_the_entry(tmp_path: Path) -> None:

    async def body(store: SqliteStore) -> None:
        await store.put(ENTRY)
        pair = Pair(NOW_AT, "acme", "", {**SEEN, "served": False})
        await mark(store, [pair], ask=lambda _: "n", out=io.StringIO(), now_at=time.time())
        assert await store.get("e_1") is not None

    with_store(tmp_path / "c.db", body)


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.jsonl.gz"])
def test_pairs_are_exported_to_be_labelled(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert export(path, [Pair(NOW_AT, "acme", "", SEEN)]) == 1
    raw = path.read_bytes()
    line = json.loads(gzip.decompress(raw) if name.endswith("gz") else raw)
    assert {key: line[key] for key in ("a", "b", "same", "source", "lang")} == {
        "a": SEEN["stored"],
        "b": SEEN["asked"],
        "same": None,
        "source": "report",
        "lang": "en",
    }


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tierway.yaml"
    path.write_text(f"cache: {{store: {{path: {tmp_path / 'cache.db'}}}}}\n", encoding="utf-8")
    monkeypatch.delenv("TIERWAY_CONFIG", raising=False)
    return path


def test_the_command_reads_the_configured_store(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def body(store: SqliteStore) -> None:
        await store.note(note("tally", TALLY, at=time.time(), tenant=""))
        await store.note(note("seen-pair", SEEN, at=time.time() - 7200))
        assert len(await read(store, 0.0)) == 2

    with_store(tmp_path / "cache.db", body)
    assert command(["report", "--config", str(config), "--json", "--since", "1h"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["pairs"]) == (10, [])
    out = tmp_path / "out.jsonl"
    assert command(["report", "--config", str(config), "--export-pairs", str(out)]) == 0
    assert len(out.read_text(encoding="utf-8").splitlines()) == 1
    assert capsys.readouterr().out == ""
    assert command(["report", "--config", str(config)]) == 0
    assert "10 requests" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--since", "soon"], "--since soon"),
        (["--mark"], "needs a terminal"),
        ([], "no cache file yet"),
    ],
)
def test_wrong_use_is_told(
    config: Path, options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["report", "--config", str(config), *options]) == 2
    assert told in capsys.readouterr().err


def test_a_key_that_is_none_is_told(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config.parent / "cache.db"
    path.touch()
    config.write_text(f"cache: {{store: {{path: {path}, key_env: NO_KEY}}}}\n", encoding="utf-8")
    assert command(["report", "--config", str(config)]) == 2
    assert "NO_KEY" in capsys.readouterr().err


def test_a_store_in_memory_has_nothing_to_report(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text("cache: {store: {kind: memory}}\n", encoding="utf-8")
    assert command(["report", "--config", str(config)]) == 2
    assert "cache.store.kind = memory" in capsys.readouterr().err


def test_what_a_mark_needs_is_in_every_pair() -> None:
    assert set(Near.__slots__) - {"entry_id", "question"} <= SEEN.keys()
