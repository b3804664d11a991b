"""The file is read again: what is taken, what waits for a restart, what changes nothing."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from admins import CONFIG, ENVIRON, Admin, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tierway.middleware.build import build
from tierway.middleware.config import Settings
from tierway.middleware.config_diff import differing, is_live
from tierway.policies.errors import ConfigError

POLICY = "/admin/tiers/small/policy"


class File:
    """A configuration file that is changed key by key."""

    def __init__(self, path: Path) -> None:
        self.path, self.data = path, copy.deepcopy(CONFIG)
        self.write()

    def write(self, **tier: Any) -> None:
        """Sets keys of the tier `small`; None takes one out."""
        small = self.data["tiers"]["small"] | tier
        self.data["tiers"]["small"] = {k: v for k, v in small.items() if v is not None}
        self.path.write_text(json.dumps(self.data))


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "tierway.yaml")


def with_file(file: File, test: Callable[[Admin], Coroutine[Any, Any, None]]) -> None:
    run(test, file.path)


async def reload(admin: Admin, status: int = 200) -> Any:
    answer = await admin.http.post("/admin/reload")
    assert answer.status_code == status, answer.text
    return answer.json()


async def small(admin: Admin) -> tuple[str, dict[str, Any]]:
    tier = (await admin.state())["tiers"]["small"]
    return tier["policy"], tier["options"]


def test_policies_and_their_options_are_taken_in_one_version(file: File) -> None:
    async def main(admin: Admin) -> None:
        file.write(
            policy="llm",
            options={"surcharge": 5},
            plain_policy="power_of_two",
            shadow_policy="random",
        )
        found = await reload(admin)
        assert sorted(found.pop("changed")) == [
            "tiers.small.options",
            "tiers.small.plain_policy",
            "tiers.small.policy",
            "tiers.small.shadow_policy",
        ]
        assert found == {"needs_restart": [], "version": 2}
        tier = (await admin.state())["tiers"]["small"]
        assert (tier["policy"], tier["options"]) == ("llm", {"surcharge": 5})
        assert (tier["plain_policy"], tier["shadow"]["policy"]) == ("power_of_two", "random")
        assert await reload(admin) == {"changed": [], "needs_restart": [], "version": 2}
        file.write(options={"surcharge": 6}, shadow_policy=None)
        assert (await reload(admin))["version"] == 3
        assert await small(admin) == ("llm", {"surcharge": 6})
        assert (await admin.state())["tiers"]["small"]["shadow"] is None

    with_file(file, main)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tiers: {small: {policy: llmm}}", ["tiers.small.policy = 'llmm': must be one of"]),
        ("tiers: [", ["tierway.yaml: line 1"]),
        ("", ["admin.keys.0", "must"]),
        (
            "tiers: {small: {policy: llmm, options: {a: 1}}}\ncache: {mode: of}\nsever: {}",
            ["cache.mode = 'of'", "unknown key 'sever'"],
        ),
    ],
)
def test_a_bad_file_changes_nothing_and_says_why(
    file: File, text: str, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def main(admin: Admin) -> None:
        before = await admin.state()
        file.path.write_text(text) if text else file.path.unlink()
        caplog.clear()
        error = (await reload(admin, 400))["error"]
        assert error["type"] == "invalid_request_error"
        lines = error["message"].splitlines()
        if text:
            assert all(any(each in line for line in lines) for each in told), lines
            assert len(lines) >= len(told)
        else:
            assert lines == [f"{file.path}: cannot be read: No such file or directory"]
        assert await admin.state() == before
        assert "not reloaded, nothing changed: " in caplog.text
        file.write(policy="llm")
        assert (await reload(admin))["version"] == 2

    with_file(file, main)


def test_what_needs_a_restart_is_named_until_it_is_taken_back(
    file: File, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(admin: Admin) -> None:
        file.data["cache"] = {"mode": "serve", "ttl_s": 60}
        file.data["models"]["m"]["replicas"].pop()
        file.data["tiers"]["extra"] = {"class": "7b", "policy": "random"}
        file.write(policy="llm")
        waiting = ["cache.mode", "cache.ttl_s", "tiers.extra"]
        assert await reload(admin) == {
            "changed": ["tiers.small.policy", "models.m.replicas"],
            "needs_restart": waiting,
            "version": 2,
        }
        told = f"models.m.replicas; needs a restart: {', '.join(waiting)}; policy set"
        assert told in caplog.text
        assert (await reload(admin))["needs_restart"] == waiting
        file.data = copy.deepcopy(CONFIG)
        file.write(policy="llm")
        assert (await reload(admin))["needs_restart"] == []

    with_file(file, main)


def test_the_newest_change_wins(file: File) -> None:
    async def main(admin: Admin) -> None:
        await admin.http.put(POLICY, json={"policy": "random"})
        assert await reload(admin) == {"changed": [], "needs_restart": [], "version": 2}
        assert await small(admin) == ("random", {})
        file.write(plain_policy="power_of_two")
        assert (await reload(admin))["changed"] == ["tiers.small.plain_policy"]
        assert await small(admin) == ("random", {})
        file.write(policy="llm")
        assert (await reload(admin))["version"] == 4
        assert await small(admin) == ("llm", {})
        await admin.http.put("/admin/llm-aware", json={"enabled": False})
        file.write(policy="consistent_hash")
        await reload(admin)
        assert (await small(admin))[0] == "power_of_two"
        await admin.http.put("/admin/llm-aware", json={"enabled": True})
        assert (await small(admin))[0] == "consistent_hash"

    with_file(file, main)


def test_a_tier_that_leaves_the_file_and_comes_back_has_not_changed(file: File) -> None:
    async def main(admin: Admin) -> None:
        kept = file.data["tiers"].pop("large")
        file.write()
        assert (await reload(admin))["needs_restart"] == ["tiers.large"]
        file.data["tiers"]["large"] = kept
        file.write()
        assert await reload(admin) == {"changed": [], "needs_restart": [], "version": 1}

    with_file(file, main)


def test_the_dial_of_the_classifier_is_taken_too(file: File) -> None:
    async def main(admin: Admin) -> None:
        file.data["router"] = {"quality": 0.9}
        file.write()
        assert (await reload(admin)) == {
            "changed": ["router.quality"],
            "needs_restart": [],
            "version": 1,
        }
        ask = {"model": "auto", "messages": [{"role": "user", "content": "Why?"}]}
        assert (await admin.http.post("/admin/explain", json=ask)).json()["quality"] == 0.9

    with_file(file, main)


def test_without_a_file_there_is_nothing_to_reload() -> None:
    async def main(admin: Admin) -> None:
        error = (await reload(admin, 400))["error"]
        assert error["message"] == ("there is no file to read again: this gateway was given none")

    run(main)


def test_variables_lie_over_the_file_at_every_reload(file: File) -> None:
    async def main() -> None:
        environ = {**ENVIRON, "TIERWAY_TIERS__SMALL__POLICY": "random"}
        parts = await build(file.path, environ, live=False)
        file.write(policy="llm")
        assert (await parts.reload()).changed == []
        assert parts.holder.current.for_tier("small").name == "random"
        await parts.aclose()

    asyncio.run(main())


def test_an_older_read_never_takes_the_place_of_a_newer_one(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first read hangs in its thread; the second overtakes it with what the file says now."""

    async def main() -> None:
        parts = await build(file.path, ENVIRON, live=False)
        held, go_on, reads = asyncio.Event(), asyncio.Event(), 0

        async def to_thread(read: Any, *more: Any) -> Any:
            nonlocal reads
            reads += 1
            found = read(*more)
            if reads == 1:
                held.set()
                await go_on.wait()
            return found

        monkeypatch.setattr(asyncio, "to_thread", to_thread)
        file.write(policy="random")
        first = asyncio.create_task(parts.reload())
        await held.wait()
        file.write(policy="llm")
        assert (await parts.reload()).changed == ["tiers.small.policy"]
        go_on.set()
        assert (await first).changed == []
        assert (reads, parts.holder.current.for_tier("small").name) == (3, "llm")
        await parts.aclose()

    asyncio.run(main())


def test_a_quiet_reload_is_silent_unless_there_is_something_to_tell(
    file: File, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        parts = await build(file.path, ENVIRON, live=False)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            await parts.reload.attempt(quiet=True)
            assert not caplog.records
            await parts.reload.attempt()
            file.write(policy="llm")
            await parts.reload.attempt(quiet=True)
            file.path.write_text("tiers: {")
            await parts.reload.attempt(quiet=True)
        await parts.aclose()

    asyncio.run(main())
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(": ")[0] for line in lines] == [
        "configuration reloaded",
        "configuration reloaded",
        "configuration not reloaded, nothing changed",
    ]


# ---- what differs ----------------------------------------------------------------------------


def paths(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    trees = [Settings.from_dict(given) for given in (one, other)]
    return [".".join(map(str, path)) for path in differing(*trees)]


def test_the_order_of_tiers_models_and_aliases_is_a_difference() -> None:
    tiers = {"small": {}, "large": {}}
    assert paths({"tiers": tiers}, {"tiers": dict(reversed(tiers.items()))}) == ["tiers"]
    aliases = {"a*": "auto", "b*": "auto"}
    turned = dict(reversed(aliases.items()))
    assert paths({"aliases": aliases}, {"aliases": turned}) == ["aliases"]
    model = {"tier": "small", "set": {"a": 1, "b": 2}, "replicas": [{"url": "http://h"}]}
    other = {**model, "set": {"b": 2, "a": 1}}
    assert paths({"models": {"m": model}}, {"models": {"m": other}}) == []
    assert paths({"models": {"m": model}}, {"models": {"m": {**model, "set": {}}}}) == [
        "models.m.set"
    ]


def test_only_policies_of_running_tiers_are_live() -> None:
    running = Settings.from_dict({})
    assert is_live(("tiers", "small", "shadow_options"), running)
    assert not is_live(("tiers", "small", "class"), running)
    assert not is_live(("tiers", "new", "policy"), running)
    assert not is_live(("tiers",), running)
    assert not is_live(("models", "policy", "policy"), running)


# ---- any sequence ----------------------------------------------------------------------------

NAMES = ["llm", "random", "round_robin", "nothing"]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("file"), st.sampled_from(["policy", "shadow_policy", "plain_policy"]),
                  st.sampled_from(NAMES)),
        st.tuples(st.just("call"), st.booleans(), st.sampled_from(NAMES)),
        st.tuples(st.just("switch"), st.booleans(), st.just("")),
        st.tuples(st.just("broken"), st.just(""), st.just("")),
    ),
    max_size=10,
)  # fmt: skip


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_under_any_sequence_the_set_is_whole_and_versions_rise(
    tmp_path: Path, steps: list[tuple[str, Any, str]]
) -> None:
    file = File(tmp_path / "tierway.yaml")

    async def main() -> None:
        parts = await build(file.path, ENVIRON, live=False)
        holder = parts.holder
        for kind, what, name in steps:
            before = holder.current
            try:
                if kind == "file":
                    file.write(**{what: name})
                    await parts.reload()
                elif kind == "call" and what:
                    holder.current = before.with_shadow("small", name)
                elif kind == "call":
                    holder.current = before.with_policy("small", name)
                elif kind == "switch":
                    holder.current = before.with_llm_aware(what)
                else:
                    file.path.write_text("tiers: {small: {policy: ")
                    await parts.reload()
            except ConfigError:
                assert holder.current is before
            else:
                rose = holder.current.version - before.version
                assert rose in ((0, 1) if kind == "file" else (1,))
                assert (rose == 0) == (holder.current is before)
            assert set(holder.current.tiers) == {"small", "large"}
            for tier in holder.current.tiers:
                assert holder.current.for_tier(tier).name in {*NAMES[:3], "least_request"}
        await parts.aclose()

    asyncio.run(main())
