"""The settings tree: every key of `tierway.yaml`, its default, its range and the reason.

The classes mirror the sections of the file; field names are its keys (`class` and `in`, words
of Python, are `model_class` and `part` here). All are frozen, and an unknown key is an error.
Below the tree: what this version does not serve (`GAPS`), and the checks that need two keys.
Files, environment and messages are in `config`, which is the way in.
"""

from __future__ import annotations

import ipaddress
import math
import re
import warnings as python_warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _text(value: object) -> object:
    """YAML reads `revision: 2` as a number; a float would lose digits (1.10), an int does not."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
        return str(value)
    if isinstance(value, bool | float):
        raise ValueError("must be text: put it in quotes")
    return value


def _switch(on: str) -> BeforeValidator:
    """YAML 1.1 reads bare `on` and `off` as booleans."""
    return BeforeValidator(
        lambda value: (on if value else "off") if value in (True, False) else value
    )


def _http_url(value: str) -> str:
    """`value` without its last slash; http or https, a host, nothing secret, no query."""
    parts, wanted = urlsplit(value), "must be an http:// or https:// address with a host"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(wanted)
    if parts.port == 0 or " " in value or not value.isprintable():
        raise ValueError(f"{wanted}, a port from 1 to 65535 and no blanks")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold credentials: name their variable in api_key_env")
    if parts.query or parts.fragment:
        raise ValueError("must be a base address, without ? and #")
    return value.rstrip("/")


def _regex(value: str) -> str:
    try:
        with python_warnings.catch_warnings():
            python_warnings.simplefilter("ignore")
            re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"must be a regular expression: {error}") from error
    return value


def _network(value: str) -> str:
    try:
        ipaddress.ip_network(value)
    except ValueError as error:
        raise ValueError(f"must be a network such as 10.0.0.0/8: {error}") from error
    return value


def _path(value: str) -> str:
    try:
        return str(Path(value).expanduser())
    except RuntimeError as error:
        raise ValueError(f"must be a path: {error}") from error


def _json(value: Any) -> Any:
    """What is sent on as JSON: neither NaN nor infinity nor more than 64 bits."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for inner in value.values():
            _json(inner)
    elif isinstance(value, list):
        for inner in value:
            _json(inner)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"must be JSON, which has no {value}")
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ValueError("must be JSON with numbers of at most 64 bits")
    elif not isinstance(value, str | int | float | None):
        raise ValueError("must be JSON: names, text, numbers, true, false, null, lists, mappings")
    return value


def _named(pattern: str, allowed: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"must be {allowed}")
        return value

    return AfterValidator(check)


Number = Annotated[float, BeforeValidator(_number)]
Integer = Annotated[int, BeforeValidator(_number)]
Seconds = Annotated[Number, Field(gt=0)]
Weight = Annotated[Number, Field(gt=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
Count = Annotated[Integer, Field(ge=1, lt=2**63)]
Port = Annotated[Integer, Field(ge=0, le=65535)]
Text = Annotated[str, BeforeValidator(_text), Field(min_length=1)]
Url = Annotated[str, AfterValidator(_http_url)]
# The paths of the wire begin with /v1, and many write it into the address too.
BaseUrl = Annotated[Url, AfterValidator(lambda url: url.removesuffix("/v1"))]
Regex = Annotated[str, Field(min_length=1), AfterValidator(_regex)]
Network = Annotated[str, AfterValidator(_network)]
FilePath = Annotated[str, Field(min_length=1), AfterValidator(_path)]
EnvName = Annotated[str, _named(r"[A-Za-z_][A-Za-z0-9_]*", "the NAME of an environment variable")]
# Tiers and models stand in response headers and metric labels.
TierName = Annotated[
    str, _named(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name of letters, digits, '.', '_' and '-'")
]
ModelName = Annotated[Text, _named(r"[!-~]+", "a name of visible ASCII characters")]

Mode = Annotated[Literal["serve", "observe", "off"], _switch("serve")]
Placement = Literal["prefer_on_prem", "prefer_cloud", "cheapest", "on_prem_only"]
PlainPolicy = Literal[
    "round_robin",
    "random",
    "least_request",
    "weighted_least_request",
    "consistent_hash",
    "power_of_two",
]
Policy = Literal[PlainPolicy, "llm", "global_least_request", "prefix", "gpu", "predicted_latency"]
DegradeStep = Literal["other_replica", "other_tier", "cloud", "stale_cache", "message"]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TlsSettings(Section):
    cert: FilePath | None = None  # plain HTTP: most gateways stand behind something that ends TLS
    key: FilePath | None = None


class ServerSettings(Section):
    host: Text = "127.0.0.1"  # nothing is open to the network unless somebody says so
    port: Port = 8080  # needs no privilege; 0 takes any free port
    workers: Count = 1  # more need counts and cache switches shared through `state`
    max_body_bytes: Count = 16 * 2**20  # a long context with a few images fits
    lenient: bool = False  # a wrong control is told, not dropped
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


class EmbedderSettings(Section):
    kind: Literal["builtin", "sentence-transformers", "openai"] = "builtin"  # no GPU, no download
    model: Text | None = None  # the built-in encoder is one model; others must be named


class IndexSettings(Section):
    kind: Literal["faiss", "redis"] = "faiss"  # in process: a search costs no round trip


class StoreSettings(Section):
    kind: Literal["sqlite", "memory", "redis", "memcached"] = "sqlite"  # survives a restart
    path: FilePath = ".tierway/cache.sqlite3"  # beside the file: two projects never share a cache
    key_env: EnvName | None = None  # the file's mode, 0600, protects it


class SecondOpinionSettings(Section):
    kind: Literal["none", "cross_encoder", "tier"] = "none"  # costs a model call for each candidate


class TtlRule(Section):
    match: Literal["time_sensitive"]
    ttl_s: Seconds


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
    second_opinion: SecondOpinionSettings = SecondOpinionSettings()
    ttl_s: Seconds = 86400  # a day: most questions come again within it, few answers age in it
    # "Now", "today", "latest": a minute still absorbs a burst of the same question.
    ttl_rules: tuple[TtlRule, ...] = (TtlRule(match="time_sensitive", ttl_s=60),)
    scope: Literal["tenant", "user", "shared"] = "tenant"  # no answer crosses a customer's border
    # The default of the OpenAI API: callers who ask for more want variety.
    max_temperature: Annotated[Number, Field(ge=0, le=2)] = 1.0
    ignore: tuple[IgnoreRule, ...] = ()  # what may differ is the operator's to know


class Price(Section):
    """US dollars per million tokens."""

    input: Annotated[Number, Field(ge=0)] = 0.0
    output: Annotated[Number, Field(ge=0)] = 0.0


class ReplicaSettings(Section):
    url: BaseUrl
    engine: Literal[
        "vllm", "sglang", "tgi", "trtllm-serve", "llamacpp", "ollama", "generic-openai"
    ] = "vllm"  # the most common one; generic-openai reads no metrics
    api_key_env: EnvName | None = None  # engines in a private network mostly want none
    gpu: str = ""  # unknown: nothing is predicted from the hardware
    tp: Count = 1
    pp: Count = 1
    # One per rank; more where an engine runs data-parallel copies.
    gpus: Count = Field(default_factory=lambda data: data.get("tp", 1) * data.get("pp", 1))
    node: Annotated[str, BeforeValidator(_text)] = ""
    zone: Annotated[str, BeforeValidator(_text)] = ""
    weight: Weight = 1.0  # a fair share
    telemetry: Url | None = None  # GPU facts are optional


class ModelSettings(Section):
    tier: TierName
    served_name: Text | None = None  # the replicas know it: /v1/models
    kind: Literal["chat", "completion", "embedding", "rerank"] = "chat"  # most models are
    revision: Annotated[str, BeforeValidator(_text)] = ""
    context_tokens: Count | None = None  # the replicas know it: max_model_len
    capabilities: tuple[Text, ...] = ()  # nothing is promised that was not said
    price: Price | None = None  # cloud prices come from litellm's table
    set: Annotated[dict[Text, Any], AfterValidator(_json)] = {}
    replicas: tuple[ReplicaSettings, ...] = ()
    litellm: (
        Annotated[str, _named(r"[^/\s]+/\S+", "provider/name, such as openai/gpt-5-mini")] | None
    ) = None
    url: BaseUrl | None = None
    api_key_env: EnvName | None = None

    @property
    def cloud(self) -> bool:
        return self.litellm is not None or self.url is not None


class TierSettings(Section):
    model_class: Literal["7b", "70b", "175b", "cloud"] = Field(alias="class")
    policy: Policy = "llm"  # knows queues, KV caches and sessions
    plain_policy: PlainPolicy = "least_request"  # the best of those that know nothing of LLMs


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


class FleetSettings(Section):
    allowed_networks: tuple[Network, ...] = ()  # admin calls may add replicas nowhere


class RouterSettings(Section):
    mode: Mode = "serve"
    quality: Share = 0.5  # half-way between cheapest and best
    shares: dict[Text, Share] = {}
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


class ResilienceSettings(Section):
    connect_timeout_s: Seconds = 2  # a SYN and one retransmission (1 s) inside a data centre
    first_token_timeout_s: Seconds = 30  # a long prompt behind a full queue still makes it
    idle_timeout_s: Seconds = 30  # decoding never pauses so long
    total_timeout_s: Seconds = 600  # what the OpenAI SDK waits
    commit_after_s: Seconds = 10  # idle timers of proxies between us and the client start at 15 s
    overload_wait_s: Annotated[Number, Field(ge=0)] = 20  # below the patience of most clients
    retry_budget: Share = 0.2  # a failing fleet gets a fifth more load, not double
    hedge: Annotated[Literal["off", "on"], _switch("on")] = "off"  # a hedge is paid for twice
    # What a client's own retry understands; 200 shows the message as an answer.
    message_status: Literal[200, 429, 500, 502, 503, 504, 529] = 503


class SettingsTree(Section):
    """The root, one field for each section; `config.Settings` adds the way in."""

    server: ServerSettings = ServerSettings()
    admin: AdminSettings = AdminSettings()
    state: StateSettings = StateSettings()
    cache: CacheSettings = CacheSettings()
    models: dict[ModelName, ModelSettings] = {}
    tiers: Annotated[
        dict[TierName, TierSettings], BeforeValidator(_known_classes), Field(min_length=1)
    ] = Field(default_factory=lambda: dict(DEFAULT_TIERS), validate_default=True)
    aliases: dict[
        Text,
        Annotated[tuple[AliasTarget, ...], BeforeValidator(_targets), Field(min_length=1)],
    ] = {}
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


# ---- what this version does not serve --------------------------------------------------------

Key = str | int


class Fault(NamedTuple):
    """`value` is shown (masked) where it is a scalar."""

    path: tuple[Key, ...]
    text: str
    value: object = None


@dataclass(frozen=True, slots=True)
class Gap:
    """A key, `*` standing for any name or index, and those of its values that nothing serves
    yet (None: every value but null and empty). `refused` is False where the value is
    accepted with a warning."""

    path: str
    missing: tuple[str, ...] | None = None
    refused: bool = True


_PLAIN_LATER = ("weighted_least_request", "power_of_two")
_AWARE_LATER = ("global_least_request", "prefix", "gpu", "predicted_latency")
GAPS = (
    Gap("server.tls.cert"),
    Gap("server.tls.key"),
    Gap("state.backend", ("redis",)),
    Gap("cache.embedder.kind", ("openai",)),
    Gap("cache.index.kind", ("redis",)),
    Gap("cache.store.kind", ("redis", "memcached")),
    Gap("cache.store.key_env"),
    Gap("cache.second_opinion.kind", ("cross_encoder", "tier")),
    Gap("models.*.kind", ("rerank",)),
    Gap("tiers.*.policy", _PLAIN_LATER + _AWARE_LATER),
    Gap("tiers.*.plain_policy", _PLAIN_LATER),
    Gap("plugins"),
    Gap("router.shares"),
    Gap("router.rules"),
    Gap("placement.default", ("cheapest",)),
    Gap("long_context.action", ("reject", "chunk", "truncate_middle")),
    Gap("resilience.hedge", ("on",)),
    Gap("tenants.*.placement", ("cheapest",)),
    Gap("tenants.*.weight", refused=False),
    Gap("tenants.*.rpm", refused=False),
    Gap("tenants.*.tpm", refused=False),
    Gap("tenants.*.budget_usd_per_day", refused=False),
    Gap("tenants.*.assumed_output_tokens", refused=False),
    Gap("tenants.*.hit_factor", refused=False),
)

_EMPTY: tuple[object, ...] = (None, "", [], {})


def gap_faults(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Values of plain `data` that are known and not served yet."""
    for gap in GAPS:
        for path, value in _places(data, tuple(gap.path.split("."))) if gap.refused else ():
            named = "on" if value is True else value
            if named in gap.missing if gap.missing is not None else value not in _EMPTY:
                yield Fault(path, "is not available in this version", named)


def not_served(path: Iterable[Key]) -> tuple[str, ...]:
    """The known values of a key that this version refuses."""
    steps = tuple(map(str, path))
    for gap in GAPS:
        wanted = gap.path.split(".")
        if len(wanted) == len(steps) and all(
            want in ("*", step) for want, step in zip(wanted, steps, strict=True)
        ):
            return gap.missing or ()
    return ()


def _places(
    data: object, steps: tuple[str, ...], path: tuple[Key, ...] = ()
) -> Iterator[tuple[tuple[Key, ...], Any]]:
    """(path, value) of every place in `data` that a path with `*` means."""
    if not steps:
        yield path, data
    elif steps[0] == "*" and isinstance(data, dict | list):
        for key, inner in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _places(inner, steps[1:], (*path, key))
    elif isinstance(data, dict) and steps[0] in data:
        yield from _places(data[steps[0]], steps[1:], (*path, steps[0]))


# ---- what needs two keys to judge ------------------------------------------------------------


def cross_faults(tree: SettingsTree) -> Iterator[Fault]:
    yield from _server_faults(tree)
    yield from _cache_faults(tree.cache)
    for name in tree.tiers:
        if name == "auto":
            yield Fault(
                ("tiers", name), "'auto' lets the classifier choose: name the tier otherwise"
            )
    for name, model in tree.models.items():
        yield from _model_faults(name, model, tree)
    yield from _alias_faults(tree)
    yield from _key_faults(tree)
    for step, count in Counter(tree.degrade).items():
        if count > 1:
            yield Fault(("degrade",), f"'{step}' stands {count} times: each step at most once")


def _server_faults(tree: SettingsTree) -> Iterator[Fault]:
    server, admin, state = tree.server, tree.admin, tree.state
    if server.workers > 1 and state.backend != "redis":
        yield Fault(("server", "workers"), "more than 1 needs state.backend: redis", server.workers)
    if server.port == admin.port != 0 and server.host == admin.host:
        yield Fault(("admin", "port"), "is server.port too: each needs its own", admin.port)
    if state.url is not None and state.backend != "redis":
        yield Fault(("state", "url"), "goes with state.backend: redis")
    if state.url is None and state.backend == "redis":
        yield Fault(("state", "url"), "is required with state.backend: redis")


def _cache_faults(cache: CacheSettings) -> Iterator[Fault]:
    embedder = cache.embedder
    if embedder.kind == "builtin" and embedder.model is not None:
        text = "goes with kind: sentence-transformers; the built-in encoder is one model"
        yield Fault(("cache", "embedder", "model"), text, embedder.model)
    if embedder.kind != "builtin" and embedder.model is None:
        yield Fault(("cache", "embedder", "model"), f"is required with kind: {embedder.kind}")
    if len({rule.match for rule in cache.ttl_rules}) < len(cache.ttl_rules):
        yield Fault(("cache", "ttl_rules"), "each match at most once")


def _model_faults(name: str, model: ModelSettings, tree: SettingsTree) -> Iterator[Fault]:
    path = ("models", name)
    if name == "auto" or name in tree.tiers:
        yield Fault(path, "is the name of a tier or 'auto': name the model otherwise")
    if model.tier not in tree.tiers:
        yield Fault(
            (*path, "tier"), f"must be one of the tiers: {', '.join(tree.tiers)}", model.tier
        )
    ways = {"replicas": bool(model.replicas), "litellm": model.litellm, "url": model.url}
    given = [way for way, value in ways.items() if value]
    if len(given) != 1:
        found = f"has {' and '.join(given)}" if given else "has none of them"
        yield Fault(path, f"needs exactly one of replicas, litellm and url; {found}")
    if model.replicas and model.api_key_env is not None:
        yield Fault((*path, "api_key_env"), "belongs to each of the replicas here")
    for url, count in Counter(replica.url for replica in model.replicas).items():
        if count > 1:
            yield Fault((*path, "replicas"), f"{url} stands {count} times: each replica once")
    for index, replica in enumerate(model.replicas):
        if replica.tp * replica.pp > replica.gpus:
            need = f"must be at least tp x pp = {replica.tp * replica.pp}"
            yield Fault((*path, "replicas", index, "gpus"), need, replica.gpus)


def _alias_faults(tree: SettingsTree) -> Iterator[Fault]:
    names = ("auto", *tree.tiers, *tree.models)
    for alias, targets in tree.aliases.items():
        if alias in names:
            text = "is 'auto', a tier or a model already: name the alias otherwise"
            yield Fault(("aliases", alias), text)
        for index, target in enumerate(targets):
            if target.model not in names:
                text = f"must be 'auto', a tier or a model: {', '.join(names)}"
                yield Fault(("aliases", alias, index, "model"), text, target.model)


def _key_faults(tree: SettingsTree) -> Iterator[Fault]:
    for path, ref in secret_refs(tree):
        if (ref.key_env is None) == (ref.key_file is None):
            yield Fault(path, "needs exactly one of key_env and key_file")
    for name, count in Counter(tenant.name for tenant in tree.tenants).items():
        if count > 1:
            yield Fault(("tenants",), f"the name {name!r} stands {count} times: each tenant once")


def secret_refs(tree: SettingsTree) -> Iterator[tuple[tuple[Key, ...], SecretRef]]:
    """The keys of administrators and tenants, with their paths."""
    for index, key in enumerate(tree.admin.keys):
        yield ("admin", "keys", index), key
    for index, tenant in enumerate(tree.tenants):
        yield ("tenants", index), tenant


# ---- what is allowed and probably not meant --------------------------------------------------


def idle_tiers(tree: SettingsTree) -> Iterator[str]:
    used = {model.tier for model in tree.models.values()}
    if not tree.models:
        yield "models: there is none, so only the cache can answer"
        return
    for name in tree.tiers:
        if name not in used:
            yield f"tiers.{name}: no model is of this tier"


def unenforced_limits(tree: SettingsTree) -> Iterator[str]:
    limits = [gap.path.split(".")[-1] for gap in GAPS if not gap.refused]
    for tenant in tree.tenants:
        given = [
            name
            for name in limits
            if name in tenant.model_fields_set and getattr(tenant, name) is not None
        ]
        if given:
            yield f"tenants.{tenant.name}: not enforced in this version: {', '.join(given)}"
