"""The recall of the sign codes on a small index, and the texts that a file gives."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np

from tierway.bench.cache_recall import encoded, recall, texts_of
from tierway.cache.embedders import ScriptedEmbedder


def test_texts_of_a_file_are_its_sentences_once(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"a": "Why is it so?", "b": "为什么", "same": True, "source": "made", "lang": "en"},
        {"a": "Why is it so?", "b": "Is it so?", "same": False, "source": "made", "lang": "en"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert texts_of(path, 10) == ["Why is it so?", "为什么", "Is it so?"]
    assert texts_of(path, 2) == ["Why is it so?", "为什么"]
    embedder = ScriptedEmbedder({}, otherwise=lambda text: [float(len(text)), 1.0])
    assert asyncio.run(encoded(texts_of(path, 10), embedder)).shape == (3, 2)


def test_near_neighbours_are_found() -> None:
    texts = np.random.default_rng(1).standard_normal((50, 256)).astype(np.float32)
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    figures = recall(texts, 3000, 40)
    assert figures["entries"] == 3000
    assert figures["near_neighbours"] > 20
    assert figures["near_found"] >= 0.98
    assert figures["nearest_found"] >= 0.98
