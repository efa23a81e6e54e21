"""List the images of a folder: `folder/<class>/*`, `folder/train/<class>/*`, or just images."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simplicia.data.decoding import digest
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

Entry = tuple[Path, str | None]  # a file and its class folder; None for files outside of those


class Listing(NamedTuple):
    """The image files below a folder. Files that cannot be read are listed, and never end the work."""

    entries: list[Entry]
    skipped: list[tuple[Path, str]]  # (path, reason): cannot be opened, or of an unsupported format
    folders: tuple[Path, ...] = ()  # all that were looked into; a new file changes the time of one of them

    @property
    def files(self) -> list[Path]:
        return [file for file, _ in self.entries]

    @property
    def labelled(self) -> bool:
        return all(name is not None for _, name in self.entries)

    def class_of_each(self) -> np.ndarray:
        """What tells the classes of the images apart."""
        return np.array([name for _, name in self.entries])

    def only(self, chosen: np.ndarray) -> "Listing":
        """Some of the images."""
        return self._replace(entries=[self.entries[i] for i in chosen])


class Layout(NamedTuple):
    """The splits of a folder; without a test split, a share of each class is held out for testing."""

    train: Any  # a Listing, or what can take its place
    test: Any = None
    val: Any = None  # if it is not the test split


def fingerprint(folder: Path) -> str:
    """A digest that changes when files of a folder are added, changed or removed."""
    train, test, _ = layout(folder)
    return digest(sorted({*train.files, *(test.files if test else ())}), 0)


def layout(
    folder: Path,
    test_folders: tuple[str, ...] = TEST_FOLDERS,
    list_folder: Callable[[Path], Any] | None = None,
) -> Layout:
    """The training and test images of a folder.

    A subfolder called train is the training split if there is also a test folder, or nothing else; otherwise
    it is a class. The test split is the first of ``test_folders`` with images, or, if training images have
    labels, the first with labels. Names of splits match in any case; splits and classes may be links.
    """
    list_folder = list_folder or list_images
    inside = _subfolders(folder)
    train_name = _match(inside, TRAIN_FOLDERS)
    present = {test: name for test in test_folders if (name := _match(inside, (test,))) is not None}
    if train_name is None or (inside != {train_name} and not present):
        return Layout(list_folder(folder))
    train = list_folder(folder / train_name)
    listings = {test: list_folder(folder / name) for test, name in present.items()}
    return choose_splits(train, {test: listing for test, listing in listings.items() if listing.entries})


def choose_splits(train: Any, listings: dict[str, Any]) -> Layout:
    """The splits, given those that may be tested on in the order of preference."""
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


def list_images(folder: Path) -> Listing:
    """All image files below a folder, sorted by path. Links are followed to class folders only."""
    entries: list[Entry] = []
    skipped: list[tuple[Path, str]] = []
    visited: list[Path] = []

    def skip(error: OSError) -> None:
        skipped.append((Path(error.filename), error.strerror or "cannot be opened"))

    resolved, roots = folder.resolve(), [folder]
    walks = ((root, *step) for root in roots for step in os.walk(root, onerror=skip))
    for root, parent, subfolders, files in walks:
        visited.append(Path(parent))
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
    return Listing(entries, skipped, tuple(visited))
