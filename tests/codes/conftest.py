"""A folder of small images, and the run of version 0.1 that encodes them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import simplicia
from simplicia.data.datasets import load

FIXTURE = Path(__file__).parents[1] / "fixtures/v0.1/run"


@pytest.fixture(scope="session")
def save_images():
    def save(folder, images, start=0):
        folder.mkdir(parents=True, exist_ok=True)
        for i, image in enumerate(images, start):
            Image.fromarray(np.asarray(image.permute(1, 2, 0))).save(folder / f"{i:03}.png")

    return save


@pytest.fixture(scope="session")
def shapes():
    return load("shapes", "test").images[:120]


@pytest.fixture(scope="session")
def run():
    return simplicia.load(FIXTURE, "cpu")


@pytest.fixture
def run_dir(tmp_path):
    return shutil.copytree(FIXTURE, tmp_path / "run")


@pytest.fixture
def photos(tmp_path, shapes, save_images):
    save_images(tmp_path / "photos", shapes)
    return tmp_path / "photos"
