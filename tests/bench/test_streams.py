"""Streams: every text once or as popularity has it, classes by the labels, near misses rationed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tierway.bench.labelled import Pair, read_stream
from tierway.bench.streams import Classes, dense, main, natural, streams


def pair(a: str, b: str, same: bool, source: str = "s", lang: str = "en") -> Pair:
    return Pair(a, b, same, source, lang)


CHAIN = [
    pair("a1", "a2", True),
    pair("a3", "a2", True),
    pair("a1", "b1", False),
    pair("c1", "d1", False),
]


def many() -> list[Pair]:
    """A hundred questions in three wordings, sixty near misses of some of them."""
    made = []
    for number in range(100):
        made += [pair(f"q{number}", f"q{number} {way}", True) for way in ("x", "y")]
    made += [pair(f"q{number}", f"near {number}", False) for number in range(60)]
    return made


def test_a_class_is_a_component_of_positive_labels() -> None:
    classes = Classes(CHAIN)
    of = {text: prompt.class_ for text, prompt in classes.prompts.items()}
    assert of["a1"] == of["a2"] == of["a3"]
    assert len({of["a1"], of["b1"], of["c1"], of["d1"]}) == 4
    assert classes.near[of["a3"]] == {of["b1"]}
    assert classes.near[of["d1"]] == {of["c1"]}


def test_the_dense_mix_is_every_text_once_in_an_order_the_seed_fixes() -> None:
    prompts = dense(many())
    assert sorted(prompt.text for prompt in prompts) == sorted(Classes(many()).prompts)
    assert prompts == dense(many())
    assert prompts != dense(many(), seed=1)


def test_the_natural_mix_rations_near_misses_and_has_repeats_and_paraphrases() -> None:
    prompts = natural(many())
    assert prompts == natural(many())
    near = Classes(many()).near
    asked: set[str] = set()
    texts: set[str] = set()
    misses = repeats = rewordings = 0
    for prompt in prompts:
        new = prompt.class_ not in asked
        misses += new and not near[prompt.class_].isdisjoint(asked)
        repeats += prompt.text in texts
        rewordings += not new and prompt.text not in texts
        asked.add(prompt.class_)
        texts.add(prompt.text)
    assert 0 < misses < 0.12 * len(prompts)
    assert 0.08 < repeats / len(prompts) < 0.25
    assert 0.08 < rewordings / len(prompts) < 0.25


def test_languages_and_intent_sets_come_apart() -> None:
    pairs = [*CHAIN, pair("i1", "i2", True, "clinc150"), pair("甲", "乙", False, lang="zh")]
    made = streams(pairs)
    assert set(made) == {
        f"{mix}_{name}" for mix in ("dense", "natural") for name in ("en", "en_intents", "zh")
    }
    assert {prompt.text for prompt in made["dense_en_intents"]} >= {"i1", "a1"}
    assert "i1" not in {prompt.text for prompt in made["dense_en"]}
    assert {prompt.text for prompt in made["dense_zh"]} == {"甲", "乙"}


def test_the_script_writes_streams_that_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pairs.jsonl"
    lines = [{"a": p.a, "b": p.b, "same": p.same, "source": "s", "lang": "en"} for p in CHAIN]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["--pairs", str(file), "--out", str(tmp_path / "out")]) == 0
    assert "dense_en: 6 prompts" in capsys.readouterr().out
    prompts = read_stream(tmp_path / "out" / "dense_en.jsonl")
    assert prompts == dense(CHAIN)
    file.write_text('{"a": 1}\n')
    assert main(["--pairs", str(file), "--out", str(tmp_path)]) == 2
    assert "pairs.jsonl:1" in capsys.readouterr().err
