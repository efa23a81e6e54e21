"""The images that a run trains on: read as its recipe says, or given from Python."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.progress import Progress
from simplicia.train.recipe import Recipe


def load_images(recipe: Recipe, split: str, download: bool, quiet: bool) -> ImageSet:
    """The images of a recipe, as training takes them."""
    size = datasets.decoded_size(recipe.data, recipe.stored)
    if recipe.stored_size and size is None:
        raise UserError(f"stored_size is for files of images; {recipe.data} has a size of its own")
    progress: Progress | None = None

    def show(done: int, total: int) -> None:
        nonlocal progress
        progress = progress or Progress("reading images", total, 0, quiet)
        progress.update(done, f"{total:,} in all")

    try:
        keep_aspect = recipe.whole and split == "train"  # what is tested is seen as it is measured later
        return datasets.load(recipe.data, split, recipe.data_dir, download, size, show, keep_aspect)
    finally:
        if progress is not None:
            progress.close()


def given(images: Any) -> ImageSet:
    """Images that a caller has in memory, as a set."""
    if isinstance(images, ImageSet):
        return images
    if isinstance(images, np.ndarray) and images.dtype == np.uint8:
        images = torch.from_numpy(np.ascontiguousarray(images))
    if not isinstance(images, Tensor):
        what = f"an array of {images.dtype}" if isinstance(images, np.ndarray) else type(images).__name__
        raise UserError(
            f"data is {what}; give a name, a folder, a uint8 tensor or array (N, 3, H, W), or an ImageSet"
        )
    return ImageSet(datasets.MEMORY, images.cpu().contiguous())
