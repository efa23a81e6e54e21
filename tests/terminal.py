"""A command in a real pseudo-terminal, whose screen is read as a person sees it."""

import os
import pty
import select
import signal
import sys
import termios
import time
from typing import NamedTuple

import pytest

pyte = pytest.importorskip("pyte")
BAR = ("━", "-:--:--")


class Seen(NamedTuple):
    """What a command left on the screen, and what the screen showed meanwhile."""

    status: int
    lines: list[str]
    frames: list[list[str]]
    cursor: tuple[int, int]  # column and row
    is_cursor_hidden: bool

    def bars(self) -> list[int]:
        """How many lines of each frame show a bar."""
        return [sum(any(part in line for part in BAR) for line in frame) for frame in self.frames]

    def check(self, status: int) -> None:
        """One bar at a time, none left, the cursor visible on a line of its own."""
        assert self.status == status, self.lines
        assert set(self.bars()) == {0, 1}
        assert not any(part in line for line in self.lines for part in BAR)
        assert not self.is_cursor_hidden and self.cursor == (0, len(self.lines))


def in_terminal(words, columns=80, act=None, label=""):
    """Run a command in a terminal; call ``act(process, terminal)`` once there is a bar with ``label``."""
    screen = pyte.Screen(columns, 40)
    stream, frames = pyte.ByteStream(screen), []
    process, terminal = pty.fork()
    if process == 0:
        termios.tcsetwinsize(0, (40, columns))
        # only these: readline puts COLUMNS into the environment behind the back of os.environ
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        command = [sys.executable, *map(str, words)]
        os.execve(sys.executable, command, environment | {"TERM": "xterm-256color"})
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the process ended
            break
        stream.feed(data)
        frames.append([line.rstrip() for line in screen.display if line.strip()])
        if act is not None and any(label in line and "━" in line for line in frames[-1]):
            act(process, terminal)
            act = None
    else:
        os.kill(process, signal.SIGKILL)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    cursor = screen.cursor.x, screen.cursor.y
    return Seen(os.waitstatus_to_exitcode(status), frames[-1], frames, cursor, screen.cursor.hidden)
