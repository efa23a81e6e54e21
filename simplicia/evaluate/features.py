"""Labelled images, and the encoder's features of them, for all evaluations."""

import itertools
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.files import cache_folder, reserve
from simplicia.progress import SHOWN, Counter, say, tracked
from simplicia.representation import represent
from simplicia.run import Run
from simplicia.train.recipe import Recipe

CACHED_SETS = 4  # sets of images whose features a run keeps
MAPPED_BYTES = 4 * 2**30  # larger features are kept in a file


def source_of(
    recipe: Recipe, data: str | None, data_dir: str | Path | None
) -> tuple[str, str | Path | None, int | None, bool | None]:
    """The name, folder, decoded size and streaming of the images to measure on, by default the run's own.

    Files are streamed if the run's were, and else (None) if memory cannot hold them.
    """
    name = data or recipe.data
    stream = (recipe.stream or None) if datasets.has_files(name) else False
    size = datasets.decoded_size(name, recipe.actual_decode_size)
    return name, data_dir or recipe.data_dir, size, stream


def load_labelled(
    run: Run | Recipe, data: str | None = None, data_dir: str | None = None
) -> tuple[ImageSet, ImageSet]:
    """Load labelled train and test images: the run's own data set, or another one.

    >>> train, test = load_labelled(run, "digits")
    >>> len(train), test.classes[:2]
    (1438, ('0', '1'))
    """
    recipe = run.recipe if isinstance(run, Run) else run
    train = load_split(recipe, "train", data, data_dir)
    check_labels(train)  # a folder without classes has no test split to load
    test = load_split(recipe, "test", data, data_dir)
    for images in (train, test):
        report_skipped(images.name, images.skipped)
    if test.labels is None:
        raise UserError(
            f"the test images of {test.name} have no classes to measure with; give its train folder as "
            "--data to test on a tenth of it"
        )
    check_classes(train, test)
    return train, test


def load_split(
    recipe: Recipe, split: str, data: str | None = None, data_dir: str | Path | None = None
) -> ImageSet:
    """The images of a split of the run's data set, or of another one; a command shows how many are read."""
    name, directory, size, stream = source_of(recipe, data, data_dir)
    with closing(Counter(f"reading {split} images", not SHOWN.get())) as bar:
        return datasets.load(name, split, directory, size=size, progress=bar.update, stream=stream)


def report_skipped(name: str, skipped: Sequence[tuple[str, str]]) -> None:
    """Print which files of a data set could not be read, if any: evaluations go on without them."""
    if skipped:
        path, reason = skipped[0]
        others = f", and {len(skipped) - 1} more" if len(skipped) > 1 else ""
        say([f"{name}: skipped {path} ({reason}){others}"])


def check_labels(images: ImageSet) -> Tensor:
    """The labels of images; a UserError if there are none."""
    if images.labels is not None:
        return images.labels
    loose = [file for file in images.files if "/" not in file]
    why = f": {loose[0]} is outside of its folders" if 0 < len(loose) < len(images.files) else ""
    raise UserError(
        f"{images.name} has no labels to measure with{why}; give --data with a labelled set "
        "(folder/<class>/*)"
    )


def check_classes(train: ImageSet, test: ImageSet) -> tuple[Tensor, Tensor]:
    """The labels of both sets.

    A UserError unless they have the same classes, and train has images of all tested ones.
    """
    labels, test_labels = check_labels(train), check_labels(test)
    if train.classes != test.classes:
        differing = _first_few(sorted(set(train.classes) ^ set(test.classes)))
        how = f"{differing} only in one of them" if differing else "the same names in another order"
        raise UserError(f"the classes of {train.name}'s splits do not match: {how}")
    if len(train.classes) == 1:
        raise UserError(f"{train.name} has one class, {train.classes[0]!r}; a classifier needs at least two")
    unseen = sorted(set(test_labels.tolist()) - set(labels.tolist()))
    if unseen:
        names = _first_few([train.classes[i] for i in unseen])
        raise UserError(f"{test.name} tests classes that no training image shows: {names}")
    return labels, test_labels


def sem_temperature(run: Run, layer: str, temperature: float | None, network: str) -> float | None:
    """The temperature that a result states: 0 for codes, None for layers without a softmax."""
    if layer != "sem":
        return 0.0 if layer == "codes" else None
    bottleneck: Any = run.network(network).bottleneck
    return float(bottleneck.temperature) if temperature is None else temperature


def smallest_integer(vertices: int) -> torch.dtype:
    """The type that holds codes of so many vertices."""
    return torch.uint8 if vertices <= 256 else torch.int32


@torch.no_grad()
def encoder_features(run: Run, images: Any, network: str = "online") -> Tensor:
    """The encoder's output for each image, where ``gather`` keeps it; ``pick`` takes some.

    Computed once per set of images, and again when the images or the encoder change.
    """
    encoder = run.network(network).encoder
    pixels = [images] if isinstance(images, Tensor) else []  # files are compared when they are read
    key, version = (id(images), network), _version(*pixels, *encoder.state_dict(keep_vars=True).values())
    if key in run.features and run.features[key][0] == version:
        return run.features[key][2]
    parts = tracked(images.split(256), "encoding images", len(images))
    batches = (check_finite(run, encoder(run.view(batch)).float()) for batch in parts)
    features = gather(batches, len(images))
    run.features.pop(key, None)
    while len(run.features) >= CACHED_SETS:  # drop the oldest: with their images they may be gigabytes
        del run.features[next(iter(run.features))]
    run.features[key] = version, images, features  # keeping the images keeps their id unique
    return features


def gather(batches: Iterator[Tensor], count: int) -> Tensor:
    """The rows of all batches: on their device, or if they are many in 16 bits in a file that is mapped."""
    first = next(batches)
    shape = count, *first.shape[1:]
    most = torch.cuda.mem_get_info(first.device)[0] // 4 if first.is_cuda else MAPPED_BYTES
    fits = 4 * math.prod(shape) <= most
    if fits:
        features = first.new_empty(shape)
    else:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        features = torch.from_numpy(mapped(folder, shape, np.float16))
    done = 0
    limit = torch.finfo(features.dtype).max
    for batch in itertools.chain([first], batches):
        features[done : done + len(batch)] = batch if fits else batch.clamp(-limit, limit)
        done += len(batch)
    assert done == count
    return features


def mapped(folder: Path, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array in a file without a name, which the map keeps until it is no longer used."""
    with tempfile.TemporaryFile(dir=folder) as file:
        reserve(file, math.prod(shape) * np.dtype(dtype).itemsize)
        return np.memmap(file, dtype, "w+", shape=shape)


def batches_of(features: Tensor, device: torch.device) -> Iterator[Tensor]:
    """The features that ``gather`` returned, in batches, on a device in 32 bits."""
    return (batch.to(device).float() for batch in features.split(256))


def layer_batches(
    run: Run, images: Any, layer: str, temperature: float | None = None, network: str = "online"
) -> Iterator[Tensor]:
    """A layer's representation of images, in batches."""
    for features in batches_of(encoder_features(run, images, network), run.device):
        yield represent(run.network(network), features, layer, temperature)


def pick(features: Tensor, indices: Tensor, device: torch.device) -> Tensor:
    """Some of the features that ``gather`` returned, on a device in 32 bits."""
    if features.device == device:
        return features[indices].float()
    return features[indices.to(features.device)].to(device).float()


def check_finite(run: Run, features: Tensor) -> Tensor:
    """The features; a UserError if some are not finite."""
    if not features.isfinite().all():
        raise UserError(f"{run.path} gives features that are not finite; its training diverged")
    return features


def _version(*tensors: Tensor) -> tuple[Any, ...]:
    """A value that changes when a tensor is replaced or changed in place.

    Compare sums too: fused optimisers and in-place edits of ``.data`` do not bump ``_version``.
    """
    versions = [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
    numbers = [t.detach() for t in tensors if t.is_floating_point()]
    dtype = torch.float32 if any(t.device.type == "mps" for t in numbers) else torch.float64
    sums = [f(t.to(dtype)).sum() for t in numbers for f in (torch.Tensor.abs, torch.Tensor.square)]
    return *versions, *(torch.stack(sums).tolist() if sums else [])


def _first_few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
