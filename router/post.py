"""JSON to one path of one server, and the whole answer back: for small side questions, such as
vectors and second opinions, that are no call of a client."""

from __future__ import annotations

from tierway.policies.types import Headers
from tierway.router.transport import Origin, Transport

ANSWER_BYTES = 16 << 20


class JsonPost:
    """Deadlines are the caller's; cancelling closes the connection."""

    def __init__(
        self, transport: Transport, origin: Origin, path: bytes, *, api_key: str = ""
    ) -> None:
        self._transport, self._origin, self._path = transport, origin, path
        self._headers: Headers = (
            (b"content-type", b"application/json"),
            (b"accept", b"application/json"),
            (b"user-agent", b"tierway"),
        )
        if api_key:
            self._headers += ((b"authorization", b"Bearer " + api_key.encode()),)

    async def __call__(self, body: bytes) -> tuple[int, bytes]:
        """Status and body. Raises UpstreamError, BadCall for a key that no header can hold."""
        response = await self._transport.request(
            self._origin, b"POST", self._path, self._headers, body
        )
        try:
            return response.status, await response.read_all(ANSWER_BYTES)
        finally:
            await response.aclose()
