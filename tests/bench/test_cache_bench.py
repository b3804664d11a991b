"""`tierway bench cache`: the JSON of the contract, right and wrong counted as the labels say."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tierway.bench.cache_bench import main
from tierway.bench.cache_rig import Setting
from tierway.bench.labelled import pair_figures, quantiles, read_pairs, read_stream, wilson
from tierway.cache.embedders import BuiltinEmbedder, PairEmbedder, ScriptedEmbedder
from tierway.middleware.cli import main as tierway
from tierway.policies.equivalence import Equivalence
from tierway.policies.errors import ConfigError

JUDGE = Equivalence.shipped()
BUILTIN = next(
    made.id for made in (BuiltinEmbedder(), PairEmbedder()) if JUDGE.calibrated(made.id, "en")
)
FRANCE = [
    "What is the capital of France?",
    "what is the capital of france",
    "Who chose a capital for France?",
]
HEIGHT = ["How tall is Mount Everest?", "how tall is mount everest"]
BREAD = ["How long does bread keep fresh?", "how long does bread keep fresh"]
GERMANY = "What is the capital of Germany?"
PAIRS = [
    {"a": FRANCE[0], "b": FRANCE[1], "same": True, "source": "own", "lang": "en"},
    {"a": HEIGHT[0], "b": HEIGHT[1], "same": True, "source": "own", "lang": "en"},
    {"a": FRANCE[0], "b": HEIGHT[0], "same": True, "source": "other", "lang": "en"},
    {"a": FRANCE[0], "b": GERMANY, "same": False, "source": "own", "lang": "en", "kind": "entity"},
    {"a": BREAD[0], "b": BREAD[1], "same": False, "source": "odd", "lang": "en"},
    {"a": "What is my balance?", "b": "what is my balance", "same": True, "source": "own"},
]


def vector(text: str) -> list[float]:
    """Texts about France point one way, all others another."""
    return [1.0, 0.01 * (len(text) % 3)] if "rance" in text else [0.01 * (len(text) % 3), 1.0]


def embedder() -> ScriptedEmbedder:
    return ScriptedEmbedder({}, id=BUILTIN, otherwise=vector, max_chars=200)


def write(path: Path, lines: Sequence[dict[str, Any]]) -> str:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main([*argv, "--json"], embedder=embedder()) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    found: dict[str, Any] = json.loads(printed)
    return found


def test_pairs_print_what_the_contract_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hits = tmp_path / "hits.jsonl"
    file = write(tmp_path / "pairs.jsonl.gz", PAIRS)
    found = run(capsys, "--pairs", file, "--reliability", "--print-hits", str(hits))
    # France, Everest and bread are served, the last wrongly by its label; "my" is personal.
    assert (found["n"], found["served"], found["served_different"]) == (6, 3, 1)
    assert found["recall"] == 0.5
    assert found["false_hit_rate"] == 0.3333
    assert found["precision"] == 0.6667
    assert found["by_source"]["own"]["recall"] == 0.6667
    assert found["by_source"]["odd"]["served_different"] == 1
    assert found["by_lang"]["en"]["n"] == 5
    assert found["by_kind"]["entity"] == {
        "n": 1,
        "recall": None,
        "served": 0,
        "served_different": 0,
        "false_hit_rate": 0.0,
        "false_hit_rate_ci95": [0.0, 1.0],
    }
    assert set(found["at_error"]) == {"0.01", "0.02"}
    assert set(found["lookup_ms"]) == {"p50", "p99"}
    assert found["left_out"]["n"] == 6
    assert sum(row["hits"] for row in found["reliability"]) == 3
    served = [json.loads(line) for line in hits.read_text().splitlines()]
    assert [line["right"] for line in served] == [False, True, True]
    assert {line["asked"] for line in served} == {FRANCE[1], HEIGHT[1], BREAD[1]}


def test_baselines_know_the_cosine_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "--pairs", write(tmp_path / "p.jsonl", PAIRS))["baselines"]
    assert found["exact"]["served"] == 0
    assert found["cosine 0.80"]["served"] == 4
    assert found["cosine 0.80"]["served_different"] == 1
    assert found["cosine 0.95 with vetoes"]["served"] == 4
    assert {name for name in found if name.startswith("best cut")} == {"best cut at 0.02"}


def test_a_stream_starts_empty_and_stores_on_a_miss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [
        (FRANCE[0], "france"),
        (HEIGHT[0], "height"),
        (FRANCE[1], "france"),
        (FRANCE[0], "france"),
        (HEIGHT[1], "other"),
        (FRANCE[2], "france"),
    ]
    lines = [{"text": t, "class": c, "source": "s", "lang": "en"} for t, c in texts]
    found = run(capsys, "--stream", write(tmp_path / "s.jsonl", lines))
    assert (found["n"], found["repeats"], found["repeats_served"]) == (5, 1, 1)
    assert (found["attainable"], found["hits"], found["right"], found["wrong"]) == (2, 2, 1, 1)
    assert found["right_of_attainable"] == 0.5
    assert found["wrong_per_hit"] == 0.5
    assert found["wrong_per_request"] == 0.2
    assert found["wrong_per_hit_ci95"] == [round(end, 4) for end in wilson(1, 2)]
    assert sum(found["misses"].values()) == 3
    loose = found["baselines"]["cosine 0.80"]
    assert (loose["hits"], loose["right"], loose["wrong"]) == (3, 2, 1)
    assert found["baselines"]["exact"]["hits"] == 0
    assert found["baselines"]["best cut at 0.02"]["hits"] in (0, 2)


def test_vectors_are_kept_for_the_next_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "p.jsonl", PAIRS)
    first, again = embedder(), embedder()
    options = ["--pairs", file, "--vectors-cache", str(tmp_path / "kept"), "--json"]
    assert main(options, embedder=first) == 0
    assert main(options, embedder=again) == 0
    one, two = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    for timed in ("lookup_ms", "decide_ms"):
        del one[timed], two[timed]
    assert one == two
    assert sum(map(len, again.texts)) < sum(map(len, first.texts))
    (kept,) = (tmp_path / "kept").iterdir()
    assert kept.suffix == ".npz"
    kept.write_bytes(b"no file of ours")
    assert main(options, embedder=embedder()) == 0


def test_wrong_use_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = write(tmp_path / "bad.jsonl", [{"a": "x", "b": "y", "same": "yes"}])
    with pytest.raises(SystemExit, match="2"):
        main(["--speed", "--entries", "10,-1"])
    assert main(["--pairs", bad], embedder=embedder()) == 2
    assert "bad.jsonl:1" in capsys.readouterr().err
    assert main(["--stream", bad], embedder=embedder()) == 2
    assert main(["--pairs", str(tmp_path / "none")], embedder=embedder()) == 2
    assert main(["--pairs", bad, "--config", "c.yaml"]) == 2
    with pytest.raises(SystemExit, match="2"):
        main(["--pairs", bad, "--max-error-rate", "0.9"])

    def broken(path: str) -> Any:
        raise ConfigError([f"{path}: wrong"])

    assert main(["--pairs", bad, "--config", "c.yaml"], configured=broken) == 2
    assert "c.yaml: wrong" in capsys.readouterr().err


def test_a_configuration_gives_embedder_and_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--pairs", write(tmp_path / "p.jsonl", PAIRS), "--config", "c.yaml", "--json"]
    setting = Setting(max_error_rate=0.001, scope_is_user=True)
    assert main(options, configured=lambda _: (embedder(), setting)) == 0
    assert json.loads(capsys.readouterr().out)["max_error_rate"] == 0.001
    assert (
        main([*options, "--max-error-rate", "0.05"], configured=lambda _: (embedder(), setting))
        == 0
    )
    assert json.loads(capsys.readouterr().out)["served"] == 4  # "my balance" too: one user's own


def test_a_second_opinion_decides_what_is_in_doubt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "p.jsonl", PAIRS)
    alone = run(capsys, "--pairs", file)
    right = run(capsys, "--pairs", file, "--second-opinion", "scripted:1")
    wrong = run(capsys, "--pairs", file, "--second-opinion", "scripted:0")
    assert right["recall"] >= alone["recall"]
    assert right["served_different"] <= alone["served_different"] <= wrong["served_different"]
    for bad in ("scripted:2", "gpt:0.9", "scripted"):
        with pytest.raises(SystemExit, match="2"):
            main(["--pairs", file, "--second-opinion", bad])


def test_a_stream_is_swept_over_budgets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"text": text, "class": "france"} for text in FRANCE[:2]]
    file = write(tmp_path / "s.jsonl", lines)
    found = run(capsys, "--stream", file, "--sweep", "0.02,0.1", "--second-opinion", "scripted:1")
    assert [row["max_error_rate"] for row in found["sweep"]] == [0.02, 0.1]
    assert found["sweep"][0]["hits"] == found["hits"] == 1
    assert found["sweep"][1]["right"] == 1


def test_the_command_reads_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "tierway.yaml"
    config.write_text("cache: {max_error_rate: 7}\n")
    options = ["--pairs", write(tmp_path / "p.jsonl", []), "--config", str(config)]
    assert tierway(["bench", "cache", *options]) == 2
    assert "max_error_rate" in capsys.readouterr().err


def test_the_parts_of_a_lookup_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "--speed", "--entries", "600", "--restart", "200")
    assert set(found["stages"]) == {"hash", "encode", "verify"}
    assert found["stages"]["verify"]["cpu_ms"]["p99"] > 0
    shapes = [(row["entries"], row["partitions"], row["callers"]) for row in found["search"]]
    assert shapes == [(600, 1, 1), (600, 1, 16), (600, 600, 1), (600, 600, 16)]
    # Random directions lie 0.85 from their copy and far from all others.
    assert all(row["near_found"] > 0.97 for row in found["search"])
    assert 500 < found["search"][0]["index_bytes_per_entry"] < 1500
    assert 0 < found["search"][0]["entry_bytes"] < 1000
    assert found["restart"]["entries"] == 200
    assert found["restart"]["wall_s"] > 0


def test_a_person_reads_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pairs", write(tmp_path / "p.jsonl", PAIRS)], embedder=embedder()) == 0
    printed = capsys.readouterr().out
    assert "recall: 0.5" in printed
    assert "cosine 0.80" in printed


def test_lines_are_read_with_their_labels(tmp_path: Path) -> None:
    pairs = read_pairs(Path(write(tmp_path / "p.jsonl", PAIRS)))
    assert pairs[3].kind == "entity"
    assert pairs[5].lang == ""
    stream = read_stream(Path(write(tmp_path / "s.jsonl", [{"text": "x", "class": 3}])))
    assert stream[0].class_ == "3"


def test_figures_of_nothing() -> None:
    assert pair_figures([])["recall"] is None
    assert quantiles([]) == {"p50": 0.0, "p99": 0.0}
    assert quantiles([float(n) for n in range(1, 101)]) == {"p50": 51.0, "p99": 100.0}
