"""The data sets for transfer: Food-101, SUN397, DTD, Flowers-102, Oxford-IIIT Pets.

Each is read from torchvision's folder by its authors' lists of the train, val and test images, or from plain
class folders, ``<set>/{train,val,test}/<class>/*``. Food, SUN and Pets have no val list.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from simplicia.data import datasets
from simplicia.data.datasets import ReadOptions
from simplicia.data.folder import Entry, Listing
from simplicia.errors import UserError, reason

ListFiles = Callable[[Path, str], list[Entry]]  # the files of a split, by the authors' lists below a folder


def _listed_dataset(
    name: str, description: str, folder_name: str, marker: str, has_val: bool = False
) -> Callable[[ListFiles], ListFiles]:
    """Register a data set by the function that reads its lists; ``marker`` is one of the list files."""

    def root(data_dir: Path | None) -> Path:
        path = datasets.require_data_dir(name, folder_name, data_dir) / folder_name
        if not path.is_dir():
            raise UserError(
                f"{name} needs the folder {str(path)!r}, as torchvision unpacks it or with train/<class>/*"
            )
        return path

    def register(list_files: ListFiles) -> ListFiles:
        def read(split: str, options: ReadOptions) -> Any:  # an ImageSet; None if there is no val split
            path = root(options.data_dir)
            class_folders = (path / "train").is_dir() and (path / "test").is_dir()
            if class_folders and split == "val":
                images = datasets.folder_validation(path, options)
            elif class_folders:
                images = datasets.load_folder(path, split, options)
            elif split == "val" and not has_val:
                images = None
            else:
                # Sizes and class numbers are those of the training images in every split.
                entries, train = (_check_entries(name, list_files, path, s, marker) for s in (split, "train"))
                images = datasets.decode_listing(path, Listing(entries, []), train, options, entries)
            return None if images is None else replace(images, name=name, source="")

        where = f"{folder_name} below --data-dir"
        datasets.dataset(name, description, where=where, root=root, validation=partial(read, "val"))(read)
        return list_files

    return register


def _check_entries(name: str, list_files: ListFiles, root: Path, split: str, marker: str) -> list[Entry]:
    try:
        entries = list_files(root, split)
    except Exception as error:  # a broken or hostile list may fail in any way
        raise UserError(
            f"{str(root)!r} has neither the authors' lists of {name} (with {marker}) nor folders "
            f"train/<class>/* and test/<class>/*: {reason(error)}"
        ) from error
    inside = root.resolve()
    for path, class_name in entries:
        if "\0" in str(path) or not path.resolve().is_relative_to(inside) or not class_name:
            raise UserError(f"the {split} list of {name} has {str(path)!r}, which is not below {str(root)!r}")
    if not entries:
        raise UserError(f"the {split} list of {name} in {str(root)!r} is empty")
    return entries


@_listed_dataset("food101", "101 classes", "food-101", "meta/train.json")
def _food(root: Path, split: str) -> list[Entry]:
    """images/<class>/<id>.jpg; meta/train.json and test.json map classes to "<class>/<id>"."""
    content = json.loads(_text(root / f"meta/{split}.json"))
    return [(root / f"images/{entry}.jpg", name) for name, entries in content.items() for entry in entries]


@_listed_dataset(
    "sun397", "scenes, 397 classes, with Training_01.txt and Testing_01.txt", "SUN397", "Training_01.txt"
)
def _sun(root: Path, split: str) -> list[Entry]:
    """<letter>/<class>/*.jpg; the first of ten partitions, one line "/<letter>/<class>/x.jpg" per file."""
    list_name = {"train": "Training_01.txt", "test": "Testing_01.txt"}[split]
    partitions = root / "Partitions" if (root / "Partitions" / list_name).is_file() else root
    entries = [
        line.strip().lstrip("/") for line in _text(partitions / list_name).splitlines() if line.strip()
    ]
    return [(root / entry, "/".join(Path(entry).parts[1:-1])) for entry in entries]


@_listed_dataset("dtd", "textures, 47 classes", "dtd", "labels/train1.txt", has_val=True)
def _dtd(root: Path, split: str) -> list[Entry]:
    """images/<class>/*.jpg, in a second folder dtd; the first of ten lists, labels/<split>1.txt."""
    root = root / "dtd" if (root / "dtd").is_dir() else root
    entries = _text(root / f"labels/{split}1.txt").split()
    return [(root / "images" / entry, Path(entry).parts[0]) for entry in entries]


@_listed_dataset("flowers102", "102 classes", "flowers-102", "setid.mat", has_val=True)
def _flowers(root: Path, split: str) -> list[Entry]:
    """jpg/image_<number>.jpg; imagelabels.mat has their classes from 1, setid.mat the numbers of a split."""
    from scipy.io import loadmat

    key = {"train": "trnid", "val": "valid", "test": "tstid"}[split]
    labels = loadmat(root / "imagelabels.mat")["labels"].ravel()
    numbers = loadmat(root / "setid.mat")[key].ravel()
    return [(root / f"jpg/image_{int(n):05d}.jpg", f"{int(labels[int(n) - 1]):03d}") for n in numbers]


@_listed_dataset("pets", "37 breeds of cats and dogs", "oxford-iiit-pet", "annotations/trainval.txt")
def _pets(root: Path, split: str) -> list[Entry]:
    """images/<breed>_<number>.jpg; annotations/trainval.txt, test.txt: a name and three numbers a line."""
    list_name = {"train": "trainval.txt", "test": "test.txt"}[split]
    lines = _text(root / "annotations" / list_name).splitlines()
    entries = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
    return [(root / f"images/{entry}.jpg", entry.rsplit("_", 1)[0]) for entry in entries]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no {path}") from None
