"""The sets that representations are transferred to: Food-101, SUN397, DTD, Flowers-102, Oxford-IIIT Pets.

Each is read from where torchvision puts it, by its authors' lists of what is train, val and test, or from
plain class folders, ``<set>/{train,val,test}/<class>/*``. Food, SUN and Pets have no val split.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from simplicia.data import folder
from simplicia.data.datasets import ImageSet, data_folder
from simplicia.errors import UserError

Listed = list[tuple[Path, str]]  # files and their classes


def _food(root: Path, split: str) -> Listed:
    """images/<class>/<id>.jpg; meta/train.json and test.json map classes to "<class>/<id>"."""
    content = json.loads(_text(root / f"meta/{split}.json"))
    return [(root / f"images/{entry}.jpg", name) for name, entries in content.items() for entry in entries]


def _sun(root: Path, split: str) -> Listed:
    """<letter>/<class>/*.jpg; the first of ten partitions, a line "/<letter>/<class>/x.jpg" for each file."""
    list_name = {"train": "Training_01.txt", "test": "Testing_01.txt"}[split]
    place = root / "Partitions" if (root / "Partitions" / list_name).is_file() else root
    entries = [line.strip().lstrip("/") for line in _text(place / list_name).splitlines() if line.strip()]
    return [(root / entry, "/".join(Path(entry).parts[1:-1])) for entry in entries]


def _dtd(root: Path, split: str) -> Listed:
    """images/<class>/*.jpg, in a second folder dtd; the first of ten lists, labels/<split>1.txt."""
    root = root / "dtd" if (root / "dtd").is_dir() else root
    entries = _text(root / f"labels/{split}1.txt").split()
    return [(root / "images" / entry, Path(entry).parts[0]) for entry in entries]


def _flowers(root: Path, split: str) -> Listed:
    """jpg/image_<number>.jpg; imagelabels.mat has their classes from 1, setid.mat the numbers of a split."""
    from scipy.io import loadmat

    key = {"train": "trnid", "val": "valid", "test": "tstid"}[split]
    labels = loadmat(root / "imagelabels.mat")["labels"].ravel()
    numbers = loadmat(root / "setid.mat")[key].ravel()
    return [(root / f"jpg/image_{int(n):05d}.jpg", f"{int(labels[int(n) - 1]):03d}") for n in numbers]


def _pets(root: Path, split: str) -> Listed:
    """images/<breed>_<number>.jpg; annotations/trainval.txt, test.txt: a name and three numbers a line."""
    list_name = {"train": "trainval.txt", "test": "test.txt"}[split]
    lines = _text(root / "annotations" / list_name).splitlines()
    entries = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
    return [(root / f"images/{entry}.jpg", entry.rsplit("_", 1)[0]) for entry in entries]


# name: folder, how to read the authors' layout, its splits, a file by which it is known
SETS: dict[str, tuple[str, Callable[[Path, str], Listed], tuple[str, ...], str]] = {
    "dtd": ("dtd", _dtd, ("train", "val", "test"), "labels/train1.txt"),
    "flowers102": ("flowers-102", _flowers, ("train", "val", "test"), "setid.mat"),
    "food101": ("food-101", _food, ("train", "test"), "meta/train.json"),
    "pets": ("oxford-iiit-pet", _pets, ("train", "test"), "annotations/trainval.txt"),
    "sun397": ("SUN397", _sun, ("train", "test"), "Training_01.txt"),
}


def load(
    name: str,
    split: str,
    data_dir: str | os.PathLike[str] | None,
    size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    keep_aspect: bool = False,
) -> ImageSet | None:
    """The train, val or test images of a set; None if it has no val split."""
    _, reader, splits, mark = SETS[name]
    place = root(name, data_dir)
    if (place / "train").is_dir() and (place / "test").is_dir():
        return _plain(name, place, split, size, keep_aspect)
    if split not in splits:
        return None
    listed = _listed(name, reader, place, split, mark)
    train = listed if split == "train" else _listed(name, reader, place, "train", mark)
    size = size or folder.suitable_size([path for path, _ in train])
    classes = sorted({c for _, c in train + listed})
    images, found = folder.decode_all([path for path, _ in listed], size, progress, keep_aspect)
    if not found.readable:
        path, reason = found.skipped[0]
        raise UserError(f"no image of {name} can be read, such as {str(path)!r}: {reason}")
    number = {c: i for i, c in enumerate(classes)}
    return ImageSet(
        name=name,
        images=images,
        labels=torch.tensor([number[listed[i][1]] for i in found.readable]),
        classes=tuple(classes),
        aspect_ratios=torch.tensor(found.aspect_ratios) if keep_aspect else None,
        files=tuple(listed[i][0].relative_to(place).as_posix() for i in found.readable),
        skipped=tuple((path.relative_to(place).as_posix(), reason) for path, reason in found.skipped),
    )


def root(name: str, data_dir: str | os.PathLike[str] | None) -> Path:
    """The folder of a set."""
    folder_name = SETS[name][0]
    place = data_folder(name, folder_name, data_dir) / folder_name
    if not place.is_dir():
        raise UserError(
            f"{name} needs the folder {str(place)!r}, as torchvision unpacks it or with train/<class>/*"
        )
    return place


def _plain(name: str, root: Path, split: str, size: int | None, keep_aspect: bool) -> ImageSet | None:
    import dataclasses

    if split != "val":
        return dataclasses.replace(
            folder.load(root, split, size, keep_aspect=keep_aspect), name=name, source=""
        )
    train = folder.load(root, "train", size) if size is None else None
    found = folder.validation(root, size or train.images.shape[-1])  # type: ignore[union-attr]
    return None if found is None else dataclasses.replace(found, name=name)


def _listed(name: str, reader: Callable[[Path, str], Listed], root: Path, split: str, mark: str) -> Listed:
    try:
        listed = reader(root, split)
    except UserError:
        raise
    except Exception as error:  # a broken or hostile list may fail in any way
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{str(root)!r} is neither {name} as its authors lay it out (with {mark}) nor has it folders "
            f"train/<class>/* and test/<class>/*: {reason}"
        ) from error
    inside = root.resolve()
    for path, class_name in listed:
        if not path.resolve().is_relative_to(inside) or not class_name:
            raise UserError(
                f"the {split} list of {name} names {str(path)!r}, which is not below {str(root)!r}"
            )
    if not listed:
        raise UserError(f"the {split} list of {name} in {str(root)!r} is empty")
    return listed


def _text(path: Path) -> Any:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no {path}") from None
