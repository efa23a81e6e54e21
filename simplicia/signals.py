"""Handlers of signals for as long as a block runs."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handled(numbers: Iterable[int], handler: Callable[[int, Any], Any]) -> Iterator[bool]:
    """Handle these signals inside, and yield whether they are: Python allows it in the main thread only."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in numbers if is_main}
    for number in before:
        signal.signal(number, handler)
    try:
        yield is_main
    finally:
        for number, previous in before.items():  # None: installed by another language
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
