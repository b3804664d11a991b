"""Sign codes: one bit per dimension, to find candidates in a large partition.

A vector's code is the sign of each component after the partition's mean is taken off; codes
are compared by Hamming distance, which for such codes follows the angle (Charikar 2002,
"Similarity estimation techniques from rounding algorithms"). Without centring, encoders
whose vectors share a direction lose a tenth of their true neighbours.

Codes lie in the order of the partition's positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierway.cache.columns import grown, room_for

if TYPE_CHECKING:
    from numpy.typing import NDArray


FAISS_FROM = 16_384
"""Codes from which FAISS is the faster; below, NumPy takes 0.1 ms for each 4,000."""

_GROWS_TO = 4
"""Times as many, of room that is no memory yet: so a large partition is seldom copied."""


class SignCodes:
    """`mean` is float32 [dim]. `built_for` is the partition's size when the mean was taken:
    once a partition has doubled, it is taken anew."""

    def __init__(self, mean: NDArray[np.float32], *, built_for: int) -> None:
        self.built_for = built_for
        self._mean = mean
        # FAISS compares whole 64-bit words fastest.
        self._bytes: int = -(-mean.shape[0] // 64) * 8
        self._codes = np.zeros((built_for, self._bytes), np.uint8)

    def nbytes(self, codes: int) -> int:
        """Bytes of so many codes and the mean."""
        return codes * self._bytes + 4 * len(self._mean)

    @property
    def codes(self) -> NDArray[np.uint8]:
        """A growing partition gets a new array: one that was handed out stays readable."""
        return self._codes

    def put(self, position: int, vectors: NDArray[np.float32]) -> None:
        """Codes float32 [n, dim] and writes them from `position` on."""
        end = position + len(vectors)
        if end > len(self._codes):
            self._codes = grown(self._codes, room_for(end, _GROWS_TO * len(self._codes)))
        self._codes[position:end] = self._encode(vectors)

    def clear(self, position: int) -> None:
        self._codes[position] = 0

    def nearest(
        self, codes: NDArray[np.uint8], vector: NDArray[np.float32], k: int
    ) -> NDArray[np.int64]:
        """Positions of the k codes nearest to the vector's, in no useful order."""
        wanted, k = self._encode(vector[None]), min(k, len(codes))
        if len(codes) < FAISS_FROM:
            bits = np.bitwise_count(codes.view(np.uint64) ^ wanted.view(np.uint64))
            # Turned around first: adding up a few at a time takes NumPy five times as long.
            apart = np.add.reduce(np.ascontiguousarray(bits.T), axis=0, dtype=np.uint16)
            return np.argpartition(apart, k - 1)[:k]
        import faiss  # 60 MB and half a second: only for those who have a large partition

        # The setting belongs to the thread. A second one gains nothing on one query, and waits
        # for it by spinning: 100 ms of CPU in place of 8 at a million codes.
        faiss.omp_set_num_threads(1)
        _, positions = faiss.knn_hamming(wanted, codes, k)
        found: NDArray[np.int64] = positions[0]
        return found

    def _encode(self, vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
        codes = np.zeros((len(vectors), self._bytes), np.uint8)
        bits = np.packbits(vectors > self._mean, axis=1)
        codes[:, : bits.shape[1]] = bits
        return codes
