"""Several workers on one port: processes forked before anything runs, and one that minds them.

All accept from the socket that their parent opened, so a worker that ends takes no waiting client
along. The first is started alone: what is wrong is told once. One that dies later is started
again. SIGTERM and SIGINT end all of them in order, SIGHUP goes to each; a parent that is killed
leaves a pipe that closes, and its workers end too. POSIX only.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass

logger = logging.getLogger(__name__)

_PAUSE_S = 1.0  # a worker that dies at once must not be started in a circle


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's own: its `number` from 0, and `lifeline`, which can be read once its parent is
    gone."""

    number: int
    lifeline: int
    _tell: int

    def ready(self) -> None:
        os.write(self._tell, b".")
        os.close(self._tell)


Work = Callable[[Place], int]
"""Serves until a signal, or until the lifeline ends; the exit code."""


def supervise(work: Work, count: int, ready: Callable[[], None]) -> int:
    """Runs `work` in `count` processes; `ready` is called here once all are. The exit code is
    that of a worker that did not come up, else 0."""
    return _Supervisor(work).run(count, ready)


class _Supervisor:
    def __init__(self, work: Work) -> None:
        self._work = work
        self._numbers: dict[int, int] = {}
        self._stopping = False
        self._lifeline, self._life = os.pipe()

    def run(self, count: int, ready: Callable[[], None]) -> int:
        signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        before = {number: signal.signal(number, self._on_signal) for number in signals}
        try:
            if not (self._come_up([0]) and self._come_up(range(1, count))):
                return self._end()
            ready()
            return self._mind()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._life)
            os.close(self._lifeline)

    def _come_up(self, numbers: Iterable[int]) -> bool:
        """Starts these workers, and waits until all are ready; False where one is not."""
        tells = [self._begin(number) for number in numbers]
        came = [_told(told) for told in tells]
        return all(came) and not self._stopping

    def _begin(self, number: int) -> int:
        """Starts a worker; what can be read is whether it came up."""
        told, tell = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os._exit(self._be_worker(Place(number, self._lifeline, tell)))
        os.close(tell)
        self._numbers[pid] = number
        if self._stopping:  # told so before this one was known
            self._send(signal.SIGTERM)
        return told

    def _be_worker(self, place: Place) -> int:
        """The life of a worker. Nothing may get from here into the parent's code."""
        code = 1
        try:
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.close(self._life)
            code = self._work(place)
        except KeyboardInterrupt:
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
        return code

    def _mind(self) -> int:
        """Starts again what dies, until told to stop."""
        while self._numbers:
            pid, status = os.wait()
            number = self._numbers.pop(pid, None)
            if number is None or self._stopping:
                continue
            code = os.waitstatus_to_exitcode(status)
            logger.error("worker %d ended with %d; it is started again", number + 1, code)
            time.sleep(_PAUSE_S)
            if not self._stopping:
                os.close(self._begin(number))
        return 0

    def _end(self) -> int:
        """Ends what runs; the exit code of what did not come up."""
        told_to, code = self._stopping, 0
        self._stop()
        while self._numbers:
            pid, status = os.wait()
            self._numbers.pop(pid, None)
            code = code or os.waitstatus_to_exitcode(status)
        return 0 if told_to else max(1, code)

    def _on_signal(self, number: int, _: object) -> None:
        if number == signal.SIGHUP:
            self._send(signal.SIGHUP)
        else:
            self._stop()

    def _stop(self) -> None:
        self._stopping = True
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        for pid in list(self._numbers):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


def _told(told: int) -> bool:
    """Waits until the worker is ready, or has ended."""
    try:
        return os.read(told, 1) != b""
    finally:
        os.close(told)
