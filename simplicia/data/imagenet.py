"""ImageNet, and Imagenette, ten classes of it: a train and a val folder with a folder for each class.

The labels of ImageNet's own test split are not public: its val split is what everyone tests on.
"""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from simplicia.data import folder
from simplicia.data.datasets import ImageSet, data_folder
from simplicia.errors import UserError

# where they are looked for below the data folder, which may be the set's own
PLACES = {
    "imagenet": ("imagenet", "ImageNet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC", "."),
    "imagenette": ("imagenette2", "imagenette2-320", "imagenette2-160", "imagenette", "."),
}
# what ImageNet's models are tested on besides, as the paper's table calls it, and its folder
OTHERS = {
    "V2": ("imagenet-v2", "ImageNet-V2"),  # not as it is published: classes are to be named
    "R": ("imagenet-r", "ImageNet-R"),
    "A": ("imagenet-a", "ImageNet-A"),
    "corruptions": ("imagenet-c", "ImageNet-C"),
}


def load(
    name: str,
    split: str,
    data_dir: str | os.PathLike[str] | None,
    size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    keep_aspect: bool = False,
) -> ImageSet:
    """The train images, or as test images those of val."""
    place = root(name, data_dir)
    _, test, _ = folder.layout(place, folder.VAL_FOLDERS)
    if test is None:
        raise UserError(
            f"{name} needs the folder {str(place / 'val')!r} beside train; there is none with images"
        )
    found = folder.load(place, split, size, progress, keep_aspect, folder.VAL_FOLDERS)
    if found.labels is None:
        where = place / ("train" if split == "train" else "val")
        raise UserError(
            f"{name} needs a folder for each class, {str(where / '<class>')!r}; images lie outside"
        )
    return dataclasses.replace(found, name=name, source="", standard=True)


def others(data_dir: str | os.PathLike[str] | None) -> dict[str, Path]:
    """Those of `OTHERS` that lie below the data folder."""
    data_dir = data_dir or os.environ.get("SIMPLICIA_DATA")
    if not data_dir:
        return {}
    base = Path(data_dir).expanduser()
    there = {
        part: [base / name for name in names if (base / name).is_dir()] for part, names in OTHERS.items()
    }
    return {part: found[0] for part, found in there.items() if found}


def labelled_list(fraction: float, data_dir: str | os.PathLike[str] | None) -> Path | None:
    """The published list of a share of the training images, if it lies below the data folder."""
    data_dir = data_dir or os.environ.get("SIMPLICIA_DATA")
    name = f"{100 * fraction:g}percent.txt"
    places = [] if not data_dir else [Path(data_dir).expanduser() / p for p in ("imagenet_subsets", ".")]
    return next((place / name for place in places if (place / name).is_file()), None)


def root(name: str, data_dir: str | os.PathLike[str] | None) -> Path:
    """The folder in which train and val lie."""
    places = PLACES[name]
    base = data_folder(name, places[0], data_dir)
    for place in places:
        if (base / place / "train").is_dir():
            return base / place
    raise UserError(
        f"{name} needs {str(base / places[0] / 'train')!r} and val, with a folder for each class; "
        f"it is also looked for in {', '.join(places[1:-1])}, and in {str(base)!r} itself"
    )
