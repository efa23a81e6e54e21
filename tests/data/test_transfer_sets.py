"""Small transfer sets: in their authors' layouts, and as plain class folders."""

import json
import os

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from simplicia.data.datasets import load, validation
from simplicia.errors import UserError


def save_image(path, level):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((10, 12, 3), level, dtype=np.uint8)).save(path, quality=95)


def lines(path, entries):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{entry}\n" for entry in entries))


def food(root):
    for split, numbers in (("train", (1, 2)), ("test", (3,))):
        content = {name: [f"{name}/{i}" for i in numbers] for name in ("apple_pie", "waffles")}
        lines(root / f"food-101/meta/{split}.json", [json.dumps(content)])
        for level, entries in enumerate(content.values()):
            for entry in entries:
                save_image(root / f"food-101/images/{entry}.jpg", 100 * level)
    return {"train": [0, 0, 1, 1], "test": [0, 1]}, ("apple_pie", "waffles")


def sun(root):
    splits = {
        "Training_01": ["/a/abbey/sun_1.jpg", "/b/barn/door/sun_2.jpg"],
        "Testing_01": ["/b/barn/door/sun_3.jpg"],
    }
    for name, entries in splits.items():
        lines(root / f"SUN397/{name}.txt", entries)
        for entry in entries:
            save_image(root / f"SUN397{entry}", 100 * ("barn" in entry))
    return {"train": [0, 1], "test": [1]}, ("abbey", "barn/door")


def dtd(root):
    for i, split in enumerate(("train", "val", "test")):
        entries = [f"{name}/{name}_{i}.jpg" for name in ("banded", "woven")]
        lines(root / f"dtd/dtd/labels/{split}1.txt", entries)
        for level, entry in enumerate(entries):
            save_image(root / f"dtd/dtd/images/{entry}", 100 * level)
    return {"train": [0, 1], "val": [0, 1], "test": [0, 1]}, ("banded", "woven")


def flowers(root):
    labels = np.array([[2, 1, 1, 2, 1, 2]])
    for i, label in enumerate(labels[0]):
        save_image(root / f"flowers-102/jpg/image_{i + 1:05d}.jpg", 100 * (label - 1))
    savemat(root / "flowers-102/imagelabels.mat", {"labels": labels})
    splits = {"trnid": np.array([[1, 2]]), "valid": np.array([[4, 3]]), "tstid": np.array([[5, 6]])}
    savemat(root / "flowers-102/setid.mat", splits)
    return {"train": [1, 0], "val": [1, 0], "test": [0, 1]}, ("001", "002")


def pets(root):
    for split, numbers in (("trainval", (1, 2)), ("test", (3,))):
        entries = [f"{name}_{i}" for name in ("Bengal", "great_pyrenees") for i in numbers]
        lines(root / f"oxford-iiit-pet/annotations/{split}.txt", [f"{entry} 1 1 1" for entry in entries])
        for entry in entries:
            save_image(root / f"oxford-iiit-pet/images/{entry}.jpg", 100 * ("great" in entry))
    return {"train": [0, 0, 1, 1], "test": [0, 1]}, ("Bengal", "great_pyrenees")


# name: its folder and one of its lists
SETS = {
    "dtd": ("dtd", "labels/train1.txt"),
    "flowers102": ("flowers-102", "setid.mat"),
    "food101": ("food-101", "meta/train.json"),
    "pets": ("oxford-iiit-pet", "annotations/trainval.txt"),
    "sun397": ("SUN397", "Training_01.txt"),
}
MAKERS = {"food101": food, "sun397": sun, "dtd": dtd, "flowers102": flowers, "pets": pets}


def read(name, split, root, size=8):
    return validation(name, root, size) if split == "val" else load(name, split, root, size=size)


@pytest.mark.parametrize("name", SETS)
def test_authors_layout(name, tmp_path):
    labels, classes = MAKERS[name](tmp_path)
    for split in ("train", "val", "test"):
        images = read(name, split, tmp_path)
        if split not in labels:
            assert images is None
            continue
        assert images.name == name and images.classes == classes
        assert images.labels.tolist() == labels[split]
        # the grey level of an image is its class, so these are the listed files
        assert (images.images.float().mean((1, 2, 3)) / 100).round().tolist() == labels[split]
        assert images.images.shape[1:] == (3, 8, 8) and len(images.files) == len(images)
    assert load(name, "train", tmp_path).images.shape[-1] == 32  # the default for small images


@pytest.mark.parametrize("name", SETS)
def test_plain_class_folders(name, tmp_path, monkeypatch):
    home = tmp_path / SETS[name][0]
    for split in ("train", "val", "test"):
        for level, label in enumerate(("a", "b")):
            save_image(home / split / label / f"{split}.png", 100 * level)
    monkeypatch.setenv("SIMPLICIA_DATA", str(tmp_path))
    for split in ("train", "val", "test"):
        images = read(name, split, None)
        assert images.name == name and images.labels.tolist() == [0, 1] and images.classes == ("a", "b")
        assert images.images.float().mean((1, 2, 3)).tolist() == pytest.approx([0, 100])
    assert validation(name).images.shape == (2, 3, 32, 32)


@pytest.mark.parametrize("name", SETS)
def test_missing_folders_and_lists_are_named(name, tmp_path, monkeypatch):
    monkeypatch.delenv("SIMPLICIA_DATA", raising=False)
    folder, mark = SETS[name]
    with pytest.raises(UserError, match=f"{folder}' below data_dir or SIMPLICIA_DATA"):
        load(name)
    with pytest.raises(UserError, match=f"needs the folder .*{folder}"):
        load(name, "train", tmp_path)
    (tmp_path / folder).mkdir()
    with pytest.raises(UserError, match=f"with {mark}.* train/<class>"):
        load(name, "train", tmp_path)


def test_lists_cannot_name_files_outside_the_folder(tmp_path):
    pets(tmp_path)
    save_image(tmp_path / "secret_1.jpg", 7)
    lines(tmp_path / "oxford-iiit-pet/annotations/trainval.txt", ["../../secret_1 1 1 1"])
    with pytest.raises(UserError, match="is not below"):
        load("pets", "train", tmp_path)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("food-101/meta/train.json", b"{"),
        ("food-101/meta/train.json", b"[1, 2]"),
        ("food-101/meta/train.json", b"{}"),
        ("food-101/meta/train.json", b"\xff\xfe"),
    ],
)
def test_broken_lists_raise_user_errors(path, content, tmp_path):
    food(tmp_path)
    (tmp_path / path).write_bytes(content)
    with pytest.raises(UserError, match="food101"):
        load("food101", "train", tmp_path)


def test_missing_images_are_skipped_and_listed(tmp_path):
    pets(tmp_path)
    os.unlink(tmp_path / "oxford-iiit-pet/images/Bengal_1.jpg")
    images = load("pets", "train", tmp_path, size=8)
    assert images.labels.tolist() == [0, 1, 1]
    assert [file for file, _ in images.skipped] == ["images/Bengal_1.jpg"]


def test_data_sets_without_val_split():
    assert validation("shapes") is None and validation("cifar10") is None


@pytest.mark.skipif("SIMPLICIA_DATA" not in os.environ, reason="SIMPLICIA_DATA is not set")
def test_real_flowers_and_pets():
    root = os.environ["SIMPLICIA_DATA"]
    for name, counts in (("flowers102", [1020, 1020, 6149]), ("pets", [3680, None, 3669])):
        if not os.path.isdir(os.path.join(root, SETS[name][0])):
            pytest.skip(f"no {name} there")
        images = [read(name, split, root, 32) for split in ("train", "val", "test")]
        assert [s and len(s) for s in images] == counts
