"""Vectors as int8: a row holds a vector scaled to [-127, 127].

With the row's own length kept beside it the cosine is off by at most .002 for encoders of 384
dimensions or more (.003 at 128). Quantising a row again gives the same row, so what the store
keeps of a vector is such a row, a quarter of the floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Bytes = NDArray[np.int8]

_BLOCK_ROWS = 256
_MARK = b"\x08"


def unit(vector: Floats, dim: int) -> Floats:
    """float32 [dim] of length 1; ValueError for a vector that has no direction."""
    floats = np.asarray(vector, np.float32)
    if floats.shape != (dim,):
        raise ValueError(f"a vector of shape {floats.shape}: must be ({dim},)")
    length = float(np.linalg.norm(floats))
    if not (0.0 < length < np.inf):  # NaN too
        raise ValueError(f"a vector of length {length}: must be finite and not zero")
    return floats / np.float32(length)


def quantise(units: Floats) -> Bytes:
    """float32 [n, dim] or [dim], no row all zero, to rows whose largest component is 127."""
    scales = np.float32(127.0) / np.abs(units).max(axis=-1, keepdims=True)
    rows: Bytes = np.rint(units * scales).astype(np.int8)
    return rows


def inverse_lengths(rows: Bytes) -> Floats:
    """One over the length of each int8 row of [n, dim]; ValueError for a row all zero."""
    floats = rows.astype(np.float32)
    squares = np.einsum("ij,ij->i", floats, floats)
    if not squares.all():
        raise ValueError("a vector of length 0: must be finite and not zero")
    inverse: Floats = 1.0 / np.sqrt(squares)
    return inverse


def products(rows: Bytes, vector: Floats) -> Floats:
    """`rows @ vector` in float32, some rows at a time: a larger product would wake the threads
    of the BLAS library, which then spin for milliseconds waiting for another one."""
    parts = [
        rows[at : at + _BLOCK_ROWS].astype(np.float32) @ vector
        for at in range(0, len(rows), _BLOCK_ROWS)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def pack(vector: Floats) -> bytes:
    """What the store keeps of a vector: one byte, which tells it from floats by the
    length, and its row."""
    return _MARK + quantise(vector).tobytes()


def unpack(packed: Sequence[bytes], dim: int) -> Bytes:
    """int8 [n, dim] of what `pack` made, or of float32 vectors as earlier releases kept them.
    ValueError for bytes that are neither."""
    rows = b"".join([raw if len(raw) == dim + 1 else _packed(raw, dim) for raw in packed])
    return np.frombuffer(rows, np.int8).reshape(-1, dim + 1)[:, 1:]


def floats(packed: bytes) -> Floats:
    """float32 [dim] of unit length, for those who search elsewhere. ValueError as above."""
    if len(packed) % 4 == 0:
        return unit(np.frombuffer(packed, "<f4"), len(packed) // 4)
    return unit(np.frombuffer(packed, np.int8)[1:].astype(np.float32), len(packed) - 1)


def _packed(raw: bytes, dim: int) -> bytes:
    if len(raw) != 4 * dim:
        raise ValueError(f"a vector of {len(raw)} bytes: must be {dim + 1} or {4 * dim}")
    return pack(unit(np.frombuffer(raw, "<f4"), dim))
