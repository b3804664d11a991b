"""The configuration of the soak's gateways; JSON is YAML too."""

from __future__ import annotations

import json
from pathlib import Path

from tierway.bench.soak_fleet import MODEL

TENANTS = (("red", "sk-red-0001"), ("green", "sk-green-0002"), ("blue", "sk-blue-0003"))


FLEET_FILE = "fleet.json"


def write_keys(folder: Path) -> None:
    """The tenants' keys, each in a file."""
    for name, key in TENANTS:
        Path(folder, f"{name}.key").write_text(key)


def configuration(*, redis: str, folder: Path, webhook: str) -> str:
    """Bounds in seconds are short, as a soak has minutes where a fleet has days."""
    return json.dumps(
        {
            "state": {"backend": "redis", "url": redis, "name": "soak"},
            "cache": {"mode": "off"},
            "models": {
                MODEL: {
                    "tier": "small",
                    "served_name": MODEL,
                    "context_tokens": 16384,
                    "replicas": [],
                }
            },
            "tiers": {"small": {"class": "7b"}},
            "tenants": [
                {"name": name, "key_file": str(folder / f"{name}.key")} for name, _ in TENANTS
            ],
            "fleet": {
                "file": str(folder / FLEET_FILE),
                "slow_start_s": 2,
                "drain_timeout_s": 15,
                "maintenance": {
                    "action": {"kind": "webhook", "url": webhook},
                    "threshold": 0.5,
                    "for_s": 5,
                    "min_available": 3,
                    "cooldown_s": 20,
                    "most_per_hour": 1000,
                    "health_timeout_s": 60,
                },
            },
        }
    )
