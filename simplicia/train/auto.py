"""What a recipe leaves open, chosen from the images and the device."""

import dataclasses

import torch

from simplicia import encoders
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.train.recipe import Recipe

# the values by which a recipe leaves settings open
OPEN = {
    "precision": "auto",
    "image_size": 0,
    "encoder": "auto",
    "stem": "auto",
    "batch_size": 0,
    "sem.simplices": 0,
}


def check_parts(recipe: Recipe, processes: int) -> None:
    """A UserError if what is in the networks at once cannot be divided among processes."""
    name = "batch_size" if recipe.at_once == recipe.batch_size else "micro_batch"
    if recipe.at_once % max(processes, 1):
        raise UserError(f"{name} is {recipe.at_once}; {processes} processes need a multiple of that")
    if recipe.at_once and recipe.at_once // max(processes, 1) < 2:
        raise UserError(
            f"{name} is {recipe.at_once}; {processes} processes need 2 images each, as BatchNorm does"
        )


def fitted(
    recipe: Recipe, images: ImageSet, device: torch.device, processes: int = 1
) -> tuple[Recipe, list[str]]:
    """The recipe with every open setting decided, and what was decided, for people."""
    small_machine = device.type == "cpu"
    side = min(images.images.shape[-2:])
    chosen: dict[str, int | str] = {}
    if recipe.precision == "auto":
        recipe = dataclasses.replace(recipe, precision="bf16" if device.type == "cuda" else "32")
    if recipe.image_size == 0:
        chosen["image_size"] = side
    size = int(chosen.get("image_size", recipe.image_size))
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
    if recipe.sem.simplices == 0:
        simplices = 256 if recipe.encoder == "tiny" else 5000
        recipe = dataclasses.replace(recipe, sem=dataclasses.replace(recipe.sem, simplices=simplices))
        if recipe.bottleneck != "none":
            notes.append(f"sem.simplices {simplices}")
    recipe.validate()
    check_parts(recipe, processes)
    if len(images) < 2:
        raise UserError(f"{images.name} has 1 image; training needs 2 or more, as BatchNorm does")
    if len(images) < recipe.batch_size:
        raise UserError(
            f"batch_size is {recipe.batch_size}, but {images.name} has {len(images)} images; "
            f"give --batch-size {len(images)} or less"
        )
    least = min(recipe.image_size, recipe.viewed)
    if recipe.stem == "imagenet" and recipe.encoder in encoders.names() and least < 32:
        raise UserError(f"images of {least} pixels are too small for the imagenet stem; give --stem small")
    return recipe, notes
