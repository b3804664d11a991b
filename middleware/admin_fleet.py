"""The admin calls that change the fleet: replicas come, go, and are drained.

An address may be added only inside `fleet.allowed_networks`: whoever holds an admin key must not be
able to make the gateway send prompts, and its keys, wherever they like.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from tierway.middleware.build_members import ADDED, EXCLUDED
from tierway.middleware.build_overlay import DRAINING
from tierway.middleware.reply import openai_error
from tierway.router.replica import ReplicaSpec
from tierway.router.transport import Origin

if TYPE_CHECKING:
    from tierway.middleware.parts import Parts

logger = logging.getLogger(__name__)


def add_fleet_calls(app: FastAPI, parts: Any, needs: Any) -> None:
    @app.post("/admin/models/{model:path}/replicas", dependencies=[needs("admin")])
    async def add(model: str, request: Request) -> JSONResponse:
        return await _add(parts(), model, await _settings(request))

    @app.delete("/admin/replicas/{replica:path}", dependencies=[needs("admin")])
    async def remove(replica: str) -> JSONResponse:
        return await _remove(parts(), replica)

    @app.post("/admin/replicas/{replica:path}/drain", dependencies=[needs("operate")])
    async def drain(replica: str) -> JSONResponse:
        return await _draining(parts(), replica, True)

    @app.post("/admin/replicas/{replica:path}/undrain", dependencies=[needs("operate")])
    async def undrain(replica: str) -> JSONResponse:
        return await _draining(parts(), replica, False)

    @app.post("/admin/replicas/{replica:path}/mend", dependencies=[needs("operate")])
    async def mend(replica: str) -> JSONResponse:
        return await _mend(parts(), replica)


async def _mend(parts: Parts, replica: str) -> JSONResponse:
    spec, maintainer = parts.fleet.spec(replica), parts.maintainer
    if spec is None:
        return _unknown(parts, replica)
    if maintainer is None:
        return _refused(409, "Nothing can mend it: fleet.maintenance.action is none.")
    why_not = await maintainer.ask(spec)
    if why_not:
        return _refused(409, f"It is not mended now: {why_not}.")
    return JSONResponse({"id": replica, "mending": True}, 202)


async def _settings(request: Request) -> Any:
    try:
        return await request.json()
    except ValueError:
        return None


async def _add(parts: Parts, model: str, settings: Any) -> JSONResponse:
    if not isinstance(settings, dict):
        return _refused(400, "Give the settings of one replica as a JSON object.")
    (spec,) = parts.members.source.specs({model: [settings]})  # ConfigError names what is wrong
    if outside := await _outside(parts.members.networks, spec):
        allowed = ", ".join(parts.members.networks) or "it is empty: none may be added"
        return _refused(403, f"{outside} inside fleet.allowed_networks ({allowed}).")
    known = spec.id in parts.fleet
    await parts.overlay.put(EXCLUDED, spec.id, None)
    await parts.overlay.put(ADDED, spec.id, {"model": model, "settings": settings})
    logger.warning("replica %s was added by an admin call", spec.id)
    return JSONResponse({"id": spec.id, "model": model}, 200 if known else 201)


async def _remove(parts: Parts, replica: str) -> JSONResponse:
    """One that other sources want stays out until it is added again."""
    if replica not in parts.fleet:
        return _unknown(parts, replica)
    by_call = parts.members.membership.source(replica) == "admin"
    await parts.overlay.put(ADDED, replica, None)
    if not by_call or replica in parts.fleet:
        await parts.overlay.put(EXCLUDED, replica, True)
    logger.warning("replica %s was removed by an admin call", replica)
    return JSONResponse({"id": replica, "removed": True})


async def _draining(parts: Parts, replica: str, draining: bool) -> JSONResponse:
    if replica not in parts.fleet:
        return _unknown(parts, replica)
    await parts.overlay.put(DRAINING, replica, draining or None)
    parts.fleet.set_draining(replica, draining)
    return JSONResponse({"id": replica, "draining": draining})


async def _outside(networks: Sequence[str], spec: ReplicaSpec) -> str:
    """What is wrong with the addresses of a replica and of its telemetry; empty where all of
    them lie inside the networks."""
    allowed = [ipaddress.ip_network(network) for network in networks]
    urls = [spec.url]
    if spec.telemetry is not None and spec.telemetry.url != "nvml":
        urls.append(spec.telemetry.url)
    for url in urls:
        try:
            found = await _addresses(Origin.parse(url))
        except OSError as error:
            return f"{url} cannot be resolved: {error}; it must be"
        for address in found:
            if not any(address in network for network in allowed):
                return f"{url} ({address}) is not"
    return ""


async def _addresses(origin: Origin) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found]


def _unknown(parts: Parts, replica: str) -> JSONResponse:
    known = ", ".join(parts.fleet.inflight())
    return _refused(404, f"There is no replica {replica!r}; there are: {known}.")


def _refused(status: int, message: str) -> JSONResponse:
    return JSONResponse(openai_error("invalid_request_error", message), status)
