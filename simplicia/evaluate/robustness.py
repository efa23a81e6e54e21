"""Robustness: a linear probe trained once on clean images, tested on other sets and on corrupted images.

The probe is that of `probe`, as in the paper, or the logistic regression of `transfer`. Folders it can be
tested on, told apart by what is in them:

    <set>/<class>/*                           ImageNet-V2, -R, -A and the like: names of training classes
    <set>/<corruption>/<severity>/<class>/*   ImageNet-C
    <set>/<corruption>.npy and labels.npy     CIFAR-10-C and CIFAR-100-C: the severities one after the other

A set with some of the classes is one among these: scores of the others are left out.
"""

import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simplicia.data import folder
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.evaluate import corruptions
from simplicia.evaluate.features import check_classes, report_skipped
from simplicia.evaluate.fitted_probe import Probe, by_logistic, by_sgd
from simplicia.evaluate.make_result import make_result
from simplicia.evaluate.probe import ProbeSettings, preset, preset_for
from simplicia.evaluate.transfer import TransferSettings
from simplicia.progress import Progress
from simplicia.result import Result, digest, over_seeds
from simplicia.run import Run

SEVERITIES = (1, 2, 3, 4, 5)


def robustness(
    run: Run,
    train: ImageSet,
    test: ImageSet,
    others: list[Path],
    corrupt: bool = False,
    layer: str | None = None,
    temperature: float | None = None,
    settings: ProbeSettings | TransferSettings | None = None,
    network: str = "online",
    quiet: bool = True,
) -> Result:
    """Accuracies of one probe on clean test images, on other sets, and with ``corrupt`` on corrupted ones.

    Its settings say which probe: without any it is the one by SGD with the preset that the paper has for the
    data. ``temperature`` is for the logistic regression on SEM; SGD has those of its grid.
    """
    start = time.monotonic()
    settings = settings or preset(preset_for(train.name))
    if temperature is not None and isinstance(settings, ProbeSettings):
        raise UserError(f"temperature is {temperature}; a probe by SGD has those of its settings' grid")
    check_classes(train, test)
    assert test.labels is not None
    tests = [
        OtherSet(path, train.classes, run.recipe.actual_decode_size) for path in others
    ]  # before training
    probe = (
        by_logistic(run, train, layer, temperature, settings, network, quiet)
        if isinstance(settings, TransferSettings)
        else by_sgd(run, train, layer, settings, network, quiet)
    )
    clean = over_seeds(probe.correct(test.images, test.labels), len(test))
    found = [other.measure(probe, quiet) for other in tests]
    if corrupt:
        found.append(corrupted(probe, test, settings.seed, quiet))
    return make_result(
        run,
        f"robustness, {probe.kind} on clean images",
        train,
        test,
        **probe.about,
        **clean,
        sets=found,
        seconds=time.monotonic() - start,
    )


class OtherSet:
    """A folder to test on. What is wrong with it is told when it is made, before any training."""

    def __init__(self, path: Path, classes: tuple[str, ...], size: int):
        self.path, self.size, self.name = path, size, path.resolve().name
        self.classes, self.skipped = classes, 0
        if not path.is_dir():
            raise UserError(
                f"there is no folder {str(path)!r}; a test set is a folder of <class>/*, of "
                "<corruption>/<severity>/<class>/*, or of <corruption>.npy with labels.npy"
            )
        inside = sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
        severities = [str(s) for s in SEVERITIES]
        self.corruptions = [c for c in inside if all((path / c / s).is_dir() for s in severities)]
        self.arrays = sorted(p.stem for p in path.glob("*.npy") if p.stem != "labels")
        if self.arrays or (path / "labels.npy").is_file():
            self.kind = "arrays"
            self._check_arrays()
        elif self.corruptions:
            self.kind = "corruption folders"
            for c in self.corruptions:
                for s in severities:
                    self._subset(path / c / s)
        else:
            self.kind = "class folders"
            self._subset(path)

    def measure(self, probe: Probe, quiet: bool = True) -> dict[str, Any]:
        """The accuracy of a probe; on corrupted images the mean, and each corruption and severity."""
        if self.kind == "class folders":
            images, labels, among = self._read(self.path)
            found = {
                "set": self.name,
                "place": digest(str(self.path.resolve())),
                "kind": self.kind,
                "images": len(images),
                "classes": len(among),
                **over_seeds(probe.correct(images, labels, among), len(images)),
            }
            found["skipped_files"] = self.skipped
            if len(among) < len(self.classes):
                of_all = over_seeds(probe.correct(images, labels), len(images))
                found |= {f"{key}_among_all": of_all[key] for key in ("accuracy", "standard_error")}
            return found
        names = self.arrays if self.kind == "arrays" else self.corruptions
        return {
            "set": self.name,
            "place": digest(str(self.path.resolve())),
            "kind": self.kind,
            **_table(names, self._parts(names), probe, quiet),
            "skipped_files": self.skipped,
        }

    def _parts(self, names: list[str]) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        for name in names:
            array = self._array(name) if self.kind == "arrays" else None
            for severity in SEVERITIES:
                if array is None:
                    yield self._read(self.path / name / str(severity))
                    continue
                count = len(array) // 5
                rows = slice((severity - 1) * count, severity * count)
                pixels = torch.from_numpy(np.array(array[rows])).permute(0, 3, 1, 2).contiguous()
                yield pixels, torch.from_numpy(self._array("labels")[rows].astype(np.int64)), None

    def _subset(self, path: Path) -> list[str]:
        names = sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
        if not names:
            raise UserError(f"{str(path)!r} has no folders of classes; it takes <class>/*")
        strange = [name for name in names if name not in self.classes]
        if strange:
            raise UserError(
                f"{str(path)!r} has {len(strange)} folders that are no class of the training images, such as "
                f"{strange[0]!r}; theirs are named {self.classes[0]!r}"
            )
        return names

    def _read(self, path: Path) -> tuple[Tensor, Tensor, Tensor]:
        names = self._subset(path)
        images = folder.read_all(path, self.size)
        report_skipped(str(path), images.skipped)
        self.skipped += len(images.skipped)
        number = {name: i for i, name in enumerate(self.classes)}
        loose = [file for file in images.files if "/" not in file]
        if loose:
            raise UserError(f"{str(path / loose[0])!r} lies beside the folders of classes; it has no class")
        labels = torch.tensor([number[file.split("/")[0]] for file in images.files])
        return images.images, labels, torch.tensor([number[name] for name in names])

    def _array(self, name: str) -> np.ndarray:
        try:
            array = np.load(self.path / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            if not isinstance(array, np.ndarray):  # an .npz by its content
                raise ValueError("it is an archive of several")
            return array
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"{self.path / name}.npy cannot be read as an array: {reason}") from error

    def _check_arrays(self) -> None:
        labels = self._array("labels")
        if not self.arrays:
            raise UserError(f"{str(self.path)!r} has labels.npy but no <corruption>.npy beside it")
        for name in self.arrays:
            array = self._array(name)
            fits = array.ndim == 4 and array.shape[3] == 3 and array.dtype == np.uint8
            if not fits or not array.size or len(array) % 5:
                raise UserError(
                    f"{name}.npy in {str(self.path)!r} is {array.dtype} {array.shape}; it must be uint8 "
                    "(5 N, H, W, 3): five severities of N images"
                )
            if labels.shape != (len(array),):
                raise UserError(
                    f"labels.npy in {str(self.path)!r} has {labels.size} labels, but {name}.npy has "
                    f"{len(array)} images"
                )
        if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= len(self.classes):
            raise UserError(
                f"labels.npy in {str(self.path)!r} must be whole numbers from 0 to {len(self.classes) - 1}"
            )


def corrupted(probe: Probe, test: ImageSet, seed: int = 0, quiet: bool = True) -> dict[str, Any]:
    """The fifteen standard corruptions of the test images, made here; rounded to 8 bits as files are."""
    assert test.labels is not None
    labels, device = test.labels, probe.run.device

    def parts() -> Iterator[tuple[Tensor, Tensor, None]]:
        for name in corruptions.names():
            for severity in SEVERITIES:
                g = torch.Generator(device).manual_seed(seed)
                changed = (
                    corruptions.corrupt(part.to(device).float() / 255, name, severity, g)
                    for part in test.images.split(256)
                )
                yield torch.cat([(part * 255).round().to(torch.uint8) for part in changed]), labels, None

    return {
        "set": f"{test.name}, corrupted here",
        "kind": "made from the clean test images; frost is drawn; not the published files",
        "corruption_seed": seed,
        **_table(corruptions.names(), parts(), probe, quiet),
    }


def _table(names: list[str], parts: Iterator[Any], probe: Probe, quiet: bool) -> dict[str, Any]:
    """Accuracy of each corruption and severity; the mean is of the standard ones, others are only listed."""
    bar, done = Progress("corruptions", 5 * len(names), 0, quiet), 0
    rows: dict[str, list[float]] = {name: [] for name in names}
    images = 0
    try:
        for name in names:
            for _ in SEVERITIES:
                x, y, among = next(parts)
                rows[name].append(over_seeds(probe.correct(x, y, among), len(x))["accuracy"])
                images, done = images + len(x), done + 1
                bar.update(done, f"{name} {rows[name][-1]:.1f} %")
    finally:
        bar.close()
    standard = [name for name in names if name in corruptions.names()]
    counted = standard or names
    return {
        "images": images,
        "accuracy": sum(sum(rows[name]) for name in counted) / (5 * len(counted)),
        "corruptions_in_mean": len(counted),
        "standard_missing": [name for name in corruptions.names() if name not in names],
        "per_severity": [sum(rows[name][s] for name in counted) / len(counted) for s in range(5)],
        "per_corruption": rows,
    }
