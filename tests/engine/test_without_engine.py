"""The engine is optional: without its folder the package trains eagerly."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import simplicia

SCRIPT = """
import sys
# an editable installation would still find the engine
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in finder.__module__]
from simplicia.cli import main
arguments = "pretrain shapes-byol-sem --epochs 1 --batch-size 500 --image-size 8 --sem.simplices 4"
arguments = [*arguments.split(), *"--byol.hidden 8 --device cpu --quiet --out".split()]
captured = main([*arguments, "captured", "--engine", "captured"])
sys.exit(f"{captured} {main([*arguments, 'auto'])}")
"""


@pytest.fixture(scope="module")
def without_engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("without")
    package = Path(simplicia.__file__).parent
    shutil.copytree(package, folder / "simplicia", ignore=shutil.ignore_patterns("engine", "__pycache__"))
    return folder


def test_the_package_trains_without_the_engine(without_engine):
    assert not (without_engine / "simplicia/engine").exists()
    environment = os.environ | {"PYTHONPATH": str(without_engine), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT]
    process = subprocess.run(command, cwd=without_engine, env=environment, capture_output=True, text=True)
    *messages, statuses = process.stderr.strip().splitlines()
    assert statuses == "2 0", process.stderr
    (message,) = [line for line in messages if "captured" in line]
    assert "engine is 'captured', but simplicia.engine is not installed; 'eager' works" in message
    assert list((without_engine / "auto/checkpoint").iterdir())
    assert not (without_engine / "captured/checkpoint").exists()
