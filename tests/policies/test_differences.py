"""Why two requests with one question are not compared, in words an operator can act on."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tierway.policies.differences import Difference, Ingredients, differences


def only(one: str, other: str) -> Difference:
    (found,) = differences(Ingredients(b"1", system=one), Ingredients(b"2", system=other))
    assert found.what == "system"
    return found


@pytest.mark.parametrize(
    ("template", "one", "other", "kind"),
    [
        ("You are Ann. Current date: {}. Be kind.", "2026-11-30", "2026-12-01", "a date"),
        ("You are Ann.\nNow: {}", "2026-11-30T23:58:01Z", "2026-12-01T00:02:11Z", "a timestamp"),
        ("Today is {}.", "Monday, November 30, 2026", "Tuesday, December 1, 2026", "a date"),
        ("Today is {}.", "30 November 2026", "1 December 2026", "a date"),
        ("今天是{}，请用中文回答。", "2026年11月30日", "2026年12月1日", "a date"),
        ("It is {} o'clock", "09:41", "10:07", "a time"),
        (
            "Trace {} follows",
            "0b5c8a52-5f9c-4a56-9a34-0d8a3a3d2b11",
            "7c9e6679-7425-40de-944b-e07fc1f90ae7",
            "a uuid",
        ),
        ("ts={}", "1764547200", "1764547261", "a timestamp"),
        ("Write to {}", "ann@example.org", "bob@example.com", "an e-mail address"),
        ("Session sess-{}.", "9f8a7b6c5d", "1a2b3c4d5e", "an identifier"),
        ("You have {} credits left.", "17", "18", "a number"),
    ],
)
def test_what_changes_is_named_and_a_rule_takes_it_out(
    template: str, one: str, other: str, kind: str
) -> None:
    found = only(template.format(one), template.format(other))
    assert (found.kind, kind in found.detail) == (kind, True)
    rule = re.compile(found.ignore)
    assert rule.sub("", template.format(one)) == rule.sub("", template.format(other))
    assert rule.sub("", "Nothing of the kind.") == "Nothing of the kind."


def test_the_place_and_both_values_are_shown() -> None:
    found = only("You are Ann. Date: 2026-11-30.", "You are Ann. Date: 2026-12-01.")
    assert found.detail == (
        "the system prompt differs at character 20: after 'You are Ann. Date:': "
        "'2026-11-30' and '2026-12-01': a date"
    )
    assert found.ignore.startswith("You are Ann\\. Date: (?:")


def test_no_rule_is_offered_where_more_would_remain() -> None:
    found = only("Date: 2026-11-30. Answer in French.", "Date: 2026-12-01. Answer in German.")
    assert (found.kind, found.ignore) == ("a date", "")


def test_a_name_is_told_and_not_to_be_ignored_lightly() -> None:
    found = only("You talk to Ann Miller.", "You talk to Bob Smith.")
    assert (found.kind, found.ignore) == ("a name", "")
    assert "'Ann Miller' and 'Bob Smith'" in found.detail


def test_plain_text_shows_where_it_differs() -> None:
    assert only("answer in french", "answer in greek").detail.endswith("'french' and 'greek'")
    assert "no system prompt" in only("answer in french", "").detail
    assert only("be brief", "be brief, please").detail.endswith("'' and ', please'")


@pytest.mark.parametrize(
    ("fields", "what", "told"),
    [
        ({"history": b"h", "turns": 4}, "history", "0 and 4 earlier turns"),
        ({"fields": {"temperature": "0.2"}}, "field", "temperature is absent, then 0.2"),
        ({"namespace": "n"}, "namespace", "namespaces"),
        ({"context_id": "c"}, "context_id", "documents"),
        ({"user": "u"}, "user", "cache.scope"),
        ({"names": "m"}, "names", "revision"),
    ],
)
def test_every_other_ingredient_is_named(fields: dict[str, Any], what: str, told: str) -> None:
    (found,) = differences(Ingredients(b"1"), Ingredients(b"2", **fields))
    assert (found.what, told in found.detail) == (what, True)
    assert differences(Ingredients(b"1"), Ingredients(b"1")) == []
