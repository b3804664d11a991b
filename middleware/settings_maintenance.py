"""Settings of maintenance; see settings.py."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tierway.middleware.field_types import (
    Count,
    EnvName,
    FilePath,
    Integer,
    Label,
    Number,
    Seconds,
    Switch,
    Text,
    TimeOfDay,
    Url,
    Workload,
)
from tierway.middleware.section import Section


class ActionSettings(Section):
    """What restarts a replica. Without one nothing is ever mended."""

    kind: Literal["none", "webhook", "command", "kubernetes"] = "none"
    url: Url | None = None  # of the webhook, or of the API server where it is not the pod's own
    secret_env: EnvName | None = None  # a webhook in a private network mostly wants none
    command: tuple[Text, ...] = ()
    timeout_s: Seconds = 300  # of the command: a container that stops politely takes minutes
    workload: Workload | None = None  # none: the replica's pod is deleted
    namespace: Label = ""  # the pod's own
    account: FilePath = "/var/run/secrets/kubernetes.io/serviceaccount"  # where Kubernetes puts it


class RestartSettings(Section):
    """A restart of every replica at a time of the day."""

    mode: Switch = "off"  # an engine that is well needs none
    at: TimeOfDay = "03:00"  # UTC; the night of whoever is near
    for_s: Seconds = 7200  # one after the other takes its time
    every_days: Annotated[Integer, Field(ge=1, le=365)] = 1


class MaintenanceSettings(Section):
    action: ActionSettings = ActionSettings()
    dry_run: Annotated[bool, Field(strict=True)] = False  # whoever names an action wants it
    # A fifth of the memory lost for a minute: no healthy run of the benchmark came so far.
    threshold: Annotated[Number, Field(gt=0, le=1)] = 0.7
    for_s: Seconds = 60
    min_available: Annotated[Integer, Field(ge=0)] = 1  # somebody has to answer meanwhile
    cooldown_s: Seconds = 1800  # what a restart did not mend the next one will not either
    most_per_hour: Count = 4  # a wrong alarm must not take a fleet down
    health_timeout_s: Seconds = 900  # large weights take minutes to load
    restarts: RestartSettings = RestartSettings()
