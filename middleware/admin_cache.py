"""The admin calls on the cache: the switch of its mode, and the purge.

`DELETE /admin/cache?tenant=&user=&namespace=&model=&context_id=&older_than_s=` deletes what meets
all conditions given. Without any it is refused unless `all=true` says that it is meant; a name
that is not known, one given twice, or one without a value is refused too, since a purge that
deletes more than was asked for cannot be taken back.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict

from tierway.cache.store import Selection
from tierway.policies.errors import BadCall

if TYPE_CHECKING:
    from tierway.middleware.parts import Parts

_TEXTS = ("tenant", "user", "namespace", "model", "context_id")
CONDITIONS = (*_TEXTS, "older_than_s")


class ModeBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    mode: Literal["serve", "observe", "off"]


def add_cache_calls(app: FastAPI, parts: Any, needs: Any) -> None:
    @app.put("/admin/cache", dependencies=[needs("operate")])
    async def switch(body: ModeBody) -> dict[str, Any]:
        found: Parts = parts()
        shared = await found.switch.to(body.mode)
        return {
            "mode": found.stage.rules.mode,
            "version": found.switch.version,
            "store": found.stage.store,
            "shared": shared,
        }

    @app.delete("/admin/cache", dependencies=[needs("operate")])
    async def purge(request: Request) -> dict[str, int]:
        chosen = selection(request.query_params.multi_items(), now_at=time.time())
        return {"deleted": await parts().stage.cache.purge(chosen)}


def selection(given: Sequence[tuple[str, str]], *, now_at: float) -> Selection:
    """What the query of a purge chooses. Raises BadCall naming the parameter."""
    allowed = (*CONDITIONS, "all")
    for name, count in Counter(name for name, _ in given).items():
        if name not in allowed:
            text = f"Unknown parameter {name!r}: allowed are {', '.join(allowed)}."
            raise BadCall(text, param=name)
        if count > 1:
            raise BadCall(f"{name} is given {count} times: at most one value.", param=name)
    values = dict(given)
    if values.pop("all", "false") not in ("true", "false"):
        raise BadCall("all must be true or false.", param="all")
    if not values and dict(given).get("all") != "true":
        text = f"Say what to purge ({', '.join(CONDITIONS)}), or all=true for everything."
        raise BadCall(text, code="missing_required_parameter")
    for name, value in values.items():
        if not value:
            raise BadCall(f"{name} must not be empty.", param=name)
    age_s = values.pop("older_than_s", None)
    older_than_at = None if age_s is None else now_at - _seconds(age_s)
    return Selection(**values, older_than_at=older_than_at)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        text = f"older_than_s must be a number of seconds, 0 or more, not {text!r}."
        raise BadCall(text, param="older_than_s")
    return seconds
