"""A small labelled folder and small runs trained on it, for evaluations that take minutes on larger ones.

Files without their own ``run`` and ``sets`` get an untrained run and some of the shapes.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from simplicia import cli
from simplicia.data.datasets import load
from simplicia.run import Run
from simplicia.settings import with_changes
from simplicia.train import recipes

COLOURS = {"blue": (40, 60, 200), "green": (50, 170, 60), "red": (200, 50, 40)}


def _draw(folder, counts, size=24, colours=COLOURS, seed=0):
    """``folder/<split>/<class>/*.png``: noisy images in their class's colour."""
    rng = np.random.default_rng(seed)
    for split, count in counts.items():
        for name, colour in colours.items():
            class_folder = folder / split / name
            class_folder.mkdir(parents=True)
            for i in range(count):
                pixels = np.clip(rng.normal(colour, 60, (size, size, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(class_folder / f"{name}_{split}_{i}.png")
    return folder


@pytest.fixture(scope="session")
def draw():
    return _draw


@pytest.fixture(scope="session")
def colours(tmp_path_factory):
    return _draw(tmp_path_factory.mktemp("data") / "colours", {"train": 16, "test": 10})


def _train(tmp_path_factory, colours, recipe, words=""):
    path = tmp_path_factory.mktemp("runs") / "run"
    words = f"{words} --epochs 1 --batch-size 16 --image-size 16 --encoder tiny --byol.hidden 16"
    assert cli.main(["pretrain", recipe, "--data", str(colours), "--out", str(path), *words.split()]) == 0
    return path


@pytest.fixture(scope="session")
def small_run(tmp_path_factory, colours):
    """The folder of a run with SEM: 8 simplices of 13 vertices."""
    return _train(tmp_path_factory, colours, "byol-sem", "--sem.simplices 8")


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory, colours):
    """The folder of a run without SEM."""
    return _train(tmp_path_factory, colours, "byol")


@pytest.fixture(scope="session")
def embed_run(tmp_path_factory, colours):
    """The folder of a run with an embedder, but without a softmax."""
    return _train(tmp_path_factory, colours, "byol-sem", "--bottleneck embed --sem.simplices 8")


@pytest.fixture(scope="module")
def run():
    """An untrained run: probes work the same on any features."""
    torch.manual_seed(0)
    recipe = with_changes(recipes.get("shapes-byol-sem"), {"sem.simplices": 16, "options.hidden": 32})
    mean, std = load("shapes", "test").statistics()
    return Run(Path("untrained"), recipe, recipe.build(), {"step": 0, "mean": mean, "std": std})


@pytest.fixture(scope="module")
def sets():
    """Some of the shapes, to train and to test on."""
    return tuple(
        dataclasses.replace(s, images=s.images[:n], labels=s.labels[:n])
        for s, n in ((load("shapes"), 400), (load("shapes", "test"), 200))
    )


@pytest.fixture
def fails(capsys):
    """Run a wrong command and return its one-line error."""

    def answer(*words):
        capsys.readouterr()
        status = cli.main([str(word) for word in words])
        errors = capsys.readouterr().err
        assert status == 2, errors
        assert len(errors.strip().splitlines()) == 1 and errors.startswith("simplicia: ")
        return errors

    return answer
