"""The relay benchmark with a load of a fraction of a second, in its real processes."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tierway.bench.relay import cpu_s, main

LIGHT = [
    "--rounds",
    "1",
    "--requests",
    "40",
    "--concurrency",
    "4",
    "--streams",
    "3",
    "--tokens",
    "5",
    "--tick-ms",
    "2",
]


@contextmanager
def served_upstream() -> Iterator[tuple[str, str]]:
    """The benchmark's own upstream as a command; gives (url, pid)."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [
        sys.executable,
        "-m",
        "tierway.bench.relay",
        "--serve-upstream",
        "0",
        "--tokens",
        "5",
    ]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().split()[2].rstrip(",")
            yield url, str(process.pid)
        finally:
            process.terminate()


def rows_of(text: str) -> dict[str, dict[str, Any]]:
    result = json.loads(text)
    assert result["benchmark"] == "relay"
    return {row["name"]: row for row in result["targets"]}


def test_both_bare_relays_are_measured_without_errors(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*LIGHT, "--json"]) == 0
    rows = rows_of(capfd.readouterr().out)
    assert list(rows) == ["transport", "aiohttp"]
    for row in rows.values():
        assert (row["requests"], row["streams"], row["errors"]) == (40, 3, 0)
        assert row["requests_per_s"] > 0
        assert 0 < row["pieces_per_token"] <= 2
        assert row["cpu_us_per_request"] >= 0


def test_a_running_gateway_is_measured_by_url_and_process(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-1")
    with served_upstream() as (url, pid):
        gateway = ["--only", "gateway", "--url", url, "--pid", pid, "--key-env", "SOME_KEY"]
        assert main([*LIGHT, *gateway, "--json"]) == 0
        rows = rows_of(capfd.readouterr().out)
        assert list(rows) == ["gateway"]
        assert (rows["gateway"]["requests"], rows["gateway"]["errors"]) == (40, 0)
        assert main([*LIGHT, *gateway]) == 0
        table = capfd.readouterr().out.splitlines()
        assert table[0].split()[:3] == ["name", "cpu_us_per_request", "cpu_us_per_token"]
        assert table[1].startswith("gateway ")


def test_the_upstream_goes_on_when_clients_leave_in_the_middle(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with served_upstream() as (url, pid):
        port = int(url.rpartition(":")[2].removesuffix("/v1"))
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port)) as leaver:
                leaver.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                body = b'{"stream": true}'
                leaver.sendall(b"POST / HTTP/1.1\r\nContent-Length: 16\r\n\r\n" + body)
                assert leaver.recv(4) == b"HTTP"
        assert main([*LIGHT, "--only", "gateway", "--url", url, "--pid", pid, "--json"]) == 0
        assert rows_of(capfd.readouterr().out)["gateway"]["streams"] == 3


class _Wrong(BaseHTTPRequestHandler):
    """Answers a few requests well, then 500."""

    left = 3

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        type(self).left -= 1
        body = b'{"choices": []}'
        self.send_response(200 if self.left >= 0 else 500)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


class _Server(HTTPServer):
    request_queue_size = 64  # the load connects all at once


def test_wrong_answers_are_counted_and_fail_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    with _Server(("127.0.0.1", 0), _Wrong) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/v1"
            gateway = ["--only", "gateway", "--url", url, "--pid", str(os.getpid())]
            assert main([*LIGHT, *gateway, "--json"]) == 1
            row = rows_of(capfd.readouterr().out)["gateway"]
            assert (row["requests"], row["streams"], row["errors"]) == (0, 0, 43)
            assert main([*LIGHT, *gateway]) == 1
            assert "no right answer" in capfd.readouterr().err
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--url", "http://h/v1"], "--pid"),
        (["--only", "gateway"], "--only gateway"),
        (["--rounds", "0"], "from 1 on"),
        (["--key-env", "NO_SUCH_VARIABLE_HERE"], "NO_SUCH_VARIABLE_HERE"),
    ],
)
def test_wrong_use_exits_with_2(
    argv: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert word in capsys.readouterr().err


def test_a_wrong_url_exits_with_2_and_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "gateway", "--url", "ftp://h", "--pid", "1"]) == 2
    assert "'ftp://h'" in capsys.readouterr().err


def test_cpu_time_of_a_process_grows_with_its_work() -> None:
    before = cpu_s(os.getpid())
    for _ in range(100):
        sum(range(100_000))
    assert cpu_s(os.getpid()) > before
