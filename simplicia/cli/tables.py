"""Tables for people, the same numbers as JSON for programs."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from simplicia.files import atomic_write


def table(title: str, columns: Iterable[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; "-" stands for None."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*map(cell, row))
    Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 160).print(grid)


def cell(value: Any) -> str:
    """A value as a table shows it."""
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"
    return "-" if value is None else str(value)


def decimals(value: float | None, digits: int = 1) -> str:
    """A number with a fixed number of digits behind the point, such as a percentage."""
    return "-" if value is None else f"{value:.{digits}f}"


def accuracy(row: Any, name: str = "accuracy", digits: int = 1) -> str:
    """An accuracy with its standard deviation over seeds or, of a single seed, its standard error."""
    spread = row.get("standard_deviation", row.get("standard_error"))
    value = decimals(row.get(name), digits)
    return value if spread is None or row.get(name) is None else f"{value} ± {spread:.{digits}f}"


def write_json(path: Path, value: Any) -> None:
    """Write numbers as JSON and print where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path}")
