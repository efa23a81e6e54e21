"""Out of memory, on the host or a device: trials and cells fail, and verbs say what to make smaller."""

import errno

import numpy as np
import pytest
import torch

from simplicia import cli
from simplicia.cli.verbs import VERBS
from simplicia.errors import UserError, is_out_of_memory


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


FILL = [fill_host, fill_array, fill_device, fill_driver, fill_address_space, fill_allocator, fill_fork]


@pytest.mark.parametrize("fill", FILL)
def test_errors_of_full_memory_are_recognised(fill):
    with pytest.raises((RuntimeError, MemoryError, OSError)) as error:
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


def test_a_model_larger_than_memory_is_reported_as_out_of_memory(capsys, tmp_path):
    words = ["--sem.simplices", str(2**31 - 1), "--sem.vertices", "1000", "--out", str(tmp_path / "run")]
    assert cli.main(["pretrain", "shapes-byol-sem", "--device", "cpu", "--quiet", *words]) == 2
    assert "simplicia: the device is out of memory; use a smaller" in capsys.readouterr().err
