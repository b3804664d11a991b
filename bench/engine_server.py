"""A simulated engine behind HTTP: OpenAI's wire, vLLM's metrics, a switch for faults.

    POST /v1/chat/completions, /v1/completions, /v1/embeddings
    GET  /v1/models, /health, /version, /load, /metrics
    GET  /gpu/metrics          its GPUs, as dcgm-exporter shows them
    GET, PUT /faults

It answers at the pace of its profile, divided by `speed`. Text, lengths and vectors follow
from the prompt and the seed alone. A request with `endpoint-load-metrics-format` gets the load
in a header of its answer, as vLLM writes it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from tierway.bench.engine import Engine, Job, Work
from tierway.bench.engine_chunks import Chunks, ToolCall, error_body
from tierway.bench.engine_embeddings import as_base64, embed
from tierway.bench.engine_generation import Generation, Part
from tierway.bench.engine_gpus import SimulatedGpus
from tierway.bench.engine_http import Connections, HttpProtocol, HttpRequest, Reply
from tierway.bench.engine_load_header import load_header
from tierway.bench.engine_loop import EngineLoop
from tierway.bench.engine_metrics import EngineMetrics
from tierway.bench.engine_query import (
    BadQuery,
    Query,
    chat_query,
    completion_query,
    embedding_dimensions,
    embedding_inputs,
    load,
    plan,
    prompt_room,
)
from tierway.bench.engine_text import digest, tokenise
from tierway.bench.faults import Fault, FaultSwitch, directive
from tierway.bench.profiles import Profile, profile
from tierway.policies.protocols import Clock

_INFERENCE = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
_FRAGMENT_S = 0.2
_METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class EngineServer:
    """`model` is the served name, by default `sim-` and the profile's model; `node`, `pod` and
    `namespace` are what its GPUs say about their place."""

    def __init__(
        self,
        profile_: Profile | str,
        *,
        model: str | None = None,
        seed: int = 0,
        speed: float = 1.0,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
        node: str = "sim",
        pod: str = "",
        namespace: str = "",
    ) -> None:
        made = profile(profile_) if isinstance(profile_, str) else profile_
        room = min(made.max_model_len, made.kv_capacity_tokens)
        self.profile = dataclasses.replace(made, max_model_len=room)
        self.model = model or f"sim-{self.profile.model.name}"
        self.engine = Engine(self.profile, speed=speed, now_s=clock())
        self.faults = FaultSwitch(seed)
        self._seed = seed
        self._wall_clock = wall_clock
        self._gpus = SimulatedGpus(
            self.engine, clock, speed=speed, host=node, pod=pod, namespace=namespace
        )
        self._metrics = EngineMetrics(self.engine, self.model, started_at=wall_clock())
        self._loop = EngineLoop(self.engine, clock, self._metrics.observe)
        self._connections = Connections()
        self._server: asyncio.Server | None = None
        self._answered = 0
        self._fragments: asyncio.Task[None] | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listens and returns the port; 0 takes a free one."""
        self._connections.closed = False
        self._server = await asyncio.get_running_loop().create_server(
            lambda: HttpProtocol(self._handle, self._connections), host, port
        )
        self._loop.start()
        return int(self._server.sockets[0].getsockname()[1])

    def set_faults(self, wanted: Mapping[str, Any]) -> None:
        """What PUT /faults does. ValueError changes nothing."""
        self.faults.set(wanted)
        self._gpus.set(self.faults.throttle, self.faults.temperature_celsius)
        self.engine.slowdown = 1.0 / self.faults.throttle
        if self.faults.fragment and self._fragments is None:
            self._fragments = asyncio.get_running_loop().create_task(self._fragment())

    async def _fragment(self) -> None:
        while self.faults.fragment:
            await asyncio.sleep(_FRAGMENT_S)
            self.engine.lose_memory(self.faults.fragment * _FRAGMENT_S)
        self._fragments = None

    async def aclose(self) -> None:
        """Ends every connection and job at once; may be called twice."""
        self._connections.closed = True
        if self._server is not None:
            await _stop_accepting(self._server)
        tasks = [one.task for one in self._connections if one.task is not None]
        for connection in list(self._connections):
            connection.transport.abort()
        for task in tasks:
            task.cancel()
        if self._fragments is not None:
            self._fragments.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.aclose()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    async def _handle(self, request: HttpRequest, reply: Reply) -> None:
        try:
            inference = request.method == "POST" and request.path in _INFERENCE
            if inference:
                await self._infer(request, reply)
            elif request.path == "/faults":
                self._switch(request, reply)
            elif not await self._hit(self.faults.draw(inference=False), reply):
                self._look(request, reply)
        except BadQuery as error:
            body = error_body(error.status, str(error), code=error.code, param=error.param)
            reply.send(error.status, body)

    async def _infer(self, request: HttpRequest, reply: Reply) -> None:
        reply.more = lambda: load_header(self.engine, request.headers)
        body = load(request.body)
        self._check_model(body)
        if request.path == "/v1/embeddings":
            texts = embedding_inputs(body)
            if not await self._hit(self._fault(texts), reply):
                await self._embed(body, texts, reply)
            return
        chat = request.path == "/v1/chat/completions"
        query = chat_query(body) if chat else completion_query(body)
        fault = self._fault([prompt.question for prompt in query.prompts])
        if fault is None or fault.kind not in ("status", "refuse"):
            await self._generate(query, fault, reply)
        else:
            await self._hit(fault, reply)

    async def _generate(self, query: Query, fault: Fault | None, reply: Reply) -> None:
        room = prompt_room(query, self.profile.max_model_len)
        self._answered += 1
        prefix = "chatcmpl" if query.wire == "chat" else "cmpl"
        unique = f"{digest(self._seed, self.model, self._answered):016x}"
        created = int(self._wall_clock())
        chunks = Chunks(query.wire, id=f"{prefix}-{unique}", created=created, model=self.model)
        parts = [
            self._part(query, index, room, unique)
            for index in range(len(query.prompts) * query.choices)
        ]
        await Generation(query, parts, chunks, self._loop, reply, fault).run()

    def _part(self, query: Query, index: int, room: int, unique: str) -> Part:
        prompt = query.prompts[index // query.choices]
        planned = plan(
            query,
            prompt,
            model=self.model,
            seed=self._seed,
            choice=index % query.choices,
            room=room,
        )
        if query.function is None:
            return Part(index, prompt, planned)
        tool = ToolCall(f"chatcmpl-tool-{unique}{index:02x}", str(query.function["name"]))
        return Part(index, prompt, planned, tool)

    async def _embed(self, body: Mapping[str, Any], texts: list[str], reply: Reply) -> None:
        dimensions = embedding_dimensions(body)
        sizes = [max(1, len(tokenise(text))) for text in texts]
        if max(sizes) > self.profile.max_model_len:
            raise BadQuery(
                f"This model's maximum context length is {self.profile.max_model_len} tokens. "
                f"However, you requested {max(sizes)} tokens in the input.",
                code="context_length_exceeded",
                param="input",
            )
        await self._prefill(sizes)
        packed = body.get("encoding_format") == "base64"
        vectors = [embed(text, dimensions) for text in texts]
        data = [
            {"object": "embedding", "index": i, "embedding": as_base64(v) if packed else v}
            for i, v in enumerate(vectors)
        ]
        usage = {"prompt_tokens": sum(sizes), "total_tokens": sum(sizes)}
        whole = {"object": "list", "data": data, "model": self.model, "usage": usage}
        reply.send(200, orjson.dumps(whole))

    async def _prefill(self, sizes: list[int]) -> None:
        """Waits until the engine has read prompts of these sizes; cancelling aborts them."""
        over = asyncio.Event()
        left = len(sizes)

        def count(job: Job) -> None:
            nonlocal left
            left -= 1
            if not left:
                over.set()

        jobs = [self._loop.submit(Work(size, 0), count) for size in sizes]
        try:
            await over.wait()
        finally:
            for job in jobs:
                self._loop.abort(job)

    def _fault(self, prompts: list[str]) -> Fault | None:
        try:
            asked = [fault for text in prompts if (fault := directive(text))]
        except ValueError as error:
            raise BadQuery(str(error)) from error
        return asked[0] if asked else self.faults.draw(inference=True)

    async def _hit(self, fault: Fault | None, reply: Reply) -> bool:
        """Shows a fault that needs no tokens; False when the request goes on."""
        match fault:
            case None:
                return False
            case Fault("status", wait, status):
                headers = [(b"retry-after", b"%d" % wait)] if wait else []
                message = "the simulated engine was told to answer with this status"
                reply.send(status, error_body(status, message), headers=headers)
            case Fault("hang") | Fault("stall"):
                await asyncio.Event().wait()
            case Fault("slow", seconds):
                await asyncio.sleep(seconds)
                return False
            case _:
                reply.reset()
        return True

    def _check_model(self, body: Mapping[str, Any]) -> None:
        name = body.get("model")
        if name is not None and name != self.model:
            message = f"The model `{name}` does not exist; this engine serves `{self.model}`."
            raise BadQuery(message, status=404, code="model_not_found", param="model")

    def _switch(self, request: HttpRequest, reply: Reply) -> None:
        if request.method == "PUT":
            try:
                self.set_faults(load(request.body))
            except ValueError as error:
                raise BadQuery(str(error)) from error
        reply.send(200, orjson.dumps(self.faults.state))

    def _look(self, request: HttpRequest, reply: Reply) -> None:
        match request.method, request.path:
            case "GET", "/v1/models":
                reply.send(200, orjson.dumps({"object": "list", "data": [self._card()]}))
            case "GET", "/health":
                reply.send(200, b"", content_type=b"text/plain")
            case "GET", "/version":
                reply.send(200, orjson.dumps({"version": f"tierway-sim {self.profile.name}"}))
            case "GET", "/load":
                inside = self.engine.running + self.engine.waiting
                reply.send(200, orjson.dumps({"server_load": inside}))
            case "GET", "/metrics":
                reply.send(200, self._metrics.render(), content_type=_METRICS_TYPE)
            case "GET", "/gpu/metrics":
                reply.send(200, self._gpus.render(), content_type=_METRICS_TYPE)
            case _:
                raise BadQuery(f"no such endpoint: {request.method} {request.path}", status=404)

    def _card(self) -> dict[str, Any]:
        return {
            "id": self.model,
            "object": "model",
            "created": int(self._wall_clock()),
            "owned_by": "tierway-sim",
            "root": self.profile.name,
            "parent": None,
            "max_model_len": self.profile.max_model_len,
        }


async def _stop_accepting(server: asyncio.Server) -> None:
    """Closes the listening sockets once all they have accepted are connections: asyncio loses
    those between the two, sockets and all, when the server goes first."""
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    await asyncio.sleep(0)
    server.close()


async def serve_engine(
    profile_: str,
    *,
    port: int = 0,
    seed: int = 0,
    speed: float = 1.0,
    model: str | None = None,
    host: str = "127.0.0.1",
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serves one engine until cancelled; `ready` gets its base URL once it listens."""
    server = EngineServer(profile_, model=model, seed=seed, speed=speed)
    bound = await server.start(host, port)
    try:
        if ready is not None:
            ready(f"http://{host}:{bound}")
        await asyncio.Event().wait()
    finally:
        await server.aclose()
