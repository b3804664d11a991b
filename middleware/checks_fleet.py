"""What needs more than one key to judge, of replicas and of the fleet."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator

from tierway.middleware.config_text import Fault, Key
from tierway.middleware.settings import ModelSettings, SettingsTree
from tierway.middleware.settings_fleet import ReplicaSettings
from tierway.middleware.settings_maintenance import ActionSettings, MaintenanceSettings
from tierway.router.engines import ENGINES


def replica_faults(
    path: tuple[Key, ...], model: ModelSettings, tree: SettingsTree
) -> Iterator[Fault]:
    """Of the replicas of the model at `path`."""
    for url, count in Counter(replica.url for replica in model.replicas).items():
        if count > 1:
            yield Fault((*path, "replicas"), f"{url} stands {count} times: each replica once")
    for index, replica in enumerate(model.replicas):
        if replica.tp * replica.pp > replica.gpus:
            need = f"must be at least tp x pp = {replica.tp * replica.pp}"
            yield Fault((*path, "replicas", index, "gpus"), need, replica.gpus)
        if replica.dns == "on" and not replica.url.startswith("http://"):
            text = "goes with http: no certificate names an address"
            yield Fault((*path, "replicas", index, "dns"), text, replica.dns)
        if replica.engine not in engine_names(tree):
            yield _unknown_engine((*path, "replicas", index, "engine"), replica.engine, tree)
        yield from _gpu_faults((*path, "replicas", index), replica)


def fleet_faults(tree: SettingsTree) -> Iterator[Fault]:
    yield from _engine_faults(tree)
    yield from _maintenance_faults(tree.fleet.maintenance)
    yield from _prefetch_faults(tree)


def _prefetch_faults(tree: SettingsTree) -> Iterator[Fault]:
    known = [name for name, model in tree.models.items() if not model.cloud]
    for number, prompt in enumerate(tree.fleet.prefetch.prompts):
        path = ("fleet", "prefetch", "prompts", number)
        if prompt.model not in known:
            text = f"must be one of the models with replicas: {', '.join(known) or 'there is none'}"
            yield Fault((*path, "model"), text, prompt.model)
        if (prompt.system is None) == (prompt.file is None):
            yield Fault(path, "needs exactly one of system and file")


def engine_names(tree: SettingsTree) -> tuple[str, ...]:
    return (*ENGINES, *tree.fleet.engines)


def _unknown_engine(path: tuple[Key, ...], name: str, tree: SettingsTree) -> Fault:
    known = engine_names(tree)
    close = difflib.get_close_matches(name, known, 1)
    nearest = f"; did you mean {close[0]!r}?" if close else ""
    return Fault(path, f"must be one of {', '.join(known)}{nearest}", name)


def _engine_faults(tree: SettingsTree) -> Iterator[Fault]:
    for name, given in tree.fleet.engines.items():
        path = ("fleet", "engines", name)
        if name in ENGINES:
            yield Fault(path, "is the name of an engine that is built in: name it otherwise")
        if given.like not in ENGINES:
            text = f"must be one of the engines that are built in: {', '.join(ENGINES)}"
            yield Fault((*path, "like"), text, given.like)
        like = ENGINES.get(given.like)
        pageless = given.metrics is None and like is not None and like.metrics is None
        if pageless and (given.running or given.waiting or given.kv_usage):
            yield Fault((*path, "metrics"), "is required where gauges are named")


def _gpu_faults(path: tuple[Key, ...], replica: ReplicaSettings) -> Iterator[Fault]:
    ways = [way for way in ("gpu_uuids", "gpu_indices", "pod") if getattr(replica, way)]
    for way in ways:
        if replica.telemetry is None:
            yield Fault((*path, way), "goes with telemetry, which tells of GPUs")
    if len(ways) > 1:
        yield Fault((*path, ways[1]), f"does not go with {ways[0]}: one of them tells")
    for way in ("gpu_uuids", "gpu_indices"):
        told = getattr(replica, way)
        if told and len(set(told)) != replica.gpus:
            text = f"must name as many different GPUs as gpus, {replica.gpus}"
            yield Fault((*path, way), f"{text}, not {len(set(told))}")
    if replica.pod and replica.telemetry == "nvml":
        yield Fault((*path, "pod"), "is not known to nvml: use gpu_uuids or gpu_indices")


_ACTION_KEYS = {
    "webhook": ("url", "secret_env"),
    "command": ("command", "timeout_s"),
    "kubernetes": ("url", "workload", "namespace", "account"),
}


def _maintenance_faults(given: MaintenanceSettings) -> Iterator[Fault]:
    action, path = given.action, ("fleet", "maintenance", "action")
    needed = {"webhook": "url", "command": "command"}.get(action.kind)
    if needed and not getattr(action, needed):
        yield Fault((*path, needed), f"is required with kind: {action.kind}")
    usual = ActionSettings()
    for key in sorted(action.model_fields_set - {"kind"}):
        other = key not in _ACTION_KEYS.get(action.kind, ())
        if other and getattr(action, key) != getattr(usual, key):
            kinds = [kind for kind, keys in _ACTION_KEYS.items() if key in keys]
            yield Fault((*path, key), f"goes with kind: {' or '.join(kinds)}")
    if given.restarts.mode == "on" and action.kind == "none":
        yield Fault(
            ("fleet", "maintenance", "restarts", "mode"),
            "needs fleet.maintenance.action, which restarts",
        )
