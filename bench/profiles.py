"""Named profiles of a simulated engine: a model on a number of GPUs, and how long a step takes.

A profile's name is `MODEL-GPU` or `MODEL-GPUxN` (`8b-a10`, `70b-a100x4`, `175b-h100x8`); N GPUs
form one tensor-parallel group in fp16. One scheduler iteration (step) over `n` tokens costs

    linear     (t_mem^p + t_cmp^p)^(1/p), p = 2.2: weights read once against 2 flops per weight
               and token; a hard maximum would under-predict the knee between them
    head       the larger of reading the output matrix and multiplying by it
    attention  decode: the KV of all contexts read; prefill: 4 L h hd sum c (before + c/2) flops
    the rest   kernel launches, elementwise traffic, two all-reduces a layer, the host

The efficiencies (share of data-sheet bandwidth and flops that is reached) were fitted to kernel
times measured on A100, A40 and H100; bandwidth, flops and memory are from the data sheets. All
bytes are decimal. Pipeline parallelism, quantisation and mixtures of experts are not modelled.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass

BLOCK_TOKENS = 16
DEFAULT_CONTEXT_TOKENS = 32_768

_KNEE = 2.2
_MBU = 0.80
_MBU_KV = 0.75
_MFU = 0.72
_MFU_ATTENTION = 0.45
_MBU_ELEMENTWISE = 0.70
_LAUNCH_S = 14e-6
_HOST_S = 2e-3
_MEMORY_SHARE = 0.92
_ACTIVATION_BYTES = 2e9
_WEIGHT_BYTES = 2
_COUNTS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A dense transformer. `gated` tells a three-matrix MLP from the classic two-matrix one."""

    name: str
    parameters: float
    layers: int
    width: int
    heads: int
    kv_heads: int
    mlp_width: int
    vocabulary: int
    head_width: int = 128
    gated: bool = True

    @property
    def linear_weights(self) -> float:
        """Weights multiplied once per token, embeddings and head apart."""
        attention = self.width * (self.heads + 2 * self.kv_heads) * self.head_width
        out = self.heads * self.head_width * self.width
        mlp = (3 if self.gated else 2) * self.width * self.mlp_width
        return float(self.layers * (attention + out + mlp))

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_width * _WEIGHT_BYTES


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """`reduce_s`, `reduce_s_per_byte`: an all-reduce over the group (NVLink, else PCIe)."""

    name: str
    flops: float
    bytes_per_s: float
    memory_bytes: float
    reduce_s: float
    reduce_s_per_byte: float
    batched_tokens: int = 2048
    sequences: int = 256


_MODELS = {
    spec.name: spec
    for spec in (
        ModelSpec("7b", 7.62e9, 28, 3584, 28, 4, 18_944, 152_064),
        ModelSpec("8b", 8.03e9, 32, 4096, 32, 8, 14_336, 128_256),
        ModelSpec("70b", 70.55e9, 80, 8192, 64, 8, 28_672, 128_256),
        ModelSpec("175b", 175.2e9, 96, 12_288, 96, 96, 49_152, 50_257, gated=False),
    )
}
_GPUS = {
    spec.name: spec
    for spec in (
        GpuSpec("a10", 125e12, 0.60e12, 24e9, 20e-6, 68e-12),
        GpuSpec("a40", 150e12, 0.70e12, 48e9, 20e-6, 68e-12),
        GpuSpec("l40s", 362e12, 0.864e12, 48e9, 20e-6, 68e-12),
        GpuSpec("a100", 312e12, 2.04e12, 80e9, 12e-6, 15.5e-12),
        GpuSpec("h100", 989e12, 3.35e12, 80e9, 10e-6, 5.4e-12, 8192, 1024),
        GpuSpec("h200", 989e12, 4.80e12, 141e9, 10e-6, 5.4e-12, 8192, 1024),
    )
}


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one step computes, summed over its requests.

    `tokens` go through the weights, `outputs` through the head; `decode_context` is the sum
    of the contexts read by decoding requests, `prefill_pairs` the sum of c (before + c/2)
    over prefill chunks of c tokens.
    """

    tokens: int
    outputs: int
    decode_context: int = 0
    prefill_pairs: float = 0.0


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
    host_s: float = _HOST_S

    def step_s(self, load: StepLoad) -> float:
        """Seconds that one scheduler iteration takes."""
        gpu, n = self.gpu, load.tokens
        flops, rate = self.gpus * gpu.flops, self.gpus * gpu.bytes_per_s
        weights = self.model.linear_weights
        memory_s = weights * _WEIGHT_BYTES / (_MBU * rate)
        compute_s = 2 * weights * n / (_MFU * flops)
        linear_s = math.pow(memory_s**_KNEE + compute_s**_KNEE, 1 / _KNEE)
        return linear_s + self._head_s(load) + self._attention_s(load) + self._rest_s(n)

    def _head_s(self, load: StepLoad) -> float:
        size = self.model.vocabulary * self.model.width
        read_s = size * _WEIGHT_BYTES / (_MBU * self.gpus * self.gpu.bytes_per_s)
        return max(read_s, 2 * size * load.outputs / (_MFU * self.gpus * self.gpu.flops))

    def _attention_s(self, load: StepLoad) -> float:
        model, gpu = self.model, self.gpu
        readers = min(self.gpus, model.kv_heads)
        kv_bytes = load.decode_context * model.kv_bytes_per_token
        pairs = 4 * model.layers * model.heads * model.head_width * load.prefill_pairs
        return kv_bytes / (readers * _MBU_KV * gpu.bytes_per_s) + pairs / (
            self.gpus * _MFU_ATTENTION * gpu.flops
        )

    def _rest_s(self, n: int) -> float:
        model, gpu = self.model, self.gpu
        elementwise = 24 * n * model.width * model.layers / (_MBU_ELEMENTWISE * gpu.bytes_per_s)
        seconds = self.host_s + model.layers * _LAUNCH_S + elementwise
        if self.gpus > 1:
            size = n * model.width * _WEIGHT_BYTES
            seconds += 2 * model.layers * (gpu.reduce_s + gpu.reduce_s_per_byte * size)
        return seconds


def profile(name: str) -> Profile:
    """The profile of that name; ValueError lists near names when there is none."""
    match = re.fullmatch(r"([^-]+)-([a-z0-9]+?)(?:x(\d+))?", name)
    if match:
        model, gpu = _MODELS.get(match[1]), _GPUS.get(match[2])
        count = int(match[3] or 1)
        if model and gpu and count in _COUNTS and (made := _make(model, gpu, count)):
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
        for model in _MODELS.values()
        for gpu in _GPUS.values()
        for count in _COUNTS
        if (made := _make(model, gpu, count))
    ]


def _make(model: ModelSpec, gpu: GpuSpec, count: int) -> Profile | None:
    usable = (gpu.memory_bytes * _MEMORY_SHARE - _ACTIVATION_BYTES) * count
    spare = usable - model.parameters * _WEIGHT_BYTES
    blocks = int(spare // (model.kv_bytes_per_token * BLOCK_TOKENS))
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
