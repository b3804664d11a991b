"""What would happen to a request: told from the live objects, with nothing sent anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from fakes import FakeAnswer, ScriptedUpstream

from tierway.middleware.build import build
from tierway.middleware.config import Settings
from tierway.middleware.explain import as_text, explain, explain_main
from tierway.middleware.parts import Parts
from tierway.policies.errors import BadCall
from tierway.policies.types import Work

CONFIG: dict[str, Any] = {
    "cache": {"mode": "off"},
    "models": {
        "m": {
            "tier": "small",
            "context_tokens": 4096,
            "replicas": [{"url": "http://a:1"}, {"url": "http://b:1"}],
        },
        "l": {"tier": "large", "replicas": [{"url": "http://c:1"}]},
    },
    "tiers": {"small": {"policy": "least_request"}, "large": {"class": "175b"}},
}


def body(question: str = "What is the capital of France?", **fields: Any) -> bytes:
    messages = [{"role": "user", "content": question}]
    return orjson.dumps({"model": "auto", "messages": messages, **fields})


def explained(
    raw: bytes,
    prepare: Callable[[Parts], object] = lambda parts: None,
    **options: Any,
) -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        parts = await build(CONFIG, {"TIERWAY_ADMIN_KEY": "k"}, live=False)
        upstream = ScriptedUpstream(FakeAnswer([]))
        parts.dispatcher.upstreams = dict.fromkeys(parts.dispatcher.upstreams, upstream)
        prepare(parts)
        before = dict(parts.fleet.inflight())
        try:
            return await explain(parts, raw, **options)
        finally:
            await parts.aclose()
            assert not upstream.calls
            assert parts.fleet.inflight() == before

    return asyncio.run(main())


def test_an_easy_question_goes_to_the_small_tier() -> None:
    found = explained(body())
    assert (found["tier"], found["reason"], found["quality"]) == ("small", "classifier", 0.5)
    assert found["cache"] == {
        "result": "bypass",
        "reason": "off",
        "similarity": None,
        "entry": None,
        "would_answer": False,
    }
    assert 0 < found["probabilities"]["small"] <= found["probabilities"]["large"] <= 1
    assert found["plan"] == [
        {"tier": "small", "models": ["m"]},
        {"tier": "large", "models": ["l"]},
    ]
    assert {item["replica"] for item in found["replicas"]} == {"m@a:1", "m@b:1"}
    assert found["policy_version"] == 1


def test_the_best_replica_comes_first_and_one_that_is_out_says_why() -> None:
    def busy(parts: Parts) -> None:
        parts.fleet.lease("m@a:1", Work(100, 100))

    def out(parts: Parts) -> None:
        parts.fleet.set_draining("m@a:1", True)

    first, second = explained(body(), busy)["replicas"]
    assert (first["replica"], second["replica"]) == ("m@b:1", "m@a:1")
    assert first["score"] > second["score"]
    first, second = explained(body(), out)["replicas"]
    assert first["replica"] == "m@b:1"
    assert second == {"replica": "m@a:1", "excluded": "draining"}


def test_a_shadow_says_what_it_would_choose_and_is_not_counted() -> None:
    seen: list[Parts] = []

    def shadowed(parts: Parts) -> None:
        parts.holder.current = parts.holder.current.with_shadow("small", "consistent_hash")
        seen.append(parts)

    assert explained(body())["shadow"] is None
    found = explained(body(), shadowed)
    assert (found["policy"], found["shadow"]["policy"]) == ("least_request", "consistent_hash")
    assert found["shadow"]["replica"] in ("m@a:1", "m@b:1")
    assert f"shadow    consistent_hash: {found['shadow']['replica']}" in as_text(found)
    assert seen[0].dispatcher.balancer.shadows.counts == {}


def test_controls_and_limits_are_followed() -> None:
    pinned = explained(body(model="large"))
    assert (pinned["tier"], pinned["reason"], pinned["probabilities"]) == ("large", "pinned", {})
    dialled = explained(body(tierway={"quality": 1.0}))
    assert dialled["quality"] == 1.0
    long = explained(body("word " * 5000))
    assert long["tier"] == "large"
    assert [item["name"] for item in long["excluded"]] == ["m"]


def test_other_wires_are_explained_by_their_path() -> None:
    raw = orjson.dumps(
        {"model": "auto", "max_tokens": 9, "messages": [{"role": "user", "content": "Why?"}]}
    )
    assert explained(raw, path="/v1/messages")["tier"] == "small"


@pytest.mark.parametrize("raw", [b"{", b"[]", body(model="unknown"), body(stream="yes")])
def test_a_request_that_would_be_refused_raises_the_same(raw: bytes) -> None:
    with pytest.raises(BadCall):
        explained(raw)


def test_the_text_names_tier_plan_and_replicas() -> None:
    def out(parts: Parts) -> None:
        parts.fleet.set_draining("m@a:1", True)

    lines = as_text(explained(body(), out)).splitlines()
    assert lines[0].split() == ["cache", "bypass", "(off)"]
    assert lines[1].startswith("tier      small (classifier, quality 0.5)")
    assert lines[2].startswith("answers well  small 0.")
    assert lines[3] == "then      small -> large"
    assert "replica   m@a:1: draining" in lines
    assert any(line.startswith("replica   m@b:1: score ") for line in lines)
    assert any(line.startswith("left out  m: ") for line in
               as_text(explained(body("word " * 5000))).splitlines())  # fmt: skip


def command(capsys: pytest.CaptureFixture[str], **arguments: Any) -> tuple[int, str, str]:
    given = {"prompt": None, "request": None, "as_json": False, **arguments}
    code = explain_main(Settings.from_dict(CONFIG), **given)
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_prints_text_or_one_json_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = command(capsys, prompt="Why?")
    assert (code, "then      small -> large" in out) == (0, True)
    file = tmp_path / "request.json"
    file.write_bytes(body(model="large"))
    code, out, err = command(capsys, request=str(file), as_json=True)
    assert (code, orjson.loads(out)["tier"], err) == (0, "large", "")


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(capsys, request=str(tmp_path / "none.json"))
    assert (code, out) == (2, "")
    assert "none.json: No such file" in err
    file = tmp_path / "request.json"
    file.write_bytes(body(model="unknown"))
    code, out, err = command(capsys, request=str(file))
    assert (code, out) == (1, "")
    assert err.startswith("refused with status 404: ")
