"""The command line. Verbs import torch inside their functions, so that ``simplicia --help`` is quick."""

from simplicia.cli.main import main

__all__ = ["main"]
