"""How many bytes of a prompt make a token, learnt from usage by model and kind of text.

The ratio is the bytes of recent prompts over their tokens, as engines counted them (chat template
included), both sums fading by DECAY with each answer: long prompts, where it matters, weigh most.
It starts at four bytes, as English has with common tokenizers.
"""

from __future__ import annotations

from dataclasses import dataclass

from tierway.policies.prefix_blocks import PromptKind

PRIOR = 4.0
_PRIOR_TOKENS = 200.0  # how many tokens of answers the prior weighs
_DECAY = 0.98
_LEAST, _MOST = 0.25, 32.0  # beyond is not text, or not the prompt that was counted


@dataclass(slots=True)
class _Sums:
    size: float = PRIOR * _PRIOR_TOKENS
    tokens: float = _PRIOR_TOKENS


class TokenRatios:
    def __init__(self) -> None:
        self._sums: dict[tuple[str, PromptKind], _Sums] = {}

    def bytes_per_token(self, model: str, kind: PromptKind) -> float:
        """Of the `text_bytes` of an Ask; those of token ids count one byte each."""
        if kind == "ids":
            return 1.0
        sums = self._sums.get((model, kind))
        return PRIOR if sums is None else sums.size / sums.tokens

    def learn(self, model: str, kind: PromptKind, prompt_bytes: int, prompt_tokens: int) -> None:
        """What the engine counted of a prompt of so many bytes."""
        if kind == "ids" or not _LEAST * prompt_tokens <= prompt_bytes <= _MOST * prompt_tokens:
            return
        sums = self._sums.setdefault((model, kind), _Sums())
        sums.size = sums.size * _DECAY + prompt_bytes
        sums.tokens = sums.tokens * _DECAY + prompt_tokens
