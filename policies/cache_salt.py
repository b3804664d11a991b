"""Whose KV cache a prompt may meet: the salt of its engine's prefix cache.

Who shares a prefix cache can tell from the time to a first token what others have asked. With
`cache_salt: tenant` each tenant's prompts are computed apart: vLLM and SGLang hash the salt into
the first block. It is a digest, so that an engine does not learn who the tenant is.
"""

from __future__ import annotations

from hashlib import blake2b

from tierway.policies.types import Call, Model

FIELD = "cache_salt"


def salt_to_send(call: Call, model: Model) -> str | None:
    """What the engine is to get; None where the client's own body stays as it is.

    A client that separates its prompts further keeps that."""
    if model.cache_salt != "tenant" or call.wire == "embeddings":
        return None
    digest = blake2b(digest_size=16, person=FIELD.encode())
    for part in (call.tenant, _own(call)):
        text = part.encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


def prefix_seed(call: Call, model: Model) -> str:
    """What a prompt's block hashes begin with: prompts of two models or salts never meet."""
    return f"{model.served_name or model.name}\0{salt_to_send(call, model) or _own(call)}"


def _own(call: Call) -> str:
    given = call.body.get(FIELD)
    return given if isinstance(given, str) else ""
