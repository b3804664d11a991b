"""What a replica says of its own model: the id it serves and its context window."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from tierway.policies.errors import GatewayError
from tierway.policies.types import Model
from tierway.router.transport import Origin, Transport

logger = logging.getLogger(__name__)

_TIMEOUT_S = 2.0
_BODY_BYTES = 1 << 20


async def ask_model(transport: Transport, origins: Sequence[Origin], model: Model) -> Model:
    """`model` with its open fields filled in by the first replica that answers.

    Where none does, the model is called by its configured name, with a warning.
    """
    for origin in origins:
        card = await _card(transport, origin)
        if card is not None:
            window = card.get("max_model_len")
            return replace(
                model,
                served_name=model.served_name or str(card["id"]),
                context_tokens=model.context_tokens
                or (window if isinstance(window, int) and window > 0 else None),
            )
    if model.served_name is None:
        logger.warning(
            "models.%s: no replica told its served_name; it is asked for as %r",
            model.name,
            model.name,
        )
    return model


async def _card(transport: Transport, origin: Origin) -> dict[str, Any] | None:
    """The first model card of /v1/models, None when there is none to be had."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            response = await transport.request(origin, b"GET", b"/models", (), b"")
            try:
                cards = orjson.loads(await response.read_all(_BODY_BYTES))["data"]
            finally:
                await response.aclose()
    except (GatewayError, TimeoutError, ValueError, KeyError, TypeError):
        return None
    if isinstance(cards, list) and cards and isinstance(cards[0], dict) and "id" in cards[0]:
        return cards[0]
    return None
