"""Named profiles of a simulated engine: a model on a number of GPUs, and the engine's limits.

A profile's name is `MODEL-GPU` or `MODEL-GPUxN` (`8b-a10`, `70b-a100x4`, `175b-h100x8`); N GPUs
form one tensor-parallel group in fp16. How long a step takes: policies/physics.py.
"""

from __future__ import annotations

import dataclasses
import difflib
import random
import re
from dataclasses import dataclass
from typing import Self

from tierway.policies.physics import (
    GPUS,
    MEASURED,
    MODELS,
    Efficiency,
    GpuSpec,
    ModelSpec,
    StepLoad,
    StepTimes,
    step_times,
)

BLOCK_TOKENS = 16
DEFAULT_CONTEXT_TOKENS = 32_768
MEMORY_SHARE = 0.92
"""Of each GPU's memory, taken at the start (vLLM's default)."""

_ACTIVATION_BYTES = 2e9
_COUNTS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Profile:
    """One engine's physics and limits. Tests shrink `blocks` or `max_model_len` by `replace`."""

    name: str
    model: ModelSpec
    gpu: GpuSpec
    gpus: int
    blocks: int
    max_model_len: int
    batched_tokens: int
    sequences: int
    efficiency: Efficiency = MEASURED
    block_tokens: int = BLOCK_TOKENS

    @property
    def kv_capacity_tokens(self) -> int:
        return self.blocks * self.block_tokens

    def times(self) -> StepTimes:
        return step_times(self.model, self.gpu, self.gpus, self.efficiency)

    def step_s(self, load: StepLoad) -> float:
        """Seconds that one scheduler iteration takes."""
        return self.times().step_s(load)

    def paged(self, block_tokens: int) -> Self:
        """The same memory in blocks of another size: coarse ones are quicker to simulate."""
        blocks = self.kv_capacity_tokens // block_tokens
        return dataclasses.replace(self, block_tokens=block_tokens, blocks=blocks)


def profile(name: str) -> Profile:
    """The profile of that name; ValueError lists near names when there is none."""
    match = re.fullmatch(r"([^-]+)-([a-z0-9]+?)(?:x(\d+))?", name)
    if match:
        model, gpu = MODELS.get(match[1]), GPUS.get(match[2])
        count = int(match[3] or 1)
        if model and gpu and count in _COUNTS and (made := make_profile(model, gpu, count)):
            return made
    near = difflib.get_close_matches(name, names(), n=6, cutoff=0.4) or names()
    raise ValueError(
        f"no engine profile {name!r} (unknown, or its weights do not fit): "
        f"did you mean {', '.join(near)}?"
    )


def names() -> list[str]:
    """Every profile whose weights and a useful KV cache fit into its GPUs."""
    return [
        made.name
        for model in MODELS.values()
        for gpu in GPUS.values()
        for count in _COUNTS
        if (made := make_profile(model, gpu, count))
    ]


def make_profile(model: ModelSpec, gpu: GpuSpec, count: int) -> Profile | None:
    """None when weights and a KV cache of 4,096 tokens do not fit into `count` GPUs."""
    usable = (gpu.memory_bytes * MEMORY_SHARE - _ACTIVATION_BYTES) * count
    spare = usable - model.parameters * model.weight_bytes
    blocks = int(spare // (model.kv_bytes_held(count) * BLOCK_TOKENS))
    if blocks * BLOCK_TOKENS < 4096:
        return None
    return Profile(
        name=f"{model.name}-{gpu.name}" + (f"x{count}" if count > 1 else ""),
        model=model,
        gpu=gpu,
        gpus=count,
        blocks=blocks,
        max_model_len=min(DEFAULT_CONTEXT_TOKENS, blocks * BLOCK_TOKENS),
        batched_tokens=gpu.batched_tokens,
        sequences=gpu.sequences,
    )


def perturbed(made: Profile, rng: random.Random, spread: float = 0.3) -> Profile:
    """The profile with each efficiency and each fixed time scaled on its own, by a factor
    uniform in [1 - spread, 1 + spread]: an engine whose physics nobody knows beforehand.

    A share may come out above 1: only the step times that follow count. ValueError unless
    `spread` is from 0 to below 1.
    """
    if not 0.0 <= spread < 1.0:
        raise ValueError(f"spread = {spread}: allowed is a number from 0 to below 1")
    reached = {
        field.name: getattr(made.efficiency, field.name) * rng.uniform(1 - spread, 1 + spread)
        for field in dataclasses.fields(Efficiency)
    }
    return dataclasses.replace(made, efficiency=Efficiency(**reached))
