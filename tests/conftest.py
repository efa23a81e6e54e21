"""Settings all tests share."""

import os
import signal

import pytest
import torch
from hypothesis import settings

from simplicia.data import shapes

settings.register_profile("simplicia", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("simplicia")

# also where SIGINT is ignored, as under `nohup … &`: tests and the processes they start must receive it
signal.signal(signal.SIGINT, signal.default_int_handler)

# one worker per core, and the same for the processes it starts; a process with threads must not be forked
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# minutes each: first, so that no process of pytest-xdist is left alone with one at the end
LONGEST = ("test_processes.py", "test_notebooks.py", "test_training.py", "test_hostile.py", "test_sweep.py")
LONGEST += ("test_demo.py", "test_faults.py", "test_kernels.py", "test_reproduce.py", "test_code_blocks.py")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items):
    """Start the longest files first; skip tests marked ``gpu`` without a GPU, and ``kernels`` too unless
    Triton interprets them."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
    has_gpu, interpreted = torch.cuda.is_available(), os.environ.get("TRITON_INTERPRET") == "1"
    for item in items:
        if item.get_closest_marker("kernels") and has_gpu:
            item.add_marker(pytest.mark.gpu)
        if item.get_closest_marker("gpu") and not has_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
        if item.get_closest_marker("kernels") and not (has_gpu or interpreted):
            item.add_marker(pytest.mark.skip(reason="test_kernels.py runs it in Triton's interpreter"))


@pytest.fixture
def fewer_shapes(monkeypatch):
    """A fifth of the built-in images, so that trainings on them are short."""
    shapes.shapes.cache_clear()
    monkeypatch.setattr(shapes, "COUNTS", {"train": 1000, "test": 500})
    yield
    shapes.shapes.cache_clear()
