"""Settings all tests share."""

import os

import torch
from hypothesis import settings

settings.register_profile("simplicia", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("simplicia")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # one worker per core, and the same for the processes it starts
    os.environ["OMP_NUM_THREADS"] = "1"
