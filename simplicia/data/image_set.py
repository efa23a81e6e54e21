"""Image sets in memory, and the registry of data sets that have a name.

A reader registers its data set next to its code:

    @dataset("blobs", "round blobs, 2 classes", image_size=32)
    def read_blobs(split: str, options: ReadOptions) -> ImageSet:
        return ImageSet("blobs", images, labels, classes=("one", "two"))
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simplicia.data.augmentation import Triple, center_crop_squeezed
from simplicia.errors import UserError


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images in memory with their labels, classes and files, as far as they have any."""

    name: str
    images: Tensor  # (N, 3, H, W) uint8, on the CPU, contiguous
    labels: Tensor | None = None  # (N,) int64
    classes: tuple[str, ...] = ()
    superclass: Tensor | None = None  # (len(classes),) int64: the superclass of each class
    superclasses: tuple[str, ...] = ()
    aspect_ratios: Tensor | None = None  # (N,) float32: width / height before images were squeezed
    files: tuple[str, ...] = ()  # the path of each image, relative to the folder
    skipped: tuple[tuple[str, str], ...] = ()  # (path, reason) of files that could not be read
    source: str = ""  # the path of the user's own folder
    standard: bool = False  # files of the named data set, not of a folder that has the same name

    def __post_init__(self) -> None:
        shape, dtype = tuple(self.images.shape), self.images.dtype
        if dtype != torch.uint8 or len(shape) != 4 or shape[1] != 3 or 0 in shape:
            raise UserError(
                f"images are {dtype} {shape}; they must be uint8 of shape (N, 3, H, W), N above 0"
            )
        if self.labels is not None and tuple(self.labels.shape) != shape[:1]:
            raise UserError(f"{shape[0]} images need {shape[0]} labels, not {tuple(self.labels.shape)}")
        if self.labels is not None:
            self._check_classes(self.labels)

    def _check_classes(self, labels: Tensor) -> None:
        """Check that labels are class numbers; without names, classes are named by their numbers."""
        if labels.dtype.is_floating_point or labels.dtype == torch.bool:
            raise UserError(f"labels are {labels.dtype}; they must be integers, from 0 on")
        low, high = (int(label) for label in labels.aminmax())
        if not self.classes and high < 2**16:
            object.__setattr__(self, "classes", tuple(str(label) for label in range(high + 1)))
        if low < 0 or high >= len(self.classes):
            known = f", and there are {len(self.classes)} classes" if self.classes else ""
            raise UserError(f"labels are from {low} to {high}; they count classes from 0 on{known}")

    def __len__(self) -> int:
        return len(self.images)

    def center_cropped(self) -> "ImageSet":
        """The set with center crops in place of images that were squeezed to squares."""
        if self.aspect_ratios is None:
            return self
        return replace(self, images=center_crop_squeezed(self.images, self.aspect_ratios), aspect_ratios=None)

    def statistics(self) -> tuple[Triple, Triple]:
        """Mean and standard deviation of each channel, in 0..1; the latter at least 1/255, to divide by."""
        published = REGISTRY[self.name].statistics if self.name in REGISTRY else None
        if published is not None and (self.standard or not self.files):
            return published
        counts = torch.zeros(3, 256, dtype=torch.int64)  # a histogram is exact, however many images
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


def held_out(labels: np.ndarray, share: float, seed: int = 0) -> np.ndarray:
    """A mask that is true for the same `share` of each class every time; each class keeps an image."""
    mask = np.zeros(len(labels), dtype=bool)
    classes, numbers = np.unique(labels, return_inverse=True)
    for number in range(len(classes)):
        members = np.flatnonzero(numbers == number)
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        # A generator per class: the mask of one class does not depend on the others.
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
    """Two sets: the images that remain, and the `share` of each class that ``held_out`` chooses."""
    if images.labels is None:
        raise UserError(f"{images.name} has no labels; holding out a share of each class needs them")
    mask = torch.from_numpy(held_out(images.labels.numpy(), share, seed))
    if not mask.any():
        raise UserError(f"{images.name} has one image of each class; none can be held out for choosing")
    return part(images, (~mask).nonzero()[:, 0]), part(images, mask.nonzero()[:, 0])


@dataclass(frozen=True)
class ReadOptions:
    """How to read a data set."""

    data_dir: Path | None = None  # the folder with the standard data sets
    size: int | None = None  # the side to which image files are resized (None: chosen from the images)
    keep_aspect: bool = False  # squeeze image files to squares and keep aspect ratios, else center-crop
    progress: Callable[[int, int], None] | None = None  # called with (done, total) while files are read
    download: bool = False


Reader = Callable[[str, ReadOptions], ImageSet]


@dataclass(frozen=True)
class DataSet:
    """A registered data set."""

    name: str
    read: Reader  # called with "train" or "test"
    description: str
    where: str = "built in"  # where its files come from, for people
    image_size: int | None = None  # the side of its images; None: they are files, decoded at any size
    statistics: tuple[Triple, Triple] | None = None  # published mean and standard deviation
    root: Callable[[Path | None], Path] | None = None  # the folder with its files, below data_dir
    validation: Callable[[ReadOptions], ImageSet | None] | None = None  # its val split, if it has one


REGISTRY: dict[str, DataSet] = {}


def dataset(name: str, description: str, **details: Any) -> Callable[[Reader], Reader]:
    """Register a function that reads a data set; ``details`` are further fields of `DataSet`."""

    def register(read: Reader) -> Reader:
        present = REGISTRY.get(name)
        if present is not None and present.read.__module__ != read.__module__:
            raise ValueError(f"data set {name!r} is taken by {present.read.__module__}; choose another name")
        REGISTRY[name] = DataSet(name, read, description, **details)
        return read

    return register


def resolve_data_dir(data_dir: str | os.PathLike[str] | None) -> Path | None:
    """``data_dir``, or the folder that the environment variable SIMPLICIA_DATA names."""
    data_dir = data_dir or os.environ.get("SIMPLICIA_DATA")
    return Path(data_dir).expanduser() if data_dir else None


def require_data_dir(name: str, folder: str, data_dir: Path | None) -> Path:
    """``data_dir``; a UserError if there is none."""
    if data_dir is None:
        raise UserError(f"{name} needs {folder!r} below --data-dir or SIMPLICIA_DATA; neither is given")
    return data_dir
