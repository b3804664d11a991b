from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from config_cases import FULL, faults, with_value
from pydantic import BaseModel

from tierway.middleware.config import (
    Settings,
)
from tierway.middleware.gaps import GAPS
from tierway.middleware.settings import SettingsTree

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("gap", [gap for gap in GAPS if gap.refused], ids=lambda gap: gap.path)
def test_what_is_not_there_yet_is_refused(gap: Any) -> None:
    path = {"models.*.kind": "models/gpt/kind", "tenants.*.placement": "tenants/0/placement"}
    path |= {f"tiers.*.{key}": f"tiers/small/{key}" for key in ("policy", "plain_policy")}
    anything = {"router.shares": {"a": 0.5}, "router.rules": [{}], "plugins": ["a"]}
    for value in gap.missing or (anything.get(gap.path, "X"),):
        where = path.get(gap.path, gap.path.replace(".", "/"))
        lines = [line for line in faults(with_value(where, value)) if "not available" in line]
        assert len(lines) == 1
        assert lines[0].startswith(where.replace("/", "."))


def test_limits_that_nothing_enforces_are_one_warning_for_each_tenant() -> None:
    tree = Settings.from_dict(FULL)
    (line,) = [line for line in tree.warnings if line.startswith("tenants.")]
    limits = ("weight", "rpm", "tpm", "budget_usd_per_day", "assumed_output_tokens", "hit_factor")
    assert line == f"tenants.acme: not enforced in this version: {', '.join(limits)}"
    data = with_value("tenants", [{"name": "b", "key_env": "ACME_KEY", "priority": "batch"}])
    assert not [line for line in Settings.from_dict(data).warnings if line.startswith("tenants.")]


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


@pytest.mark.parametrize("gap", GAPS, ids=lambda gap: gap.path)
def test_what_is_not_there_yet_is_documented(gap: Any) -> None:
    key = gap.path.replace("tenants.*", "tenants.N").replace("*", "NAME")
    text = (ROOT / "docs" / "configuration.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith(f"| `{key}` |")]
    assert ("not available in this version" if gap.refused else "not enforced") in row
    assert all(value in row for value in gap.missing or ())
