"""What the sign codes of a large partition lose: `python -m tierway.bench.cache_recall --texts F`.

Questions of a file (.jsonl or .jsonl.gz, every string in a line counts) are encoded; the index is
filled with copies of their vectors, each turned by noise of its own until its cosine to the text
lies between FAR and 1, as wordings of one question lie around it. A query is a stored vector
turned the same way. Of its nearest neighbours, found by comparing with all, those at a cosine of
NEAR and more could be hits; the share of them that a search finds is what is reported.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierway.bench.load import positive
from tierway.cache.embedders import BuiltinEmbedder
from tierway.cache.index import RERANK, Arena
from tierway.cache.int8_rows import quantise
from tierway.policies.protocols import Embedder

NEAR, FAR = 0.8, 0.6
NEIGHBOURS = 8
BATCH = 256
_CHUNK = 8192
_PARTITION = bytes(16)

Floats = NDArray[np.float32]


def texts_of(path: Path, most: int) -> list[str]:
    """The first `most` different texts of the file."""
    found: dict[str, None] = {}
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            found.update(dict.fromkeys(_strings(json.loads(line))))
            if len(found) >= most:
                break
    return list(found)[:most]


def _strings(row: dict[str, Any]) -> Iterator[str]:
    # Labels (source, lang ...) are short; what is asked is a sentence or in Chinese characters.
    for value in row.values():
        if isinstance(value, str) and (" " in value or not value.isascii()):
            yield value


async def encoded(texts: Sequence[str], embedder: Embedder) -> Floats:
    await embedder.start()
    try:
        fitting = [text for text in texts if embedder.fits(text)]
        parts = [
            await embedder.encode(fitting[at : at + BATCH]) for at in range(0, len(fitting), BATCH)
        ]
    finally:
        await embedder.aclose()
    return np.concatenate(parts)


def recall(texts: Floats, entries: int, queries: int) -> dict[str, Any]:
    """`texts`: float32 [n, dim], unit length."""
    rng = np.random.default_rng(11)
    arena, stored = Arena(texts.shape[1]), np.zeros((entries, texts.shape[1]), np.int8)
    for start in range(0, entries, _CHUNK):
        number = min(_CHUNK, entries - start)
        rows = quantise(_turned(texts[rng.integers(0, len(texts), number)], rng))
        stored[start : start + number] = rows
        arena.add_many([_PARTITION] * number, range(start, start + number), rows)
    arena.prepare()
    asked = _turned(_units(stored[rng.choice(entries, queries, replace=False)]), rng)
    cosines, keys = _nearest(stored, asked)
    near = found = firsts = first_found = 0
    for query, their_cosines, their_keys in zip(asked, cosines, keys, strict=True):
        wanted = their_keys[their_cosines >= NEAR].tolist()
        got = {key for key, _ in arena.search(_PARTITION, query, RERANK)}
        near, found = near + len(wanted), found + len(got.intersection(wanted))
        firsts += bool(wanted)
        first_found += bool(got.intersection(wanted[:1]))
    return {
        "entries": entries,
        "queries": queries,
        "near_neighbours": near,
        "near_found": round(found / near, 5) if near else None,
        "nearest_found": round(first_found / firsts, 5) if firsts else None,
    }


def _turned(units: Floats, rng: np.random.Generator) -> Floats:
    """Each row turned by noise until its cosine to itself lies between FAR and 1."""
    noise = rng.standard_normal(units.shape, np.float32)
    noise -= (noise * units).sum(axis=1, keepdims=True) * units
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    cosines = rng.uniform(FAR, 1.0, (len(units), 1)).astype(np.float32)
    return (cosines * units + np.sqrt(1 - cosines**2) * noise).astype(np.float32)


def _units(rows: NDArray[np.int8]) -> Floats:
    floats = rows.astype(np.float32)
    units: Floats = floats / np.linalg.norm(floats, axis=1, keepdims=True)
    return units


def _nearest(stored: NDArray[np.int8], asked: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Cosines and keys [queries, NEIGHBOURS] of the nearest of all, best first."""
    best = np.full((len(asked), NEIGHBOURS), -1.0, np.float32)
    keys = np.full((len(asked), NEIGHBOURS), -1, np.int64)
    for start in range(0, len(stored), _CHUNK):
        cosines = asked @ _units(stored[start : start + _CHUNK]).T
        places = np.broadcast_to(np.arange(start, start + cosines.shape[1]), cosines.shape)
        all_cosines = np.concatenate([best, cosines], axis=1)
        all_keys = np.concatenate([keys, places], axis=1)
        order = np.argsort(-all_cosines, axis=1)[:, :NEIGHBOURS]
        best = np.take_along_axis(all_cosines, order, axis=1)
        keys = np.take_along_axis(all_keys, order, axis=1)
    return best, keys


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="cache_recall", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--texts", type=Path, required=True, metavar="F")
    parser.add_argument("--most", type=positive, default=4000, help="different texts to encode")
    parser.add_argument("--entries", type=positive, default=1_000_000)
    parser.add_argument("--queries", type=positive, default=300)
    options = parser.parse_args(argv)
    texts = asyncio.run(encoded(texts_of(options.texts, options.most), BuiltinEmbedder()))
    print(json.dumps({"texts": len(texts), **recall(texts, options.entries, options.queries)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
