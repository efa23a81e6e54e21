"""The time a command has, and signals that end it."""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from simplicia.errors import Interrupted, Unfinished


class Stop(KeyboardInterrupt):
    """A signal arrived or the time is up. No ``except Exception`` on the way catches it."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number


class TooLong(RuntimeError):
    """A measurement does not fit into the time of a command even if it has all of it."""


class Clock:
    """The deadline of a command of so many minutes; None: it has none."""

    def __init__(self, minutes: float | None = None):
        self.minutes = minutes
        seconds = math.inf if minutes is None else 60 * minutes
        self.end = time.monotonic() + seconds
        self.save_margin = min(45, seconds / 10)  # to write the last checkpoint
        self.startup = min(90, seconds / 7)  # to compile the first step
        self.exit_margin = min(10, seconds / 50)  # to leave after a measurement was cut off
        self.used = False  # this command has trained or measured: the next work has less than all the time

    def need(self, seconds: float, purpose: str) -> None:
        """Raise Unfinished if less time than that is left."""
        if self.end - time.monotonic() < seconds:
            raise Unfinished(f"too little time is left for {purpose}")

    def need_training(self) -> None:
        self.need(self.save_margin + self.startup, "training")
        self.used = True

    @contextmanager
    def measuring(self, least: float) -> Iterator[None]:
        """Cut off the measurement inside at the deadline; refuse to start it with less than ``least`` left.

        A measurement that was the first work of its command would not fit the next time either: TooLong.
        """
        first, self.used = not self.used, True
        alarm = getattr(signal, "SIGALRM", None)  # Windows has none
        try:
            self.need(least, "a measurement")
            with _raise_stop(*() if alarm is None else (alarm,), alarm_at=self.end - self.exit_margin):
                yield
        except (Unfinished, Stop) as stop:
            if isinstance(stop, Stop) and stop.number != alarm:
                raise
            if first:
                reason = f"its measurement takes more than {self.minutes:g} minutes; give more --minutes"
                raise TooLong(reason) from None
            if isinstance(stop, Stop):
                raise Unfinished("the time was up before a measurement was done") from None
            raise


@contextmanager
def stoppable() -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into Interrupted, also between and after trainings."""
    try:
        with _raise_stop(signal.SIGINT, signal.SIGTERM):
            yield
    except Stop as stop:
        raise Interrupted("stopped", stop.number) from None


@contextmanager
def _raise_stop(*numbers: int, alarm_at: float = math.inf) -> Iterator[None]:
    """Raise Stop inside on these signals. Python allows this in the main thread only."""

    def stop(number: int, _: object) -> None:
        raise Stop(number)

    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, stop) for number in numbers if is_main}
    timed = bool(before) and alarm_at < math.inf
    try:
        if timed:
            signal.setitimer(signal.ITIMER_REAL, max(alarm_at - time.monotonic(), 1e-3))
        yield
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
