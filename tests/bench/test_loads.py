"""Loads of the balancing benchmark: what is shared with whom, and what follows what."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from tierway.bench.loads import LOOK_TOKENS, Asked, SessionText, TurnPlan, Turns, hashed
from tierway.bench.loads_traces import BlockText, Recorded, read_trace, replayed


def _turns(**changes: float) -> Turns:
    plan = TurnPlan(sessions=3, turns=2, prompt_tokens=100, output_tokens=50, concurrency=2)
    fields = {name: getattr(plan, name) for name in TurnPlan.__slots__} | changes
    return Turns.drawn(TurnPlan(**fields), random.Random(1))


def test_a_turn_holds_all_turns_before_it_with_their_answers() -> None:
    turns = _turns()
    (_, first), _ = turns.begin()
    ((at_s, second),) = turns.ended(first, 7.0)
    said = turns.said[0]
    assert (first.session, second.session, second.turn) == ("0", "0", 1)
    assert at_s == 7.0 + said[1].think_s
    assert second.prompt_tokens == first.prompt_tokens + first.output_tokens + said[1].prompt_tokens
    whole = first.keys(16)
    assert len(whole) == (first.prompt_tokens + first.output_tokens) // 16
    assert second.keys(16)[: len(whole)] == whole


def test_users_take_new_sessions_until_there_are_none_left() -> None:
    turns = _turns()
    asked = [one for _, one in turns.begin()]
    seen = 0
    while asked:
        seen += 1
        asked += [one for _, one in turns.ended(asked.pop(0), 0.0)]
        assert len(asked) <= 2
    assert seen == turns.requests == 6


def test_what_was_generated_may_be_lost_to_the_next_turn() -> None:
    turns = _turns(reuse_generated=False)
    (_, first), _ = turns.begin()
    assert len(first.keys(16)) == first.prompt_tokens // 16
    assert first.blocks() == tuple(hashed(key) for key in first.keys(LOOK_TOKENS))


def test_lengths_and_times_are_told_by_the_seed() -> None:
    assert _turns().said == _turns().said
    fixed = _turns(spread=0.0, think_s=0.0)
    assert {(one.prompt_tokens, one.output_tokens, one.think_s) for one in fixed.said[0]} == {
        (100, 50, 0.0)
    }


def test_sessions_share_the_common_part_and_nothing_else() -> None:
    one, other = SessionText(1, 64).keys(16, 200), SessionText(2, 64).keys(16, 200)
    assert one[:4] == other[:4]
    assert not set(one[4:]) & set(other[4:])
    assert len(one) == 12


def test_hashes_spread_over_all_bits() -> None:
    hashes = [hashed(key) for key in range(1000)]
    assert len(set(hashes)) == 1000
    assert len({one & 0xFFF for one in hashes}) > 800
    assert max(hashes).bit_length() == 64


def test_a_recorded_prompt_is_known_by_full_blocks() -> None:
    text = BlockText((7, 9))
    assert text.keys(512, 1000) == [7]
    assert text.keys(256, 1000) == [14, 15, 18]
    assert text.keys(128, 5000) == [28, 29, 30, 31, 36, 37, 38, 39]
    with pytest.raises(ValueError, match="block_tokens = 100"):
        text.keys(100, 1000)


def _write(path: Path, *rows: object) -> Path:
    with gzip.open(path, "wt") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def test_traces_are_read_with_and_without_blocks(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "t.jsonl.gz",
        {"timestamp_ms": 500, "input_tokens": 600, "output_tokens": 0, "block_ids": [3, 4]},
        {"timestamp_ms": 900, "input_tokens": 10, "output_tokens": 5, "session": 8},
        {"timestamp_ms": 950, "input_tokens": 10, "output_tokens": 5},
    )
    assert read_trace(path, limit=2) == [
        Recorded(0.5, 600, 1, (3, 4)),
        Recorded(0.9, 10, 5, (), "8"),
    ]
    load = replayed(read_trace(path), random.Random(0), scale=2.0)
    assert [at_s for at_s, _ in load.begin()] == pytest.approx([0.0, 0.2, 0.225])
    asked: list[Asked] = [one for _, one in load.begin()]
    assert [one.session for one in asked] == ["alone-0", "8", "alone-2"]
    assert [len(one.keys(512)) for one in asked] == [1, 0, 0]
    assert load.ended(asked[0], 1.0) == ()


def test_jitter_moves_arrivals_by_seed_and_keeps_them_in_order(tmp_path: Path) -> None:
    trace = [Recorded(3.0 * (n // 10), 100, 10) for n in range(40)]
    one, again, other = (
        [at_s for at_s, _ in replayed(trace, random.Random(s), jitter_ms=3000).begin()]
        for s in (1, 1, 2)
    )
    assert one == again != other
    assert one == sorted(one)
    assert one[0] == 0.0
    assert len(set(one)) == 40


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"input_tokens": 5, "output_tokens": 5}, "timestamp_ms = None"),
        ({"timestamp_ms": 1, "input_tokens": 0, "output_tokens": 5}, "input_tokens = 0"),
        ({"timestamp_ms": 1, "input_tokens": True, "output_tokens": 5}, "input_tokens = True"),
        ([], "line 1"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, row: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_trace(_write(tmp_path / "t.jsonl.gz", row))


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("\n")
    with pytest.raises(ValueError, match="no request"):
        read_trace(path)
