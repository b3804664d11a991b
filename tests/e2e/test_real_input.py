"""Real questions through the demo, twice: the second time the cache has every one of them."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from e2e.servers import ask, gateway, outcome

PAIRS = Path(__file__).parents[3] / "shared" / "data" / "semantic_pairs_dev.jsonl"
QUESTIONS = 300
CLIENTS = 32
ONE = {"x-tierway-user": "one"}  # what is personal is kept for its user only


def questions() -> list[str]:
    """Evenly over the file, so that every source and both languages are there; each once."""
    pairs = [json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()]
    texts = list(dict.fromkeys(pair[side] for pair in pairs for side in ("a", "b")))
    return texts[:: len(texts) // QUESTIONS][:QUESTIONS]


@pytest.mark.skipif(not PAIRS.exists(), reason=f"needs {PAIRS.name} beside the checkout")
def test_a_second_round_of_real_questions_is_answered_by_the_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = questions()
    assert len(asked) == QUESTIONS
    with gateway(tmp_path, None, demo=True) as running:
        with (
            httpx.Client(base_url=running.url, timeout=60) as client,
            ThreadPoolExecutor(CLIENTS) as pool,
        ):
            first = list(pool.map(lambda q: ask(client, q, headers=ONE), asked))
            second = list(pool.map(lambda q: ask(client, q, stream=True, headers=ONE), asked))
        found = Counter(map(outcome, first))
        tiers = Counter(answer.headers["x-tierway-tier"] for answer in first)
        again = Counter(map(outcome, second))
    with capsys.disabled():
        print(f"\n{QUESTIONS} questions: {dict(found)}, tiers {dict(tiers)}; again: {dict(again)}")
    assert found["miss"] > 0.9 * QUESTIONS
    assert again["hit"] + again["semantic-hit"] == QUESTIONS
