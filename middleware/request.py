"""What parsing a request means in every wire: a JSON object in, a Call out.

Only what the gateway itself must understand is checked; the rest is the upstream's to judge.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from tierway.middleware.controls import parse_controls
from tierway.policies.errors import BadCall
from tierway.policies.types import Ask, Call, Controls, WireName

_BEFORE, _BEHIND = 24, 12  # characters of the excerpt around a JSON error
_DEEPEST = 254  # levels that orjson writes
_LONGEST_MODEL = 256  # characters; the name is looked up, told in errors and kept in keys
_JSON_NAMES = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


def decode_object(raw: bytes) -> dict[str, Any]:
    """The body as an object. Raises BadCall with line, column and an excerpt otherwise."""
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as fault:
        raise BadCall(_json_fault(raw, fault), code="invalid_json") from fault
    if not isinstance(document, dict):
        kind = _JSON_NAMES.get(type(document), "a number")
        raise BadCall(f"The body must be a JSON object, not {kind}.", code="invalid_json")
    if raw.count(b"{") + raw.count(b"[") > _DEEPEST:
        _check_depth(document)
    return document


def missing(field: str) -> BadCall:
    return BadCall(f"{field} is missing.", param=field, code="missing_required_parameter")


def wrong(field: str, allowed: str) -> BadCall:
    return BadCall(f"{field} must be {allowed}.", param=field, code="invalid_type")


def model_of(document: Mapping[str, Any]) -> str:
    model = document.get("model")
    if model is None:
        raise missing("model")
    if not isinstance(model, str) or not model.strip():
        raise wrong("model", "a string that is not empty")
    if len(model) > _LONGEST_MODEL:
        raise BadCall(
            f"model must have at most {_LONGEST_MODEL} characters.",
            param="model",
            code="string_above_max_length",
        )
    return model


def stream_of(document: Mapping[str, Any]) -> bool:
    stream = document.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise wrong("stream", "true or false")
    return bool(stream)


def utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def new_call(
    wire: WireName,
    raw: bytes,
    body: Mapping[str, Any],
    ask: Ask,
    *,
    headers: Mapping[bytes, bytes],
    document: Mapping[str, Any],
    request_id: str,
    tenant: str,
    arrived_s: float,
    default_timeout_s: float,
) -> Call:
    """Puts a Call together. `document` is the body in the client's own wire, which holds the
    controls; a client may shorten the time it has, not lengthen it."""
    controls = parse_controls(headers, document)
    timeout_s = min(controls.timeout_s or default_timeout_s, default_timeout_s)
    return Call(
        id=request_id,
        wire=wire,
        raw=raw,
        body=body,
        ask=ask,
        model=model_of(body),
        stream=stream_of(body) and wire != "embeddings",
        tenant=tenant,
        user=_user(controls, body),
        session=_session(controls, body, ask, raw),
        controls=controls,
        arrived_s=arrived_s,
        deadline_s=arrived_s + timeout_s,
        traceparent=headers.get(b"traceparent"),
    )


def _check_depth(document: Mapping[str, Any]) -> None:
    """What can be read can be far deeper than what the same library will write again."""
    try:
        orjson.dumps(document)
    except TypeError as fault:
        raise BadCall(
            f"The body is nested more than {_DEEPEST} levels deep.", code="invalid_json"
        ) from fault


def _user(controls: Controls, body: Mapping[str, Any]) -> str:
    metadata = body.get("metadata")
    inner = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    given = (controls.user, body.get("safety_identifier"), body.get("user"), inner)
    return next((name for name in given if isinstance(name, str) and name), "")


def _session(controls: Controls, body: Mapping[str, Any], ask: Ask, raw: bytes) -> str:
    """The turns of one conversation share their beginning, and with it an engine's prefix."""
    given = controls.session or body.get("prompt_cache_key")
    if isinstance(given, str) and given:
        return given
    first = next((turn.text for turn in ask.turns if turn.role == "user"), "")
    digest = hashlib.blake2b(ask.system.encode(), digest_size=16)
    digest.update(b"\0" + (first.encode() if ask.system or first else raw))
    return digest.hexdigest()


def _json_fault(raw: bytes, fault: orjson.JSONDecodeError) -> str:
    if not raw.strip():
        return "The body is empty; a JSON object is expected."
    text, at, what = fault.doc, fault.pos, fault.msg
    try:
        raw.decode()
    except UnicodeDecodeError as cause:  # the parser does not say where
        text, what = raw.decode("utf-8", "replace"), "not UTF-8"
        at = len(raw[: cause.start].decode())
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    excerpt = text[max(0, at - _BEFORE) : at + _BEHIND]
    return f"The body is not valid JSON: {what}, line {line} column {column}, near {excerpt!r}."
