"""How much of what the prefix index believes a replica's engine makes true.

An engine whose usage tells of cached prompt tokens checks each belief: the share that came true,
by the length believed in (an engine with blocks of 784 tokens gives nothing of 240 and most of
2,000), is an exponentially weighted mean. An engine that gives nothing several times in a row
where much was expected has lost its cache, by a restart or a reset.
"""

from __future__ import annotations

_RATE = 0.2
_CLASSES = 9  # 1-7 tokens, 8-31, 32-127, ..., from 32,768 on
_EXPECTED = 128  # fewer expected tokens say nothing of a lost cache
_IN_A_ROW = 4


class Trust:
    """`reports` tells whether the engine is known to report cached tokens; one that leaves a
    zero out of its usage is then taken at its word."""

    __slots__ = ("_factors", "_nothing", "reports")

    def __init__(self) -> None:
        self._factors = [1.0] * _CLASSES
        self._nothing = 0
        self.reports = False

    def factor(self, tokens: int) -> float:
        """The share in [0, 1] of a belief of `tokens` that comes true."""
        return self._factors[_class(tokens)]

    def learn(self, believed: int, reported: int | None) -> bool:
        """What became of a belief; None where the usage said nothing of cached tokens. True
        when the engine seems to have lost its cache."""
        if reported is None and not self.reports:
            return False
        if believed <= 0:
            self.reports = self.reports or bool(reported)
            return False
        at = _class(believed)
        expected = believed * self._factors[at]
        share = min(1.0, (reported or 0) / believed)
        self._factors[at] += _RATE * (share - self._factors[at])
        if reported:
            self.reports, self._nothing = True, 0
        elif expected >= _EXPECTED:
            self._nothing += 1
        if self._nothing < _IN_A_ROW:
            return False
        self._nothing = 0
        self.reports = reported is not None  # it may have been restarted to report no more
        return True


def _class(tokens: int) -> int:
    return min((tokens.bit_length()) // 2, _CLASSES - 1)
