"""The command line: what it takes, what it refuses, and with which exit code."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
import yaml

from tierway.middleware.cli import BENCHES, main

CONFIG = {
    "cache": {"mode": "off"},
    "models": {"m": {"tier": "small", "replicas": [{"url": "http://a:1"}]}},
    "tiers": {"small": {}},
    "admin": {"keys": [{"key_env": "SOME_ADMIN_KEY", "role": "admin"}]},
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A configuration file, in an empty working folder without variables of ours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIERWAY_CONFIG", raising=False)
    monkeypatch.setenv("SOME_ADMIN_KEY", "k-admin-secret")
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(CONFIG))
    return str(file)


def exits(*argv: str) -> int:
    """The exit code of a command that argparse ends."""
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_without_a_command_it_helps_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out = capsys.readouterr().out
    for name in ("serve", "demo", "engine", "check", "explain", "bench"):
        assert name in out


@pytest.mark.parametrize("command", ["serve", "demo", "engine", "check", "explain"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exits(command, "--help") == 0
    assert f"tierway {command}" in capsys.readouterr().out


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert exits("--version") == 0
    assert capsys.readouterr().out.startswith("tierway ")


@pytest.mark.parametrize(
    "argv",
    [
        ["sevre"],
        ["serve", "--port", "65536"],
        ["serve", "--port", "-1"],
        ["serve", "--port", "http"],
        ["demo", "--admin-port", "8081x"],
        ["engine"],
        ["explain"],
        ["explain", "a question", "--request", "file.json"],
        ["bench"],
        ["bench", "nothing"],
    ],
)
def test_wrong_use_exits_with_2_and_says_why(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exits(*argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "error:" in err


def test_check_prints_the_effective_configuration(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--config", config]) == 0
    out, err = capsys.readouterr()
    shown = yaml.safe_load(out)
    assert shown["models"]["m"]["replicas"][0]["url"] == "http://a:1"
    assert shown["resilience"]["total_timeout_s"] == 600
    assert "k-admin-secret" not in out + err


def test_check_tells_every_fault(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(config).write_text(yaml.safe_dump({**CONFIG, "server": {"port": 99999, "prot": 1}}))
    assert main(["check", "--config", config]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    port, unknown = err.splitlines()
    assert port.startswith("server.port = 99999")
    assert "server.prot" in unknown


@pytest.mark.parametrize("command", [["check"], ["explain", "Why?"], ["serve", "--port", "0"]])
def test_a_configuration_that_is_wrong_ends_every_command(
    command: list[str], config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(config).write_text("models: {m: {tier: nowhere}}")
    assert main([command[0], "--config", config, *command[1:]]) == 2
    assert "models.m" in capsys.readouterr().err


def test_a_configuration_that_is_not_there_is_told(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--config", config + ".not"]) == 2
    assert "gateway.yaml.not" in capsys.readouterr().err


def test_the_configuration_is_found_by_variable_or_name(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check"]) == 0
    assert "embedded demo" in capsys.readouterr().out
    Path("tierway.yaml").write_text(Path(config).read_text().replace("a:1", "here:1"))
    assert main(["check"]) == 0
    assert "http://here:1" in capsys.readouterr().out
    monkeypatch.setenv("TIERWAY_CONFIG", config)
    assert main(["check"]) == 0
    assert "http://a:1" in capsys.readouterr().out


def test_more_workers_need_a_shared_state(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--config", config], []):
        assert main(["serve", *argv, "--port", "0", "--workers", "2"]) == 2
        assert "server.workers = 2" in capsys.readouterr().err


def test_explain_answers_as_text_or_json(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--config", config, "Why?"]) == 0
    assert "then      small" in capsys.readouterr().out
    assert main(["explain", "--config", config, "--json", "Why?"]) == 0
    assert orjson.loads(capsys.readouterr().out)["tier"] == "small"


def test_an_engine_of_no_known_profile_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "--profile", "8b-abacus", "--port", "0"]) == 2
    assert "8b-abacus" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(BENCHES))
def test_a_benchmark_takes_its_own_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exits("bench", name, "--help") == 0
    assert "usage:" in capsys.readouterr().out
