"""Which keys of two configurations differ, and which of those can change while traffic flows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tierway.middleware.config_text import Key
from tierway.middleware.settings import SettingsTree

_LIVE = frozenset({"policy", "options", "plain_policy", "shadow_policy", "shadow_options"})
_WHOLE = frozenset({"options", "shadow_options", "set", "shares"})  # open mappings: one value each
_ORDERED = (("tiers",), ("models",), ("aliases",))  # mappings whose order means something


def differing(old: SettingsTree, new: SettingsTree) -> list[tuple[Key, ...]]:
    """The paths of all keys with other values; of a list or an open mapping, its own path."""
    return list(_differing(_dump(old), _dump(new), ()))


def is_live(path: tuple[Key, ...], running: SettingsTree) -> bool:
    """Whether what stands at the path can change without a restart."""
    if len(path) == 3 and path[0] == "models" and path[2] == "replicas":
        return path[1] in running.models and not running.models[str(path[1])].cloud
    if len(path) != 3 or path[0] != "tiers":
        return path == ("router", "quality")
    return path[1] in running.tiers and path[2] in _LIVE


def _dump(tree: SettingsTree) -> dict[str, Any]:
    return tree.model_dump(mode="json", by_alias=True)


def _differing(old: Any, new: Any, path: tuple[Key, ...]) -> Iterator[tuple[Key, ...]]:
    sections = isinstance(old, dict) and isinstance(new, dict)
    if not sections or (path and path[-1] in _WHOLE):
        if old != new:
            yield path
        return
    for key in dict.fromkeys((*old, *new)):
        if key in old and key in new:
            yield from _differing(old[key], new[key], (*path, key))
        else:
            yield (*path, key)
    if path in _ORDERED and old.keys() == new.keys() and list(old) != list(new):
        yield path
