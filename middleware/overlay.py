"""What admin calls have changed, laid over the configuration.

A document of sections, each a mapping of keys to plain JSON values, with one version that rises
with every change. Whoever acts on a section says so with `on` and hears the whole section at once
and after each change of it; hearing raises nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

Section = Mapping[str, Any]
Apply = Callable[[Section], None]


class Overlay:
    """Kept in this process only."""

    def __init__(self) -> None:
        self.version = 0
        self._sections: dict[str, dict[str, Any]] = {}
        self._appliers: defaultdict[str, list[Apply]] = defaultdict(list)

    def on(self, section: str, apply: Apply) -> None:
        self._appliers[section].append(apply)
        apply(self.section(section))

    def section(self, section: str) -> Section:
        return self._sections.get(section, {})

    async def put(self, section: str, key: str, value: Any) -> int:
        """Sets a key, or with None takes it back to what is configured; the new version."""
        changed = {**self.section(section), key: value}
        if value is None:
            del changed[key]
        self._sections[section] = changed
        self.version += 1
        for apply in self._appliers[section]:
            apply(changed)
        return self.version
