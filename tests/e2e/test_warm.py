"""`tierway cache warm` and import beside a running gateway: its clients hit at once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.servers import configuration
from e2e.stand import Stand, engine, stand, until

from tierway.middleware.cli import main

FAQ = [
    {"question": "How do I reset the password of my router?", "answer": "Hold the button."},
    {
        "question": "Which port does Redis listen on?",
        "answer": "6379.",
        "model": "small",
        "system": "Answer briefly.",
        "ttl_s": 999_999,
    },
]


class Shell:
    """The command line beside a stand: the same store, the same models, no fleet of its own."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.cache = {"store": {"kind": "sqlite", "path": str(folder / "c.sqlite3")}}
        self._changes = {"cache": self.cache, **changes}

    def configure(self, *urls: str) -> None:
        config = configuration(urls or ["http://127.0.0.1:9"], **self._changes)
        config["models"]["sim-7b"] |= {"served_name": "sim-7b", "context_tokens": 32768}
        (self.folder / "g.yaml").write_text(yaml.safe_dump(config))

    def lines(self, name: str, *lines: Any) -> str:
        path = self.folder / name
        path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines))
        return str(path)

    async def run(self, command: str, *arguments: str) -> int:
        given = ["cache", command, "--config", str(self.folder / "g.yaml"), "--json", *arguments]
        return await asyncio.to_thread(main, given)


async def asked(one: Stand, question: str, **fields: Any) -> tuple[str, str]:
    answer = await one.ask(question, **fields)
    assert answer.status_code == 200
    text = answer.json()["choices"][0]["message"]["content"]
    return str(answer.headers["x-tierway-cache"]), text


def test_warmed_answers_are_hit_exactly_and_by_meaning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main_() -> None:
        shell = Shell(tmp_path)
        shell.configure()
        async with stand(engine(), cache=shell.cache) as one:
            assert await shell.run("warm", shell.lines("faq.jsonl", *FAQ)) == 0
            assert await until(lambda: one.cache["entries"] == 2, within_s=2)
            assert await asked(one, str(FAQ[0]["question"])) == ("hit", "Hold the button.")
            paraphrase = "how do i reset the password of my router"
            assert await asked(one, paraphrase) == ("semantic-hit", "Hold the button.")
            system = {"role": "system", "content": "Answer briefly."}
            user = {"role": "user", "content": FAQ[1]["question"]}
            told = await asked(one, "", model="small", messages=[system, user])
            assert told == ("hit", "6379.")
            assert (await asked(one, str(FAQ[1]["question"])))[0] == "miss"
            assert one.generated == 1
            # The same file again takes the place of what it stored before.
            assert await shell.run("warm", str(tmp_path / "faq.jsonl")) == 0
            assert await asked(one, str(FAQ[0]["question"])) == ("hit", "Hold the button.")

    asyncio.run(main_())
    told = json.loads(capsys.readouterr().out.splitlines()[0])
    assert told == {"stored": 2, "skipped": {}, "store_faults": {}}


def test_an_answer_without_a_tenant_is_stored_for_each_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tenants = [{"name": name, "key_env": f"{name.upper()}_KEY"} for name in ("acme", "bolt")]
    environ = {"ACME_KEY": "sk-acme", "BOLT_KEY": "sk-bolt"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    async def main_() -> None:
        shell = Shell(tmp_path, tenants=tenants)
        shell.configure()
        for_all, for_one = FAQ[0], {"question": "Who are you?", "answer": "X.", "tenant": "bolt"}
        assert await shell.run("warm", shell.lines("faq.jsonl", for_all, for_one)) == 0
        async with stand(engine(), cache=shell.cache, tenants=tenants, environ=environ) as one:
            for key, second in (("sk-acme", "miss"), ("sk-bolt", "hit")):
                headers = {"authorization": f"Bearer {key}"}
                answer = await one.ask(str(for_all["question"]), headers=headers)
                assert answer.headers["x-tierway-cache"] == "hit"
                answer = await one.ask("Who are you?", headers=headers)
                assert answer.headers["x-tierway-cache"] == second

    asyncio.run(main_())
    assert json.loads(capsys.readouterr().out)["stored"] == 3


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"question": "q"}, "line 2: answer missing"),
        ({"question": " ", "answer": "a"}, "line 2: question must not be empty"),
        ({"question": "q", "answer": 7}, "line 2: answer must be a text"),
        ({"question": "q", "answer": "a", "ttl_s": 0}, "line 2: ttl_s must be above 0"),
        ({"question": "q", "answer": "a", "modell": "m"}, "line 2: unknown key 'modell'"),
        ({"question": "q", "answer": "a", "model": "gpt-9"}, "line 2: The model 'gpt-9'"),
        ({"question": "q", "answer": "a", "tenant": "x"}, "line 2: tenant 'x' is not configured"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: Any, told: str
) -> None:
    async def main_() -> None:
        shell = Shell(tmp_path)
        shell.configure()
        assert await shell.run("warm", shell.lines("faq.jsonl", FAQ[0], line)) == 2
        assert told in capsys.readouterr().err
        assert await shell.run("stats") == 0

    asyncio.run(main_())
    assert json.loads(capsys.readouterr().out)["entries"] == 0


def test_system_prompts_are_sent_once_to_each_replica(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main_() -> None:
        engines = [engine(0), engine(1)]
        shell = Shell(tmp_path)
        async with stand(*engines, cache=shell.cache) as one:
            urls = [f"http://{replica['id'].partition('@')[2]}" for replica in one.replicas]
            shell.configure(*urls)
            prompts = shell.lines(
                "p.jsonl", {"system": "You are a pirate. " * 50}, {"system": "Be brief. " * 50}
            )
            assert await shell.run("warm", "--prefill", prompts) == 0
            for each in engines:
                assert sum(each.engine.totals.finished.values()) == 2
            shell.configure(*urls, "http://127.0.0.1:9")
            assert await shell.run("warm", "--prefill", prompts) == 1

    asyncio.run(main_())
    whole, broken = map(json.loads, capsys.readouterr().out.splitlines())
    assert (whole["replicas"], whole["prefilled"], whole["faults"]) == (2, 4, {})
    assert (broken["prefilled"], list(broken["faults"])) == (4, ["sim-7b@127.0.0.1:9"])


def test_a_prompt_for_a_model_without_replicas_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main_() -> None:
        shell = Shell(tmp_path)
        shell.configure()
        prompts = shell.lines("p.jsonl", {"system": "x", "model": "sim-70b"})
        assert await shell.run("warm", "--prefill", prompts) == 2

    asyncio.run(main_())
    assert "line 1: model 'sim-70b' has no replicas" in capsys.readouterr().err


def test_an_import_without_vectors_is_found_by_meaning_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main_() -> None:
        shell = Shell(tmp_path)
        shell.configure()
        assert await shell.run("warm", shell.lines("faq.jsonl", FAQ[0])) == 0
        assert await shell.run("export", str(tmp_path / "out.jsonl")) == 0
        assert await shell.run("purge", "--all", "--yes") == 0
        assert "vector" not in json.loads((tmp_path / "out.jsonl").read_text())
        assert await shell.run("import", str(tmp_path / "out.jsonl")) == 0
        async with stand(engine(), cache=shell.cache) as one:
            paraphrase = "how do i reset the password of my router"
            assert (await asked(one, paraphrase))[0] == "semantic-hit"

    asyncio.run(main_())
