"""Commands in processes that start warm: forked from a server that has imported what takes them seconds."""

import multiprocessing
import os
import sys

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["pytest", "lightning_fabric", "simplicia.cli", "simplicia.train.trainer"])


def _command(words, errors):
    with open(errors, "w") as file:
        os.dup2(file.fileno(), 2)
    from simplicia import cli

    sys.exit(cli.main(words))


def start(words, errors=os.devnull):
    """Start ``simplicia`` in a process of its own, which writes its errors to a file."""
    process = SERVER.Process(target=_command, args=([*map(str, words)], str(errors)))
    process.start()
    return process
