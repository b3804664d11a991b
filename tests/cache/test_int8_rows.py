"""Vectors as int8 rows, and what the store keeps of them."""

from __future__ import annotations

import numpy as np
import pytest

from tierway.cache.int8_rows import floats, inverse_lengths, pack, products, quantise, unit, unpack

VECTORS = np.random.default_rng(1).standard_normal((40, 384)).astype(np.float32)


def test_a_row_quantised_again_is_the_same_row() -> None:
    rows = quantise(VECTORS)
    assert (np.abs(rows).max(axis=1) == 127).all()
    assert (quantise(rows.astype(np.float32)) == rows).all()


def test_products_with_inverse_lengths_are_cosines() -> None:
    rows = quantise(VECTORS)
    units = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    cosines = products(rows, units[3]) * inverse_lengths(rows)
    assert cosines == pytest.approx(units @ units[3], abs=0.003)
    assert len(products(rows[:0], units[3])) == 0


def test_packed_vectors_and_floats_of_earlier_releases_are_the_same_rows() -> None:
    direction = unit(VECTORS[0], 384)
    packed = pack(direction)
    assert len(packed) == 385
    rows = unpack([packed, direction.astype("<f4").tobytes()], 384)
    assert (rows[0] == rows[1]).all()
    assert (rows[0] == quantise(direction)).all()


def test_bytes_that_are_no_vector_are_refused() -> None:
    with pytest.raises(ValueError, match="must be 385 or 1536"):
        unpack([b"123"], 384)
    with pytest.raises(ValueError, match="finite"):
        unpack([np.full(384, np.nan, "<f4").tobytes()], 384)
    with pytest.raises(ValueError, match="length 0"):
        inverse_lengths(np.zeros((1, 4), np.int8))


def test_stored_vectors_are_floats_again_for_those_who_search_elsewhere() -> None:
    direction = unit(VECTORS[0], 384)
    again, exactly = floats(pack(direction)), floats(direction.astype("<f4").tobytes())
    assert float(again @ direction) > 0.9999
    assert exactly == pytest.approx(direction, abs=1e-6)
    assert np.linalg.norm(again) == pytest.approx(1.0)
