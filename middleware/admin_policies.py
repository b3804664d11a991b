"""The admin calls that change policies while traffic flows.

Each is one assignment of a new PolicySet, whole and one version on, or an answer that says why
not. Who changed what stands in the log: the role of the key, never the key.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict

from tierway.policies.errors import ConfigError

if TYPE_CHECKING:
    from tierway.middleware.parts import Parts

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
        _set(parts(), tier, body)
        version = parts().holder.current.version
        what = f"the {'shadow' if body.shadow else 'policy'} of {tier} to {body.policy}"
        _log(request, f"{what} {body.options or ''}".rstrip(), version)
        told = {"tier": tier, "policy": body.policy, "version": version}
        return {**told, "shadow": True} if body.shadow else told

    @app.put("/admin/llm-aware", dependencies=[needs("operate")])
    async def set_llm_aware(body: SwitchBody, request: Request) -> dict[str, Any]:
        holder = parts().holder
        holder.current = holder.current.with_llm_aware(body.enabled)
        _log(request, f"llm-aware to {body.enabled}", holder.current.version)
        return {"llm_aware": body.enabled, "version": holder.current.version}

    @app.post("/admin/reload", dependencies=[needs("operate")])
    async def reload(request: Request) -> dict[str, Any]:
        logger.warning("a key with the role %s reloads the configuration", request.state.role)
        return asdict(await parts().reload())


def _set(parts: Parts, tier: str, body: PolicyBody) -> None:
    """Raises ConfigError, and then nothing has changed."""
    holder = parts.holder
    if body.shadow:
        holder.current = holder.current.with_shadow(tier, body.policy, body.options)
    elif body.policy is None:
        raise ConfigError([f"tiers.{tier}.policy = None: only a shadow may be null"])
    else:
        holder.current = holder.current.with_policy(tier, body.policy, body.options)


def _log(request: Request, what: str, version: int) -> None:
    role = request.state.role
    logger.warning("a key with the role %s set %s: policy set version %d", role, what, version)
