"""Policies of other distributions: which are loaded, and how what is wrong with one is told."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tierway.middleware.config import Settings, check_main
from tierway.middleware.plugins import registry
from tierway.policies.errors import ConfigError
from tierway.policies.policyset import PolicySet
from tierway.policies.registry import POLICIES
from tierway.policies.types import Tier

CODE = """
from tierway.policies.balance import Policy
from tierway.policies.errors import ConfigError
from tierway.policies.pickers import Best

def coldest(options):
    if set(options) - {"limit"}:
        raise ConfigError([f"options.{key}: only limit is" for key in options])
    return Policy("whatever", Best())

def broken(options):
    return 1 / 0

def nothing(options):
    return None

not_callable = 7
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a distribution on the path, its metadata written by hand."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Install(tmp_path)
    for name in [name for name in sys.modules if name.startswith("plugged_")]:
        del sys.modules[name]


class Install:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, name: str, points: str, code: str = CODE) -> None:
        info = self._folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[tierway.policies]\n{points}\n")
        (self._folder / f"plugged_{name}.py").write_text(code)


def faults(*plugins: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        registry(plugins)
    return caught.value.faults


def test_nothing_is_imported_that_is_not_named(install: Install) -> None:
    install("cold", "coldest = plugged_cold:coldest")
    install("other", "bomb = plugged_other:bomb", code="raise SystemExit")
    assert registry(()) is POLICIES
    assert "plugged_cold" not in sys.modules
    found = registry(["cold"])
    assert set(found) == {*POLICIES, "coldest"}
    assert "plugged_cold" in sys.modules
    assert "plugged_other" not in sys.modules


def test_a_policy_of_a_plugin_has_the_name_of_its_entry_point(install: Install) -> None:
    install("cold", "coldest = plugged_cold:coldest")
    tier = Tier("small", 0, "7b", (), policy="coldest", options={"limit": 80})
    made = PolicySet.build([tier], registry=registry(["cold"]))
    assert made.for_tier("small").name == "coldest"
    with pytest.raises(ConfigError, match=r"tiers\.small\.options\.lmit: only limit is"):
        made.with_policy("small", "coldest", {"lmit": 1})
    with pytest.raises(ConfigError, match=r"policy = 'coldst': did you mean coldest"):
        made.with_policy("small", "coldst")


def test_what_is_wrong_with_a_plugin_ends_the_start(install: Install) -> None:
    install("cold", "llm = plugged_cold:coldest")
    install("bad", "lost = plugged_bad:missing\nnumber = plugged_bad:not_callable")
    install("worse", "bomb = plugged_worse:bomb", code="1 / 0")
    install("named", "no/path = plugged_named:coldest")
    install("one", "same = plugged_one:coldest")
    install("two", "same = plugged_two:coldest")
    (lost,) = faults("clod")
    assert lost == (
        "plugins.0 = 'clod': no distribution of that name is installed; did you mean 'cold'?"
    )
    assert faults("cold")[0].endswith("its policy 'llm' has the name of one that is built in")
    assert "'lost' cannot be loaded from plugged_bad:missing: AttributeError" in faults("bad")[0]
    assert "'bomb' cannot be loaded from plugged_worse:bomb: ZeroDivision" in faults("worse")[0]
    assert "the name of its policy 'no/path' must be a letter" in faults("named")[0]
    assert faults("one", "two") == [
        "plugins.1 = 'two': its policy 'same' has the name of one that is of one"
    ]
    assert "has no entry point in the group tierway.policies" in faults("pytest")[0]
    assert "plugins.2 = ''" in faults("clod", "cold", "")[2]


@pytest.mark.parametrize(
    ("point", "told"),
    [
        ("broken", "its factory failed: ZeroDivisionError: division by zero"),
        ("nothing", "its factory made nothing that ranks"),
    ],
)
def test_a_factory_that_fails_is_a_fault_of_its_tier(
    install: Install, point: str, told: str
) -> None:
    install("cold", f"mine = plugged_cold:{point}")
    found = registry(["cold"])
    with pytest.raises(ConfigError, match=f"tiers.small.policy = 'mine': {told}"):
        PolicySet.build([Tier("small", 0, "7b", (), policy="mine")], registry=found)
    install("flat", "flat = plugged_flat:not_callable")
    assert faults("flat")[0].endswith("plugged_flat:not_callable is no factory")


def test_the_check_of_a_file_loads_what_it_names(install: Install, tmp_path: Path) -> None:
    install("cold", "coldest = plugged_cold:coldest")
    file = tmp_path / "tierway.yaml"

    def check(text: str) -> tuple[int, str]:
        file.write_text(text)
        out, err = io.StringIO(), io.StringIO()
        return check_main(file, {}, out, err), err.getvalue()

    assert check("plugins: [cold]\ntiers: {small: {policy: coldest}}") == (0, "")
    code, told = check("plugins: [cold]\ntiers: {small: {policy: coldst}}")
    assert (code, "did you mean coldest?" in told) == (2, True)
    code, told = check("tiers: {small: {policy: coldest}}")
    assert (code, "tiers.small.policy = 'coldest': must be one of" in told) == (2, True)


@pytest.mark.parametrize(
    ("tier", "told"),
    [
        ({"policy": "llmm"}, "tiers.small.policy = 'llmm': must be one of"),
        ({"policy": "llmm"}, "did you mean 'llm'?"),
        ({"options": {"surchrge": 1}}, "tiers.small.options.surchrge = 1: no such option"),
        ({"options": {"surcharge": -1}}, "tiers.small.options.surcharge = -1: must be a number"),
        ({"policy": "random", "options": {"a": 1}}, "tiers.small.options.a = 1: random takes no"),
        ({"shadow_policy": "rnd"}, "tiers.small.shadow_policy = 'rnd'"),
        (
            {"shadow_policy": "llm", "shadow_options": {"a": 1}},
            "tiers.small.shadow_options.a = 1: no such option",
        ),
        ({"shadow_options": {"a": 1}}, "tiers.small.shadow_options: goes with shadow_policy"),
    ],
)
def test_a_wrong_policy_or_option_in_the_file_is_told(tier: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_dict({"tiers": {"small": tier}})
    (line,) = caught.value.faults
    assert told in line
