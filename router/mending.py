"""What restarts a replica: a webhook, a command, or Kubernetes."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from tierway.router.maintenance import MendError
from tierway.router.replica import ReplicaSpec
from tierway.router.transport import Origin

logger = logging.getLogger(__name__)

_ATTEMPTS = 4
_TIMEOUT_S = 10.0
_TOLD_BYTES = 2000


class Webhook:
    """Posts `{"replica", "model", "url", "node", "reason"}`; any 2xx is an acceptance. With a
    `secret` the header `x-tierway-signature` is `sha256=` and the HMAC of the body in hex."""

    def __init__(self, url: str, *, secret: str = "", wait_s: float = 1.0) -> None:
        self._url, self._secret, self._wait_s = url, secret, wait_s

    async def __call__(self, spec: ReplicaSpec, reason: str) -> None:
        body = json.dumps(
            {
                "replica": spec.id,
                "model": spec.model,
                "url": spec.url,
                "node": spec.node,
                "reason": reason,
            }
        ).encode()
        headers = {"content-type": "application/json"}
        if self._secret:
            digest = hmac.new(self._secret.encode(), body, hashlib.sha256).hexdigest()
            headers["x-tierway-signature"] = f"sha256={digest}"
        request = urllib.request.Request(self._url, body, headers, method="POST")
        await _asked(request, None, self._wait_s)


class Command:
    """Runs a program, never through a shell. `{replica}`, `{model}`, `{host}`, `{port}`, `{node}`
    and `{reason}` in its arguments are filled in; it must end well within `timeout_s`."""

    def __init__(self, argv: Sequence[str], *, timeout_s: float) -> None:
        self._argv, self._timeout_s = tuple(argv), timeout_s

    async def __call__(self, spec: ReplicaSpec, reason: str) -> None:
        origin = Origin.parse(spec.url)
        known = {
            "replica": spec.id,
            "model": spec.model,
            "host": origin.host,
            "port": str(origin.port),
            "node": spec.node,
            "reason": reason,
        }
        argv = [filled(argument, known) for argument in self._argv]
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=pipe,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            raise MendError(f"{argv[0]} cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(self._timeout_s):
                told, _ = await process.communicate()
        except TimeoutError:
            raise MendError(f"{argv[0]} did not end within {self._timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        text = told[-_TOLD_BYTES:].decode(errors="replace").strip()
        logger.info("%s ended with %d: %s", argv[0], process.returncode, text)
        if process.returncode:
            raise MendError(f"{argv[0]} ended with {process.returncode}: {text[-200:]}")


def filled(argument: str, known: Mapping[str, str]) -> str:
    """Only the names that are known are replaced; other braces stay."""
    for name, value in known.items():
        argument = argument.replace(f"{{{name}}}", value)
    return argument


class Kubernetes:
    """Deletes the replica's pod, found by its address, or restarts the rollout of a `workload`
    (`deployment/NAME` or `statefulset/NAME`), as `kubectl rollout restart` does. Speaks to the API
    server with the pod's own service account, which needs `list` and `delete` on pods, or `patch`
    on the workload."""

    def __init__(
        self,
        *,
        server: str,
        account: Path,
        namespace: str = "",
        workload: str = "",
        wait_s: float = 1.0,
    ) -> None:
        self._server, self._account, self._workload = server.rstrip("/"), account, workload
        self._namespace, self._wait_s = namespace, wait_s

    async def __call__(self, spec: ReplicaSpec, reason: str) -> None:
        if self._workload:
            kind, _, name = self._workload.partition("/")
            now = datetime.now(UTC).isoformat(timespec="seconds")
            annotations = {"kubectl.kubernetes.io/restartedAt": now}
            patch = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
            path = f"/apis/apps/v1/namespaces/{self._space()}/{kind}s/{name}"
            await self._call("PATCH", path, patch)
            return
        pods = f"/api/v1/namespaces/{self._space()}/pods"
        where = urllib.parse.urlencode(
            {"fieldSelector": f"status.podIP={Origin.parse(spec.url).host}"}
        )
        found = json.loads(await self._call("GET", f"{pods}?{where}"))
        names = [pod["metadata"]["name"] for pod in found.get("items", ())]
        if len(names) != 1:
            raise MendError(f"{len(names)} pods have the address of {spec.id}: {', '.join(names)}")
        await self._call("DELETE", f"{pods}/{names[0]}")

    def _space(self) -> str:
        return self._namespace or self._read("namespace")

    def _read(self, name: str) -> str:
        try:
            return (self._account / name).read_text().strip()
        except OSError as error:
            raise MendError(f"{self._account / name} cannot be read: {error.strerror}") from error

    async def _call(self, method: str, path: str, body: object = None) -> bytes:
        headers = {"authorization": f"Bearer {self._read('token')}", "accept": "application/json"}
        if body is not None:
            headers["content-type"] = "application/strategic-merge-patch+json"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._server + path, data, headers, method=method)
        tls = None
        if self._server.startswith("https:"):
            tls = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        return await _asked(request, tls, self._wait_s)


async def _asked(
    request: urllib.request.Request, tls: ssl.SSLContext | None, wait_s: float
) -> bytes:
    """The body of a 2xx answer, off the loop, asked a few times; raises MendError."""

    def ask() -> bytes:
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=tls) as answer:
                told: bytes = answer.read()
                return told
        except urllib.error.HTTPError as error:
            error.close()
            raise

    retrying = AsyncRetrying(
        retry=retry_if_exception_type(OSError),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_exponential(wait_s),
        reraise=True,
    )
    try:
        return await retrying(asyncio.to_thread, ask)
    except urllib.error.HTTPError as error:
        raise MendError(f"{request.full_url} answered {error.code}") from error
    except OSError as error:
        raise MendError(f"{request.full_url} could not be asked: {error}") from error
