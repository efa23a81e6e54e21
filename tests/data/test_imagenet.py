"""ImageNet and Imagenette by name, in the folders where people keep them."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from simplicia.data import datasets
from simplicia.data.imagenet import labelled_list, others
from simplicia.errors import UserError

CLASSES = ("n01440764", "n02102040", "n03000684")
MEAN = (0.485, 0.456, 0.406)


def draw(folder, count, level=100):
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        noise = np.random.default_rng(i).integers(0, 50, (30, 40, 3)) + level
        Image.fromarray(noise.astype(np.uint8)).save(folder / f"{i}.JPEG")


def draw_splits(root):
    for i, name in enumerate(CLASSES):
        draw(root / "train" / name, 4, 40 * i)
        draw(root / "val" / name, 2, 40 * i)
    return root


@pytest.mark.parametrize("subfolder", ["imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC", "."])
def test_folders_splits_classes_and_statistics(subfolder, tmp_path):
    draw_splits(tmp_path / subfolder)
    train, test = (datasets.load("imagenet", split, tmp_path, size=16) for split in ("train", "test"))
    assert (train.images.shape, test.images.shape) == ((12, 3, 16, 16), (6, 3, 16, 16))
    assert train.classes == test.classes == CLASSES and train.name == "imagenet"
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4 and test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert train.statistics()[0] == MEAN and test.files[0] == f"val/{CLASSES[0]}/0.JPEG"
    assert datasets.part(train, torch.tensor([0, 5])).statistics()[0] == MEAN
    assert datasets.validation("imagenet", tmp_path, 16) is None  # val is the test split


@pytest.mark.parametrize("subfolder", ["test", "test/unknown"])
def test_the_unlabelled_test_split_is_ignored(subfolder, tmp_path):
    draw_splits(tmp_path / "imagenet")
    draw(tmp_path / "imagenet" / subfolder, 3)
    train, test = (datasets.load("imagenet", split, tmp_path, size=16) for split in ("train", "test"))
    assert train.classes == test.classes == CLASSES
    assert all(file.startswith("val/") for file in test.files)


def test_a_labelled_val_precedes_an_unlabelled_test_folder(tmp_path):
    draw_splits(tmp_path / "mine")
    draw(tmp_path / "mine" / "test", 3)
    test = datasets.load(str(tmp_path / "mine"), "test", size=16)
    assert len(test) == 6 and test.labels is not None and test.files[0].startswith("val/")


def test_a_folder_called_imagenet_gets_its_own_statistics(tmp_path):
    own = datasets.load(draw_splits(tmp_path / "imagenet"), "train", size=16)
    assert own.name == "imagenet" and own.statistics()[0] != MEAN


def test_the_first_folder_wins_and_the_size_follows_the_images(tmp_path):
    draw_splits(tmp_path / "imagenette2-160")
    assert datasets.load("imagenette", "train", tmp_path).images.shape == (12, 3, 32, 32)
    draw(tmp_path / "imagenette2/train/a", 2)
    draw(tmp_path / "imagenette2/val/a", 1)
    assert len(datasets.load("imagenette", "train", tmp_path)) == 2


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda root: None, r"imagenet needs '.*imagenet/train' and val, with a folder for each class"),
        (lambda root: draw(root / "imagenet/train/a", 2), r"needs the folder '.*val' next to train"),
        (
            lambda root: [draw(root / "imagenet/train/a", 2), draw(root / "imagenet/val", 2)],
            r"needs a folder for each class, '.*val/<class>'; images lie outside",
        ),
    ],
)
def test_missing_folders_are_named(make, message, tmp_path):
    make(tmp_path)
    with pytest.raises(UserError, match=message):
        datasets.load("imagenet", "test", tmp_path, size=16)


def test_without_a_data_folder_the_error_says_what_to_give(monkeypatch):
    monkeypatch.delenv("SIMPLICIA_DATA", raising=False)
    with pytest.raises(UserError, match="imagenet needs 'imagenet' below data_dir or SIMPLICIA_DATA"):
        datasets.load("imagenet")


def test_other_test_sets_are_located_by_their_folders(tmp_path, monkeypatch):
    for name in ("imagenet-r", "ImageNet-A"):
        (tmp_path / name).mkdir()
    expected = {"R": tmp_path / "imagenet-r", "A": tmp_path / "ImageNet-A"}
    assert others(tmp_path) == expected
    monkeypatch.setenv("SIMPLICIA_DATA", str(tmp_path))
    assert others(None) == expected
    monkeypatch.delenv("SIMPLICIA_DATA")
    assert others(None) == {}


DATA = os.environ.get("SIMPLICIA_DATA")


def test_published_lists_are_located_below_the_data_folder(tmp_path, monkeypatch):
    assert labelled_list(0.01, tmp_path) is None and labelled_list(0.01, None) is None
    (tmp_path / "imagenet_subsets").mkdir()
    for path in (tmp_path / "10percent.txt", tmp_path / "imagenet_subsets/1percent.txt"):
        path.write_text("a.png\n")
        share = 0.1 if "10" in path.name else 0.01
        assert labelled_list(share, tmp_path) == path
    monkeypatch.setenv("SIMPLICIA_DATA", str(tmp_path))
    assert labelled_list(0.1, None) == tmp_path / "10percent.txt"


@pytest.mark.skipif(
    not DATA or not (Path(DATA) / "imagenette2").is_dir(), reason="SIMPLICIA_DATA has no Imagenette"
)
def test_real_imagenette():
    train, test = (datasets.load("imagenette", split, size=16) for split in ("train", "test"))
    assert (len(train), len(test), len(train.classes)) == (9469, 3925, 10)
    assert train.classes[0] == "n01440764" and train.classes == test.classes and not train.skipped
    counts = torch.bincount(train.labels)
    assert counts.min() > 800 and counts.sum() == 9469
