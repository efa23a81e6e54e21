"""What verbs show: tables for people, and where files went."""

import sys
from pathlib import Path

from simplicia.files import atomic_write


def write_text(path: Path, text: str) -> None:
    """Write a file, whole, and say so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(f"written to {path}")


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 160).print(table)
