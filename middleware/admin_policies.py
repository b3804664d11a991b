"""The admin calls that change policies while traffic flows.

Each is one assignment of a new PolicySet, whole and one version on, or an answer that says why
not; the other gateways follow within a second, and the next start does too. Who changed what
stands in the log: the role of the key, never the key.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict

from tierway.policies.errors import ConfigError
from tierway.policies.policyset import Change

if TYPE_CHECKING:
    pass

logger = logging.getLogger(__name__)


class PolicyBody(BaseModel):
    """`policy` null ends a shadow."""

    model_config = ConfigDict(extra="forbid")

    policy: str | None
    options: dict[str, Any] = {}
    shadow: bool = False


class SwitchBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    enabled: bool


def add_policy_calls(app: FastAPI, parts: Any, needs: Any) -> None:
    @app.put("/admin/tiers/{tier}/policy", dependencies=[needs("operate")])
    async def set_policy(tier: str, body: PolicyBody, request: Request) -> dict[str, Any]:
        version = await parts().policies.set(_change(tier, body))
        what = f"the {'shadow' if body.shadow else 'policy'} of {tier} to {body.policy}"
        _log(request, f"{what} {body.options or ''}".rstrip(), version)
        told = {"tier": tier, "policy": body.policy, "version": version}
        return {**told, "shadow": True} if body.shadow else told

    @app.put("/admin/llm-aware", dependencies=[needs("operate")])
    async def set_llm_aware(body: SwitchBody, request: Request) -> dict[str, Any]:
        version = await parts().policies.set_llm_aware(body.enabled)
        _log(request, f"llm-aware to {body.enabled}", version)
        return {"llm_aware": body.enabled, "version": version}

    @app.post("/admin/reload", dependencies=[needs("operate")])
    async def reload(request: Request) -> dict[str, Any]:
        logger.warning("a key with the role %s reloads the configuration", request.state.role)
        return asdict(await parts().reload())


def _change(tier: str, body: PolicyBody) -> Change:
    """Raises ConfigError."""
    if body.shadow:
        return Change(tier, "shadow_policy", body.policy, body.options)
    if body.policy is None:
        raise ConfigError([f"tiers.{tier}.policy = None: only a shadow may be null"])
    return Change(tier, "policy", body.policy, body.options)


def _log(request: Request, what: str, version: int) -> None:
    role = request.state.role
    logger.warning("a key with the role %s set %s: policy set version %d", role, what, version)
