"""Small labelled images, and runs trained on them once for all tests of experiments."""

import shutil

import numpy as np
import pytest
from PIL import Image
from small_experiment import call, options_for


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A labelled set of small images: three colours in noise."""
    root = tmp_path_factory.mktemp("data") / "images"
    for split, count in (("train", 20), ("test", 10)):
        for name, colour in (("red", (200, 60, 60)), ("green", (60, 200, 60)), ("blue", (60, 60, 200))):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                noise = np.random.default_rng(i).integers(-60, 55, (16, 16, 3))
                Image.fromarray((noise + colour).astype(np.uint8)).save(folder / f"{i}.png")
    return root


@pytest.fixture(scope="session")
def table1(images, tmp_path_factory):
    """A folder with the runs and results of Table 1's BYOL, without and with SEM; copy it to change them."""
    root = tmp_path_factory.mktemp("table1")
    assert call(images, root, "table1", "--only", "byol") == 0
    return root


@pytest.fixture(scope="module")
def measured(table1, tmp_path_factory):
    """A copy of Table 1's runs and results for the tests of one file."""
    root = tmp_path_factory.mktemp("measured") / "root"
    shutil.copytree(table1, root)
    return root


@pytest.fixture
def own(images, table1, tmp_path):
    """Options for a copy of BYOL's trained run, without SEM."""
    options = options_for(images, tmp_path)
    (run,) = (table1 / "runs").glob("byol-2-*")
    options.folder = shutil.copytree(run, options.runs / run.name)
    return options
