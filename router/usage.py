"""Token counts as an upstream reported them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from tierway.policies.types import Usage
from tierway.router.sse import payloads


def usage_of_object(document: Any) -> Usage | None:
    """The `usage` of an OpenAI object, or None where it has none that makes sense."""
    usage = document.get("usage") if isinstance(document, dict) else None
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    cached = _count(details, "cached_tokens") if isinstance(details, dict) else 0
    return Usage(_count(usage, "prompt_tokens"), _count(usage, "completion_tokens"), cached)


def usage_of_event(event: bytes) -> Usage | None:
    """The usage of one event, or None."""
    for payload in payloads(event):
        try:
            return usage_of_object(orjson.loads(payload))
        except ValueError:
            return None
    return None


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and value >= 0 else 0
