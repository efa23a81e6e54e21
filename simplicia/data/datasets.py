"""Data sets by name, or from a folder of images: ``load("cifar100", "test")``.

A reader registers its data set next to its code:

    @dataset("blobs", "round blobs, 2 classes", image_size=32)
    def read_blobs(split: str, options: ReadOptions) -> ImageSet:
        return ImageSet("blobs", images, labels, classes=("one", "two"))
"""

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simplicia.data.augmentation import Triple, center_crop_squeezed
from simplicia.data.decoding import decode_files, fits_memory, suitable_size
from simplicia.data.folder import EXTENSIONS, TEST_FOLDERS, Entry, Layout, Listing, layout, list_images
from simplicia.data.source_index import has_shards, indexed, open_source, stream_layout
from simplicia.data.sources import Source, from_listing
from simplicia.data.streaming import MOST_UNREADABLE, StreamedImages
from simplicia.errors import UserError, unknown
from simplicia.files import chosen_cache

MEMORY = "memory"  # the data set's name in a run that got its images from Python
TEST_SHARE = 0.1  # of each class, for folders without a test split


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images in memory with their labels, classes and files, as far as they have any."""

    name: str
    images: Any  # a tensor (N, 3, H, W) uint8, on the CPU, contiguous; or StreamedImages
    labels: Tensor | None = None  # (N,) int64
    classes: tuple[str, ...] = ()  # their names; by default their numbers
    superclass: Tensor | None = None  # (len(classes),) int64: the superclass of each class
    superclasses: tuple[str, ...] = ()
    aspect_ratios: Tensor | None = None  # (N,) float32: width / height before images were squeezed
    files: Sequence[str] = ()  # the path of each image, relative to the folder
    skipped: tuple[tuple[str, str], ...] = ()  # (path, reason) of files that could not be read
    source: str = ""  # the path of the user's own folder
    standard: bool = False  # files of the named data set, not of a folder that has the same name

    def __post_init__(self) -> None:
        shape, dtype, labels = tuple(self.images.shape), self.images.dtype, self.labels
        if dtype != torch.uint8 or len(shape) != 4 or shape[1] != 3 or 0 in shape:
            raise UserError(
                f"images are {dtype} {shape}; they must be uint8 of shape (N, 3, H, W), N above 0"
            )
        if labels is None:
            return
        if tuple(labels.shape) != shape[:1]:
            raise UserError(f"{shape[0]} images need {shape[0]} labels, not {tuple(labels.shape)}")
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

    @property
    def streamed(self) -> bool:
        """Whether images are decoded when they are needed."""
        return isinstance(self.images, StreamedImages)

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
        for chunk in self.images.sample() if self.streamed else self.images.split(256):
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
    """A mask of the same `share` (from 1 up: number) of each class every time; each class keeps an image."""
    mask = np.zeros(len(labels), dtype=bool)
    classes, numbers = np.unique(labels, return_inverse=True)
    for number in range(len(classes)):
        members = np.flatnonzero(numbers == number)
        wanted = round(share * len(members)) if share < 1 else int(share)
        count = min(max(wanted, 1), len(members) - 1)
        # A generator per class: the mask of one class does not depend on the others.
        mask[np.random.Generator(np.random.PCG64(seed)).permutation(members)[:count]] = True
    return mask


def part(images: ImageSet, indices: Tensor) -> ImageSet:
    """Some images of a set."""
    chosen, files = images.images[indices], images.files
    if images.streamed:
        files = chosen.files
    elif files:
        files = tuple(files[i] for i in indices.tolist())
    return replace(
        images,
        images=chosen,
        labels=None if images.labels is None else images.labels[indices],
        aspect_ratios=None if images.aspect_ratios is None else images.aspect_ratios[indices],
        files=files,
    )


def in_memory(images: ImageSet) -> ImageSet:
    """The set with streamed images decoded; a UserError if memory cannot hold them."""
    if not images.streamed:
        return images
    if not fits_memory(len(images), images.images.size):
        needed = images.images.nbytes / 1e9
        raise UserError(
            f"{len(images):,} images of {images.name} take {needed:,.1f} GB once decoded, "
            "more than half of the free memory; name a folder in SIMPLICIA_CACHE to keep them on disk"
        )
    return replace(images, images=images.images.to("cpu"))


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
    stream: bool | None = False  # decode images when they are needed (None: if memory cannot hold them)
    threads: int = 0  # that decode streamed images (0: one per CPU core)
    most_unreadable: float = MOST_UNREADABLE  # share of streamed images


Reader = Callable[[str, ReadOptions], ImageSet]


@dataclass(frozen=True)
class DataSet:
    """How to read a data set that has a name, or a folder."""

    read: Reader  # called with "train" or "test"
    description: str = ""
    where: str = "built in"  # where its files come from, for people
    image_size: int | None = None  # the side of its images; None: they are files, decoded at any size
    statistics: tuple[Triple, Triple] | None = None  # published mean and standard deviation
    root: Callable[[Path | None], Path] | None = None  # the folder with its files, below data_dir
    validation: Callable[[ReadOptions], ImageSet | None] | None = None  # its val split, if it has one


REGISTRY: dict[str, DataSet] = {}


def dataset(name: str, description: str, **details: Any) -> Callable[[Reader], Reader]:
    """Register a function that reads a data set; ``details`` are further fields of `DataSet`.

    >>> @dataset("blank", "black images", where="built in", image_size=8)
    ... def read(split: str, options: ReadOptions) -> ImageSet:
    ...     return ImageSet("blank", torch.zeros(4, 3, 8, 8, dtype=torch.uint8))
    >>> len(load("blank"))
    4
    >>> del REGISTRY["blank"]
    """

    def register(read: Reader) -> Reader:
        present = REGISTRY.get(name)
        if present is not None and present.read.__module__ != read.__module__:
            raise ValueError(f"data set {name!r} is taken by {present.read.__module__}; choose another name")
        REGISTRY[name] = DataSet(read, description, **details)
        return read

    return register


def names() -> list[str]:
    """The names of the registered data sets; any folder of images is a data set too."""
    return sorted(REGISTRY)


def has_files(name: str) -> bool:
    """Whether images are files, decoded at any size: all but those of registered sets with a fixed size."""
    return name not in REGISTRY or REGISTRY[name].image_size is None


def decoded_size(name: str, size: int) -> int | None:
    """The ``size`` to load a data set with, given that of a run (0: chosen from the images)."""
    return (size or None) if has_files(name) else None


def identity(name: str) -> str:
    """What distinguishes data sets: the registered name, MEMORY, or the absolute path of a folder."""
    return name if name in REGISTRY or name == MEMORY else str(Path(name).expanduser().resolve())


def load(
    name: str | os.PathLike[str],
    split: str = "train",
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
    size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    keep_aspect: bool = False,
    stream: bool | None = False,
    threads: int = 0,
    most_unreadable: float = MOST_UNREADABLE,
) -> ImageSet:
    """The "train" or "test" images of a registered data set or of a folder.

    `data_dir` (default: the environment variable SIMPLICIA_DATA) holds the standard data sets; `download`
    fetches cifar10 and cifar100 to it. Image files are resized to `size`; `progress(done, total)` is called
    while they are read. They are center-cropped to squares; with `keep_aspect` they are squeezed to squares,
    and views use `aspect_ratios` to undo that.

    With `stream`, image files are decoded when they are needed, by `threads` threads; None streams them if
    they would take more than half of the free memory. More unreadable files than the share `most_unreadable`
    are an error.

    >>> load("shapes", "test").images.shape
    torch.Size([1000, 3, 32, 32])
    """
    name = os.fspath(name)
    if split not in ("train", "test"):
        raise unknown("split", split, ("train", "test"))
    if name == MEMORY:
        raise UserError("the run got its images from Python and did not keep them; give --data with others")
    entry = _find(name)
    if entry.image_size is not None and size not in (None, entry.image_size):
        raise UserError(
            f"size {size} is for folders of images; those of {name} are {entry.image_size} pixels wide"
        )
    if stream and entry.image_size is not None:
        raise UserError(f"{name} has no image files to stream; give another --data-device")
    place = resolve_data_dir(data_dir)
    how = ReadOptions(place, size, keep_aspect, progress, download, stream, threads, most_unreadable)
    return entry.read(split, how)


def validation(
    name: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    size: int | None = None,
    stream: bool | None = False,
) -> ImageSet | None:
    """The val images of a registered data set or of a folder; None if it has no such split."""
    read = _find(os.fspath(name)).validation
    return None if read is None else read(ReadOptions(resolve_data_dir(data_dir), size, stream=stream))


def root(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder with the image files of a data set; None if it has none, or none is there."""
    try:
        find = _find(name).root
        return None if find is None else find(resolve_data_dir(data_dir))
    except UserError:
        return None


def _find(name: str) -> DataSet:
    if name in REGISTRY:
        return REGISTRY[name]
    path = Path(name).expanduser()
    if path.is_dir():
        return DataSet(
            partial(load_folder, path), root=lambda _: path, validation=partial(folder_validation, path)
        )
    if path.exists():
        raise UserError(
            f"{name!r} is a file; a data set is a folder of images or one of {', '.join(names())}"
        )
    if "/" in name or os.sep in name:
        raise UserError(
            f"there is no folder {name!r}; give --data with its new path, or with a named data set: "
            f"{', '.join(names())}"
        )
    raise unknown("data set or folder", name, names())


def resolve_data_dir(data_dir: str | os.PathLike[str] | None) -> Path | None:
    """``data_dir``, or the folder that the environment variable SIMPLICIA_DATA names."""
    data_dir = data_dir or os.environ.get("SIMPLICIA_DATA")
    return Path(data_dir).expanduser() if data_dir else None


def require_data_dir(name: str, folder: str, data_dir: Path | None) -> Path:
    """``data_dir``; a UserError if there is none."""
    if data_dir is None:
        raise UserError(f"{name} needs {folder!r} below --data-dir or SIMPLICIA_DATA; neither is given")
    return data_dir


def load_folder(folder: Path, split: str, options: ReadOptions, splits: Layout | None = None) -> ImageSet:
    """The "train" or "test" images of a folder, in the splits of its ``layout``."""
    if options.size is not None and not 8 <= options.size <= 1024:
        raise UserError(f"size is {options.size}; images of a folder can have from 8 to 1024 pixels")
    train, test, _ = find_splits(folder, options) if splits is None else splits
    if not train.entries:
        raise UserError(
            f"there are no images to learn from in {str(folder)!r}; images are {' '.join(EXTENSIONS)}"
        )
    chosen = train if test is None or split == "train" else test
    if test is None and train.labelled:
        mask = held_out(train.class_of_each(), TEST_SHARE) == (split == "test")
        chosen = train.only(np.flatnonzero(mask))
    elif test is None and split == "test":
        raise UserError(f"{str(folder)!r} has neither classes nor a test folder, so it has no test images")
    if not chosen.entries:
        raise UserError(f"{str(folder)!r} has no class of two images or more, so none is left for {split}")
    if isinstance(chosen, Source):
        images = stream(folder, chosen, train, options, test)
    else:
        images = decode_listing(folder, chosen, train.entries, options, test.entries if test else [])
    return replace(images, source=str(folder.resolve()))


def find_splits(folder: Path, options: ReadOptions, test_folders: tuple[str, ...] = TEST_FOLDERS) -> Layout:
    """The splits of a folder: sources if they are streamed, listings if they are decoded."""
    if has_shards(folder):
        if options.stream is False:
            raise UserError(f"{str(folder)!r} has shards, which are streamed; give --data-device stream")
        return stream_layout(folder, test_folders)
    if options.stream:
        return stream_layout(folder, test_folders)
    if options.stream is False or chosen_cache():
        return layout(folder, test_folders)
    if indexed(folder):  # found in a fraction of the time that a listing takes
        splits = stream_layout(folder, test_folders)
        size = options.size or suitable_size(*openers(splits.train))
        return layout(folder, test_folders) if fits_memory(len(splits.train), size) else splits
    splits = layout(folder, test_folders)
    train = splits.train.entries
    fits = fits_memory(len(train), options.size or suitable_size(len(train), lambda i: train[i][0]))
    return splits if fits else stream_layout(folder, test_folders)


def folder_validation(folder: Path, options: ReadOptions) -> ImageSet | None:
    """The val images of a folder; None if there are none, or if they are its test split."""
    train, test, val = find_splits(folder, options)
    if test is None or val is None or not (train.labelled and test.labelled):
        return None
    if isinstance(val, Source):
        return stream(folder, val, train, options, test)
    classes = {name for _, name in train.entries + test.entries}
    for file, name in val.entries:
        if name is None:
            raise UserError(f"{str(file)!r} is outside of the class folders; it has no class")
        if name not in classes:
            raise UserError(f"{str(file)!r} has class {name!r}, which train does not have")
    return decode_listing(folder, val, train.entries, options, test.entries)


def read_all(path: Path, size: int, stream_it: bool | None = None) -> ImageSet:
    """One image file, or all images below a folder, without labels or splits."""
    if not (path.is_file() or path.is_dir()):
        raise UserError(f"there is no folder or image {str(path)!r}")
    if path.is_dir() and (stream_it or has_shards(path)):
        source = open_source(path)
        if not source.entries and source.skipped:
            shard, reason = source.skipped[0]
            raise UserError(
                f"no image of {str(path)!r} can be read, such as those of {shard.name!r}: {reason}"
            )
        if not source.entries and has_shards(path):
            raise UserError(
                f"{str(path)!r} has no shards itself; give one of its splits, such as its train folder"
            )
        if source.entries:
            found = stream(path, source, source, ReadOptions(size=size))
            return replace(found, labels=None, classes=())
    listing = Listing([(path, None)], []) if path.is_file() else list_images(path)
    if not listing.entries:
        raise UserError(f"there is no image in {str(path)!r}; images are {' '.join(EXTENSIONS)}")
    options = ReadOptions(size=size, stream=None if stream_it is None else False)
    return decode_listing(path.parent if path.is_file() else path, listing, [], options)


def decode_listing(
    folder: Path, listing: Listing, train: list[Entry], options: ReadOptions, others: Iterable[Entry] = ()
) -> ImageSet:
    """Decode the files of a listing, with labels if each file has a class.

    All splits get the size that suits the ``train`` images, and number the classes of these and ``others``.
    """
    size = options.size or suitable_size(len(train), lambda i: train[i][0])
    too_large = options.stream is None and not chosen_cache()
    if options.stream or (too_large and not fits_memory(len(listing.entries), size)):
        sources = [from_listing(folder, each) for each in (listing, Listing([*train, *others], []))]
        return stream(folder, sources[0], sources[1], replace(options, size=size))
    images, report = decode_files(listing.files, size, options.keep_aspect, options.progress)
    names = sorted({name for _, name in (*train, *others) if name is not None}) if listing.labelled else []
    number = {name: i for i, name in enumerate(names)}
    readable = [listing.entries[i] for i in report.readable]
    skipped = sorted(listing.skipped + report.skipped)
    return ImageSet(
        name=folder.resolve().name,
        images=_as_tensor(images),
        labels=torch.tensor([number[name or ""] for _, name in readable]) if names else None,
        classes=tuple(names),
        aspect_ratios=torch.tensor(report.aspect_ratios) if options.keep_aspect else None,
        files=tuple(file.relative_to(folder).as_posix() for file, _ in readable),
        skipped=tuple((path.relative_to(folder).as_posix(), reason) for path, reason in skipped),
    )


def _as_tensor(images: np.ndarray) -> Tensor:
    with warnings.catch_warnings():  # pixels that are mapped read-only are never written to
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(images)


def openers(source: Source) -> tuple[int, Callable[[int], BytesIO]]:
    """The number of images, and a function that opens one."""
    return len(source), lambda i: BytesIO(source.read(i))


def stream(
    folder: Path, source: Source, train: Source, options: ReadOptions, test: Source | None = None
) -> ImageSet:
    """The images of a source, decoded when they are needed. Classes are numbered as in all splits."""
    size = options.size or suitable_size(*openers(train))
    names, labels = train.classes, source.labels
    if test is not None and not {*test.classes} <= {*names}:
        names = tuple(sorted({*names, *test.classes}))
    if labels is not None and names != source.classes:
        unknown_names = [name for name in source.classes if name not in names]
        if unknown_names:
            raise UserError(f"{source.root} has class {unknown_names[0]!r}, which train does not have")
        number = {name: i for i, name in enumerate(names)}
        labels = np.array([number[name] for name in source.classes])[labels]
    if source.root != folder:  # files are named as if they were listed
        source = replace(source, prefix=f"{os.path.relpath(source.root, folder)}/")
    images = StreamedImages(source, size, options.keep_aspect, options.threads, options.most_unreadable)
    return ImageSet(
        name=folder.resolve().name,
        images=images,
        labels=None if labels is None else torch.from_numpy(np.array(labels)),
        classes=names if labels is not None else (),
        files=images.files,
        skipped=tuple((os.path.relpath(path, folder), reason) for path, reason in sorted(source.skipped)),
    )
