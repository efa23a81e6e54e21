"""Any folder of images as a data set: `folder/<class>/*`, `folder/train/<class>/*`, or just images.

What cannot be read is named and skipped; it never ends the work.
"""

import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from simplicia.data.datasets import ImageSet, held_out
from simplicia.data.decoded_cache import Contents, digest, kept
from simplicia.data.image_files import opened, picture
from simplicia.errors import UserError

EXTENSIONS = (".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# pictures that are not read, and told
OTHERS = (".arw", ".avif", ".cr2", ".cr3", ".dng", ".heic", ".heif", ".jp2", ".jxl", ".nef", ".psd", ".svg")
SIZES = (32, 64, 96, 128, 224)
# splits, however their names are written
TRAIN_FOLDERS = ("train", "training")
VAL_FOLDERS = ("val", "valid", "validation")
TEST_FOLDERS = ("test", "testing", *VAL_FOLDERS)
TEST_SHARE = 0.1


@dataclass(frozen=True)
class Listing:
    """The image files below a folder, and the class folder of each: None if it lies beside those."""

    files: list[Path]
    classes: list[str | None]
    unread: list[tuple[Path, str]]  # what could not be opened, and pictures of other formats

    @property
    def labelled(self) -> bool:
        return None not in self.classes


def load(
    folder: Path,
    split: str,
    size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    keep_aspect: bool = False,
    tests: tuple[str, ...] = TEST_FOLDERS,
) -> ImageSet:
    """The images of a folder, `size` pixels wide (None: as suits them); `layout` says what a split is.

    Their centre squares, or, if `whole`, all that is in them, squeezed into squares.
    """
    if size is not None and not 8 <= size <= 1024:
        raise UserError(f"the images of a folder can be brought to a size from 8 to 1024 pixels, not {size}")
    train, test, _ = layout(folder, tests)
    if not train.files:
        raise UserError(
            f"there are no images to learn from in {str(folder)!r}; images are {' '.join(EXTENSIONS)}"
        )
    # From the training images, whatever the split: both splits must come out alike.
    size = size or suitable_size(train.files)
    chosen = train if test is None or split == "train" else test
    files, classes = chosen.files, chosen.classes
    if test is None and train.labelled:
        mask = held_out(np.array(classes), TEST_SHARE) == (split == "test")
        files = [file for file, taken in zip(files, mask, strict=True) if taken]
        classes = [name for name, taken in zip(classes, mask, strict=True) if taken]
    elif test is None and split == "test":
        raise UserError(f"{str(folder)!r} has neither classes nor a test folder, so it has no test images")
    if not files:
        raise UserError(f"{str(folder)!r} has no class of two images or more, so none is left for {split}")

    images, found = decode_all(files, size, progress, keep_aspect)
    if not found.readable:
        path, reason = found.skipped[0]
        raise UserError(f"none of the {len(files)} images can be read, such as {str(path)!r}: {reason}")
    skipped = sorted(chosen.unread + found.skipped)
    names: list[str] = []
    labels = None
    if chosen.labelled:
        # Of both splits together, so that a class has the same number in either.
        names = sorted({name for name in train.classes + (test or train).classes if name is not None})
        number: dict[str | None, int] = {name: i for i, name in enumerate(names)}
        labels = torch.tensor([number[classes[i]] for i in found.readable])
    return ImageSet(
        name=folder.resolve().name,
        source=str(folder.resolve()),
        images=images,
        labels=labels,
        classes=tuple(names),
        aspect_ratios=torch.tensor(found.aspect_ratios) if keep_aspect else None,
        files=tuple(files[i].relative_to(folder).as_posix() for i in found.readable),
        skipped=tuple((path.relative_to(folder).as_posix(), reason) for path, reason in skipped),
    )


def validation(folder: Path, size: int) -> ImageSet | None:
    """The images of a folder's val split, if it has one beside its train and test splits."""
    train, test, taken = layout(folder)
    inside = {p.name for p in folder.iterdir() if p.is_dir()}
    called = [_called(inside, (name,)) for name in VAL_FOLDERS]
    names = [name for name in called if name is not None and _list(folder / name).files]
    # Where val had to be the test split, it is not there to choose on.
    if test is None or taken in VAL_FOLDERS or not names or not (train.labelled and test.labelled):
        return None
    images, files, skipped = read_all(folder / names[0], size)
    if loose := [file for file in files if "/" not in file]:
        raise UserError(f"{str(folder / names[0] / loose[0])!r} lies beside the folders of classes")
    own = [file.split("/")[0] for file in files]
    classes = sorted({name for name in train.classes + test.classes if name is not None})
    if unseen := sorted(set(own) - set(classes)):
        raise UserError(f"{str(folder / names[0])!r} has class {unseen[0]!r}, which train does not have")
    return ImageSet(
        name=folder.resolve().name,
        images=images,
        labels=torch.tensor([classes.index(name) for name in own]),
        classes=tuple(classes),
        files=tuple(f"{names[0]}/{file}" for file in files),
        skipped=tuple((f"{names[0]}/{file}", reason) for file, reason in skipped),
    )


def fingerprint(folder: Path) -> str:
    """Another one when files of a folder are added, changed or removed."""
    files = sorted({file for listing in layout(folder)[:2] if listing is not None for file in listing.files})
    return digest(files, 0)


def read_all(path: Path, size: int) -> tuple[torch.Tensor, list[str], list[tuple[str, str]]]:
    """Every image of a folder, whatever its splits, or one file: images, names, what was skipped."""
    if path.is_file():
        files, root, unread = [path], path.parent, []
    elif path.is_dir():
        listing = _list(path)
        files, root, unread = listing.files, path, listing.unread
    else:
        raise UserError(f"there is no folder or image {str(path)!r}")
    if not files:
        raise UserError(f"there is no image in {str(path)!r}; images are {' '.join(EXTENSIONS)}")
    images, found = decode_all(files, size)
    if not found.readable:
        file, reason = found.skipped[0]
        raise UserError(f"none of the {len(files)} images can be read, such as {file}: {reason}")
    named = [(file.relative_to(root).as_posix(), reason) for file, reason in sorted(unread + found.skipped)]
    return images, [files[i].relative_to(root).as_posix() for i in found.readable], named


def layout(folder: Path, tests: tuple[str, ...] = TEST_FOLDERS) -> tuple[Listing, Listing | None, str | None]:
    """The images to train on, those to test on and their folder; without them a tenth of each class is kept.

    A folder named train is the training split if a test folder lies beside it or nothing does, else a class;
    so are Train, TRAIN and training. Of several test folders the first with images is taken, and, where
    training images have labels, the first with labels.
    Splits and classes may be links to folders elsewhere.
    """
    try:
        inside = {p.name for p in folder.iterdir() if p.is_dir()}
    except OSError as error:
        raise UserError(f"the folder {str(folder)!r} cannot be opened: {error.strerror}") from error
    inside = {name for name in inside if not name.startswith(".")}
    train_name = _called(inside, TRAIN_FOLDERS)
    there = {called: name for called in tests if (name := _called(inside, (called,))) is not None}
    if train_name is None or (inside != {train_name} and not there):
        return _list(folder), None, None
    train = _list(folder / train_name)
    listings = {called: _list(folder / name) for called, name in there.items()}
    listings = {called: found for called, found in listings.items() if found.files}
    labelled = {called: found for called, found in listings.items() if found.labelled and train.labelled}
    for called, test in (labelled or listings).items():
        return train, test, called
    return train, None, None


def _called(inside: set[str], names: tuple[str, ...]) -> str | None:
    """The folder that has one of the names, however it is written; as it is, if there are several."""
    found = sorted((n for n in inside if n.lower() in names), key=lambda n: (n not in names, n))
    return found[0] if found else None


def _list(folder: Path) -> Listing:
    found: list[tuple[Path, str | None]] = []
    unread: list[tuple[Path, str]] = []

    def note(error: OSError) -> None:
        unread.append((Path(error.filename), error.strerror or "cannot be opened"))

    def look(place: str, folders: list[str], files: list[str]) -> None:
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = Path(place).relative_to(folder).parts
        if below and "recipe.yaml" in files:  # a run, whose pictures are of these
            folders.clear()
            return
        for name in files:
            path = Path(place, name)
            if path.suffix.lower() in OTHERS and not name.startswith("."):
                unread.append((path, f"{path.suffix.lower()} is not read; save it as .jpg or .png"))
            if path.suffix.lower() not in EXTENSIONS or name.startswith("."):
                continue
            try:
                if stat.S_ISREG(path.stat().st_mode):
                    found.append((path, below[0] if below else None))
            except OSError as error:
                unread.append((path, error.strerror or "cannot be read"))

    for place, folders, files in os.walk(folder, onerror=note):
        look(place, folders, files)
        for link in (Path(place, name) for name in folders if Path(place, name).is_symlink()):
            # to classes elsewhere, as subsets are made; not further, nor in circles
            root, there = folder.resolve(), link.resolve()
            if Path(place) != folder or there.is_relative_to(root) or root.is_relative_to(there):
                unread.append((link, "a link to a folder, which is not followed"))
                continue
            for inner in os.walk(link, onerror=note):
                look(*inner)
    found.sort(key=lambda pair: pair[0].relative_to(folder).as_posix())
    return Listing([path for path, _ in found], [name for _, name in found], unread)


def suitable_size(files: list[Path]) -> int:
    """The largest of `SIZES` that is not above the median short side of up to 64 images, or the least."""
    sides: list[int] = []
    for i in np.random.Generator(np.random.PCG64(0)).permutation(len(files)):
        try:
            with opened(files[i]) as image:
                sides.append(min(image.size))
        except Exception:  # whoever decodes it will say why
            continue
        if len(sides) == 64:
            break
    median = float(np.median(sides)) if sides else 0
    return max((size for size in SIZES if size <= median), default=SIZES[0])


def decode_all(
    files: list[Path],
    size: int,
    progress: Callable[[int, int], None] | None = None,
    keep_aspect: bool = False,
) -> tuple[torch.Tensor, Contents]:
    """The images that can be read, which ones they are, and what is wrong with the others."""
    from PIL import UnidentifiedImageError

    def attempt(path: Path) -> tuple[np.ndarray, float] | tuple[str, bool]:
        """The image and its aspect, or what is wrong, and whether with the file itself."""
        try:
            return picture(path, size, keep_aspect)
        except UnidentifiedImageError:
            return "not an image of a known format", True
        except Exception as error:  # Pillow raises nearly every exception there is
            outside = isinstance(error, MemoryError) or getattr(error, "errno", None) is not None
            return getattr(error, "strerror", None) or str(error) or type(error).__name__, not outside

    def fill(images: np.ndarray) -> Contents:
        found = Contents()
        executor = ThreadPoolExecutor(min(os.cpu_count() or 1, 8))  # each may hold a large image
        try:
            for i, (result, more) in enumerate(executor.map(attempt, files)):
                if isinstance(result, str):
                    found.skipped.append((files[i], result))
                    found.lasting = found.lasting and bool(more)
                else:
                    images[len(found.readable)] = result.transpose(2, 0, 1)
                    found.readable.append(i)
                    found.aspect_ratios.append(more)
                if progress is not None:
                    progress(i + 1, len(files))
        finally:
            executor.shutdown(cancel_futures=True)
        return found

    if place := os.environ.get("SIMPLICIA_CACHE"):
        images, found = kept(Path(place).expanduser(), files, size, fill, keep_aspect)
    else:
        _check_memory(len(files), size)
        images = np.empty((len(files), 3, size, size), dtype=np.uint8)
        found = fill(images)
    return torch.from_numpy(images[: len(found.readable)]), found


def _check_memory(count: int, size: int) -> None:
    needed = count * 3 * size * size
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return
    if needed > 0.9 * there:
        raise UserError(
            f"{count:,} images of {size} x {size} need {needed / 1e9:.0f} GB of memory, and this machine has "
            f"{there / 1e9:.0f}; make them smaller, or name a folder in SIMPLICIA_CACHE to keep them on disk"
        )
