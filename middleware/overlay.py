"""What admin calls have changed, laid over the configuration.

A document of sections, each a mapping of keys to plain JSON values, with one version that rises
with every change. Whoever acts on a section says so with `on`, and hears it at once and after each
change of it. Where the document is kept (see overlay_stores.py) all gateways find it, and so does
the next start. While it cannot be kept a change acts here only, and is kept as soon as it can be.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tierway.policies.errors import CacheError

logger = logging.getLogger(__name__)

FOLLOW_S = 0.5  # every gateway obeys within a second
_TRIES = 8

Section = Mapping[str, Any]
Apply = Callable[[Section], None]


@dataclass(frozen=True, slots=True)
class Document:
    """Version 0 is the empty one."""

    version: int = 0
    sections: Mapping[str, Section] = field(default_factory=dict)

    def section(self, name: str) -> Section:
        return self.sections.get(name, {})

    def put(self, section: str, key: str, value: Any) -> Document:
        """The next one; a value of None takes the key out."""
        kept = {name: held for name, held in self.section(section).items() if name != key}
        changed = kept if value is None else {**kept, key: value}
        return Document(self.version + 1, {**self.sections, section: changed})


class OverlayStore(Protocol):
    """Where the document is kept. What cannot be done is a CacheError."""

    async def read(self) -> Document: ...
    async def swap(self, new: Document) -> bool:
        """Keeps the new document where the version before it is still the one that is kept."""
        ...


class MemoryOverlay:
    """Keeps it as long as the process lives."""

    def __init__(self) -> None:
        self._kept = Document()

    async def read(self) -> Document:
        return self._kept

    async def swap(self, new: Document) -> bool:
        fits = new.version == self._kept.version + 1
        if fits:
            self._kept = new
        return fits


class Overlay:
    def __init__(self, store: OverlayStore | None = None, *, follow_s: float = FOLLOW_S) -> None:
        self._store: OverlayStore = store or MemoryOverlay()
        self._follow_s = follow_s
        self._document = Document()
        self._unkept: dict[tuple[str, str], Any] = {}
        self._appliers: defaultdict[str, list[Apply]] = defaultdict(list)
        self._task: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        return self._document.version

    @property
    def kept(self) -> bool:
        """False while a change acts in this process only."""
        return not self._unkept

    async def start(self, *, follow: bool = True) -> None:
        """Takes what is kept, and goes on following it."""
        await self._try(self.follow)
        if follow:
            self._task = asyncio.get_running_loop().create_task(self._forever())

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def on(self, section: str, apply: Apply) -> None:
        """`apply` gets the whole section; it is called at once if there is anything in it."""
        self._appliers[section].append(apply)
        if found := self.section(section):
            _call(apply, found)

    def section(self, section: str) -> Section:
        return self._document.section(section)

    async def put(self, section: str, key: str, value: Any) -> int:
        """Sets a key, or with None takes it back to what is configured; the new version."""
        self._unkept[section, key] = value
        if not await self._try(self._keep):
            self._take(self._document.put(section, key, value))
        return self.version

    async def edit(self, change: Callable[[Document], Document | None]) -> bool:
        """Has `change` make the next document of the newest one, until it is kept; False where it
        makes none. Raises CacheError where it could not be kept, and then nothing has changed."""
        for _ in range(_TRIES):
            newest = await self._store.read()
            new = change(newest)
            if new is None:
                return False
            if await self._store.swap(new):
                self._take(new)
                return True
        raise _crowded()

    async def follow(self) -> None:
        """Takes what others have changed, and keeps what could not be kept. Raises CacheError."""
        if self._unkept:
            await self._keep()
            return
        found = await self._store.read()
        if found.version != self.version:
            self._take(found)

    async def _keep(self) -> None:
        for _ in range(_TRIES):
            new, changes = await self._store.read(), dict(self._unkept)
            for (section, key), value in changes.items():
                new = new.put(section, key, value)
            new = Document(new.version - len(changes) + 1, new.sections)
            if await self._store.swap(new):
                self._unkept = {
                    place: value
                    for place, value in self._unkept.items()
                    if place not in changes or changes[place] is not value
                }
                self._take(new)
                return
        raise _crowded()

    def _take(self, new: Document) -> None:
        old, self._document = self._document, new
        for name in {**old.sections, **new.sections}:
            if old.section(name) != new.section(name):
                for apply in self._appliers[name]:
                    _call(apply, new.section(name))

    async def _try(self, step: Callable[[], Any]) -> bool:
        try:
            await step()
        except CacheError as error:
            logger.warning("admin changes: %s They act in this process only.", error.public)
            return False
        return True

    async def _forever(self) -> None:
        while True:
            await asyncio.sleep(self._follow_s)
            try:
                await self._try(self.follow)
            except Exception:  # border: the loop outlives any fault
                logger.exception("the admin changes could not be followed")


def _crowded() -> CacheError:
    return CacheError("The admin changes could not be kept: others kept changing them.")


def _call(apply: Apply, section: Section) -> None:
    try:
        apply(section)
    except Exception:  # border: a document may come from another release
        logger.exception("an admin change was not understood")
