"""From a file and the environment to one validated `Settings`, and back to text.

    tierway.yaml  ->  TIERWAY_SECTION__KEY laid over it  ->  the tree  ->  checks of two keys
                  ->  the secrets it names are there  ->  Settings, or ConfigError with every fault

A fault is one line: the key, its value (masked where it could be a secret), what is allowed, and
the variable it came from. Values of secrets never enter the tree: `read_secret` fetches them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from pydantic import PrivateAttr, ValidationError

from tierway.middleware.checks import (
    cross_faults,
    exact_only,
    idle_tiers,
    read_secret,
    secret_faults,
)
from tierway.middleware.config_messages import told
from tierway.middleware.config_source import ADMIN_KEY, CONFIG_FILE, overlaid, plain, read_file
from tierway.middleware.config_text import Fault, Key, fault_line, render
from tierway.middleware.gaps import gap_faults, gap_warnings
from tierway.middleware.settings import SettingsTree
from tierway.policies.errors import ConfigError

__all__ = [
    "ADMIN_KEY",
    "Settings",
    "check_main",
    "demo_settings",
    "load",
    "read_secret",
    "render",
    "resolve",
]


class Settings(SettingsTree):
    """The whole configuration, valid and frozen. `source` is the file that it was read from."""

    _source: Path | None = PrivateAttr(None)

    @property
    def source(self) -> Path | None:
        return self._source

    @staticmethod
    def from_dict(data: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
        """Raises ConfigError. No variable is laid over `data`; the secrets it names are looked
        for only when `environ` is given."""
        return _validated(plain(data), environ=environ)

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line for each thing that is allowed and probably not meant."""
        return (*idle_tiers(self), *exact_only(self), *gap_warnings(self))


def load(path: str | Path | None, environ: Mapping[str, str]) -> Settings:
    """The file at `path` (None: nothing but defaults) under the variables of `environ`."""
    if path is None:
        return _under({}, environ)
    settings = _under(read_file(Path(path)), environ)
    settings._source = Path(path)
    return settings


def with_replicas(
    settings: Settings, replicas: Mapping[str, Any], environ: Mapping[str, str]
) -> Settings:
    """The same configuration with other replicas of some of its models; raises ConfigError."""
    data = settings.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for name, given in replicas.items():
        data["models"][name]["replicas"] = given
    return _validated(plain(data), environ=environ)


def resolve(
    config: str | Path | Mapping[str, Any] | Settings | None, environ: Mapping[str, str]
) -> Settings | None:
    """None looks for TIERWAY_CONFIG, then ./tierway.yaml; None comes back where neither is:
    the embedded demo is meant. Variables are laid over everything but a Settings object."""
    if isinstance(config, Settings):
        return config
    if isinstance(config, Mapping):
        return _under(config, environ)
    if config is None:
        config = environ.get(CONFIG_FILE) or ("tierway.yaml" if _is_here() else None)
    if config is None:
        return None
    if not isinstance(config, str | Path):
        raise ConfigError(
            [f"config = {type(config).__name__}: must be a path, mapping or Settings"]
        )
    return load(config, environ)


def _is_here() -> bool:
    return Path("tierway.yaml").is_file()


def demo_settings(
    engine_urls: Mapping[str, Sequence[str]],
    *,
    store_path: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """The embedded demo: `engine_urls` maps the tiers small, medium and large to their simulated
    engines, which show their GPUs as an exporter would. The cache is in memory without
    `store_path`; variables of `environ` are laid over."""
    names = {"small": "sim-7b", "medium": "sim-70b", "large": "sim-175b"}
    gpus = {"small": 1, "medium": 4, "large": 8}
    if not engine_urls.keys() <= names.keys():
        raise ValueError(f"engine_urls has {', '.join(engine_urls)}; tiers: {', '.join(names)}")
    store = {"kind": "memory"} if store_path is None else {"path": str(store_path)}
    models = {
        names[tier]: {
            "tier": tier,
            "served_name": names[tier],
            "context_tokens": 32768,
            "capabilities": ["tools", "json"],
            "replicas": [
                {
                    "url": url,
                    "engine": "vllm",
                    "gpus": gpus[tier],
                    "telemetry": f"{url}/gpu/metrics",
                }
                for url in urls
            ],
        }
        for tier, urls in engine_urls.items()
        if urls
    }
    tiers: dict[str, Any] = {tier: {} for tier in names}
    return _under({"cache": {"store": store}, "models": models, "tiers": tiers}, environ or {})


def check_main(
    path: str | Path | None, environ: Mapping[str, str], out: TextIO, err: TextIO
) -> int:
    """Prints the effective configuration, warnings as comments, and returns 0; or one line for
    each fault on `err`, and 2."""
    try:
        settings = resolve(path, environ)
        if settings is None:
            print("# no configuration file: the embedded demo, on these defaults", file=out)
            settings = load(None, environ)
        _check_plugins(settings)
    except ConfigError as error:
        print(*error.faults, sep="\n", file=err)
        return 2
    for warning in settings.warnings:
        print(f"# warning: {warning}", file=out)
    out.write(render(settings))
    return 0


def _check_plugins(settings: Settings) -> None:
    """Loads the plugins and builds the policies, as a start would; raises ConfigError."""
    if settings.plugins:
        from tierway.middleware.catalog import tiers
        from tierway.middleware.plugins import registry
        from tierway.policies.policyset import PolicySet

        PolicySet.build(tiers(settings, {}), registry=registry(settings.plugins))


def _under(document: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    data, faults, origins = overlaid(document, environ)
    return _validated(data, faults, origins, environ)


def _validated(
    data: dict[str, Any],
    before: Iterable[Fault | str] = (),
    origins: Mapping[tuple[Key, ...], str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Raises ConfigError with the faults found `before` and all that are found here."""
    faults = [*before, *gap_faults(data)]
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        found = (told(detail) for detail in error.errors(include_url=False))
        refused = {fault.path for fault in faults if isinstance(fault, Fault)}
        faults += [fault for fault in found if fault and fault.path not in refused]
    except RecursionError as error:
        raise ConfigError(["the configuration is nested too deeply"]) from error
    else:
        faults += cross_faults(settings)
        faults += () if environ is None else secret_faults(settings, environ)
    if faults:
        raise ConfigError([fault_line(fault, origins or {}) for fault in faults])
    return settings
