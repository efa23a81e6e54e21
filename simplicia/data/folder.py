"""Any folder of images as a data set: `folder/<class>/*`, `folder/train/<class>/*`, or just images.

Files that cannot be read are skipped and listed; they never end the work.
"""

import os
import stat
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from simplicia.data.decoding import decode_files, digest, suitable_size
from simplicia.data.image_set import ImageSet, ReadOptions, held_out
from simplicia.errors import UserError

EXTENSIONS = (".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# image formats that are not read, and reported as skipped
UNSUPPORTED = (
    ".arw", ".avif", ".cr2", ".cr3", ".dng", ".heic", ".heif", ".jp2", ".jxl", ".nef", ".psd", ".svg"
)  # fmt: skip
# names of splits, in any case
TRAIN_FOLDERS = ("train", "training")
VAL_FOLDERS = ("val", "valid", "validation")
TEST_FOLDERS = ("test", "testing", *VAL_FOLDERS)
TEST_SHARE = 0.1


Entry = tuple[Path, str | None]  # a file and its class folder; None for files outside of those


class Listing(NamedTuple):
    """The image files below a folder."""

    entries: list[Entry]
    skipped: list[tuple[Path, str]]  # (path, reason): cannot be opened, or of an unsupported format

    @property
    def files(self) -> list[Path]:
        return [file for file, _ in self.entries]

    @property
    def labelled(self) -> bool:
        return all(name is not None for _, name in self.entries)


class Layout(NamedTuple):
    """The splits of a folder; without a test split, a share of each class is held out for testing."""

    train: Listing
    test: Listing | None = None
    val: Listing | None = None  # if it is not the test split


def load(folder: Path, split: str, options: ReadOptions, splits: Layout | None = None) -> ImageSet:
    """The "train" or "test" images of a folder, in the splits of its ``layout``."""
    if options.size is not None and not 8 <= options.size <= 1024:
        raise UserError(f"size is {options.size}; images of a folder can have from 8 to 1024 pixels")
    train, test, _ = layout(folder) if splits is None else splits
    if not train.entries:
        raise UserError(
            f"there are no images to learn from in {str(folder)!r}; images are {' '.join(EXTENSIONS)}"
        )
    chosen = train if test is None or split == "train" else test
    if test is None and train.labelled:
        mask = held_out(np.array([name for _, name in train.entries]), TEST_SHARE) == (split == "test")
        chosen = train._replace(entries=[train.entries[i] for i in np.flatnonzero(mask)])
    elif test is None and split == "test":
        raise UserError(f"{str(folder)!r} has neither classes nor a test folder, so it has no test images")
    if not chosen.entries:
        raise UserError(f"{str(folder)!r} has no class of two images or more, so none is left for {split}")
    images = decode_listing(folder, chosen, train.entries, options, test.entries if test else [])
    return replace(images, source=str(folder.resolve()))


def validation(folder: Path, options: ReadOptions) -> ImageSet | None:
    """The val images of a folder; None if there are none, or if they are its test split."""
    train, test, val = layout(folder)
    if test is None or val is None or not (train.labelled and test.labelled):
        return None
    classes = {name for _, name in train.entries + test.entries}
    for file, name in val.entries:
        if name is None:
            raise UserError(f"{str(file)!r} is outside of the class folders; it has no class")
        if name not in classes:
            raise UserError(f"{str(file)!r} has class {name!r}, which train does not have")
    return decode_listing(folder, val, train.entries, options, test.entries)


def read_all(path: Path, size: int) -> ImageSet:
    """One image file, or all images below a folder, without labels or splits."""
    if path.is_file():
        files, skipped, root = [path], [], path.parent
    elif path.is_dir():
        listing, root = _list(path), path
        files, skipped = listing.files, listing.skipped
    else:
        raise UserError(f"there is no folder or image {str(path)!r}")
    if not files:
        raise UserError(f"there is no image in {str(path)!r}; images are {' '.join(EXTENSIONS)}")
    return decode_listing(
        root, Listing([(file, None) for file in files], skipped), [], ReadOptions(size=size)
    )


def decode_listing(
    folder: Path, listing: Listing, train: list[Entry], options: ReadOptions, others: Iterable[Entry] = ()
) -> ImageSet:
    """Decode the files of a listing, with labels if each file has a class.

    All splits get the size that suits the ``train`` images, and number the classes of these and ``others``.
    """
    size = options.size or suitable_size([file for file, _ in train])
    images, report = decode_files(listing.files, size, options.keep_aspect, options.progress)
    names = sorted({name for _, name in (*train, *others) if name is not None}) if listing.labelled else []
    number = {name: i for i, name in enumerate(names)}
    readable = [listing.entries[i] for i in report.readable]
    skipped = sorted(listing.skipped + report.skipped)
    return ImageSet(
        name=folder.resolve().name,
        images=torch.from_numpy(images),
        labels=torch.tensor([number[name or ""] for _, name in readable]) if names else None,
        classes=tuple(names),
        aspect_ratios=torch.tensor(report.aspect_ratios) if options.keep_aspect else None,
        files=tuple(file.relative_to(folder).as_posix() for file, _ in readable),
        skipped=tuple((path.relative_to(folder).as_posix(), reason) for path, reason in skipped),
    )


def fingerprint(folder: Path) -> str:
    """A digest that changes when files of a folder are added, changed or removed."""
    train, test, _ = layout(folder)
    return digest(sorted({*train.files, *(test.files if test else ())}), 0)


def layout(folder: Path, test_folders: tuple[str, ...] = TEST_FOLDERS) -> Layout:
    """The training and test images of a folder.

    A subfolder called train is the training split if there is also a test folder, or nothing else; otherwise
    it is a class. The test split is the first of ``test_folders`` with images, or, if training images have
    labels, the first with labels. Names of splits match in any case; splits and classes may be links.
    """
    inside = _subfolders(folder)
    train_name = _match(inside, TRAIN_FOLDERS)
    present = {test: name for test in test_folders if (name := _match(inside, (test,))) is not None}
    if train_name is None or (inside != {train_name} and not present):
        return Layout(_list(folder))
    train = _list(folder / train_name)
    listings = {test: _list(folder / name) for test, name in present.items()}
    listings = {test: listing for test, listing in listings.items() if listing.entries}
    labelled = {test: listing for test, listing in listings.items() if listing.labelled and train.labelled}
    for test, listing in (labelled or listings).items():
        val = [] if test in VAL_FOLDERS else [listings[name] for name in VAL_FOLDERS if name in listings]
        return Layout(train, listing, val[0] if val else None)
    return Layout(train)


def _subfolders(folder: Path) -> set[str]:
    try:
        return {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}
    except OSError as error:
        raise UserError(f"the folder {str(folder)!r} cannot be opened: {error.strerror}") from error


def _match(inside: set[str], names: tuple[str, ...]) -> str | None:
    """The subfolder with one of the names in any case, preferably in lower case."""
    matches = sorted((n for n in inside if n.lower() in names), key=lambda n: (n not in names, n))
    return matches[0] if matches else None


def _list(folder: Path) -> Listing:
    """All image files below a folder, sorted by path. Links are followed to class folders only."""
    entries: list[Entry] = []
    skipped: list[tuple[Path, str]] = []

    def skip(error: OSError) -> None:
        skipped.append((Path(error.filename), error.strerror or "cannot be opened"))

    resolved, roots = folder.resolve(), [folder]
    walks = ((root, *step) for root in roots for step in os.walk(root, onerror=skip))
    for root, parent, subfolders, files in walks:
        below = Path(parent).relative_to(folder).parts
        if below and "recipe.yaml" in files:  # a run directory: its images are not data
            subfolders.clear()
            continue
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for path in (Path(parent, name) for name in files if not name.startswith(".")):
            suffix = path.suffix.lower()
            if suffix in UNSUPPORTED:
                skipped.append((path, f"{suffix} is not supported; save it as .jpg or .png"))
            if suffix not in EXTENSIONS:
                continue
            try:
                if stat.S_ISREG(path.stat().st_mode):
                    entries.append((path, below[0] if below else None))
            except OSError as error:
                skipped.append((path, error.strerror or "cannot be read"))
        for link in (Path(parent, name) for name in subfolders if Path(parent, name).is_symlink()):
            target = link.resolve()
            inside = target.is_relative_to(resolved) or resolved.is_relative_to(target)
            if root == folder and (below or inside):
                skipped.append((link, "a link to a folder, which is not followed"))
            elif root == folder:
                roots.append(link)
    entries.sort(key=lambda entry: entry[0].relative_to(folder).as_posix())
    return Listing(entries, skipped)
