"""Data sets by name, or from a folder of images: ``load("cifar100", "test")``."""

import os
from collections.abc import Callable
from pathlib import Path

from simplicia.data import cifar, digits, folder, imagenet, shapes, transfer_sets  # noqa: F401  (registers them)
from simplicia.data.image_set import REGISTRY, ImageSet, ReadOptions, resolve_data_dir
from simplicia.data.image_set import held_out as held_out
from simplicia.data.image_set import part as part
from simplicia.data.image_set import split as split
from simplicia.errors import UserError, unknown

MEMORY = "memory"  # the data set's name in a run that got its images from Python


def names() -> list[str]:
    """The names of the registered data sets; any folder of images is a data set too."""
    return sorted(REGISTRY)


def has_files(name: str) -> bool:
    """Whether images are files, decoded at any size: all but those of registered sets with a fixed size."""
    return name not in REGISTRY or REGISTRY[name].image_size is None


def identity(name: str) -> str:
    """What distinguishes data sets: the registered name, or the absolute path of a folder."""
    return name if name in REGISTRY else str(Path(name).expanduser().resolve())


def root(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder with the image files of a data set; None if it has none, or none is there."""
    if name not in REGISTRY:
        path = Path(name).expanduser()
        return path if path.is_dir() else None
    find = REGISTRY[name].root
    try:
        return None if find is None else find(resolve_data_dir(data_dir))
    except UserError:
        return None


def decoded_size(name: str, size: int) -> int | None:
    """The ``size`` to load a data set with, given that of a run (0: chosen from the images)."""
    return (size or None) if has_files(name) else None


def load(
    name: str | os.PathLike[str],
    split: str = "train",
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
    size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    keep_aspect: bool = False,
) -> ImageSet:
    """The "train" or "test" images of a registered data set or of a folder.

    `data_dir` (default: the environment variable SIMPLICIA_DATA) holds the standard data sets; `download`
    fetches cifar10 and cifar100 to it. Image files are resized to `size`; `progress(done, total)` is called
    while they are read. They are center-cropped to squares; with `keep_aspect` they are squeezed to squares,
    and views use `aspect_ratios` to undo that.
    """
    name = os.fspath(name)
    if split not in ("train", "test"):
        raise unknown("split", split, ("train", "test"))
    if name == MEMORY:
        raise UserError("the run got its images from Python and did not keep them; give --data with others")
    options = ReadOptions(resolve_data_dir(data_dir), size, keep_aspect, progress, download)
    if name not in REGISTRY:
        return folder.load(_folder(name), split, options)
    registered = REGISTRY[name]
    if registered.image_size is not None and size not in (None, registered.image_size):
        raise UserError(
            f"size {size} is for folders of images; those of {name} are {registered.image_size} pixels wide"
        )
    return registered.read(split, options)


def validation(
    name: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None, size: int | None = None
) -> ImageSet | None:
    """The val images of a registered data set or of a folder; None if it has no such split."""
    name, options = os.fspath(name), ReadOptions(resolve_data_dir(data_dir), size)
    if name not in REGISTRY:
        return folder.validation(_folder(name), options)
    read = REGISTRY[name].validation
    return None if read is None else read(options)


def _folder(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise UserError(
            f"{name!r} is a file; a data set is a folder of images or one of {', '.join(names())}"
        )
    if "/" in name or os.sep in name:
        raise UserError(
            f"there is no folder {name!r}; give --data with its new path, or with a named data set: "
            f"{', '.join(names())}"
        )
    raise unknown("data set", name, names())
