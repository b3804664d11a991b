"""The settings tree: every key of `tierway.yaml`, its default, its range and the reason.

The classes mirror the sections of the file; field names are its keys (`class` and `in`, words
of Python, are `model_class` and `part` here). All are frozen, and an unknown key is an error.
Replicas and the fleet are in `settings_fleet`. What this version does not serve is in `gaps`,
what takes two keys to judge in `checks`; the way in is `config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tierway.middleware.field_types import (
    BaseUrl,
    Count,
    DegradeStep,
    EnvName,
    FilePath,
    Integer,
    JsonFields,
    Label,
    LitellmName,
    Mode,
    ModelName,
    Number,
    Placement,
    PlainPolicy,
    Port,
    Regex,
    Seconds,
    Share,
    StateName,
    Switch,
    Text,
    TierName,
    Weight,
)
from tierway.middleware.section import Section
from tierway.middleware.settings_fleet import FleetSettings, ReplicaSettings


class TlsSettings(Section):
    cert: FilePath | None = None  # plain HTTP: most gateways stand behind something that ends TLS
    key: FilePath | None = None


class ServerSettings(Section):
    host: Text = "127.0.0.1"  # nothing is open to the network unless somebody says so
    port: Port = 8080  # needs no privilege; 0 takes any free port
    workers: Count = 1  # more need counts shared through `state`
    max_body_bytes: Count = 16 * 2**20  # a long context with a few images fits
    watch_config: Switch = "off"  # who edits a file in place may save it half-way
    lenient: Annotated[bool, Field(strict=True)] = False  # a wrong control is told, not dropped
    tls: TlsSettings = TlsSettings()


class SecretRef(Section):
    """Where a secret is: the name of an environment variable, or a file; exactly one."""

    key_env: EnvName | None = None
    key_file: FilePath | None = None


class AdminKey(SecretRef):
    role: Literal["read", "operate", "admin"] = "read"  # the least that is useful


class AdminSettings(Section):
    host: Text = "127.0.0.1"  # admin calls change the fleet: never public by default
    port: Port = 8081  # beside the server's; 0 takes any free port
    # One key of full power, made for the run where the variable is not set.
    keys: tuple[AdminKey, ...] = (AdminKey(key_env="TIERWAY_ADMIN_KEY", role="admin"),)


class StateSettings(Section):
    backend: Literal["memory", "redis"] = "memory"  # one process needs no server beside it
    url: Text | None = None
    password_env: EnvName | None = None  # a server in a private network mostly wants none
    name: StateName = "default"  # one fleet, one name; it stands in every key


class EmbedderSettings(Section):
    kind: Literal["builtin", "sentence-transformers", "openai"] = "builtin"  # no GPU, no download
    model: Text | None = None  # the built-in encoder needs no name; others must be named
    url: BaseUrl | None = None
    api_key_env: EnvName | None = None  # servers in a private network mostly want none
    dim: Count | None = None  # the server knows it
    max_chars: Count | None = None  # 400: within a window of 512 tokens in nearly every language
    # 250 in this host: twenty questions' worth of CPU; 300 for a server: a round trip more.
    timeout_ms: Count | None = None


class IndexSettings(Section):
    kind: Literal["faiss", "redis"] = "faiss"  # in process: a search costs no round trip


MEMORY_BYTES = 2**29


class StoreSettings(Section):
    kind: Literal["sqlite", "memory", "redis", "memcached"] = "sqlite"  # survives a restart
    path: FilePath = ".tierway/cache.sqlite3"  # beside the file: two projects never share a cache
    key_env: EnvName | None = None  # the file's mode, 0600, protects it
    old_key_env: EnvName | None = None  # entries live a day: rotate with one old key beside
    # A million entries of the usual size; a cache in memory shares it with everything else.
    max_bytes: Annotated[Count, Field(ge=2**20)] = Field(
        default_factory=lambda data: MEMORY_BYTES if data.get("kind") == "memory" else 2**32
    )
    url: Text | None = None  # of redis and memcached
    password_env: EnvName | None = None  # a server in a private network mostly wants none
    # Two hundred round trips inside a data centre; a request waits no longer for the store.
    timeout_s: Seconds = 0.25


class SecondOpinionSettings(Section):
    kind: Literal["none", "cross_encoder", "tier"] = "none"  # costs a model call for each candidate
    model: Text | None = None
    tier: TierName | None = None  # the weakest: one token of yes or no needs no more
    # Where a fresh answer takes seconds so much is well spent, and a judge that is slower is busy.
    timeout_ms: Count = 400
    at_most: Annotated[Integer, Field(ge=1, le=4)] = 1  # the likeliest candidate is mostly the one
    # A yes that is not sure of itself serves nothing; below a half a no would do for a yes.
    accept: Annotated[Number, Field(ge=0.5, le=1)] = 0.9


class TtlRule(Section):
    """What is given must all hold of a request."""

    match: Literal["time_sensitive", "personal", "any"] = "any"  # the other keys then narrow it
    regex: Regex | None = None
    model: Text | None = None
    tenant: Text | None = None
    namespace: Text | None = None
    ttl_s: Annotated[Number, Field(ge=0)]


class IgnoreRule(Section):
    part: Literal["system", "user"] = Field(alias="in")
    regex: Regex


class CacheSettings(Section):
    mode: Mode = "serve"  # the reason to have it; `observe` is for a careful start
    embedder: EmbedderSettings = EmbedderSettings()
    index: IndexSettings = IndexSettings()
    store: StoreSettings = StoreSettings()
    # Two wrong answers in a hundred hits; at 0.5 a hit would be a coin toss, so no more than that.
    max_error_rate: Annotated[Number, Field(gt=0, le=0.5)] = 0.02
    calibration: Text | None = None  # the built-in encoder's come with the package
    second_opinion: SecondOpinionSettings = SecondOpinionSettings()
    note_questions: Annotated[bool, Field(strict=True)] = True  # a report without them says little
    shadow_sample: Share = 0.0  # every sample is a request that the cache had saved
    ttl_s: Seconds = 86400  # a day: most questions come again within it, few answers age in it
    # "Now", "today", "latest": a minute still absorbs a burst of the same question.
    ttl_rules: tuple[TtlRule, ...] = (TtlRule(match="time_sensitive", ttl_s=60),)
    scope: Literal["tenant", "user", "shared"] = "tenant"  # no answer crosses a customer's border
    # The default of the OpenAI API: callers who ask for more want variety.
    max_temperature: Annotated[Number, Field(ge=0, le=2)] = 1.0
    replay_tokens_per_s: Annotated[Number, Field(gt=0, le=10_000)] | None = None  # nobody waits
    store_tool_calls: Annotated[bool, Field(strict=True)] = False  # a call acts in the world
    ignore: tuple[IgnoreRule, ...] = ()  # what may differ is the operator's to know
    personal: tuple[Text, ...] = ()  # the words that any business shares are built in
    # A longer history hardly comes twice, but for a repetition, which still hits word for word.
    max_turns: Count | None = 6


class Price(Section):
    """US dollars per million tokens."""

    input: Annotated[Number, Field(ge=0)] = 0.0
    output: Annotated[Number, Field(ge=0)] = 0.0


class JoinSettings(Section):
    """Small calls that come together become one, for engines that take lists."""

    max_items: Annotated[Integer, Field(ge=2, le=2048)] = 32  # a batch that any engine takes
    wait_ms: Annotated[Number, Field(gt=0, le=1000)] = 5  # nobody notices so much
    max_prompt_tokens: Count = 512  # larger ones fill a batch by themselves


class ModelSettings(Section):
    tier: TierName
    served_name: Text | None = None  # the replicas know it: /v1/models
    kind: Literal["chat", "completion", "embedding", "rerank"] = "chat"  # most models are
    revision: Label = ""
    context_tokens: Count | None = None  # the replicas know it: max_model_len
    capabilities: tuple[Text, ...] = ()  # nothing is promised that was not said
    price: Price | None = None  # cloud prices come from litellm's table
    set: JsonFields = Field(default_factory=dict)
    join: JoinSettings | None = None  # an engine batches by itself, as long as it keeps up
    cache_salt: Literal["none", "tenant"] = "none"  # tenants that share a prompt share its work
    replicas: tuple[ReplicaSettings, ...] = ()
    litellm: LitellmName | None = None
    url: BaseUrl | None = None
    api_key_env: EnvName | None = None

    @property
    def cloud(self) -> bool:
        return self.litellm is not None or self.url is not None


class TierSettings(Section):
    model_class: Literal["7b", "70b", "175b", "cloud"] = Field(alias="class")
    policy: Text = "llm"  # knows queues, KV caches and sessions
    options: JsonFields = Field(default_factory=dict)
    plain_policy: PlainPolicy = "least_request"  # the best of those that know nothing of LLMs
    shadow_policy: Text | None = None  # it costs as much CPU again
    shadow_options: JsonFields = Field(default_factory=dict)


DEFAULT_TIERS: Mapping[str, Mapping[str, str]] = {
    "small": {"class": "7b"},
    "medium": {"class": "70b"},
    "large": {"class": "175b"},
    "cloud": {"class": "cloud"},
}


def _known_classes(value: object) -> object:
    """The four usual tiers need not repeat their class."""
    if not isinstance(value, Mapping):
        return value
    full: dict[object, object] = {}
    for name, tier in value.items():
        known = DEFAULT_TIERS.get(name) if isinstance(name, str) else None
        given = {} if tier is None else tier
        full[name] = {**known, **given} if known and isinstance(given, Mapping) else given
    return full


class AliasTarget(Section):
    model: Text
    weight: Weight = 1.0


def _targets(value: object) -> object:
    return [{"model": value}] if isinstance(value, str) else value


class RouterSettings(Section):
    mode: Mode = "serve"
    quality: Share = 0.5  # half-way between cheapest and best
    shares: dict[Text, Share] = Field(default_factory=dict)
    rules: tuple[Any, ...] = ()


class PlacementSettings(Section):
    default: Placement = "prefer_on_prem"  # the hardware is paid for, and data stays home


class LongContextSettings(Section):
    # To a model whose window is large enough: the only action that changes nothing in the text.
    action: Literal["route", "reject", "chunk", "truncate_middle"] = "route"


class TenantSettings(SecretRef):
    name: Text
    weight: Weight = 1.0
    rpm: Count | None = None  # no limit unless one is set, here and below
    tpm: Count | None = None
    budget_usd_per_day: Annotated[Number, Field(gt=0)] | None = None
    priority: Literal["urgent", "normal", "batch"] = "normal"
    placement: Placement | None = None  # as placement.default
    assumed_output_tokens: Count = 512  # longer than most answers: budgets err to the safe side
    hit_factor: Share = 0.1  # a hit costs the fleet nothing, yet is not free of charge


class BreakerSettings(Section):
    """When a replica is taken out, and for how long; Envoy's and resilience4j's defaults, with
    windows for the lower rates of language models."""

    consecutive: Count = 5  # Envoy's: five failures in a row are no accident
    share: Annotated[Number, Field(gt=0, le=1)] = 0.5  # of the window's calls
    window_s: Seconds = 30  # a few answers of a busy replica
    min_calls: Count = 10  # a share of fewer says nothing
    open_s: Seconds = 10  # an engine that restarts needs longer and is found by its health
    max_open_s: Seconds = 120  # it doubles with each opening, and must not become for ever
    slow_factor: Annotated[Number, Field(gt=1)] = 5  # times the predicted first token
    slow_margin_s: Seconds = 5  # and so much later at least: predictions of milliseconds are noise


class ResilienceSettings(Section):
    connect_timeout_s: Seconds = 2  # a SYN and one retransmission (1 s) inside a data centre
    first_token_timeout_s: Seconds = 30  # a long prompt behind a full queue still makes it
    idle_timeout_s: Seconds = 30  # decoding never pauses so long
    total_timeout_s: Seconds = 600  # what the OpenAI SDK waits
    commit_after_s: Seconds = 10  # idle timers of proxies between us and the client start at 15 s
    overload_wait_s: Annotated[Number, Field(ge=0)] = 20  # below the patience of most clients
    retry_budget: Share = 0.2  # a failing fleet gets a fifth more load, not double
    hedge: Switch = "off"  # a hedge is paid for twice
    breaker: BreakerSettings = BreakerSettings()
    # What a client's own retry understands; 200 shows the message as an answer.
    message_status: Literal[200, 429, 500, 502, 503, 504, 529] = 503


class SettingsTree(Section):
    """The root, one field for each section; `config.Settings` adds the way in."""

    server: ServerSettings = ServerSettings()
    admin: AdminSettings = AdminSettings()
    state: StateSettings = StateSettings()
    cache: CacheSettings = CacheSettings()
    models: dict[ModelName, ModelSettings] = Field(default_factory=dict)
    tiers: Annotated[
        dict[TierName, TierSettings], BeforeValidator(_known_classes), Field(min_length=1)
    ] = Field(default_factory=lambda: dict(DEFAULT_TIERS), validate_default=True)
    aliases: dict[
        Text,
        Annotated[tuple[AliasTarget, ...], BeforeValidator(_targets), Field(min_length=1)],
    ] = Field(default_factory=dict)
    fleet: FleetSettings = FleetSettings()
    plugins: tuple[Text, ...] = ()  # code of other distributions runs only when it is named
    unknown_model: Literal["reject", "auto"] = "reject"  # a typing error must not cost money
    router: RouterSettings = RouterSettings()
    placement: PlacementSettings = PlacementSettings()
    long_context: LongContextSettings = LongContextSettings()
    tenants: tuple[TenantSettings, ...] = ()  # none: everybody may ask, as one tenant
    resilience: ResilienceSettings = ResilienceSettings()
    # The nearest remedy first; an honest message last.
    degrade: tuple[DegradeStep, ...] = (
        "other_replica",
        "other_tier",
        "cloud",
        "stale_cache",
        "message",
    )
