"""A recipe's images, and the settings it leaves open ("auto", 0) chosen from them and the device."""

import dataclasses
import os
from collections.abc import Callable
from contextlib import closing
from typing import Any

import torch
from torch import nn

from simplicia import encoders, methods
from simplicia.data import datasets, inputs
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError, spoken
from simplicia.progress import Counter, plural
from simplicia.train.recipe import Recipe

# the values that leave a setting open
OPEN = {
    "precision": "auto",
    "image_size": 0,
    "encoder": "auto",
    "stem": "auto",
    "batch_size": 0,
    "sem.simplices": 0,
}


def from_python(changes: dict[str, Any]) -> tuple[Any, nn.Module | None, dict[str, Any]]:
    """Images and an encoder given as objects, if there are any, and the changes that name them."""
    data, encoder, named = changes.get("data"), changes.get("encoder"), dict(changes)
    if "data" in changes and not isinstance(data, str | os.PathLike):
        named["data"] = datasets.MEMORY
    if isinstance(encoder, nn.Module):
        named["encoder"] = encoders.GIVEN
    elif encoder == encoders.GIVEN:
        raise UserError("the encoder came from Python; give encoder=module, as when the run was trained")
    is_module, is_data = named.get("encoder") == encoders.GIVEN, named.get("data") == datasets.MEMORY
    return data if is_data else None, encoder if is_module else None, named


def load_images(recipe: Recipe, split: str, download: bool, quiet: bool, given: Any = None) -> ImageSet:
    """The images of a recipe, or those ``given`` from Python, as training takes them."""
    size = datasets.decoded_size(recipe.data, recipe.actual_decode_size)
    if recipe.decode_size and size is None:
        raise UserError(f"decode_size is for image files; {recipe.data} has a size of its own")
    keep_aspect = recipe.keep_aspect and split == "train"  # test images are seen as they are measured
    how = recipe.stream, recipe.data_threads, recipe.max_unreadable
    with closing(Counter("reading images", quiet)) as bar:
        if given is not None:
            return inputs.image_set(given, size or 0, keep_aspect, bar.update)
        return datasets.load(
            recipe.data, split, recipe.data_dir, download, size, bar.update, keep_aspect, *how
        )


def training_images(
    recipe: Recipe, given: Any, download: bool, quiet: bool
) -> tuple[ImageSet, Callable[[], ImageSet]]:
    """The images to train on, and a function that loads those that online probes are tested on."""
    train = load_images(recipe, "train", download, quiet, given)
    if not recipe.holdout:
        return train, lambda: load_images(recipe, "test", False, quiet=True)
    train, held_out = datasets.split(train, recipe.holdout)
    return train, held_out.center_cropped


def check_processes(recipe: Recipe, processes: int) -> None:
    """A UserError if a batch cannot be divided among processes, or a process's share into micro-batches."""
    size, part = recipe.batch_size, recipe.process_batch_size
    share = size // processes
    if size % processes:
        raise UserError(f"batch_size is {size}; {processes} processes need a multiple of that")
    if size and share < 2:
        raise UserError(f"batch_size is {size}; {processes} processes need 2 images each, as BatchNorm does")
    if 0 < part < share and share % part:
        raise UserError(
            f"process_batch_size is {part}; {processes} processes have {share} images each, which must be a "
            "multiple of it"
        )


def resolve(
    recipe: Recipe, images: ImageSet, device: torch.device, processes: int = 1
) -> tuple[Recipe, list[str]]:
    """The recipe with every open setting decided, and a description of what was decided."""
    small_machine = device.type == "cpu"
    side = min(images.images.shape[-2:])
    chosen: dict[str, int | str] = {}
    if recipe.precision == "auto":
        recipe = dataclasses.replace(recipe, precision="bf16" if device.type == "cuda" else "32")
    if recipe.image_size == 0:
        chosen["image_size"] = side
    size = int(chosen.get("image_size", recipe.image_size))
    if images.streamed and recipe.data_device == "auto":
        chosen["data_device"] = "stream"
    if recipe.encoder == "auto":
        chosen["encoder"] = "tiny" if small_machine else "resnet18" if size <= 64 else "resnet50"
    if recipe.stem == "auto":
        chosen["stem"] = "small" if size <= 96 else "imagenet"
    if recipe.batch_size == 0:
        power = 2 ** max(1, (len(images) // 4).bit_length() - 1)  # at least four batches in an epoch
        batch = min(power, 128 if small_machine else 256)
        chosen["batch_size"] = max(batch - batch % processes, 2 * processes)
    recipe = dataclasses.replace(recipe, **chosen)  # type: ignore[arg-type]
    notes = [f"{name} {value}" for name, value in chosen.items()]
    if chosen.get("encoder") == "tiny":
        notes[list(chosen).index("encoder")] += spoken(encoders.NOT_THEIRS)
    if recipe.sem.simplices == 0:
        is_small = recipe.encoder == "tiny" or (recipe.freeze != "none" and small_machine)
        simplices = 256 if is_small else 5000
        recipe = dataclasses.replace(recipe, sem=dataclasses.replace(recipe.sem, simplices=simplices))
        if recipe.bottleneck != "none":
            notes.append(f"sem.simplices {simplices}")
    has_width = "hidden" in methods.options(recipe.method) and "hidden" not in recipe.options
    if recipe.freeze != "none" and small_machine and has_width:  # the paper's would take hours
        recipe = dataclasses.replace(recipe, options={**recipe.options, "hidden": 1024})
        notes.append(f"{recipe.method}.hidden 1024")
    recipe = recipe.checked()
    check_processes(recipe, processes)
    name = "data" if images.name == datasets.MEMORY else images.name
    if len(images) < 2:
        raise UserError(f"{name} has 1 image; training needs 2 or more, as BatchNorm does")
    if len(images) < recipe.batch_size:
        raise UserError(
            f"batch_size is {recipe.batch_size}, but {name} has {plural(len(images), 'image')}; "
            f"give --batch-size {len(images)} or less"
        )
    smallest = min(recipe.image_size, recipe.actual_view_size)
    if recipe.stem == "imagenet" and recipe.encoder in encoders.names() and smallest < 32:
        raise UserError(f"images of {smallest} pixels are too small for the imagenet stem; give --stem small")
    return recipe, notes
