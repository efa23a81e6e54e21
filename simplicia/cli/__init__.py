"""The command line: one short function per verb."""

from simplicia.cli.main import main

__all__ = ["main"]
