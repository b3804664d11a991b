"""How long a step of an inference engine takes: a roofline over model, GPU and group size.

N GPUs form one tensor-parallel group. One scheduler iteration (step) over `n` tokens costs

    linear     (t_mem^p + t_cmp^p)^(1/p), p = 2.2: weights read once against 2 flops per weight
               and token (a hard maximum would under-predict the knee between them), and a
               fixed loss per matrix product, which small shards feel
    head       the larger of reading the output matrix and multiplying by it
    attention  decode: the KV of all contexts read; prefill: 4 L h hd sum c (before + c/2) flops
    the rest   kernel launches, elementwise traffic, two all-reduces a layer, the host

The efficiencies (share of data-sheet bandwidth and flops that is reached) were fitted to kernel
times measured on A100, A40 and H100 (the CSVs of Vidur, MIT); bandwidth, flops and memory are
from the data sheets. All bytes are decimal. Pipeline parallelism and mixtures of experts are
not modelled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from tierway.policies.types import Pace

_KNEE = 2.2
_PRODUCTS_PER_LAYER = 4  # q, k and v; attention out; MLP in; MLP out


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A dense transformer. `gated` tells a three-matrix MLP from the classic two-matrix one;
    `weight_bytes` and `kv_bytes` are the sizes of a stored number: 2 for fp16, 1 for fp8."""

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
    weight_bytes: int = 2
    kv_bytes: int = 2

    @property
    def linear_weights(self) -> float:
        """Weights multiplied once per token, embeddings and head apart."""
        attention = self.width * (self.heads + 2 * self.kv_heads) * self.head_width
        out = self.heads * self.head_width * self.width
        mlp = (3 if self.gated else 2) * self.width * self.mlp_width
        return float(self.layers * (attention + out + mlp))

    @property
    def kv_bytes_per_token(self) -> int:
        """Before any replication over a group of GPUs."""
        return 2 * self.layers * self.kv_heads * self.head_width * self.kv_bytes

    def kv_bytes_held(self, gpus: int) -> int:
        """KV bytes of a token over the whole group: more GPUs than KV heads hold copies."""
        return self.kv_bytes_per_token * max(gpus, self.kv_heads) // self.kv_heads


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """`flops` are dense fp16; `reduce_s`, `reduce_s_per_byte` an all-reduce over the group
    (NVLink, else PCIe); the two limits of a step are vLLM's defaults for the GPU."""

    name: str
    flops: float
    bytes_per_s: float
    memory_bytes: float
    reduce_s: float
    reduce_s_per_byte: float
    batched_tokens: int = 2048
    sequences: int = 256


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What of the data sheet is reached (shares), and the fixed times of a step."""

    weights: float = 0.80
    kv: float = 0.75
    products: float = 0.72
    attention: float = 0.45
    elementwise: float = 0.70
    reduce: float = 1.0
    product_s: float = 6e-6
    launch_s: float = 14e-6
    host_s: float = 2e-3


MEASURED = Efficiency()


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
class StepTimes:
    """The terms of a step's time, in seconds per unit of what its load counts.

    For a given number of tokens and outputs the time is affine in the decode context.
    """

    fixed_s: float
    weights_s: float
    product_token_s: float
    head_s: float
    head_output_s: float
    token_s: float
    context_s: float
    pair_s: float

    def base_s(self, tokens: int, outputs: int) -> float:
        """A step without attention."""
        compute_s = self.product_token_s * tokens
        linear_s = math.pow(self.weights_s**_KNEE + compute_s**_KNEE, 1 / _KNEE)
        head_s = max(self.head_s, self.head_output_s * outputs)
        return self.fixed_s + self.token_s * tokens + linear_s + head_s

    def step_s(self, load: StepLoad) -> float:
        """Seconds that one scheduler iteration takes."""
        attention_s = self.context_s * load.decode_context + self.pair_s * load.prefill_pairs
        return self.base_s(load.tokens, load.outputs) + attention_s


def step_times(
    model: ModelSpec, gpu: GpuSpec, gpus: int, reached: Efficiency = MEASURED
) -> StepTimes:
    """The step times of a model on a tensor-parallel group of `gpus`."""
    rate, half = gpus * gpu.bytes_per_s, gpus * gpu.flops
    flops = half * 2 / model.weight_bytes  # fp8 weights are multiplied at twice the pace
    head = model.vocabulary * model.width
    weights = model.linear_weights
    reduces = 2 * model.layers * reached.reduce if gpus > 1 else 0.0
    products_s = _PRODUCTS_PER_LAYER * reached.product_s
    elementwise_s = 24 * model.width * model.layers / (reached.elementwise * gpu.bytes_per_s)
    pair_flops = 4 * model.layers * model.heads * model.head_width
    readers = min(gpus, model.kv_heads)
    return StepTimes(
        fixed_s=reached.host_s
        + model.layers * (reached.launch_s + products_s)
        + reduces * gpu.reduce_s,
        weights_s=weights * model.weight_bytes / (reached.weights * rate),
        product_token_s=2 * weights / (reached.products * flops),
        head_s=2 * head / (reached.weights * rate),
        head_output_s=2 * head / (reached.products * half),
        token_s=elementwise_s + reduces * gpu.reduce_s_per_byte * model.width * 2,
        context_s=model.kv_bytes_per_token / (readers * reached.kv * gpu.bytes_per_s),
        # An fp8 cache is multiplied in fp8, as TensorRT-LLM and vLLM on Hopper do.
        pair_s=pair_flops / (reached.attention * half * 2 / model.kv_bytes),
    )


def pace(model: ModelSpec, gpu: GpuSpec, gpus: int) -> Pace:
    """What to believe of a replica before anything is known of it.

    Prefill is the line through a lone decode step and a full step of one prompt, attention
    apart; between the two a step is somewhat faster than the line.
    """
    times, full = step_times(model, gpu, gpus), gpu.batched_tokens
    first_s = times.base_s(1, 1)
    prompt_s = times.base_s(full, 1)
    return Pace(
        prefill_s=(prompt_s - first_s) / full,
        first_s=first_s,
        step_s=first_s,
        request_s=(times.base_s(64, 64) - first_s) / 63,
        context_s=times.context_s,
        pair_s=times.pair_s,
    )


MODELS: Mapping[str, ModelSpec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            ModelSpec("7b", 7.62e9, 28, 3584, 28, 4, 18_944, 152_064),
            ModelSpec("8b", 8.03e9, 32, 4096, 32, 8, 14_336, 128_256),
            ModelSpec("70b", 70.55e9, 80, 8192, 64, 8, 28_672, 128_256),
            ModelSpec("175b", 175.2e9, 96, 12_288, 96, 96, 49_152, 50_257, gated=False),
        )
    }
)
GPUS: Mapping[str, GpuSpec] = MappingProxyType(
    {
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
)
CLASSES = {"7b": "8b", "70b": "70b", "175b": "175b"}


def model_for_class(name: str) -> ModelSpec:
    """A typical model of a tier's class; ValueError for a class that runs on no GPU of ours."""
    if name not in CLASSES:
        raise ValueError(f"class {name!r}: allowed are {', '.join(CLASSES)}")
    return MODELS[CLASSES[name]]


def gpu(name: str) -> GpuSpec | None:
    """The data sheet behind a name as people or drivers write it, None when there is none.

    `a100`, `A100-80GB` and `NVIDIA A100-SXM4-80GB` are the same.
    """
    words = re.findall(r"[a-z0-9]+", name.lower())
    found = next((GPUS[word] for word in words if word in GPUS), None)
    if found is not None and found.name == "a100" and "40gb" in words:
        return replace(found, memory_bytes=40e9, bytes_per_s=1.555e12)
    return found
