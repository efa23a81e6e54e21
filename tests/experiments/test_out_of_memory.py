"""Out of memory, on the host or a device: trials and cells fail, and verbs say what to make smaller."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from simplicia import cli
from simplicia.analyze.model_cost import cost_of, fitting_batch
from simplicia.cli.verbs import VERBS
from simplicia.errors import UserError, is_out_of_memory
from simplicia.settings import with_changes
from simplicia.train import recipes

ROOT = Path(__file__).parents[2]


def fill_host():
    torch.empty(10**15)


def fill_array():
    np.empty(10**15)


def fill_device():
    raise torch.OutOfMemoryError("CUDA out of memory.")


def fill_driver():
    raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported")


def fill_address_space():
    raise RuntimeError("unable to mmap 9 bytes from file <x>: Cannot allocate memory (12)")


def fill_allocator():
    raise RuntimeError("std::bad_alloc")


def fill_fork():
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def fill_thread():
    raise RuntimeError("can't start new thread")


def fill_library():
    raise ImportError("lib.so: failed to map segment from shared object")


def fill_convolution():
    raise RuntimeError("could not create a primitive")


FILL = [fill_host, fill_array, fill_device, fill_driver, fill_address_space, fill_allocator, fill_fork]
FILL += [fill_thread, fill_library, fill_convolution]


@pytest.mark.parametrize("fill", FILL)
def test_errors_of_full_memory_are_recognised(fill):
    with pytest.raises((RuntimeError, MemoryError, OSError, ImportError)) as error:
        fill()
    assert is_out_of_memory(error.value)


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes differ"), UserError("not enough memory"), OSError(errno.ENOSPC, "full")]
)
def test_other_errors_are_not(error):
    assert not is_out_of_memory(error)


@pytest.mark.parametrize("fill", FILL)
@pytest.mark.parametrize(
    ("verb", "smaller"),
    [
        ("pretrain", "--batch-size"),
        ("sweep", "--batch-size"),
        ("reproduce", "--batch-size"),
        ("analyze", "--images"),
        ("knn", "fewer images"),
    ],
)
def test_verbs_say_what_to_make_smaller(fill, verb, smaller, monkeypatch, capsys):
    cli.main(["--help"])  # registers the verbs
    monkeypatch.setattr(type(VERBS[verb]), "run", lambda self, words: fill())
    capsys.readouterr()
    assert cli.main([verb]) == 2
    error = capsys.readouterr().err
    assert "out of memory; use" in error and smaller in error and len(error.splitlines()) == 1


FULL = """
import mmap, resource, sys
from pathlib import Path
from simplicia.cli import main
from simplicia.train.trainer import Trainer

def fit_in_little_memory(trainer, hooks):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
    fit(trainer, hooks)

fit, Trainer.fit = Trainer.fit, fit_in_little_memory
reserved = mmap.mmap(-1, 2**32)  # never touched: what is left by the estimate
words = "pretrain shapes-byol-sem --batch-size 2000 --epochs 1 --device cpu --quiet --out"
sys.exit(main([*words.split(), sys.argv[1]]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits its memory as Linux does")
def test_pretrain_says_which_micro_batch_should_fit(tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.returncode == 2, process.stderr
    message = r"simplicia: the device is out of memory; use --process-batch-size (\d+), which should fit"
    (size,) = re.fullmatch(message, process.stderr.strip()).groups()
    assert 2000 % int(size) == 0 and int(size) <= 1000


def test_the_micro_batch_that_should_fit_is_smaller_on_a_smaller_device():
    recipe = with_changes(recipes.get("imagenet-byol-sem"), {"precision": "bf16"})
    sizes = [fitting_batch(recipe, gib * 2**30) for gib in (141, 30, 24, 8)]
    assert sizes[0] == 128 > sizes[1] > sizes[2] and sizes[3] is None  # the weights alone take more
    assert all(4096 % size == 0 for size in sizes[:3])
    assert fitting_batch(with_changes(recipe, {"batch_size": 96}), 141 * 2**30, processes=2) == 24


def test_the_estimate_of_memory_covers_the_measured_peaks():
    rows = json.loads((ROOT / "results/bench/step.json").read_text())
    for row in (row for row in rows if row["engine"] == "CapturedStep" and not row["changes"]):
        estimate = cost_of(recipes.get(row["recipe"])).memory(row["batch_size"])
        assert row["peak_gib"] <= 1.5 * estimate / 2**30 + 2, row["recipe"]


def test_a_model_larger_than_memory_is_reported_as_out_of_memory(capsys, tmp_path):
    words = ["--sem.simplices", str(2**31 - 1), "--sem.vertices", "1000", "--out", str(tmp_path / "run")]
    assert cli.main(["pretrain", "shapes-byol-sem", "--device", "cpu", "--quiet", *words]) == 2
    assert "simplicia: the device is out of memory; use a smaller" in capsys.readouterr().err
