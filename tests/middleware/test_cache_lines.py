"""Files of cache entries: what is written is read again, and what is wrong is named."""

from __future__ import annotations

import gzip
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from tierway.middleware.cache_lines import BadLine, LineFile, entry_of, line_of, read_lines
from tierway.policies.protocols import Entry

ENTRY = Entry(
    id="e_1",
    exact=b"\x01" * 16,
    partition=b"\x02" * 16,
    wire="chat",
    question="谁是老板？",
    answer=b'{"choices":[]}',
    tier="small",
    model="m",
    probabilities={"small": 0.25},
    tenant="acme",
    user="u1",
    namespace="n",
    created_at=1000.5,
    expires_at=2000.0,
    encoder="enc",
    vector=np.array([0.6, 0.8], "<f4").tobytes(),
    language="zh",
    context_id="c",
)


def good() -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(line_of(ENTRY, vectors=True))
    return found


def test_a_line_holds_an_entry_and_its_vector_only_when_asked() -> None:
    assert entry_of(good()) == ENTRY
    bare = orjson.loads(line_of(ENTRY, vectors=False))
    assert "vector" not in bare
    assert entry_of(bare) == replace(ENTRY, vector=None)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"answer": None}, "answer must be an object"),
        ({"answer": "Paris"}, "answer must be an object"),
        ({"exact": "0102"}, "exact must be 32 hexadecimal digits"),
        ({"partition": 7}, "partition must be"),
        ({"wire": "fax"}, "wire must be one of chat"),
        ({"id": ""}, "id must not be empty"),
        ({"question": 7}, "question must be a text"),
        ({"expires_at": "soon"}, "expires_at must be a number"),
        ({"created_at": True}, "created_at must be a number"),
        ({"probabilities": [1]}, "probabilities must be an object"),
        ({"probabilities": {"small": "x"}}, "small must be a number"),
        ({"vector": "AAA"}, "vector must be base64"),
        ({"vector": ""}, "vector must be base64"),
        ({"vector": [1, 2]}, "vector must be base64"),
        ({"vectors": "AAAA"}, "unknown key 'vectors'"),
    ],
)
def test_what_is_wrong_with_a_line_is_told(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        entry_of({**good(), **change})


def test_a_missing_field_is_told() -> None:
    line = good()
    del line["tier"], line["model"]
    with pytest.raises(ValueError, match="model, tier missing"):
        entry_of(line)


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz"])
def test_a_file_appears_once_it_is_whole(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    file = LineFile(str(path), io.StringIO())
    for _ in range(3):
        file.write(line_of(ENTRY, vectors=True))
    assert not path.exists()
    file.finish()
    assert path.stat().st_mode & 0o077 == 0
    assert list(read_lines(path, entry_of)) == [ENTRY] * 3
    other = LineFile(str(tmp_path / "other.jsonl"), io.StringIO())
    other.write("half")
    other.abandon()
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_standard_output_is_left_open() -> None:
    out = io.StringIO()
    file = LineFile("-", out)
    file.write("line")
    file.finish()
    file.abandon()
    assert out.getvalue() == "line\n"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["{}", "{", "{}"], "line 2: "),
        (["{}", "", "[]"], "line 3: must be a JSON object"),
        (["\ufeff{}"], "line 1: "),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, lines: list[str], told: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(BadLine, match=told):
        list(read_lines(path, dict))


def test_a_cut_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl.gz"
    whole = gzip.compress(b'{"a": 1}\n' * 5000)
    path.write_bytes(whole[:-12])
    with pytest.raises(BadLine, match=r"f\.jsonl\.gz, after line \d+: not whole"):
        list(read_lines(path, dict))
    path.write_bytes(b"not an archive\n")
    with pytest.raises(BadLine, match="after line 0"):
        list(read_lines(path, dict))
