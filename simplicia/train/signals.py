"""Being told to stop: SIGINT and SIGTERM as a request that the loop meets after its step."""

import signal
import threading
from typing import Any


class Signals:
    """Turns SIGINT and SIGTERM into a request to stop; a second one stops at once."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
