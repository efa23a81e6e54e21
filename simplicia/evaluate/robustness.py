"""Robustness: a linear probe trained once on clean images, tested on other sets and on corrupted images.

The probe is the logistic regression of `transfer`: its regulariser chosen on held-out clean images, fitted
on all of them. Folders it can be tested on, told apart by what is in them:

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
from simplicia.evaluate.features import percent, result
from simplicia.evaluate.logistic import Codes, Dense, Fit, Matrix
from simplicia.evaluate.transfer import (
    Splits,
    TransferSettings,
    default_layer,
    fitted,
    shown_temperature,
)
from simplicia.run import Run, represent
from simplicia.train.log import Progress

SEVERITIES = (1, 2, 3, 4, 5)


class Probe:
    """The classifier, and how it sees images."""

    def __init__(self, run: Run, fit: Fit, layer: str, temperature: float | None, network: str):
        self.run, self.fit, self.layer, self.temperature = run, fit, layer, temperature
        self.net: Any = run.network(network)

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """Of a batch of uint8 images; (N, classes)."""
        h = represent(self.net, self.net.encoder(self.run.view(images)).float(), self.layer, self.temperature)
        h = h.to(self.fit.weight.device)
        matrix: Matrix = Codes(h, self.net.bottleneck.vertices) if self.layer == "codes" else Dense(h)
        return matrix.times(self.fit.weight) + self.fit.bias

    def correct(self, images: Tensor, labels: Tensor, among: Tensor | None = None) -> int:
        """How many of the images are right, guessed among some of the classes (None: all)."""
        right = torch.zeros((), dtype=torch.long, device=self.fit.weight.device)
        for x, y in zip(images.split(256), labels.to(right.device).split(256), strict=True):
            scores = self.scores(x)
            if among is not None:
                left_out = torch.ones(scores.shape[1], dtype=torch.bool, device=scores.device)
                left_out[among.to(scores.device)] = False
                scores = scores.masked_fill(left_out, -torch.inf)
            right += (scores.argmax(1) == y).sum()
        return int(right.item())


def robustness(
    run: Run,
    sets: Splits,
    others: list[Path],
    corrupt: bool = False,
    layer: str | None = None,
    temperature: float | None = None,
    settings: TransferSettings | None = None,
    network: str = "online",
    quiet: bool = True,
) -> dict[str, Any]:
    """Accuracies of one probe on clean test images, on other sets, and with ``corrupt`` on corrupted ones."""
    start = time.monotonic()
    settings = settings or TransferSettings()
    settings.validate()
    layer = default_layer(run, layer)
    classes = sets.train.classes
    tests = [OtherSet(path, classes, run.recipe.image_size) for path in others]  # looked at before training
    assert sets.test.labels is not None
    chosen = fitted(run, sets, layer, temperature, settings, network, quiet)
    probe = Probe(run, chosen.fit, layer, temperature, network)
    clean = percent(probe.correct(sets.test.images, sets.test.labels), len(sets.test))
    found = [test.measure(probe, quiet) for test in tests]
    if corrupt:
        found.append(corrupted(probe, sets.test, settings.seed, quiet))
    return result(
        run,
        "robustness, linear probe on clean images",
        sets.train,
        sets.test,
        network=network,
        layer=layer,
        temperature=shown_temperature(run, layer, temperature),
        train_images=len(sets.train) + len(sets.val),
        probe="multinomial logistic regression, chosen on held-out clean images",
        selected={"regulariser": chosen.regulariser},
        seeds=[settings.seed],
        regulariser=chosen.regulariser,
        validation_accuracy=max(row["validation_accuracy"] for row in chosen.path),
        validation_images=len(sets.val),
        solver=chosen.solver,
        converged=chosen.fit.converged,
        weight_norm=chosen.fit.weight.norm().item(),
        path=chosen.path,
        **clean,
        sets=found,
        seconds=time.monotonic() - start,
    )


class OtherSet:
    """A folder to test on. What is wrong with it is told when it is made, before any training."""

    def __init__(self, path: Path, classes: tuple[str, ...], size: int):
        self.path, self.size, self.name = path, size, path.resolve().name
        self.classes = classes
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
            shared = {"images": len(images), "classes": len(among)}
            return {
                "set": self.name,
                "kind": self.kind,
                **shared,
                **percent(probe.correct(images, labels, among), len(images)),
            }
        names = self.arrays if self.kind == "arrays" else self.corruptions
        return {
            "set": self.name,
            "kind": self.kind,
            **_table(names, self._parts(names), probe, quiet),
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
        images, files, _ = folder.read_all(path, self.size)
        number = {name: i for i, name in enumerate(self.classes)}
        loose = [file for file in files if "/" not in file]
        if loose:
            raise UserError(f"{str(path / loose[0])!r} lies beside the folders of classes; it has no class")
        labels = torch.tensor([number[file.split("/")[0]] for file in files])
        return images, labels, torch.tensor([number[name] for name in names])

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
                rows[name].append(100 * probe.correct(x, y, among) / len(x))
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
