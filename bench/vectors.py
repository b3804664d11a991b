"""Vectors kept from one run to the next, so that a benchmark repeated takes seconds.

A file of one encoder, `ENCODER.npz`, holds `keys` (the first 16 bytes of blake2b of each text)
and `vectors` (float32 [n, dim], unit length). A file that cannot be read is made anew.
"""

from __future__ import annotations

import os
import re
import sys
import zipfile
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tierway.cache.embedders import BuiltinEmbedder, PairEmbedder, SentenceTransformersEmbedder
from tierway.policies.protocols import Embedder

if TYPE_CHECKING:
    from tierway.policies.protocols import Vectors

BATCH = 64


class Remembered:
    """An Embedder that asks `inner` for what it does not know yet. `folder` None keeps
    vectors for this run only. `encoded` counts the texts `inner` was asked for."""

    def __init__(self, inner: Embedder, folder: Path | None = None) -> None:
        self.inner, self._folder = inner, folder
        self._known: dict[bytes, Vectors] = {}
        self.encoded = 0

    @property
    def id(self) -> str:
        return self.inner.id

    @property
    def dim(self) -> int:
        return self.inner.dim

    def fits(self, text: str) -> bool:
        return self.inner.fits(text)

    async def start(self) -> None:
        await self.inner.start()
        if self._folder is not None:
            self._load(self._file())

    async def encode(self, texts: Sequence[str]) -> Vectors:
        missing = list(dict.fromkeys(text for text in texts if _key(text) not in self._known))
        for at in range(0, len(missing), BATCH):
            batch = missing[at : at + BATCH]
            rows = await self.inner.encode(batch)
            self._known.update(zip(map(_key, batch), rows, strict=True))
            self.encoded += len(batch)
            _progress("encoding", at + len(batch), len(missing))
        if not texts:
            return np.empty((0, self.dim), np.float32)
        return np.stack([self._known[_key(text)] for text in texts])

    async def learn(self, texts: Sequence[str]) -> None:
        """Encodes in batches what fits, so that asking for one text takes no time."""
        await self.encode(sorted({text for text in texts if self.fits(text)}, key=len))

    async def aclose(self) -> None:
        """Writes what is new to the folder."""
        if self._folder is not None and self.encoded:
            self._store(self._file())
        await self.inner.aclose()

    def _file(self) -> Path:
        assert self._folder is not None
        return self._folder / (re.sub(r"[^\w.+-]+", "_", self.id) + ".npz")

    def _load(self, file: Path) -> None:
        try:
            with np.load(file) as held:
                keys, vectors = held["keys"], held["vectors"]
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            return
        if vectors.shape == (len(keys), self.dim):
            self._known = {key.tobytes(): row for key, row in zip(keys, vectors, strict=True)}

    def _store(self, file: Path) -> None:
        """Written aside and moved, so that a run beside this one never reads half a file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        keys = np.frombuffer(b"".join(self._known), np.uint8).reshape(-1, 16)
        made = file.with_name(f"{file.stem}.{os.getpid()}.npz")
        np.savez(made, keys=keys, vectors=np.stack(list(self._known.values())))
        made.replace(file)


def embedder_named(name: str | None) -> Embedder:
    """`builtin` (or None), `use` for USE alone, else a sentence-transformers model."""
    if name in (None, "", "builtin"):
        return PairEmbedder()
    return BuiltinEmbedder() if name == "use" else SentenceTransformersEmbedder(str(name))


def _key(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _progress(what: str, done: int, total: int) -> None:
    if sys.stderr.isatty() and total > BATCH:
        print(f"\r{what} {done}/{total}", end="\n" if done >= total else "", file=sys.stderr)
