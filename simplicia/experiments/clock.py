"""The time that was given, and being told to stop."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from simplicia.errors import Interrupted, Unfinished


class Stop(KeyboardInterrupt):
    """A signal came, or the time is up: nothing that handles errors on the way takes it for one."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number


class TooLong(RuntimeError):
    """A measurement had all the time that a command has, and it was not enough."""


class Clock:
    """The time that was given."""

    def __init__(self, minutes: float | None):
        self.minutes = minutes
        given = float("inf") if minutes is None else 60 * minutes
        self.end = time.monotonic() + given
        self.saving = min(45, given / 10)  # for the last checkpoint
        self.starting = min(90, given / 7)  # until the first step is compiled
        self.leaving = min(10, given / 50)  # after a measurement was ended
        self.used = False  # something was trained or measured: what comes next has less than all the time

    def need(self, seconds: float, what: str) -> None:
        if self.end - time.monotonic() < seconds:
            raise Unfinished(f"too little time is left for {what}")

    def need_training(self) -> None:
        if self.minutes is not None:
            self.need(self.saving + self.starting, "training")
        self.used = True

    @contextmanager
    def measuring(self, least: float) -> Iterator[None]:
        """Ends what is within when the time is up, wherever it is; refused with less than ``least`` left.

        What was the first to be done in its command would only be cut again: that is TooLong.
        """
        first, self.used = not self.used, True
        try:
            self.need(least, "a measurement")
            with _handled(_alarms(), self.end - self.leaving):
                yield
            return
        except Unfinished:
            if not first:
                raise
        except Stop as stop:
            if stop.number not in _alarms():
                raise
            if not first:
                raise Unfinished("the time was up before a measurement was done") from None
        raise TooLong(f"its measurement takes more than {self.minutes:g} minutes; give more --minutes")


@contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the work with what is done kept, also between and after trainings."""
    try:
        with _handled([signal.SIGINT, signal.SIGTERM]):
            yield
    except Stop as stop:
        raise Interrupted("stopped", stop.number) from None


def _alarms() -> list[int]:
    return [signal.SIGALRM] if hasattr(signal, "SIGALRM") else []  # not on Windows


@contextmanager
def _handled(numbers: list[int], ring: float = float("inf")) -> Iterator[None]:
    """Signals raise Stop in here; an alarm rings at a time. Only the main thread can have that."""
    before: dict[int, Any] = {}

    def stop(number: int, _: object) -> None:
        raise Stop(number)

    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, stop) for number in numbers}
    timed = bool(before) and ring < float("inf")
    try:
        if timed:
            signal.setitimer(signal.ITIMER_REAL, max(ring - time.monotonic(), 1e-3))
        yield
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
