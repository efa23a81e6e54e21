"""ImageNet, and Imagenette (ten classes of it): folders train and val with a folder for each class.

The labels of ImageNet's own test split are not public: everyone tests on val.
"""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from simplicia.data import datasets
from simplicia.data.datasets import ImageSet, ReadOptions, resolve_data_dir
from simplicia.data.folder import VAL_FOLDERS
from simplicia.errors import UserError

# their folders below the data folder, which may be the set's own
FOLDERS = {
    "imagenet": ("imagenet", "ImageNet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC", "."),
    "imagenette": ("imagenette2", "imagenette2-320", "imagenette2-160", "imagenette", "."),
}
# further test sets for models of ImageNet, as the paper's table names them, and their folders
OTHERS = {
    "V2": ("imagenet-v2", "ImageNet-V2"),  # with class folders by name, unlike the published archive
    "R": ("imagenet-r", "ImageNet-R"),
    "A": ("imagenet-a", "ImageNet-A"),
    "corruptions": ("imagenet-c", "ImageNet-C"),
}


def root(name: str, data_dir: Path | None) -> Path:
    """The folder that contains train and val."""
    candidates = FOLDERS[name]
    base = datasets.require_data_dir(name, candidates[0], data_dir)
    for candidate in candidates:
        if (base / candidate / "train").is_dir():
            return base / candidate
    raise UserError(
        f"{name} needs {str(base / candidates[0] / 'train')!r} and val, with a folder for each class; "
        f"{', '.join(candidates[1:-1])} and {str(base)!r} itself have none either"
    )


def _read(name: str, split: str, options: ReadOptions) -> ImageSet:
    """The train images, or for "test" those of val."""
    path = root(name, options.data_dir)
    splits = datasets.find_splits(path, options, VAL_FOLDERS)
    if splits.test is None:
        raise UserError(f"{name} needs the folder {str(path / 'val')!r} next to train; none has images")
    images = datasets.load_folder(path, split, options, splits)
    if images.labels is None:
        class_folder = path / ("train" if split == "train" else "val") / "<class>"
        raise UserError(f"{name} needs a folder for each class, {str(class_folder)!r}; images lie outside")
    return replace(images, name=name, source="", standard=True)


for _name, _content in (("imagenet", "1000 classes"), ("imagenette", "ten classes of ImageNet")):
    datasets.dataset(
        _name,
        f"{_content}, {{train,val}}/<class>/*",
        where=f"{FOLDERS[_name][0]} below --data-dir",
        statistics=((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        root=partial(root, _name),
    )(partial(_read, _name))


def others(data_dir: str | os.PathLike[str] | None) -> dict[str, Path]:
    """The folders of those test sets of `OTHERS` that are below the data folder."""
    base = resolve_data_dir(data_dir)
    if base is None:
        return {}
    paths = {key: next((p for n in names if (p := base / n).is_dir()), None) for key, names in OTHERS.items()}
    return {key: path for key, path in paths.items() if path is not None}


def labelled_list(fraction: float, data_dir: str | os.PathLike[str] | None) -> Path | None:
    """The published list of a fraction of the training images, if it is below the data folder."""
    base, name = resolve_data_dir(data_dir), f"{100 * fraction:g}percent.txt"
    candidates = [] if base is None else [base / "imagenet_subsets" / name, base / name]
    return next((path for path in candidates if path.is_file()), None)
