"""The objects that travel through the gateway: plain, frozen, no I/O.

A `Call` comes in, an `Answer` (see protocols.py) goes out, and one `Trace` collects what
happened on the way; headers, metrics, the log line and the console are views of that Trace.
Units stand in the field names; times are seconds on the monotonic clock unless the name ends
in `_at`, which is seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

WireName = Literal["chat", "completions", "embeddings", "messages"]
PriorityName = Literal["urgent", "normal", "batch"]
CacheResult = Literal["hit", "semantic-hit", "miss", "bypass", "shared", "stale"]

Headers = tuple[tuple[bytes, bytes], ...]
"""Header names lower-case, in the order they came."""

FRESH_S = 5.0
"""What an engine said longer ago, five polls, is not known any more."""
GPU_FRESH_S = 15.0
"""The same for GPUs, which are read every five seconds."""


@dataclass(frozen=True, slots=True)
class CacheControl:
    """What the client asked of the cache: standard Cache-Control and litellm's `cache` object."""

    no_cache: bool = False
    no_store: bool = False
    only_if_cached: bool = False
    max_age_s: float | None = None
    ttl_s: float | None = None
    query: str | None = None
    context_id: str | None = None


@dataclass(frozen=True, slots=True)
class Controls:
    """The `x-tierway-*` headers, or the same keys of the body's `tierway` object."""

    tier: str | None = None
    quality: float | None = None
    session: str | None = None
    user: str | None = None
    priority: PriorityName = "normal"
    namespace: str = ""
    timeout_s: float | None = None
    max_error_rate: float | None = None
    placement: str | None = None
    debug: bool = False
    cache: CacheControl = CacheControl()


@dataclass(frozen=True, slots=True)
class Turn:
    """One message, flattened to its text. `media` names its non-text parts ("image", ...)."""

    role: str
    text: str
    media: tuple[str, ...] = ()
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Ask:
    """The neutral form of a request: what classifier, cache and balancer may look at.

    `question` is the text of the newest human turn. `text_bytes` is the UTF-8 size of all
    turns and tool definitions, an upper bound for the prompt's tokens.
    """

    turns: tuple[Turn, ...]
    question: str
    system: str = ""
    has_tools: bool = False
    wants_json: bool = False
    media: tuple[str, ...] = ()
    max_tokens: int | None = None
    text_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as every stage sees it.

    `raw` is the client's body in its own wire; `body` is the same request in the OpenAI
    shape (the parsed `raw` for OpenAI wires, a translation for others), never mutated.
    """

    id: str
    wire: WireName
    raw: bytes
    body: Mapping[str, Any]
    ask: Ask
    model: str
    stream: bool = False
    tenant: str = ""
    user: str = ""
    session: str = ""
    controls: Controls = Controls()
    arrived_s: float = 0.0
    deadline_s: float = float("inf")
    traceparent: bytes | None = None

    @property
    def includes_usage(self) -> bool:
        """True when a streaming client asked for the final usage chunk itself."""
        options = self.body.get("stream_options")
        return isinstance(options, Mapping) and bool(options.get("include_usage"))


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer. `reported` is the upstream's own usage object."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reported: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of an answer; final once an Answer exists."""

    status: int
    headers: Headers
    wire: WireName
    stream: bool


@dataclass(frozen=True, slots=True)
class Source:
    """Who made an answer. `replica` is `cache` on a hit; `probabilities` maps tier to the
    classifier's probability that the tier answers well (empty when nothing was classified)."""

    tier: str
    model: str
    replica: str
    probabilities: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Model:
    """A configured model: a set of replicas, or a cloud model (`litellm` or `url` set)."""

    name: str
    tier: str
    served_name: str | None = None
    kind: str = "chat"
    revision: str = ""
    context_tokens: int | None = None
    capabilities: frozenset[str] = frozenset()
    input_price: float | None = None
    output_price: float | None = None
    set: Mapping[str, Any] = field(default_factory=dict)
    cloud: bool = False
    cache_salt: Literal["none", "tenant"] = "none"


@dataclass(frozen=True, slots=True)
class Tier:
    """`rank` orders tiers by strength, 0 the weakest. `models` in order of preference."""

    name: str
    rank: int
    model_class: str
    models: tuple[Model, ...]
    policy: str = "llm"
    plain_policy: str = "least_request"
    options: Mapping[str, Any] = field(default_factory=dict)
    shadow_policy: str | None = None
    shadow_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a replica is believed to be, in seconds.

    `prefill_s` is the time of one uncached prompt token, and `pair_s` more for each token that
    stands before it (attention); `first_s` is what a first token takes beside its prompt. A step
    that gives one token to each of n requests takes
    `step_s + (n - 1) * request_s + context_s * (KV tokens of all n)`.
    """

    prefill_s: float = 1 / 7000
    first_s: float = 0.02
    step_s: float = 0.02
    request_s: float = 0.0002
    context_s: float = 0.0
    pair_s: float = 0.0

    def read_s(self, tokens: float, pairs: float) -> float:
        """Seconds to read uncached prompt tokens; `pairs` as in Work."""
        return tokens * self.prefill_s + pairs * self.pair_s


@dataclass(frozen=True, slots=True)
class Counts:
    """What is in flight on a replica.

    `prompt_tokens` of all requests, `prefill_tokens` those not found in the KV cache of
    requests whose first token has not come, `output_tokens` expected still to come,
    `context_tokens` of KV that the requests hold or will hold.
    """

    requests: int = 0
    prompt_tokens: int = 0
    prefill_tokens: int = 0
    output_tokens: int = 0
    context_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """What one call asks of the replica it goes to; see Counts. `prefill_pairs` is the sum over
    its uncached tokens of how many stand before each."""

    prompt_tokens: int = 0
    prefill_tokens: int = 0
    output_tokens: int = 0

    @property
    def prefill_pairs(self) -> float:
        return self.prefill_tokens * (self.prompt_tokens - self.prefill_tokens / 2)

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class StateStatus:
    """How the state that gateways share fares. `ok` is False while counts are this gateway's
    own, `error` says why; `gateways` are those that live, this one included."""

    backend: str
    ok: bool = True
    gateways: int = 1
    error: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """What a balancing policy may know about one replica, at one moment.

    The counts are over all gateways (`prefill_pairs`, of this one); see Counts and Work.
    `waiting`, `running`, `kv_usage` (0..1) come from the engine and were read at `facts_at_s`
    (None where nothing was ever read), GPU facts likewise at `gpu_facts_at_s`; a multi-GPU
    replica is its worst GPU. `preallocates` tells of an engine that takes all GPU memory at
    its start, so that memory pressure shows in `kv_usage` and not in the framebuffer. `unseen`
    is how many requests the engine told of that no gateway had in flight: traffic from
    elsewhere. `recent_s` is work given to it lately, in predicted seconds, as it was at
    `recent_at_s`; it fades since. One that has just come takes part in more and more choices, in
    all of them from `warm_at_s` on, which is `warming_s` after it came. `pressure` is the index of
    its memory pressure, 0 to 1 (pressure.py), None where nothing is known.
    """

    id: str
    model: str
    tier: str
    inflight: int = 0
    inflight_tokens: int = 0
    prefill_tokens: int = 0
    prefill_pairs: float = 0.0
    output_tokens: int = 0
    context_tokens: int = 0
    weight: float = 1.0
    available: bool = True
    unavailable_reason: str = ""
    waiting: int | None = None
    running: int | None = None
    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None
    facts_at_s: float | None = None
    gpu: str = ""
    gpus: int = 1
    gpu_utilisation: float | None = None
    gpu_memory_used_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    gpu_temperature_celsius: float | None = None
    gpu_throttled: bool = False
    gpu_facts_at_s: float | None = None
    preallocates: bool = True
    pace: Pace = Pace()
    unseen: float = 0.0
    recent_s: float = 0.0
    recent_at_s: float = 0.0
    node: str = ""
    zone: str = ""
    group: str = ""
    warm_at_s: float = 0.0
    warming_s: float = 0.0
    pressure: float | None = None
    fabric: str = ""


@dataclass(frozen=True, slots=True)
class BalanceAsk:
    """The facts of one call that balancing uses, at `now_s`.

    `sequence` counts dispatches of the tier (round robin), `draw` is uniform in [0, 1) (random
    choice and ties). `output_tokens` is what the answer is expected to have. `cached` tells, by
    replica, how many leading prompt tokens its KV cache is believed to hold; the first
    `common_tokens` of them are everybody's, such as one system prompt. `zone` is the gateway's own,
    `groups` are those of replicas that hold more than that; both empty where nothing tells.
    """

    session: str
    prompt_tokens: int
    sequence: int
    draw: float
    tried: frozenset[str] = frozenset()
    output_tokens: int = 256
    cached: Mapping[str, int] = field(default_factory=dict)
    common_tokens: int = 0
    now_s: float = 0.0
    zone: str = ""
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Cost:
    """A replica's price for a call in seconds, and what it rises by for each request, prefill
    token and output token in flight there that the policy did not know of."""

    base_s: float
    request_s: float = 0.0
    prefill_token_s: float = 0.0
    output_token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica to try, best first; `reasons` maps a scorer's name to its score in [0, 1].

    `ttft_s` and `tpot_s` are what the policy predicts for the call there, 0 where it predicts
    nothing. A `cost` lets gateways that share their counts choose again among the best.
    """

    replica: str
    score: float
    reasons: Mapping[str, float] = field(default_factory=dict)
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    cost: Cost | None = None


@dataclass(frozen=True, slots=True)
class Ranking:
    candidates: tuple[Candidate, ...]
    excluded: tuple[tuple[str, str], ...] = ()
    policy: str = ""


@dataclass(frozen=True, slots=True)
class TierDecision:
    """The tiers to try in order, best first, and why.

    `plan` holds the chosen tier, then those the call may degrade to. `reason` is a short
    constant (pinned, alias, classifier, only-choice, ...). `excluded` are (tier or model, why).
    """

    plan: tuple[TierPlan, ...]
    reason: str
    probabilities: Mapping[str, float] = field(default_factory=dict)
    excluded: tuple[tuple[str, str], ...] = ()
    quality: float = 0.5

    @property
    def tier(self) -> str:
        return self.plan[0].tier if self.plan else ""


@dataclass(frozen=True, slots=True)
class TierPlan:
    """One tier of a decision with the models of it that may take the call."""

    tier: str
    models: tuple[Model, ...]


@dataclass(slots=True)
class Trace:
    """What happened to one request. Written by the stages, read by every view of it.

    `probability` is the verifier's that the nearest stored question has the same answer;
    `observed` what the cache would have done (hit, semantic-hit) where it only observes.
    """

    request_id: str
    wire: str = ""
    tenant: str = ""
    requested_model: str = ""
    stream: bool = False
    status: int = 0
    outcome: str = ""
    cache: CacheResult = "bypass"
    cache_reason: str = ""
    similarity: float | None = None
    probability: float | None = None
    observed: str = ""
    second_opinion: str = ""
    entry_id: str = ""
    age_s: float | None = None
    tier: str = ""
    model: str = ""
    replica: str = ""
    route_reason: str = ""
    probabilities: Mapping[str, float] = field(default_factory=dict)
    excluded: tuple[tuple[str, str], ...] = ()
    balance: Mapping[str, float] = field(default_factory=dict)
    policy: str = ""
    policy_version: int = 0
    shadow_policy: str = ""
    shadow_replica: str = ""
    attempts: int = 0
    retries: list[str] = field(default_factory=list)
    degraded: str = ""
    error: str = ""
    usage: Usage | None = None
    chunks: int = 0
    stages_s: dict[str, float] = field(default_factory=dict)
    first_token_s: float | None = None
    duration_s: float | None = None

    def stage(self, name: str, seconds: float) -> None:
        """Adds `seconds` to what the stage has cost so far."""
        self.stages_s[name] = self.stages_s.get(name, 0.0) + seconds
