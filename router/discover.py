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

Card = dict[str, Any]


async def ask_model(
    transport: Transport, replicas: Sequence[tuple[Origin, str]], model: Model
) -> Model:
    """`model` with its open fields filled in by the first replica that answers; `replicas` are
    the origins of their APIs, each with its bearer key, empty for none.

    Where none answers, the model is called by its configured name, with a warning.
    """
    for origin, api_key in replicas:
        cards = await _cards(transport, origin, api_key)
        if cards:
            card = _named(model.served_name, cards)
            return replace(
                model,
                served_name=model.served_name or card["id"],
                context_tokens=model.context_tokens or _window(card, cards),
            )
    if model.served_name is None:
        logger.warning(
            "models.%s: no replica told its served_name; it is asked for as %r",
            model.name,
            model.name,
        )
    return model


def _named(served_name: str | None, cards: Sequence[Card]) -> Card:
    """The card of the configured name, by id or by the path it was loaded from (`root`); the
    first where no name is configured or no card bears it."""
    by_id = (card for card in cards if card["id"] == served_name)
    by_root = (card for card in cards if served_name and card.get("root") == served_name)
    return next(by_id, None) or next(by_root, cards[0])


def _window(card: Card, cards: Sequence[Card]) -> int | None:
    """The context window; the card of an adapter leaves it to that of its `parent`."""
    parents = (other for other in cards if other["id"] == card.get("parent"))
    for window in (held.get("max_model_len") for held in (card, *parents)):
        if isinstance(window, int) and window > 0:
            return window
    return None


async def _cards(transport: Transport, origin: Origin, api_key: str) -> list[Card]:
    """The model cards of /v1/models, none when they are not to be had."""
    key = b"Bearer " + api_key.encode()
    headers = ((b"authorization", key),) if api_key else ()
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            response = await transport.request(origin, b"GET", b"/models", headers, b"")
            try:
                cards = orjson.loads(await response.read_all(_BODY_BYTES))["data"]
            finally:
                await response.aclose()
    except (GatewayError, TimeoutError, ValueError, KeyError, TypeError):
        return []
    if not isinstance(cards, list):
        return []
    return [card for card in cards if isinstance(card, dict) and isinstance(card.get("id"), str)]
