"""Settings of replicas and of the fleet; see settings.py."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from tierway.middleware.field_types import (
    BaseUrl,
    Count,
    EngineName,
    EnvName,
    FilePath,
    Integer,
    Label,
    ModelName,
    Network,
    Number,
    Seconds,
    Switch,
    Telemetry,
    Text,
    UrlPath,
    Weight,
)
from tierway.middleware.section import Section
from tierway.middleware.settings_maintenance import MaintenanceSettings


class ReplicaSettings(Section):
    url: BaseUrl
    dns: Switch = "off"  # on: a replica for each address of the host, as of a headless service
    # The most common one; generic is any server of the OpenAI wire, and reads no metrics.
    engine: EngineName = "vllm"
    api_key_env: EnvName | None = None  # engines in a private network mostly want none
    gpu: str = ""  # unknown: nothing is predicted from the hardware
    tp: Count = 1
    pp: Count = 1
    # One per rank; more where an engine runs data-parallel copies.
    gpus: Count = Field(default_factory=lambda data: data.get("tp", 1) * data.get("pp", 1))
    node: Label = ""
    zone: Label = ""
    group: Label = ""  # replicas whose GPUs share a fast fabric: an NVLink domain, a rack
    fabric: Literal["", "nvlink", "rdma", "tcp"] = ""  # what joins the GPUs of its group
    weight: Weight = 1.0  # a fair share
    telemetry: Telemetry | None = None  # GPU facts are optional
    # None of these: all GPUs that are shown, which must then be as many as `gpus`.
    gpu_uuids: tuple[Text, ...] = ()
    gpu_indices: tuple[Annotated[Integer, Field(ge=0)], ...] = ()
    pod: Label = ""


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Names = Annotated[tuple[Text, ...], BeforeValidator(_listed)]
Ways = tuple[Names, ...]


class EngineSettings(Section):
    """An engine that is not built in: what is left out is as with the engine that it is `like`.
    The fields are those of the table in router/engines.py."""

    like: EngineName = "generic"  # nothing is read that was not named
    health: UrlPath | None = None
    metrics: UrlPath | None = None
    running: Names | None = None
    waiting: Names | None = None
    kv_usage: Names | None = None
    shards: Names | None = None
    capacity: Ways | None = None
    free: Ways | None = None
    preemptions: Names | None = None
    awake: Text | None = None
    reports_load: Annotated[bool, Field(strict=True)] | None = None
    preallocates: Annotated[bool, Field(strict=True)] | None = None
    priority_sign: Literal[-1, 0, 1] | None = None


class PrefetchPrompt(Section):
    """One of `system` and `file`."""

    model: ModelName
    system: Text | None = None
    file: FilePath | None = None


class PrefetchSettings(Section):
    prompts: tuple[PrefetchPrompt, ...] = ()  # the operator knows templates before anybody asks
    # A handful of applications; each text stays in memory. 0: none is learnt.
    learn: Annotated[Integer, Field(ge=0, le=1024)] = 16


class PressureSettings(Section):
    """Of the memory of a replica, 0 to 1; see the module policies/pressure.py."""

    # Half of the way to a loss of 30 % of the memory: no healthy load of the benchmark came near.
    alert: Annotated[Number, Field(gt=0, le=1)] = 0.5
    for_s: Seconds = 20  # as long as the window it is taken over


class FleetSettings(Section):
    engines: dict[EngineName, EngineSettings] = Field(
        default_factory=dict
    )  # the usual are built in
    zone: Label = ""  # unknown: no replica is nearer than another
    # A fresh engine is slow at first and its KV cache empty: a burst should not be its first call.
    slow_start_s: Annotated[Number, Field(ge=0)] = 5
    drain_timeout_s: Seconds = 600  # as long as a call may take at all
    pressure: PressureSettings = PressureSettings()
    prefetch: PrefetchSettings = PrefetchSettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    file: FilePath | None = None  # the configuration lists the replicas
    allowed_networks: tuple[Network, ...] = ()  # admin calls may add replicas nowhere
