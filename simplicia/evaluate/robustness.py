"""Robustness: train a linear probe once on clean images, test it on other sets and on corrupted images.

The probe is that of ``probe``, as in the paper, or the logistic regression of ``transfer``. Test sets are
folders of three kinds, recognised by their contents:

    <set>/<class>/*                           ImageNet-V2, -R, -A and the like: names of training classes
    <set>/<corruption>/<severity>/<class>/*   ImageNet-C
    <set>/<corruption>.npy and labels.npy     CIFAR-10-C and CIFAR-100-C: one severity after the other

A set with some of the classes is classified among these alone.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.evaluate import corruptions, transfer
from simplicia.evaluate.features import check_classes, check_labels, report_skipped
from simplicia.evaluate.make_result import make_result
from simplicia.evaluate.probe import ProbeSettings, fit, preset, preset_for
from simplicia.evaluate.sgd import FittedProbe
from simplicia.evaluate.transfer import TransferSettings
from simplicia.progress import Progress
from simplicia.result import Result, digest, over_seeds
from simplicia.run import Run

SEVERITIES = (1, 2, 3, 4, 5)
Batch = tuple[Tensor, Tensor, Tensor | None]  # images, labels, the classes to choose among


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

    The type of the settings selects the probe; the default is SGD with the paper's preset for the data.
    ``temperature`` is for logistic regression on SEM; SGD tries those of its grid.

    >>> few = ProbeSettings(epochs=1, lrs=(1.0,), temperatures=(1.0,))
    >>> len(robustness(run, train, test, [], corrupt=True, settings=few)["sets"][0]["per_corruption"])
    15
    """
    start = time.monotonic()
    settings = settings or preset(preset_for(train.name))
    _, labels = check_classes(train, test)
    size = run.recipe.actual_decode_size
    test_sets = [OtherSet(path, train.classes, size) for path in others]  # fail before training
    probe = fit_probe(run, train, layer, temperature, settings, network, quiet)
    rows = [test_set.measure(probe, quiet) for test_set in test_sets]
    if corrupt:
        rows.append(measure_corruptions(probe, test, settings.seed, quiet))
    return make_result(
        run,
        f"robustness, {probe.kind} on clean images",
        train,
        test,
        **probe.details,
        **over_seeds(probe.correct(test.images, labels), len(test)),
        sets=rows,
        seconds=time.monotonic() - start,
    )


def fit_probe(
    run: Run,
    train: ImageSet,
    layer: str | None,
    temperature: float | None,
    settings: ProbeSettings | TransferSettings,
    network: str = "online",
    quiet: bool = True,
) -> FittedProbe:
    """Train the probe that the type of the settings selects."""
    if isinstance(settings, TransferSettings):
        settings.validate()
        layer = transfer.default_layer(run, layer, temperature)
        splits = datasets.split(train, settings.validation, settings.seed)
        return transfer.fit(run, *splits, layer, temperature, settings, network, quiet)
    if temperature is not None:
        raise UserError(f"temperature is {temperature}; a probe by SGD has those of its settings' grid")
    return fit(run, train, layer, settings, network, quiet).best_probe()


class OtherSet:
    """A folder to test on, checked on construction, before any training."""

    def __init__(self, path: Path, classes: tuple[str, ...], size: int):
        self.path, self.size, self.skipped = path, size, 0
        self.numbers = {name: i for i, name in enumerate(classes)}
        if not path.is_dir():
            raise UserError(
                f"there is no folder {str(path)!r}; a test set is a folder of <class>/*, of "
                "<corruption>/<severity>/<class>/*, or of <corruption>.npy with labels.npy"
            )
        self.corruptions = sorted(p.stem for p in path.glob("*.npy") if p.stem != "labels")
        if self.corruptions or (path / "labels.npy").is_file():
            self.kind = "arrays"
            self._check_arrays()
            return
        self.corruptions = [
            c for c in _folders(path) if all((path / c / str(s)).is_dir() for s in SEVERITIES)
        ]
        self.kind = "corruption folders" if self.corruptions else "class folders"
        places = [path / c / str(s) for c in self.corruptions for s in SEVERITIES] or [path]
        self.classes_in = {place: self._class_folders(place) for place in places}

    def measure(self, probe: FittedProbe, quiet: bool = True) -> dict[str, Any]:
        """The accuracy of a probe; for corrupted images the mean, and each corruption and severity."""
        resolved = self.path.resolve()
        row: dict[str, Any] = {"set": resolved.name, "place": digest(str(resolved)), "kind": self.kind}
        if self.corruptions:
            row |= _measure_corruptions(self.corruptions, self._batches(), probe, quiet)
        else:
            images, labels, among = self._read(self.path)
            accuracy = over_seeds(probe.correct(images, labels, among), len(images))
            row |= {"images": len(images), "classes": len(among), **accuracy}
            if len(among) < len(self.numbers):
                among_all = over_seeds(probe.correct(images, labels), len(images))
                row |= {f"{key}_among_all": among_all[key] for key in ("accuracy", "standard_error")}
        return row | {"skipped_files": self.skipped}

    def _batches(self) -> Iterator[Batch]:
        """Each severity of each corruption."""
        if self.kind == "corruption folders":
            yield from map(self._read, self.classes_in)
            return
        for name in self.corruptions:
            severities = (np.split(self._array(each), 5) for each in (name, "labels"))
            for pixels, labels in zip(*severities, strict=True):
                images = torch.from_numpy(np.array(pixels)).permute(0, 3, 1, 2).contiguous()
                yield images, torch.from_numpy(labels.astype(np.int64)), None

    def _read(self, path: Path) -> tuple[Tensor, Tensor, Tensor]:
        images = datasets.read_all(path, self.size)
        report_skipped(str(path), images.skipped)
        self.skipped += len(images.skipped)
        for file in images.files:
            if "/" not in file:
                raise UserError(f"{str(path / file)!r} is outside of the class folders; it has no class")
        labels = torch.tensor([self.numbers[file.split("/")[0]] for file in images.files])
        return images.images, labels, torch.tensor([self.numbers[name] for name in self.classes_in[path]])

    def _class_folders(self, path: Path) -> list[str]:
        names = _folders(path)
        if not names:
            raise UserError(f"{str(path)!r} has no folders of classes; it takes <class>/*")
        unknown = [name for name in names if name not in self.numbers]
        if unknown:
            raise UserError(
                f"{str(path)!r} has {len(unknown)} folders that are no class of the training images, such as "
                f"{unknown[0]!r}; theirs are named {next(iter(self.numbers))!r}"
            )
        return names

    def _array(self, name: str) -> np.ndarray:
        try:
            return np.lib.format.open_memmap(self.path / f"{name}.npy", mode="r")  # refuses pickled objects
        except Exception as error:  # numpy reads the header as Python, with all of its errors
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"{self.path / name}.npy cannot be read as an array: {reason}") from error

    def _check_arrays(self) -> None:
        labels, where = self._array("labels"), repr(str(self.path))
        if not self.corruptions:
            raise UserError(f"{where} has labels.npy but no <corruption>.npy")
        for name in self.corruptions:
            array = self._array(name)
            is_image = array.ndim == 4 and array.shape[3] == 3 and array.dtype == np.uint8
            if not is_image or not array.size or len(array) % 5:
                raise UserError(
                    f"{name}.npy in {where} is {array.dtype} {array.shape}; it must be uint8 "
                    "(5 N, H, W, 3): five severities of N images"
                )
            if labels.shape != (len(array),):
                raise UserError(
                    f"labels.npy in {where} has {labels.size} labels, but {name}.npy has {len(array)} images"
                )
        if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= len(self.numbers):
            raise UserError(f"labels.npy in {where} must be whole numbers from 0 to {len(self.numbers) - 1}")


def measure_corruptions(probe: FittedProbe, test: ImageSet, seed: int, quiet: bool = True) -> dict[str, Any]:
    """Accuracy on the fifteen standard corruptions of the test images, rounded to 8 bits as files are."""
    labels, device = check_labels(test), probe.run.device

    def corrupted(name: str, severity: int) -> Tensor:
        g = torch.Generator(device).manual_seed(seed)
        clean = (batch.to(device).float() / 255 for batch in test.images.split(256))
        batches = (corruptions.corrupt(batch, name, severity, g) for batch in clean)
        return torch.cat([(batch * 255).round().to(torch.uint8) for batch in batches])

    names = corruptions.names()
    batches = ((corrupted(name, severity), labels, None) for name in names for severity in SEVERITIES)
    return {
        "set": f"{test.name}, corrupted here",
        "kind": "made from the clean test images; frost is drawn; not the published files",
        "corruption_seed": seed,
        **_measure_corruptions(names, batches, probe, quiet),
    }


def _measure_corruptions(
    names: list[str], batches: Iterator[Batch], probe: FittedProbe, quiet: bool
) -> dict[str, Any]:
    """Accuracy of each corruption and severity; the mean is over the standard ones if there are any."""
    rows: dict[str, list[float]] = {name: [] for name in names}
    standard, images = corruptions.names(), 0
    with closing(Progress("corruptions", 5 * len(names), 0, quiet)) as bar:
        for i, (x, y, among) in enumerate(batches):
            name = names[i // 5]
            rows[name].append(over_seeds(probe.correct(x, y, among), len(x))["accuracy"])
            images += len(x)
            bar.update(i + 1, f"{name} {rows[name][-1]:.1f} %")
    averaged = [name for name in names if name in standard] or names
    return {
        "images": images,
        "accuracy": sum(sum(rows[name]) for name in averaged) / (5 * len(averaged)),
        "corruptions_in_mean": len(averaged),
        "standard_missing": [name for name in standard if name not in names],
        "per_severity": [sum(rows[name][s] for name in averaged) / len(averaged) for s in range(5)],
        "per_corruption": rows,
    }


def _folders(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
