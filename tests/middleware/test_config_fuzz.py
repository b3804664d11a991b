from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from config_cases import ENVIRON, FULL
from hypothesis import given, settings
from hypothesis import strategies as st

from tierway.middleware.config import (
    Settings,
    load,
    render,
    resolve,
)
from tierway.middleware.gaps import gap_faults
from tierway.policies.errors import ConfigError

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.binary(max_size=3),
    st.sampled_from(["off", "auto", "small", "redis", "http://h", "http://[", "(", "10.0.0.0/8",
                     "A_NAME", "~nobody/x", "\udcff", 10**400, 1e308]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.integers() | st.booleans(), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, inner in (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    ):
        yield (*path, key)
        yield from places(inner, (*path, key))


PLACES = list(places(FULL))


def outcome(read: Callable[[], Settings | None]) -> Settings | list[str] | None:
    """What was read, or the faults of a ConfigError, each of which must be one printable line."""
    try:
        return read()
    except ConfigError as error:
        faulty = [line for line in error.faults if not line.isprintable()]
        if faulty:
            raise AssertionError(faulty) from error
        return error.faults


@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES, st.booleans()), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_a_mutation_loads_or_raises_config_error(mutations: list[Any]) -> None:
    data: Any = copy.deepcopy(FULL)
    for path, value, beside in mutations:
        node = data
        for step in path[:-1]:
            node = (
                node[step] if step in (node if isinstance(node, dict) else range(len(node))) else {}
            )
            node = node if isinstance(node, dict | list) else {}
        if isinstance(node, dict):
            node[value if beside and isinstance(value, str | int) else path[-1]] = value
        elif path[-1] in range(len(node)):
            node[path[-1]] = value
    end = outcome(lambda: resolve(data, ENVIRON))
    if isinstance(end, Settings):
        assert yaml.safe_load(render(end))
        assert not list(gap_faults(end.model_dump(mode="json", by_alias=True)))
        assert all(line.isprintable() for line in end.warnings)


@given(st.text(max_size=40), st.sampled_from(["CACHE__MODE", "SERVER", "DEGRADE__0", "A__0__B"]))
@settings(max_examples=30, deadline=None)
def test_any_variable_loads_or_raises_config_error(text: str, name: str) -> None:
    assert outcome(lambda: resolve(FULL, {**ENVIRON, f"TIERWAY_{name}": text}))


@given(st.integers(0, 2000), st.text(max_size=3))
@settings(max_examples=25, deadline=None)
def test_a_damaged_file_loads_or_raises_config_error(
    tmp_path_factory: pytest.TempPathFactory, at: int, text: str
) -> None:
    good = yaml.safe_dump(FULL)
    path = tmp_path_factory.mktemp("damaged") / "t.yaml"
    path.write_bytes((good[:at] + text + good[at + 1 :]).encode("utf-8", "surrogatepass"))
    assert outcome(lambda: load(path, ENVIRON))
