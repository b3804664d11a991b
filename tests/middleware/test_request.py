"""What parsing means in every wire: the name of the model."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tierway.middleware.wire import PATHS
from tierway.policies.errors import BadCall
from tierway.policies.types import Call

MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "Once"},
    "/v1/embeddings": {"input": "a text"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 16},
}


def parse(path: str, model: str) -> Call:
    raw = orjson.dumps({"model": model, **BODIES[path]})
    return PATHS[path].parse(
        raw, {}, request_id="r1", tenant="", arrived_s=0.0, default_timeout_s=60.0
    )


@pytest.mark.parametrize("path", BODIES)
def test_a_model_name_has_at_most_256_characters(path: str) -> None:
    assert parse(path, "\u00fc" * 256).model == "\u00fc" * 256
    with pytest.raises(BadCall) as caught:
        parse(path, "m" * 257)
    assert (caught.value.status, caught.value.param) == (400, "model")
    assert caught.value.public == "model must have at most 256 characters."
