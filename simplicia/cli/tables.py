"""Tables for people, the same numbers as JSON for programs."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import simplicia
from simplicia import result
from simplicia.errors import printable

if TYPE_CHECKING:
    from simplicia.run import Run

Column = str | tuple[str, Any]  # a title that is also a key, or a title and a key, or a function of the row


def load_run(path: str | Path, device: str = "auto") -> "Run":
    """A run to measure or to use; says if its training is not finished."""
    run = simplicia.load(path, device)
    if not run.finished:
        total = run.state["total_steps"]
        echo(f"{path} is unfinished: this is step {run.step:,} of {total:,}")
    return run


def table(title: str, columns: Sequence[Column], rows: Iterable[Any]) -> None:
    """Print rows, which are lists of values, or have them by the keys of the columns.

    "-" stands for None. Numbers in columns whose titles end in "%" have one digit behind the point.
    """
    from rich.console import Console
    from rich.table import Table

    pairs = [(column, column) if isinstance(column, str) else column for column in columns]
    lines = [[printable(name) for name, _ in pairs]]
    for row in rows:
        if not isinstance(row, list):
            row = [key(row) if callable(key) else row.get(key) for _, key in pairs]
        cells = zip(row, (name.endswith("%") for name, _ in pairs), strict=True)
        lines.append([decimals(v) if percent and isinstance(v, float) else cell(v) for v, percent in cells])
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 160)
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    texts = list(zip(*lines, strict=True))
    widths = [max(map(len, [*" ".join(column).split(), ""])) for column in texts]  # of the longest words
    has_room = sum(widths) + 2 * len(widths) <= console.width
    for column, width in zip(texts, widths, strict=True):
        is_of_words = max(map(len, column)) == width  # such as names, which people copy
        grid.add_column(column[0], overflow="fold", no_wrap=has_room and is_of_words)
    for line in lines[1:]:
        grid.add_row(*line)
    console.print(printable(title), style="italic")  # a title of the table would wrap to the table's width
    console.print(grid)


def echo(text: str) -> None:
    """Print a line; control characters, as in the names of files, are escaped."""
    print(printable(text))


def cell(value: Any) -> str:
    """A value as a table shows it."""
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"
    return "-" if value is None else printable(value)


def decimals(value: float | None, digits: int = 1) -> str:
    """A number with a fixed number of digits behind the point, such as a percentage."""
    return "-" if value is None else f"{value:.{digits}f}"


def accuracy(row: Any, name: str = "accuracy", digits: int = 1) -> str:
    """An accuracy with its standard deviation over seeds or, of a single seed, its standard error."""
    spread = row.get("standard_deviation", row.get("standard_error"))
    value = decimals(row.get(name), digits)
    return value if spread is None or row.get(name) is None else f"{value} ± {spread:.{digits}f}"


def write_json(path: Path | None, value: Any) -> None:
    """Write numbers as JSON, if a path is given, and print where."""
    if path is not None:
        result.write_json(path, value)
        echo(f"written to {path}")
