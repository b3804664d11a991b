"""A progress bar for long work: on a terminal only, so that a pipe or a log gets none of it."""

from __future__ import annotations

import time
from typing import TextIO

_CELLS = 30
_EVERY_S = 0.1


class Progress:
    """Counts steps up to `total`, on `stream` where that is a terminal."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._total, self._stream = total, stream
        self._shows = total > 0 and stream.isatty()
        self._done, self._shown_s = 0, 0.0

    def step(self, count: int = 1) -> None:
        self._done = min(self._total, self._done + count)
        now_s = time.monotonic()
        last = self._done == self._total
        if self._shows and (last or now_s - self._shown_s >= _EVERY_S):
            self._shown_s = now_s
            filled = "#" * (_CELLS * self._done // self._total)
            end = "\n" if last else ""
            self._stream.write(f"\r[{filled:<{_CELLS}}] {self._done}/{self._total}{end}")
            self._stream.flush()
