"""What restarts a replica, against real sockets and programs."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tierway.router.maintenance import MendError
from tierway.router.mending import Command, Kubernetes, Webhook, filled
from tierway.router.replica import ReplicaSpec

SPEC = ReplicaSpec("m@10.0.0.7:8000", "m", "small", "http://10.0.0.7:8000", node="n7")
Asked = list[tuple[str, str, dict[str, str], bytes]]


@contextmanager
def server(*answers: tuple[int, Any]) -> Iterator[tuple[str, Asked]]:
    """Gives these answers one after the other, the last again and again."""
    asked: Asked = []
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked.append((self.command, self.path, headers, self.rfile.read(length)))
            status, body = left.pop(0) if len(left) > 1 else left[0]
            told = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        do_GET = do_POST = do_PATCH = do_DELETE = _answer

        def log_message(self, *_: Any) -> None:
            pass

    made = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_port}", asked
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


def test_a_webhook_says_what_and_why_and_is_signed() -> None:
    with server((202, {})) as (url, asked):
        asyncio.run(Webhook(url + "/mend", secret="s3").__call__(SPEC, "memory pressure"))
    ((method, path, headers, body),) = asked
    assert (method, path) == ("POST", "/mend")
    assert json.loads(body) == {
        "replica": SPEC.id,
        "model": "m",
        "url": SPEC.url,
        "node": "n7",
        "reason": "memory pressure",
    }
    digest = hmac.new(b"s3", body, hashlib.sha256).hexdigest()
    assert headers["x-tierway-signature"] == f"sha256={digest}"


def test_a_webhook_is_asked_again_a_few_times() -> None:
    with server((503, {}), (500, {}), (200, {})) as (url, asked):
        asyncio.run(Webhook(url, wait_s=0.0)(SPEC, "why"))
    assert len(asked) == 3
    with server((500, {})) as (url, asked), pytest.raises(MendError, match="answered 500"):
        asyncio.run(Webhook(url, wait_s=0.0)(SPEC, "why"))
    assert len(asked) == 4


def test_nobody_there_is_told() -> None:
    with pytest.raises(MendError, match="could not be asked"):
        asyncio.run(Webhook("http://127.0.0.1:9", wait_s=0.0)(SPEC, "why"))


def test_a_command_gets_the_facts_as_arguments_and_no_shell(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = f"import sys; open({str(out)!r}, 'w').write('|'.join(sys.argv[1:]))"
    facts = ["{replica}", "{host}:{port}", "on {node}", "$(id) {other}", "{reason}"]
    asyncio.run(Command([sys.executable, "-c", code, *facts], timeout_s=30)(SPEC, "a; b"))
    assert out.read_text() == f"{SPEC.id}|10.0.0.7:8000|on n7|$(id) {{other}}|a; b"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([sys.executable, "-c", "print('no such pod'); raise SystemExit(3)"], "no such pod"),
        (["/no/such/program"], "cannot be run"),
    ],
)
def test_a_command_that_fails_is_told(argv: list[str], told: str) -> None:
    with pytest.raises(MendError, match=told):
        asyncio.run(Command(argv, timeout_s=30)(SPEC, "why"))


def test_a_command_that_does_not_end_is_ended() -> None:
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(MendError, match="did not end within"):
        asyncio.run(Command(argv, timeout_s=0.2)(SPEC, "why"))


def test_only_known_names_are_filled_in() -> None:
    assert filled("{a}{b}{{a}}", {"a": "1"}) == "1{b}{1}"


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("t0ken\n")
    (tmp_path / "namespace").write_text("llm")
    return tmp_path


def test_kubernetes_deletes_the_pod_at_the_address(account: Path) -> None:
    pods = {"items": [{"metadata": {"name": "vllm-3"}}]}
    with server((200, pods), (200, {})) as (url, asked):
        asyncio.run(Kubernetes(server=url, account=account)(SPEC, "why"))
    (listed, deleted) = asked
    assert listed[:2] == (
        "GET",
        "/api/v1/namespaces/llm/pods?fieldSelector=status.podIP%3D10.0.0.7",
    )
    assert deleted[:2] == ("DELETE", "/api/v1/namespaces/llm/pods/vllm-3")
    assert listed[2]["authorization"] == "Bearer t0ken"


@pytest.mark.parametrize("count", [0, 2])
def test_kubernetes_deletes_nothing_it_is_not_sure_of(account: Path, count: int) -> None:
    pods = {"items": [{"metadata": {"name": f"p{n}"}} for n in range(count)]}
    with (
        server((200, pods)) as (url, asked),
        pytest.raises(MendError, match=f"{count} pods have the address"),
    ):
        asyncio.run(Kubernetes(server=url, account=account)(SPEC, "why"))
    assert [method for method, *_ in asked] == ["GET"]


def test_kubernetes_restarts_a_rollout(account: Path) -> None:
    with server((200, {})) as (url, asked):
        made = Kubernetes(server=url, account=account, namespace="gpu", workload="statefulset/vllm")
        asyncio.run(made(SPEC, "why"))
    ((method, path, headers, body),) = asked
    assert (method, path) == ("PATCH", "/apis/apps/v1/namespaces/gpu/statefulsets/vllm")
    assert headers["content-type"] == "application/strategic-merge-patch+json"
    annotations = json.loads(body)["spec"]["template"]["metadata"]["annotations"]
    assert list(annotations) == ["kubectl.kubernetes.io/restartedAt"]


def test_an_account_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(MendError, match="cannot be read"):
        asyncio.run(Kubernetes(server="http://x", account=tmp_path)(SPEC, "why"))
