"""Embeddings of a simulated engine: unit vectors from hashed tokens, no language model.

Each token adds a sign to four places that its hash chooses, so equal texts have equal vectors
and texts that share words are near each other. Good for wiring, useless for meaning.
"""

from __future__ import annotations

import array
import base64
import math
import sys
from collections import Counter

from tierway.bench.engine_text import digest, tokenise

DIMENSIONS = 384


def embed(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """A vector of length 1."""
    values = [0.0] * dimensions
    for token, count in Counter(tokenise(text.lower())).items():
        bits = digest("embedding", token.strip())
        for shift in range(0, 64, 16):
            place = (bits >> shift) & 0xFFFF
            values[(place >> 1) % dimensions] += count if place & 1 else -count
    norm = math.sqrt(sum(value * value for value in values))
    if not norm:
        return [1.0] + [0.0] * (dimensions - 1)
    return [value / norm for value in values]


def as_base64(vector: list[float]) -> str:
    """Little-endian float32, as the OpenAI wire's `encoding_format: base64` wants it."""
    packed = array.array("f", vector)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode()
