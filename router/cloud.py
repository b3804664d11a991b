"""A cloud model of any provider that litellm knows, as an Upstream: the only litellm import.

litellm translates between OpenAI's wire and the provider's; nothing else of it is used: no
router, no retries, no callbacks. Providers that speak OpenAI's wire are better configured with
`url`, which passes bytes through and costs a hundredth (litellm: about 15 ms of CPU a call and
1 to 2 ms a chunk). Importing it takes 7 to 8 s of CPU, so that happens in a worker thread.

litellm reads its own settings (`api_base`, `aws_role_name`, `mock_response`, ...) from the same
keywords as the fields of a request. A client must never reach those, so only known fields of
OpenAI's wire pass, and any other is refused by name.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import orjson

from tierway.policies.errors import GatewayError, UpstreamTimeout
from tierway.policies.protocols import Clock
from tierway.policies.types import Call, Head, Model, Source, WireName
from tierway.policies.usage import usage_from
from tierway.router.cloud_errors import open_error, refusal
from tierway.router.cloud_stream import CloudStream
from tierway.router.upstreams import Timeouts, WholeAnswer

logger = logging.getLogger(__name__)

_FUNCTIONS: Mapping[WireName, str] = {
    "chat": "acompletion",
    "messages": "acompletion",
    "completions": "atext_completion",
    "embeddings": "aembedding",
}
# fmt: off
_SAMPLING = frozenset((
    "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "min_p", "n",
    "presence_penalty", "repetition_penalty", "seed", "stop", "temperature", "top_k", "top_p",
    "user",
))
_CHAT = _SAMPLING | frozenset((
    "audio", "function_call", "functions", "max_completion_tokens", "messages", "modalities",
    "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_retention",
    "reasoning_effort", "response_format", "safety_identifier", "service_tier", "store",
    "thinking", "tool_choice", "tools", "top_logprobs", "verbosity", "web_search_options",
))
# fmt: on
_FIELDS: Mapping[WireName, frozenset[str]] = {
    "chat": _CHAT,
    "messages": _CHAT,
    "completions": _SAMPLING | {"best_of", "echo", "prompt", "suffix"},
    "embeddings": frozenset(("dimensions", "encoding_format", "input", "user")),
}
# Handled here, or without effect on the answer (litellm would take `metadata` for its own).
_LEFT_OUT = frozenset(("cache", "metadata", "model", "stream", "stream_options", "tierway"))
_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it downloads its price list while importing
    "LITELLM_MODE": "PRODUCTION",  # else it loads a .env file of the working folder
    # Else a stream with a hundred equal chunks, such as rows of zeros, is cut.
    "REPEATED_STREAMING_CHUNK_LIMIT": "1000000000",
}
_JSON = ((b"content-type", b"application/json"),)
_EVENTS = ((b"content-type", b"text/event-stream"),)
_users: weakref.WeakSet[LitellmUpstream] = weakref.WeakSet()
"""litellm keeps its HTTP clients for the whole process; the last upstream to close closes them."""


class LitellmUpstream:
    """`model_string` is litellm's name, such as `bedrock/…`; the model's `set` fields become
    keywords of litellm, so they may also set the provider's region, version and the like."""

    def __init__(
        self,
        model_string: str,
        model: Model,
        *,
        timeouts: Timeouts,
        clock: Clock,
        api_key: str = "",
        api_base: str | None = None,
    ) -> None:
        self._model, self._timeouts, self._clock = model, timeouts, clock
        self._name = model.served_name or model.name
        self._fixed: dict[str, Any] = {
            "model": model_string,
            "num_retries": 0,
            "max_retries": 0,
            "drop_params": False,
            "no-log": True,  # callbacks of an application that uses litellm too are not for us
        }
        if api_key:
            self._fixed["api_key"] = api_key
        if api_base:
            self._fixed["api_base"] = api_base
        self._library: ModuleType | None = None
        self._plain_openai = model_string.startswith(("openai/", "text-completion-openai/"))
        self._client: Any = None

    async def warm(self) -> None:
        """Imports litellm in a worker thread: tens of seconds on a busy machine."""
        if self._library is None:
            self._library = await asyncio.to_thread(_load)
            _users.add(self)

    async def open(self, call: Call, source: Source) -> WholeAnswer | CloudStream:
        limit_s, which = self._limit(call)
        seconds: float = getattr(self._timeouts, f"{which}_s")
        if limit_s <= 0:
            raise UpstreamTimeout("total", seconds, replica=source.replica)
        arguments = self._arguments(call, source)
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                return await self._ask(call, source, arguments)
        except TimeoutError as cause:
            raise UpstreamTimeout(which, seconds, replica=source.replica) from cause
        except GatewayError:
            raise
        except Exception as cause:
            # The border to litellm, which raises whatever its providers' libraries raise.
            if limit.expired():
                raise UpstreamTimeout(which, seconds, replica=source.replica) from cause
            logger.debug("litellm failed for %s", source.replica, exc_info=cause)
            error = open_error(cause, replica=source.replica, which=which, seconds=seconds)
            raise error from cause

    async def aclose(self) -> None:
        """Closes its connections; litellm's once no other upstream is left to use them."""
        _users.discard(self)
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        library, self._library = self._library, None
        if library is not None and not _users:
            await library.close_litellm_async_clients()
            library.in_memory_llm_clients_cache.flush_cache()

    def _limit(self, call: Call) -> tuple[float, str]:
        left = call.deadline_s - self._clock()
        if call.stream and self._timeouts.first_token_s < left:
            return self._timeouts.first_token_s, "first_token"
        return left, "total"

    def _arguments(self, call: Call, source: Source) -> dict[str, Any]:
        """The keywords of litellm's function; raises Rejected(400) for a field it may not see."""
        allowed = _FIELDS[call.wire]
        given = {name: value for name, value in call.body.items() if value is not None}
        for name in given:
            if name not in allowed and name not in _LEFT_OUT:
                raise refusal(
                    400,
                    f"The model {self._name} does not take the field `{name}`.",
                    code="unsupported_parameter",
                    param=name,
                    replica=source.replica,
                )
        # A copy, since litellm edits the messages while it translates them.
        fields = orjson.loads(orjson.dumps({n: v for n, v in given.items() if n in allowed}))
        arguments = {**fields, **self._model.set, **self._fixed}
        # Ours end earlier; without one litellm would give up after its own.
        arguments["timeout"] = max(1.0, call.deadline_s - self._clock())
        if call.stream and call.wire != "embeddings":
            arguments |= {"stream": True, "stream_options": {"include_usage": True}}
        if call.traceparent:
            arguments["extra_headers"] = {"traceparent": call.traceparent.decode("latin-1")}
        return arguments

    async def _ask(
        self, call: Call, source: Source, arguments: dict[str, Any]
    ) -> WholeAnswer | CloudStream:
        await self.warm()
        if call.wire == "completions" and self._plain_openai:
            arguments["client"] = self._completions_client()
        result = await getattr(self._library, _FUNCTIONS[call.wire])(**arguments)
        if not arguments.get("stream"):
            return self._whole(call, source, result)
        answer = CloudStream(
            Head(200, _EVENTS, _wire(call), stream=True),
            source,
            result,
            name=self._name,
            shows_usage=call.includes_usage,
            idle_s=self._timeouts.idle_s,
            total_s=self._timeouts.total_s,
            deadline_s=call.deadline_s,
            clock=self._clock,
        )
        try:
            await answer.start()
        except BaseException:
            await answer.aclose()
            raise
        return answer

    def _completions_client(self) -> Any:
        """On this wire litellm would make a client for each call and close none."""
        if self._client is None:
            from openai import AsyncOpenAI

            self._client = AsyncOpenAI(
                api_key=self._fixed.get("api_key"),
                base_url=self._fixed.get("api_base"),
                max_retries=0,
            )
        return self._client

    def _whole(self, call: Call, source: Source, result: Any) -> WholeAnswer:
        document = result.model_dump(exclude_none=True)
        document["model"] = self._name
        for choice in document.get("choices", ()):
            if "message" in choice:
                choice["message"].setdefault("content", None)
        head = Head(200, _JSON, _wire(call), stream=False)
        return WholeAnswer(
            head, source, orjson.dumps(document), usage_from(document.get("usage") or {})
        )


def _load() -> ModuleType:
    """litellm, set up and warm. Takes seconds; for a worker thread."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import litellm

    litellm.suppress_debug_info = True
    # The first call imports for another third of a second, which must not fall on the loop.
    ask = {"model": "openai/warm", "messages": [{"role": "user", "content": "hi"}]}
    for _ in litellm.completion(**ask, mock_response="hello", api_key="none", stream=True):
        pass
    module: ModuleType = litellm
    return module


def _wire(call: Call) -> WireName:
    # A messages call is translated on the way out, so what comes back is a chat answer.
    return "chat" if call.wire == "messages" else call.wire
