"""The benchmarks of a real gateway process and of its start, with a load of a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tierway.bench import road, startup, table

LIGHT = [
    *("--rounds", "1", "--requests", "40", "--hits", "60", "--misses", "12"),
    *("--streams", "3", "--tokens", "5", "--tick-ms", "2"),
]


def test_a_real_gateway_is_measured_beside_two_relays(capfd: pytest.CaptureFixture[str]) -> None:
    assert road.main([*LIGHT, "--json"]) == 0
    printed = capfd.readouterr()
    found = json.loads(printed.out)
    assert printed.out.count("\n") == 1
    assert found["benchmark"] == "road"
    rows = {(row["name"], row["per"]): row for row in found["rows"]}
    assert [name for name, _ in rows] == [
        *(("bare relay, our client", "bare relay, aiohttp", "pass-through") * 2),
        "exact hit",
        "miss",
    ]
    assert all(row["errors"] == 0 and row["cpu_us"] >= 0 for row in rows.values())
    assert rows["exact hit", "request"]["as_meant"] == 1.0
    assert rows["miss", "request"]["as_meant"] == 1.0


def test_a_gateway_that_does_not_start_says_why(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIERWAY_SERVER__PORT", "none")
    assert road.main(LIGHT) == 1
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "server.port" in printed.err.lower()


def row(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "per": "request", "cpu_us": 12.5, "ratio": 1.5, **more}


def test_a_row_that_was_not_what_its_name_says_is_marked() -> None:
    lines = road.table([row("exact hit", as_meant=1.0), row("miss", as_meant=0.5)]).splitlines()
    assert lines[1].split() == ["exact", "hit,", "a", "request", "12.5", "1.5"]
    assert lines[2].endswith("(50 % were that)")


def test_the_start_takes_more_than_a_bare_interpreter(capfd: pytest.CaptureFixture[str]) -> None:
    assert startup.main(["--runs", "1", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)["cpu_s"]
    assert list(found) == list(startup.COMMANDS)
    assert 0 < found["bare interpreter"] < found["import tierway.middleware"]
    assert startup.main(["--runs", "1"]) == 0
    assert capfd.readouterr().out.splitlines()[2].startswith("tierway --help ")


def test_a_command_that_fails_is_no_figure() -> None:
    with pytest.raises(RuntimeError, match=r"failed \(3\)"):
        startup.cpu_s(["-c", "raise SystemExit(3)"])


@pytest.mark.parametrize("module", [road, startup, table])
def test_wrong_use_exits_with_2(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        module.main(["--nonsense"])
    assert caught.value.code == 2
    assert "usage: " in capsys.readouterr().err


# The table, over made benchmarks.


def made(folder: Path, name: str, text: str) -> str:
    (folder / f"{name}.py").write_text(text, "utf-8")
    return name


def rows_of(found: dict[str, Any]) -> list[table.Row]:
    return [table.Row(found["name"], found["figure"], "us", " ".join(found["arguments"]))]


def test_the_table_shows_what_ran_and_fails_for_what_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    good = (
        "import json, sys\n"
        "print(json.dumps({'name': 'x', 'figure': '1', 'arguments': sys.argv[1:]}))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    benchmarks = [
        table.Benchmark(made(tmp_path, "bad_one", "raise SystemExit(1)"), (), rows_of),
        table.Benchmark(made(tmp_path, "good_one", good), ("--short",), rows_of),
    ]
    assert table.main(["--quick"], benchmarks) == 1
    printed = capfd.readouterr()
    assert printed.out.splitlines() == [
        "benchmark  figure  unit  against",
        "x               1  us    --json --short",
    ]
    assert printed.err == "table: bad_one failed (1)\n"
    assert table.main([], benchmarks[1:]) == 0
    assert capfd.readouterr().out.splitlines()[1].endswith("--json")


def test_the_rows_of_the_projects_own_benchmarks() -> None:
    startup_rows, road_rows, *_ = (benchmark.rows for benchmark in table.BENCHMARKS)
    assert startup_rows({"cpu_s": {"bare interpreter": 0.011, "tierway --help": 0.2}}) == [
        table.Row("bare interpreter", "0.01", "s CPU", ""),
        table.Row("tierway --help", "0.20", "s CPU", "0.5 at most"),
    ]
    assert road_rows({"rows": [row("pass-through"), row("miss", as_meant=0.98)]}) == [
        table.Row("pass-through", "12", "us CPU/request", "1.5 x bare relay"),
        table.Row("miss", "12", "us CPU/request", "1.5 x bare relay, 98 % were that"),
    ]
