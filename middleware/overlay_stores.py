"""Where admin changes are kept: a file for one gateway, Redis for several.

The file is JSON, beside the cache's, and is replaced whole, so that it is never half written; it
belongs to one process, as everything does with `state.backend: memory`. One that cannot be read is
set aside under another name, with a warning: the gateway starts with what is configured.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import orjson

from tierway.middleware.overlay import Document
from tierway.policies.errors import CacheError

logger = logging.getLogger(__name__)

_SWAP = """
local held = redis.call('HGET', KEYS[1], 'version')
if tonumber(held or '0') ~= tonumber(ARGV[1]) - 1 then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'sections', ARGV[2])
return 1
"""


class FileOverlay:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: Document | None = None

    async def read(self) -> Document:
        if self._kept is None:
            self._kept = await asyncio.to_thread(self._load)
        return self._kept

    async def swap(self, new: Document) -> bool:
        if new.version != (await self.read()).version + 1:
            return False
        try:
            await asyncio.to_thread(self._write, new)
        except OSError as error:
            raise CacheError(f"{self._path} cannot be written: {error.strerror}.") from error
        self._kept = new
        return True

    def _load(self) -> Document:
        try:
            return parsed(self._path.read_bytes())
        except FileNotFoundError:
            return Document()
        except OSError as error:
            raise CacheError(f"{self._path} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            aside = self._path.with_suffix(".unreadable")
            logger.warning("%s: %s; it is now %s", self._path, error, aside)
            os.replace(self._path, aside)
            return Document()

    def _write(self, document: Document) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(packed(document))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._path)


class Link(Protocol):
    """A connection to Redis; what cannot be had is a CacheError."""

    async def script(self, source: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any: ...
    async def command(self, *command: Any) -> Any: ...


class RedisOverlay:
    """One hash, at `tierway:{NAME}:overlay`; NAME is `state.name`."""

    def __init__(self, link: Link, name: str) -> None:
        self._link, self._key = link, f"tierway:{{{name}}}:overlay"

    async def read(self) -> Document:
        version, sections = await self._link.command("HMGET", self._key, "version", "sections")
        if version is None:
            return Document()
        try:
            return Document(int(version), _sections(orjson.loads(sections)))
        except ValueError as error:
            raise CacheError(f"{self._key} in Redis is not what it should be: {error}.") from error

    async def swap(self, new: Document) -> bool:
        arguments = (str(new.version), orjson.dumps(new.sections))
        return bool(await self._link.script(_SWAP, (self._key,), arguments))


def packed(document: Document) -> bytes:
    whole = {"version": document.version, "sections": document.sections}
    return orjson.dumps(whole, option=orjson.OPT_INDENT_2)


def parsed(text: bytes) -> Document:
    """ValueError for what is no document."""
    whole = orjson.loads(text)
    if not isinstance(whole, dict) or not isinstance(whole.get("version"), int):
        raise ValueError("holds no admin changes")
    return Document(whole["version"], _sections(whole.get("sections")))


def _sections(found: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise ValueError("has no sections")
    return found
