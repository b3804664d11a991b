"""How a replica's GPUs are configured."""

from __future__ import annotations

from typing import Any

import pytest
from config_cases import faults

from tierway.middleware import catalog
from tierway.middleware.config import Settings
from tierway.router.gpus import GpuSource
from tierway.router.replica import ReplicaSpec


def specs(data: dict[str, Any]) -> list[ReplicaSpec]:
    settings = Settings.from_dict(data)
    models = {name: catalog.model(name, given) for name, given in settings.models.items()}
    return [
        catalog.replica_spec(models[name], replica)
        for name, model in settings.models.items()
        for replica in model.replicas
    ]


def gpu_replica(**fields: Any) -> dict[str, Any]:
    replica = {"url": "http://h:1", "gpus": 2, "telemetry": "http://n:9400/metrics", **fields}
    return {"models": {"q": {"tier": "small", "replicas": [replica]}}}


def test_which_gpus_are_a_replicas() -> None:
    told = gpu_replica(gpu_indices=[0, 3], node="n1", engine="ollama")
    (spec,) = specs(told)
    assert spec.telemetry == GpuSource("http://n:9400/metrics", indices=(0, 3))
    assert (spec.gpus, spec.node, spec.preallocates) == (2, "n1", False)
    (spec,) = specs(gpu_replica(telemetry="nvml"))
    assert (spec.telemetry, spec.preallocates) == (GpuSource("nvml"), True)
    (spec,) = specs(gpu_replica(telemetry=None))
    assert spec.telemetry is None


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"gpu_indices": [0]}, "gpu_indices: must name as many different GPUs as gpus, 2"),
        ({"gpu_uuids": ["a", "a"]}, "must name as many different GPUs as gpus, 2"),
        ({"pod": "p", "telemetry": None}, "pod: goes with telemetry, which tells of GPUs"),
        ({"pod": "p", "telemetry": "nvml"}, "pod: is not known to nvml"),
        ({"pod": "p", "gpu_indices": [0, 1]}, "pod: does not go with gpu_indices"),
    ],
)
def test_signs_of_gpus_that_cannot_be_meant(fields: dict[str, Any], line: str) -> None:
    (found,) = faults(gpu_replica(**fields))
    assert line in found
