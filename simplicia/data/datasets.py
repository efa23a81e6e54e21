"""Image sets that are ready to use: one tensor of uint8 images, with their labels if there are any."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from simplicia.data.image_ops import center_crop_squeezed
from simplicia.errors import UserError, unknown

MEMORY = "memory"  # what the data of a run are called that was given its images from Python
IN_MEMORY = ("cifar10", "cifar100", "digits", "shapes")  # sets of 32 pixels that are not files of images
# The constants everyone normalises with, so that numbers compare with those of other people.
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_STATISTICS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "imagenet": _IMAGENET,
    "imagenette": _IMAGENET,
}

Triple = tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images in memory, and what is known about them."""

    name: str
    images: Tensor  # (N, 3, H, W) uint8, on the CPU, contiguous
    labels: Tensor | None = None  # (N,) int64
    classes: tuple[str, ...] = ()
    superclass: Tensor | None = None  # (len(classes),) int64: the superclass of each class
    superclasses: tuple[str, ...] = ()
    aspect_ratios: Tensor | None = None  # (N,) float32: width / height before images were squeezed
    files: tuple[str, ...] = ()  # of a folder: the path of each image, relative to the folder
    skipped: tuple[tuple[str, str], ...] = ()  # of a folder: (path, reason) of what could not be read
    source: str = ""  # of a folder of one's own: where it is
    standard: bool = False  # files of the set that its name says, not of a folder that is called so

    def __post_init__(self) -> None:
        shape, dtype = tuple(self.images.shape), self.images.dtype
        if dtype != torch.uint8 or len(shape) != 4 or shape[1] != 3 or 0 in shape:
            raise UserError(f"images are uint8 of shape (N, 3, H, W) with N at least 1, not {dtype} {shape}")
        if self.labels is not None and tuple(self.labels.shape) != shape[:1]:
            raise UserError(f"{shape[0]} images need {shape[0]} labels, not {tuple(self.labels.shape)}")
        if self.labels is not None:
            self._check_classes(self.labels)

    def _check_classes(self, labels: Tensor) -> None:
        """Labels are numbers of classes; classes that have no names are called by their numbers."""
        if labels.dtype.is_floating_point or labels.dtype == torch.bool:
            raise UserError(f"labels are {labels.dtype}; they must be whole numbers, from 0 on")
        low, high = (int(label) for label in labels.aminmax())
        if not self.classes and high < 2**16:
            object.__setattr__(self, "classes", tuple(str(label) for label in range(high + 1)))
        if low < 0 or high >= len(self.classes):
            known = f", and there are {len(self.classes)} classes" if self.classes else ""
            raise UserError(f"labels are from {low} to {high}; they count classes from 0 on{known}")

    def __len__(self) -> int:
        return len(self.images)

    def center_cropped(self) -> "ImageSet":
        """The set with images that were squeezed to squares cropped to their center instead."""
        if self.aspect_ratios is None:
            return self
        return replace(self, images=center_crop_squeezed(self.images, self.aspect_ratios), aspect_ratios=None)

    def statistics(self) -> tuple[Triple, Triple]:
        """Mean and standard deviation of each channel, in 0..1; the latter at least 1/255, to divide by."""
        if self.name in _STATISTICS and (self.standard or not self.files):
            return _STATISTICS[self.name]
        counts = torch.zeros(3, 256, dtype=torch.int64)  # of each grey level: exact, whatever the size
        for chunk in self.images.split(256):
            for channel in range(3):
                counts[channel] += torch.bincount(chunk[:, channel].reshape(-1), minlength=256)
        share = counts.double() / counts.sum(1, keepdim=True)
        level = torch.arange(256, dtype=torch.float64) / 255
        mean = share @ level
        variance = (share * (level - mean[:, None]) ** 2).sum(1)
        r, g, b = mean.tolist()
        sr, sg, sb = variance.sqrt().clamp(min=1 / 255).tolist()
        return (r, g, b), (sr, sg, sb)


def names() -> list[str]:
    """The data sets that have a name; any folder of images is one too."""
    from simplicia.data.imagenet import PLACES
    from simplicia.data.transfer_sets import SETS

    return sorted([*IN_MEMORY, *PLACES, *SETS])


def data_folder(name: str, place: str, data_dir: str | os.PathLike[str] | None) -> Path:
    """The folder that standard sets lie in; a UserError if none is given."""
    if not data_dir:
        raise UserError(f"{name} needs {place!r} below --data-dir or SIMPLICIA_DATA; neither is given")
    return Path(data_dir).expanduser()


def identity(name: str) -> str:
    """What tells data apart: the name of a set that has one, or where a folder is."""
    return name if name in names() else str(Path(name).expanduser().resolve())


def root(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder with the files of a set that has a name, or that is a folder; None if there is none."""
    from simplicia.data import imagenet, transfer_sets

    if name in IN_MEMORY:
        return None
    try:
        if name in imagenet.PLACES:
            return imagenet.root(name, data_dir or os.environ.get("SIMPLICIA_DATA"))
        if name in transfer_sets.SETS:
            return transfer_sets.root(name, data_dir or os.environ.get("SIMPLICIA_DATA"))
    except UserError:
        return None
    place = Path(name).expanduser()
    return place if place.is_dir() else None


def decoded_size(name: str, stored: int) -> int | None:
    """The size to ``load`` a set at for a run that has its images ``stored`` at one (0: as suits them).

    Files of images are decoded at the run's size; other sets have their own.
    """
    return None if name in IN_MEMORY else stored or None


def load(
    name: str | os.PathLike[str],
    split: str = "train",
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
    size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    keep_aspect: bool = False,
) -> ImageSet:
    """The "train" or "test" images of a data set with a name, or of a folder.

    `data_dir` (else the environment variable SIMPLICIA_DATA) is where standard sets lie; cifar10 and cifar100
    go there with `download`. `size` is the side to which images that are files are brought; `progress(done,
    total)` is called while they are read. Files are center-cropped to squares; with
    `keep_aspect` they are squeezed to squares, and `aspect_ratios` undoes that when views are cut.
    """
    from simplicia.data import cifar, folder, imagenet, transfer_sets
    from simplicia.data.shapes import shapes

    name = os.fspath(name)
    if split not in ("train", "test"):
        raise unknown("split", split, ("train", "test"))
    if name == MEMORY:
        raise UserError("the run's images were given from Python, and are gone; give --data with others")
    if name not in names():
        path = Path(name).expanduser()
        if path.is_dir():
            return folder.load(path, split, size, progress, keep_aspect)
        if path.exists():
            raise UserError(f"{name!r} is a file; a data set is a folder of images or one of {_listed()}")
        if "/" in name or os.sep in name:
            raise UserError(
                f"there is no folder {name!r}; give --data with where it is now, or with one of the sets "
                f"that have a name, {_listed()}"
            )
        raise unknown("data set", name, names())
    data_dir = data_dir or os.environ.get("SIMPLICIA_DATA")
    if name in transfer_sets.SETS:
        found = transfer_sets.load(name, split, data_dir, size, progress, keep_aspect)
        assert found is not None  # only val may be missing
        return found
    if name in imagenet.PLACES:
        return imagenet.load(name, split, data_dir, size, progress, keep_aspect)
    if size not in (None, 32):
        raise UserError(f"size {size} is for folders of images; the images of {name} are 32 pixels wide")
    if name == "digits":
        return digits(split)
    if name == "shapes":
        return shapes(split)
    return cifar.load(name, split, data_dir, download)


def validation(
    name: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None, size: int | None = None
) -> ImageSet | None:
    """The val images of a data set with a name, or of a folder; None if it has no such split."""
    from simplicia.data import folder, transfer_sets

    name = os.fspath(name)
    if name in transfer_sets.SETS:
        return transfer_sets.load(name, "val", data_dir or os.environ.get("SIMPLICIA_DATA"), size)
    if name in names():
        return None
    return folder.validation(Path(name).expanduser(), size or load(name, size=size).images.shape[-1])


def digits(split: str = "train") -> ImageSet:
    """The handwritten digits of scikit-learn, 8 x 8 made 32 x 32; a fixed fifth of each is the test split."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    chosen = held_out(bunch.target, 0.2) == (split == "test")
    grey = torch.from_numpy(bunch.images[chosen])[:, None] * (255 / 16)
    grey = torch.nn.functional.interpolate(grey, size=(32, 32), mode="bilinear")
    return ImageSet(
        name="digits",
        images=grey.round().to(torch.uint8).repeat(1, 3, 1, 1),
        labels=torch.from_numpy(bunch.target[chosen].astype(np.int64)),
        classes=tuple("0123456789"),
    )


def held_out(labels: np.ndarray, share: float, seed: int = 0) -> np.ndarray:
    """A mask, true for the same `share` of each class every time; something of each class remains."""
    mask = np.zeros(len(labels), dtype=bool)
    classes, numbers = np.unique(labels, return_inverse=True)
    for number in range(len(classes)):
        members = np.flatnonzero(numbers == number)
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        # A generator for each class: what is held out of one does not depend on what is in the others.
        mask[np.random.Generator(np.random.PCG64(seed)).permutation(members)[:count]] = True
    return mask


def part(images: ImageSet, indices: Tensor) -> ImageSet:
    """Some images of a set."""
    return replace(
        images,
        images=images.images[indices],
        labels=None if images.labels is None else images.labels[indices],
        aspect_ratios=None if images.aspect_ratios is None else images.aspect_ratios[indices],
        files=tuple(images.files[i] for i in indices.tolist()) if images.files else (),
    )


def split(images: ImageSet, share: float, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """The images without, and only with, the same `share` of each class every time."""
    if images.labels is None:
        raise UserError(f"{images.name} has no labels; holding out a share of each class needs them")
    mask = torch.from_numpy(held_out(images.labels.numpy(), share, seed))
    if not mask.any():
        raise UserError(f"{images.name} has one image of each class; none can be held out for choosing")
    return part(images, (~mask).nonzero()[:, 0]), part(images, mask.nonzero()[:, 0])


def _listed() -> str:
    return ", ".join(names())
