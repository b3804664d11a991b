"""Faults that users of other semantic caches met, each in its smallest form, end to end.

The numbers are those of the public reports named in the parameter ids or docstrings.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.conftest import EngineUrls
from e2e.servers import (
    GatewayProcess,
    ask,
    ask_until_cached,
    configuration,
    eventually,
    gateway,
    generated,
    outcome,
)

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9Q"
    "DwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def turn(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("opening", "leaning"),
    [("Who is the CEO of {}?", "How old is he?"), ("{}的创始人是谁？", "他多大了？")],
)
def test_known_fault_01_the_history_is_part_of_the_key(
    client: httpx.Client, opening: str, leaning: str
) -> None:
    """GPTCache #8: only the last message was the key."""

    def chat(company: str) -> list[dict[str, Any]]:
        first = turn("user", opening.format(company))
        return [first, turn("assistant", "A man."), turn("user", leaning)]

    for _ in range(2):
        ask(client, "", messages=chat("OpenAI"))
    assert outcome(ask(client, "", messages=chat("OpenAI"))) == "hit"
    assert outcome(ask(client, "", messages=chat("Apple"))) == "miss"


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("How do I turn on dark mode?", "How do I turn off dark mode?"),
        ("Is port 6379 open by default?", "Is port 6379 closed by default?"),
        ("What is 17 * 23?", "What is 17 * 24?"),
        ("How do I convert miles to kilometres?", "How do I convert kilometres to miles?"),
        ("怎么打开深色模式?", "怎么关闭深色模式?"),
        ("6379端口默认是打开的吗?", "6379端口默认是关闭的吗?"),
        ("十七乘以二十三等于多少?", "十七乘以二十四等于多少?"),
        ("上一句诗是什么意思啊?", "下一句诗是什么意思啊?"),
    ],
)
def test_known_fault_02_04_08_a_near_miss_is_a_miss(
    client: httpx.Client, stored: str, asked: str
) -> None:
    """GPTCache #694, semantic-router #2691 and #36: opposites and other numbers."""
    ask(client, stored)
    debug = {"x-tierway-debug": "1"}

    def reason() -> str:
        """Why the cache did not answer; nothing is stored by asking."""
        answer = ask(client, asked, headers={"cache-control": "no-store", **debug})
        assert outcome(answer) == "miss"
        return str(json.loads(answer.headers["x-tierway-reason"])["cache"])

    # The stored question's vector is made in the background; only then is it compared.
    assert eventually(lambda: reason() != "nothing-near")
    assert outcome(ask(client, stored)) == "hit"


def test_known_fault_26_short_questions_share_no_answer(client: httpx.Client) -> None:
    """langchain-redis #22."""
    for question in ("1+1", "tell a joke", "21+1", "hello", "讲个笑话", "讲个故事", "1加1"):
        assert outcome(ask(client, question)) == "miss"


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("What is the capital of France?", "What's France's capital?"),
        ("How do I cook brown rice?", "How can I cook brown rice?"),
        ("法国的首都是哪里？", "法国的首都在哪里？"),
    ],
)
def test_known_fault_16_a_paraphrase_can_hit(client: httpx.Client, stored: str, asked: str) -> None:
    """litellm #29086: a hash of the whole prompt in the way of every paraphrase."""
    ask(client, stored)
    assert outcome(ask_until_cached(client, asked)) == "semantic-hit"


@pytest.mark.parametrize(
    ("persona", "question"),
    [
        ("Answer in French.", "What is the capital of France?"),
        ("用法语回答。", "法国的首都是哪里？"),
    ],
)
def test_known_fault_06_07_the_system_prompt_is_part_of_the_key(
    client: httpx.Client, persona: str, question: str
) -> None:
    """semantic-router #3423, spring-ai #5256: personas shared answers."""
    plain = [turn("user", question)]
    french = [turn("system", persona), *plain]
    assert outcome(ask(client, "", messages=french)) == "miss"
    assert outcome(ask(client, "", messages=plain)) == "miss"
    assert outcome(ask(client, "", messages=french)) == "hit"


def test_known_fault_08_09_each_entry_has_its_own_time_to_live(client: httpx.Client) -> None:
    """semantic-router #160 and #404: one time for all, and expired entries that still won."""
    only = {"cache-control": "only-if-cached"}

    def gone(question: str) -> bool:
        return ask(client, question, headers=only).status_code == 504

    ask(client, "Name three rivers in Peru.")
    began = time.monotonic()
    ask(client, "What is the capital of France?", cache={"ttl": 1})
    held = not gone("What is the capital of France?")
    assert held or time.monotonic() - began > 1.0
    assert eventually(lambda: gone("What is the capital of France?"))
    assert time.monotonic() - began >= 1.0
    assert gone("What's France's capital?")
    assert not gone("Name three rivers in Peru.")


def test_known_fault_11_prompts_beyond_the_encoders_window_do_not_collide(
    client: httpx.Client, fleet: EngineUrls
) -> None:
    """semantic-router #3455."""
    head = " ".join(f"item {n} of the list" for n in range(400))
    before = generated(*fleet.all)
    assert outcome(ask(client, head + "\nWhich item is first?")) == "miss"
    assert outcome(ask(client, head + "\nWhich item is last?")) == "miss"
    assert generated(*fleet.all) == before + 2
    assert outcome(ask(client, head + "\nWhich item is last?")) == "hit"


def test_known_fault_17_a_hundred_repeats_are_one_upstream_call(
    client: httpx.Client, fleet: EngineUrls
) -> None:
    """litellm #6954 and #31610."""
    before = generated(*fleet.all)
    outcomes = [outcome(ask(client, "How do tides work?")) for _ in range(100)]
    assert outcomes == ["miss"] + ["hit"] * 99
    assert generated(*fleet.all) == before + 1


def test_known_fault_19_content_as_a_list_of_parts(client: httpx.Client) -> None:
    """litellm #9265."""
    parts = [{"type": "text", "text": "What is the capital of France?"}]
    assert outcome(ask(client, parts)) == "miss"
    assert outcome(ask(client, parts)) == "hit"
    assert outcome(ask(client, "What is the capital of France?")) == "hit"
    other = ask_until_cached(client, "What's France's capital?")
    assert outcome(other) == "semantic-hit"


def test_known_fault_19_an_image_is_never_matched_by_meaning(client: httpx.Client) -> None:
    """litellm #9265: the words beside an image do not say what is asked."""

    def about(words: str) -> httpx.Response:
        image = {"type": "image_url", "image_url": {"url": PIXEL}}
        debug = {"x-tierway-debug": "1"}
        return ask(client, [{"type": "text", "text": words}, image], headers=debug)

    assert outcome(about("What is the capital of France?")) == "miss"
    again = about("What's France's capital?")
    assert outcome(again) == "miss"
    assert '"cache":"media"' in again.headers["x-tierway-reason"]
    assert again.headers["x-tierway-tier"] == "large"  # the only tier that sees


@pytest.fixture(scope="module")
def two_tenants(
    fleet: EngineUrls, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    tenants = [{"name": name, "key_env": f"{name.upper()}_KEY"} for name in ("alice", "bob")]
    config = configuration(fleet.small, tenants=tenants)
    keys = {"ALICE_KEY": "sk-alice", "BOB_KEY": "sk-bob"}
    with gateway(tmp_path_factory.mktemp("tenants"), config, **keys) as running:
        yield running


def as_tenant(
    running: GatewayProcess, question: str, key: str | None, **more: str
) -> httpx.Response:
    headers = {**more, **({} if key is None else {"authorization": f"Bearer {key}"})}
    with httpx.Client(base_url=running.url, timeout=60) as client:
        return ask(client, question, headers=headers)


def test_known_fault_05_tenants_never_share_an_answer(two_tenants: GatewayProcess) -> None:
    """semantic-router #1448 and #2134: another user's answer at a cosine near 1."""
    question = "Summarise the attached report on " + "the quarterly sales of the north, " * 20
    assert outcome(as_tenant(two_tenants, question, "sk-alice")) == "miss"
    assert outcome(as_tenant(two_tenants, question, "sk-alice")) == "hit"
    assert outcome(as_tenant(two_tenants, question, "sk-bob")) == "miss"


@pytest.mark.parametrize("question", ["What is my account balance?", "我的账户余额是多少？"])
def test_known_fault_30_what_is_personal_is_its_users_alone(
    two_tenants: GatewayProcess, question: str
) -> None:
    """wso2 #733, OmniRoute #3740: "my account balance" served across users."""

    def ask_as(key: str, user: str = "") -> str:
        named = {"x-tierway-user": user} if user else {}
        return outcome(as_tenant(two_tenants, question, key, **named))

    assert ask_as("sk-alice", "ann") == "miss"
    assert ask_as("sk-alice", "ann") == "hit"
    assert ask_as("sk-alice", "amy") == "miss"
    assert ask_as("sk-bob", "ann") == "miss"
    # Without a user's name it is nobody's: neither kept nor found.
    assert [ask_as("sk-alice"), ask_as("sk-alice"), ask_as("sk-bob")] == ["bypass"] * 3


@pytest.mark.parametrize("key", [None, "sk-mallory", "-"])
def test_a_wrong_key_is_refused(two_tenants: GatewayProcess, key: str | None) -> None:
    refused = as_tenant(two_tenants, "hello", key)
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "invalid_api_key"


def test_sdks_see_their_own_authentication_error(two_tenants: GatewayProcess) -> None:
    import anthropic
    import openai

    user = [{"role": "user", "content": "hello"}]
    url = two_tenants.url
    with openai.OpenAI(base_url=url + "/v1", api_key="sk-mallory", max_retries=0) as sdk:
        with pytest.raises(openai.AuthenticationError):
            sdk.chat.completions.create(model="auto", messages=user)
        with pytest.raises(openai.AuthenticationError):
            sdk.models.list()
    with anthropic.Anthropic(base_url=url, api_key="sk-alice", max_retries=0) as claude:
        assert claude.messages.create(model="auto", max_tokens=99, messages=user).content
    with (
        anthropic.Anthropic(base_url=url, api_key="sk-mallory", max_retries=0) as claude,
        pytest.raises(anthropic.AuthenticationError),
    ):
        claude.messages.create(model="auto", max_tokens=99, messages=user)


def test_admin_needs_its_own_key(two_tenants: GatewayProcess, tmp_path: Path) -> None:
    assert two_tenants.admin("GET", "/admin/state", key="sk-alice").status_code == 401
    assert two_tenants.state()["tenants"] == ["alice", "bob"]
