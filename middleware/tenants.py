"""Who asks: a tenant's name for an API key.

Keys are compared by their SHA-256 digests, so neither the comparison's time nor this object's
contents give a key away. Without tenants everybody is the anonymous tenant, named "".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from tierway.policies.errors import Unauthorised


class Tenants:
    """`keys` are pairs of (API key, tenant name)."""

    def __init__(self, keys: Iterable[tuple[str, str]] = ()) -> None:
        self._by_digest = {_digest(key.encode()): name for key, name in keys}

    def identify(self, headers: Mapping[bytes, bytes]) -> str:
        """The tenant of `Authorization: Bearer` or `x-api-key`; raises Unauthorised."""
        if not self._by_digest:
            return ""
        key = bearer(headers) or headers.get(b"x-api-key", b"").strip()
        if not key:
            raise Unauthorised(
                "No API key was given: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`."
            )
        name = self._by_digest.get(_digest(key))
        if name is None:
            raise Unauthorised("The API key is not known here.")
        return name


def bearer(headers: Mapping[bytes, bytes]) -> bytes:
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
