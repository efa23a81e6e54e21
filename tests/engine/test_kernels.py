"""Triton kernels without a GPU: their tests once more, in a process that has them interpreted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run in their own tests")
@pytest.mark.parametrize("file", ["evaluate/test_multi_temperature.py", "engine/test_norm.py"])
def test_kernels_in_the_interpreter(file):
    pytest.importorskip("triton")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-p",
        "no:cacheprovider",
        Path(__file__).parents[1] / file,
    ]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}  # must be set before triton is first imported
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
