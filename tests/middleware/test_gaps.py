from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from config_cases import FULL, faults, with_value
from pydantic import BaseModel

from tierway.middleware.config import Settings
from tierway.middleware.gaps import GAPS
from tierway.middleware.settings import SettingsTree
from tierway.policies.registry import POLICIES

ROOT = Path(__file__).parents[2]


PLACES = {
    "models.*.kind": "models/gpt/kind",
    "tiers.*.policy": "tiers/small/policy",
    "tiers.*.plain_policy": "tiers/small/plain_policy",
}
ANYTHING: dict[str, Any] = {
    "fleet.allowed_networks": ["10.0.0.0/8"],
    "plugins": ["a"],
    "router.shares": {"a": 0.5},
    "router.rules": [{}],
}


@pytest.mark.parametrize("gap", [gap for gap in GAPS if not gap.warning], ids=lambda gap: gap.path)
def test_what_is_not_there_yet_is_refused(gap: Any) -> None:
    for value in gap.missing or (ANYTHING.get(gap.path, "X"),):
        where = PLACES.get(gap.path, gap.path.replace("*", "0").replace(".", "/"))
        lines = [line for line in faults(with_value(where, value)) if "not available" in line]
        assert len(lines) == 1
        assert lines[0].startswith(where.replace("/", "."))


def test_bare_off_of_yaml_is_the_text() -> None:
    (line,) = faults(with_value("router/mode", False))
    assert line == "router.mode = 'off': is not available in this version"
    assert Settings.from_dict(with_value("router/mode", True)).router.mode == "serve"
    assert Settings.from_dict(with_value("server/lenient", False)).server.lenient is False


def test_a_refused_value_is_not_offered() -> None:
    (line,) = faults(with_value("placement/default", "cloud"))
    assert line.endswith("must be one of prefer_on_prem, on_prem_only")


def gap_lines(data: dict[str, Any]) -> list[str]:
    return [line for line in Settings.from_dict(data).warnings if "in this version" in line]


def test_what_is_given_and_does_nothing_is_one_warning_for_each_place() -> None:
    limits = ("weight", "rpm", "tpm", "budget_usd_per_day", "assumed_output_tokens", "hit_factor")
    assert gap_lines(FULL) == [
        "resilience: nothing queues in this version: overload_wait_s",
        f"tenants.0: not enforced in this version: {', '.join(limits)}",
    ]


@pytest.mark.parametrize(("priority", "lines"), [("normal", 0), ("urgent", 1), ("batch", 1)])
def test_a_priority_is_told_unless_it_is_the_usual_one(priority: str, lines: int) -> None:
    tenant = {"name": "b", "key_env": "ACME_KEY", "priority": priority}
    told = gap_lines({"models": FULL["models"], "tenants": [tenant]})
    expected = ["tenants.0: not enforced in this version: priority"] * lines
    assert [line for line in told if line.startswith("tenants")] == expected


def test_defaults_and_nulls_are_not_told() -> None:
    assert gap_lines({}) == []
    tenant = {"name": "b", "key_env": "ACME_KEY", "rpm": None}
    replica = {"url": "http://h", "telemetry": None}
    models = {"q": {"tier": "small", "replicas": [replica]}}
    assert gap_lines({"models": models, "tenants": [tenant]}) == []


def keys_of(annotation: Any, path: str = "") -> Iterator[str]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield from keys_of(field.annotation, f"{path}.{field.alias or name}".strip("."))
        return
    inner = [arg for arg in get_args(annotation) if isinstance(arg, type) or get_args(arg)]
    step = {dict: ".NAME", tuple: ".N"}.get(get_origin(annotation), "")
    sections = [arg for arg in inner if list(keys_of(arg)) not in ([], [""])]
    if sections:
        yield from keys_of(sections[-1], path + step)
    else:
        yield path


def test_every_key_is_documented_and_no_other() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    told = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert told == set(keys_of(SettingsTree))


def test_every_policy_is_named_where_it_may_be_given() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| `tiers.NAME.policy` |")]
    assert set(row.split("|")[3].strip().split(", ")) == set(POLICIES)


@pytest.mark.parametrize("gap", GAPS, ids=lambda gap: gap.path)
def test_what_is_not_there_yet_is_documented(gap: Any) -> None:
    key = gap.path.replace("tenants.*", "tenants.N").replace("replicas.*", "replicas.N")
    key = key.replace("*", "NAME")
    text = (ROOT / "docs" / "configuration.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith(f"| `{key}` |")]
    assert f"*{gap.warning or 'not available in this version'}*" in row
    assert all(str(value).lower() in row for value in gap.missing or ())
