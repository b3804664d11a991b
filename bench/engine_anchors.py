"""What was published about real engines, and what the simulated one makes of the same load.

Nothing is fitted to a case: every figure follows from policies/physics.py.
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from tierway.bench.engine import Engine, Job, Work
from tierway.bench.engine_clock import EngineClock
from tierway.bench.profiles import Profile, make_profile, profile
from tierway.policies.physics import GPUS, MODELS, ModelSpec, StepLoad

PUBLISHED = (
    ("h200", 1000, 1000, 2587.0),
    ("h200", 1024, 8192, 2009.0),
    ("h200", 8192, 1024, 537.0),
    ("h200", 32_768, 1024, 120.0),
    ("h100", 1000, 1000, 2209.0),
    ("h100", 8192, 1024, 398.0),
)
"""GPU, tokens in, tokens out, output tokens per second and GPU."""

_LLAMA_2_7B = ModelSpec("llama-2-7b", 6.74e9, 32, 4096, 32, 32, 11_008, 32_000)
_NEMO = (("a100", 234.0), ("h100", 154.0))
_LLM_D = (
    ("8b-h100", 10.0, 15.0),
    ("8b-a100", 15.0, 25.0),
    ("70b-h100x4", 25.0, 40.0),
    ("70b-a100x4", 40.0, 60.0),
)
LOADED = (
    *("8b-a10", "8b-l40s", "8b-a100", "8b-h100", "70b-a100x4", "70b-h100x4"),
    *("70b-h200x4", "175b-a100x8", "175b-h100x8", "175b-h200x8"),
)
CALLERS = (1, 32, 128, 256)


@dataclass(frozen=True, slots=True)
class Throughput:
    gpu: str
    input_tokens: int
    output_tokens: int
    published: float
    simulated: float

    @property
    def error(self) -> float:
        return self.simulated / self.published - 1.0


@dataclass(frozen=True, slots=True)
class Lone:
    """Milliseconds of one request, or per token; `low` and `high` are what was published."""

    name: str
    low: float
    high: float
    simulated: float


@dataclass(frozen=True, slots=True)
class Loaded:
    profile: str
    callers: int
    ttft_ms_p50: float
    ttft_ms_p99: float
    tpot_ms_p50: float
    output_tokens_per_s: float
    preemptions: int


class _Callers:
    """Callers who each send a request, wait for its end and send the next."""

    def __init__(self, made: Profile, draw: Callable[[], Work]) -> None:
        self.engine = Engine(made)
        self.clock = EngineClock([self.engine])
        self.ended: list[Job] = []
        self._draw = draw

    def come(self, count: int, gap_s: float) -> None:
        for _ in range(count):
            self._send()
            self.clock.run(self.clock.now_s + gap_s)

    def until(self, ended: int) -> None:
        while len(self.ended) < ended:
            next_s = self.clock.next_s()
            assert next_s is not None
            self.clock.run(next_s)

    def _send(self) -> None:
        self.clock.submit(0, self._draw(), self._hear)

    def _hear(self, job: Job) -> None:
        if job.reason is not None:
            self.ended.append(job)
            self._send()


def throughput(gpu: str, input_tokens: int, output_tokens: int, published: float) -> Throughput:
    model = dataclasses.replace(MODELS["70b"], weight_bytes=1, kv_bytes=1)
    made = make_profile(model, GPUS[gpu], 2)
    assert made is not None
    total = input_tokens + output_tokens
    made = dataclasses.replace(made, max_model_len=total)
    count = made.kv_capacity_tokens // total
    asked = Work(input_tokens, output_tokens)
    callers = _Callers(made, lambda: asked)
    callers.come(count, _turn_s(made, count, asked) / count)
    callers.until(2 * count)
    begin = callers.clock.now_s, callers.engine.totals.generation_tokens
    callers.until(4 * count)
    tokens = callers.engine.totals.generation_tokens - begin[1]
    seconds = callers.clock.now_s - begin[0]
    return Throughput(gpu, input_tokens, output_tokens, published, tokens / seconds / made.gpus)


def _turn_s(made: Profile, count: int, asked: Work) -> float:
    """About how long a request takes among `count`: callers who come within it spread out."""
    prompt, answer = asked.prompt_tokens, asked.output_tokens
    prefill_s = made.step_s(StepLoad(prompt, 1, prefill_pairs=prompt * prompt / 2))
    context = count * (prompt + answer // 2)
    return count * prefill_s + answer * made.step_s(StepLoad(count, count, context))


def lone() -> list[Lone]:
    found = []
    for gpu, published in _NEMO:
        made = make_profile(_LLAMA_2_7B, GPUS[gpu], 1)
        assert made is not None
        job = _alone(made, Work(128, 20))
        name = f"llama-2-7b-{gpu} 128 in, 20 out"
        found.append(Lone(name, published, published, 1e3 * (job.finished_s or 0.0)))
    for name, low, high in _LLM_D:
        per_token = _per_token_ms(_alone(profile(name), Work(512, 200)))
        found.append(Lone(f"{name} per token", low, high, per_token))
    return found


def _alone(made: Profile, asked: Work) -> Job:
    engine = Engine(made)
    job = engine.submit(asked)
    engine.advance()
    return job


def loaded(name: str, callers: int, seed: int = 1) -> Loaded:
    rng = random.Random(seed)

    def draw() -> Work:
        prompt, answer = (_lognormal(rng, mean) for mean in (512, 200))
        return Work(prompt, answer)

    made = profile(name)
    crowd = _Callers(made, draw)
    turn_s = _turn_s(made, callers, Work(512, 200))
    crowd.come(callers, turn_s / callers)
    warm, count = len(crowd.ended) + callers, max(60, 3 * callers)
    crowd.until(warm)
    begin = crowd.clock.now_s, crowd.engine.totals.generation_tokens
    crowd.until(warm + count)
    jobs = crowd.ended[warm:]
    waits = sorted(1e3 * ((job.first_token_s or 0.0) - job.arrived_s) for job in jobs)
    tokens = crowd.engine.totals.generation_tokens - begin[1]
    return Loaded(
        profile=name,
        callers=callers,
        ttft_ms_p50=statistics.median(waits),
        ttft_ms_p99=waits[math.ceil(0.99 * len(waits)) - 1],
        tpot_ms_p50=statistics.median(_per_token_ms(job) for job in jobs if job.generated > 1),
        output_tokens_per_s=tokens / (crowd.clock.now_s - begin[0]),
        preemptions=crowd.engine.totals.preemptions,
    )


def _lognormal(rng: random.Random, mean: float, sigma: float = 0.6) -> int:
    return max(2, min(4096, round(rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))))


def _per_token_ms(job: Job) -> float:
    return 1e3 * ((job.finished_s or 0.0) - (job.first_token_s or 0.0)) / (job.generated - 1)
