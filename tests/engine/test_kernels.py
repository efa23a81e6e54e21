"""Triton kernels without a GPU: runs the tests marked ``kernels`` in processes that interpret them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU runs the kernels")
@pytest.mark.parametrize(
    "files",
    [
        ("evaluate/test_multi_temperature.py", "engine/test_norm.py"),
        ("engine/test_update.py", "engine/test_captured.py"),
    ],
)
def test_kernels_in_the_interpreter(files):
    pytest.importorskip("triton")
    paths = [Path(__file__).parents[1] / file for file in files]
    command = [sys.executable, "-m", "pytest", "-x", "-m", "kernels", "-p", "no:cacheprovider", *paths]
    environment = os.environ | {"TRITON_INTERPRET": "1"}  # triton reads it when imported
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
