"""The client protocols: which path speaks which, and what a codec does. No I/O.

A new path of a known wire is one line in `PATHS`; a new wire is one codec and its line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tierway.middleware.anthropic import AnthropicCodec
from tierway.middleware.failures import Header
from tierway.middleware.openai import OpenAICodec, chat_ask, completion_ask, embedding_ask
from tierway.policies.errors import GatewayError
from tierway.policies.types import Call, Head, WireName


class Renderer(Protocol):
    """Turns an answer's bytes into the client's wire, as they come.

    Both methods raise BrokenStream when what came makes no sense in it; what was rendered up
    to there has been returned before.
    """

    def feed(self, chunk: bytes) -> bytes:
        """What can be said once `chunk` is there, maybe b"". Chunks may end anywhere."""
        ...

    def finish(self) -> bytes:
        """The rest, to be called once at the end of the answer."""
        ...


class Codec(Protocol):
    """One client protocol on one path.

    `id_headers` are the headers in which an answer of this wire carries the request's id;
    `error` sets them itself.
    """

    @property
    def name(self) -> WireName: ...
    @property
    def id_headers(self) -> tuple[bytes, ...]: ...

    def parse(
        self,
        raw: bytes,
        headers: Mapping[bytes, bytes],
        *,
        request_id: str,
        tenant: str,
        arrived_s: float,
        default_timeout_s: float,
    ) -> Call:
        """Bytes to Call; header names are lower-case. Raises BadCall."""
        ...

    def error(self, error: GatewayError, request_id: str) -> tuple[int, list[Header], bytes]:
        """Status, all headers but the length, and body."""
        ...

    def error_event(self, error: GatewayError, request_id: str) -> bytes:
        """The form of an error in a stream that has begun. Nothing may follow it."""
        ...

    def renderer(self, call: Call, head: Head) -> Renderer | None:
        """None when the answer's bytes are in the client's wire already."""
        ...


PATHS: Mapping[str, Codec] = {
    "/v1/chat/completions": OpenAICodec("chat", chat_ask),
    "/v1/completions": OpenAICodec("completions", completion_ask),
    "/v1/embeddings": OpenAICodec("embeddings", embedding_ask),
    "/v1/messages": AnthropicCodec(),
}
