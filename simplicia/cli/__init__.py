"""The command line: one short function per verb, registered next to its code.

The modules of verbs import torch inside their functions, so that ``simplicia --help`` is quick and Ctrl-C is
answered from the start.
"""

from simplicia.cli.main import main

__all__ = ["main"]
