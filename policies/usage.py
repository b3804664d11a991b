"""Token counts as an upstream reported them, in a JSON body or in the tail of a stream.

Reads OpenAI's and Anthropic's names; later reports replace earlier ones field by field, as
Anthropic gives input first and output last. Anthropic counts cache reads and writes beside its
input tokens, here they are part of `input_tokens`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from tierway.policies.types import Usage

_USAGE = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]++|\{[^{}]*+\})*+\})')
_CACHE_READ = "cache_read_input_tokens"
_CACHE_WRITE = "cache_creation_input_tokens"


def usage_of(tail: bytes) -> Usage | None:
    """The usage of a JSON body, an event, or the end of a stream, cut anywhere."""
    reported: dict[str, Any] = {}
    # In a JSON text the quote before a key is never escaped, so no answer's text matches.
    for match in _USAGE.finditer(tail):
        try:
            reported.update(json.loads(match[1]))
        except ValueError:
            continue
    return usage_from(reported)


def usage_from(reported: Mapping[str, Any]) -> Usage | None:
    """The counts of a usage object; None when it has none."""
    counts = dict(_counts(reported))
    if not counts:
        return None
    beside = counts.get(_CACHE_READ, 0) + counts.get(_CACHE_WRITE, 0)
    return Usage(
        input_tokens=counts.get("prompt_tokens", counts.get("input_tokens", 0) + beside),
        output_tokens=counts.get("completion_tokens", counts.get("output_tokens", 0)),
        cached_tokens=counts.get("cached_tokens", counts.get(_CACHE_READ, 0)),
        reported=reported,
    )


def reported_cached(usage: Usage) -> int | None:
    """Cached prompt tokens, as far as the upstream said anything of them."""
    told = {"cached_tokens", _CACHE_READ} & dict(_counts(usage.reported)).keys()
    return usage.cached_tokens if usage.cached_tokens or told else None


def _counts(usage: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in usage.items():
        if name.endswith("tokens") and _is_count(value):
            yield name, value
        elif name in ("prompt_tokens_details", "input_tokens_details") and value:
            cached = value.get("cached_tokens") if isinstance(value, Mapping) else None
            if _is_count(cached):
                yield "cached_tokens", cached


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
