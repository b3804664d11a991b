"""Hard limits of a call: which models cannot take it, whatever the classifier thinks.

A model is left out for its kind, a missing capability, its place (data that must stay on
premise), or a context window that is too small. The size of a prompt is known in bytes. No
token is shorter than a byte, so bytes are a certain bound; where the bound is not enough, a
third of the bytes is taken as the estimate (English has about four bytes to a token, Chinese
two to five), unless the caller has a better one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tierway.policies.errors import BadCall
from tierway.policies.types import Ask, Call, Model, Tier

TOO_LONG = "context window too small"
OFF_PREMISE = "must stay on premise"

_BYTES_PER_TOKEN = 3
_TEMPLATE_TOKENS = 8  # what a chat template writes around a turn, rounded up

_KINDS: Mapping[str, frozenset[str]] = {
    "chat": frozenset({"chat"}),
    "messages": frozenset({"chat"}),
    "completions": frozenset({"completion", "chat"}),
    "embeddings": frozenset({"embedding"}),
}
_MEDIA: Mapping[str, str] = {"image": "vision", "image_url": "vision", "input_audio": "audio"}
_PARAMS: Mapping[str, str] = {"tools": "tools", "json": "response_format"}

EstimateTokens = Callable[[Ask], int]


def estimated_tokens(ask: Ask) -> int:
    """The prompt's tokens, estimated at three bytes each plus the chat template's."""
    return ask.text_bytes // _BYTES_PER_TOKEN + _TEMPLATE_TOKENS * len(ask.turns)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model must offer. `tokens` are those of prompt and answer together."""

    kinds: frozenset[str]
    capabilities: tuple[str, ...]
    tokens: int
    on_prem_only: bool = False

    def lacks(self, model: Model) -> str | None:
        """Why the model cannot take the call, or None."""
        if model.kind not in self.kinds:
            return f"kind is {model.kind}"
        missing = [name for name in self.capabilities if name not in model.capabilities]
        if missing:
            return f"no {', '.join(missing)}"
        if self.on_prem_only and model.cloud:
            return OFF_PREMISE
        window = model.context_tokens
        return TOO_LONG if window is not None and self.tokens > window else None


def needs(
    call: Call, *, on_prem_only: bool = False, estimate_tokens: EstimateTokens = estimated_tokens
) -> Needs:
    ask = call.ask
    bound = ask.text_bytes + _TEMPLATE_TOKENS * len(ask.turns)
    return Needs(
        kinds=_KINDS[call.wire],
        capabilities=tuple(dict.fromkeys(_capabilities(ask))),
        tokens=min(bound, estimate_tokens(ask)) + (ask.max_tokens or 0),
        on_prem_only=on_prem_only,
    )


def sift(tiers: Sequence[Tier], wanted: Needs) -> tuple[list[Tier], list[tuple[str, str]]]:
    """The tiers with the models that can take the call, and (model, why) for the others."""
    fit: list[Tier] = []
    excluded: list[tuple[str, str]] = []
    for tier in tiers:
        faults = [(model, wanted.lacks(model)) for model in tier.models]
        excluded += [(model.name, fault) for model, fault in faults if fault is not None]
        models = tuple(model for model, fault in faults if fault is None)
        if len(models) == len(tier.models) and models:
            fit.append(tier)
        elif models:
            fit.append(replace(tier, models=models))
    return fit, excluded


def refusal(wanted: Needs, tiers: Sequence[Tier]) -> BadCall:
    """The error for a call that none of the models in `tiers` can take."""
    if not any(tier.models for tier in tiers):
        names = ", ".join(tier.name for tier in tiers)
        return BadCall(
            f"The tier {names} has no model here.",
            status=404,
            code="model_not_found",
            param="model",
        )
    models = [model for tier in tiers for model in tier.models if model.kind in wanted.kinds]
    if not models:
        kinds = " or ".join(sorted(wanted.kinds))
        return BadCall(f"No model here is of kind {kinds}.", code="unsupported_kind", param="model")
    faults = {wanted.lacks(model) for model in models}
    if faults == {TOO_LONG}:
        return _too_long(wanted, models)
    missing = [n for n in wanted.capabilities if any(n not in m.capabilities for m in models)]
    told = "; ".join(sorted(fault for fault in faults if fault is not None))
    return BadCall(
        f"No model here can take this request: {told}.",
        code="unsupported_capability" if missing else "placement",
        param=_PARAMS.get(missing[0], "messages") if missing else None,
    )


def _too_long(wanted: Needs, models: Sequence[Model]) -> BadCall:
    largest = max(model.context_tokens or 0 for model in models)
    return BadCall(
        f"This request needs about {wanted.tokens} tokens (an estimate, the answer's maximum "
        f"included); the largest context window that may take it has {largest}.",
        code="context_length_exceeded",
        param="messages",
    )


def _capabilities(ask: Ask) -> Iterator[str]:
    if ask.has_tools:
        yield "tools"
    if ask.wants_json:
        yield "json"
    for name in ask.media:
        yield _MEDIA.get(name, name)
