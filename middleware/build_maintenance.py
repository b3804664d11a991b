"""From settings to what mends replicas."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from tierway.middleware.build_overlay import OverlayClaims
from tierway.middleware.config import Settings
from tierway.middleware.overlay import Overlay
from tierway.middleware.settings_maintenance import ActionSettings, MaintenanceSettings
from tierway.policies.errors import GatewayError
from tierway.policies.maintenance import MaintenanceRules, Restarts
from tierway.router.fleet import Fleet
from tierway.router.maintenance import Action, Maintainer
from tierway.router.mending import Command, Kubernetes, Webhook

logger = logging.getLogger(__name__)

_EXPIRE_S = 5.0


def started_maintenance(
    settings: Settings,
    environ: Mapping[str, str],
    fleet: Fleet,
    overlay: Overlay,
    stack: AsyncExitStack,
) -> Maintainer | None:
    """None where nothing is configured that could mend."""
    given = settings.fleet.maintenance
    claims = OverlayClaims(
        overlay, gateway=f"{socket.gethostname()}:{secrets.token_hex(4)}", wall=time.time
    )
    expiry = asyncio.get_running_loop().create_task(_expire(claims))
    stack.callback(expiry.cancel)
    action = _action(given.action, environ)
    if action is None:
        return None
    rules = maintenance_rules(given, settings.fleet.drain_timeout_s)
    maintainer = Maintainer(fleet, claims, action, rules, wall=time.time, dry_run=given.dry_run)
    maintainer.start()
    stack.push_async_callback(maintainer.aclose)
    return maintainer


async def _expire(claims: OverlayClaims) -> None:
    """Every gateway looks, also one that mends nothing: it drains what others claim."""
    while True:
        await asyncio.sleep(_EXPIRE_S)
        try:
            await claims.expire()
        except GatewayError:
            continue  # told by the overlay
        except Exception:  # border: the loop outlives any fault
            logger.exception("claims could not be looked at")


def maintenance_rules(given: MaintenanceSettings, drain_timeout_s: float) -> MaintenanceRules:
    restarts = None
    if given.restarts.mode == "on":
        hours, minutes = map(int, given.restarts.at.split(":"))
        at_s = 3600.0 * hours + 60.0 * minutes
        restarts = Restarts(at_s, given.restarts.for_s, given.restarts.every_days)
    return MaintenanceRules(
        threshold=given.threshold,
        for_s=given.for_s,
        min_available=given.min_available,
        cooldown_s=given.cooldown_s,
        most_per_hour=given.most_per_hour,
        drain_timeout_s=drain_timeout_s,
        health_timeout_s=given.health_timeout_s,
        restarts=restarts,
    )


def _action(given: ActionSettings, environ: Mapping[str, str]) -> Action | None:
    if given.kind == "webhook":
        assert given.url is not None, "checked with the settings"
        return Webhook(given.url, secret=environ.get(given.secret_env or "", ""))
    if given.kind == "command":
        return Command(given.command, timeout_s=given.timeout_s)
    if given.kind == "kubernetes":
        return Kubernetes(
            server=given.url or "https://kubernetes.default.svc",
            account=Path(given.account),
            namespace=given.namespace,
            workload=given.workload or "",
        )
    return None
