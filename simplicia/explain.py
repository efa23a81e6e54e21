"""Which simplices of an image are most certain, and which images share their vertices."""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from simplicia.data import datasets, inputs
from simplicia.errors import UserError

MOST = 1000  # training images that are searched for examples
AT_ONCE = 100  # images encoded at a time: simplices are wide


class Vote(NamedTuple):
    """A simplex, its vertex for an image, and the images that have most of that vertex."""

    simplex: int
    vertex: int
    probability: float
    examples: list[Path | int]  # files, or numbers of images that are no files, best first


@torch.no_grad()
def explain(
    run: Any, image: Any, count: int = 5, examples: int = 4, images: Any = None, network: str = "online"
) -> list[Vote]:
    """The ``count`` most certain simplices of an image, each with example images of its vertex.

    Examples are taken from ``images`` (a list of paths, or what ``run.encode`` takes); by default from up to
    1,000 of the run's training images, spread over all of them.

    >>> vote = run.explain(images[0], count=1, examples=2)[0]
    >>> len(vote.examples)
    2
    """
    if count < 1 or examples < 0:
        raise UserError(f"count is {count} and examples is {examples}; give at least 1 and 0")
    run.check_layer("sem")
    vertices = run.network(network).bottleneck.vertices
    encoded = run.encode(image, "sem", network=network)
    if len(encoded) != 1:
        raise UserError(f"{len(encoded)} images are given; explain takes one")
    probabilities = encoded[0].view(-1, vertices)
    certainty, chosen = probabilities.max(1)
    simplices = certainty.topk(min(count, len(certainty))).indices
    columns = simplices * vertices + chosen[simplices]
    bank, names = _training_images(run) if images is None else (images, _names(images))
    parts = inputs.batches(bank, run.recipe.actual_decode_size, AT_ONCE)
    shares = torch.cat([run.encode(part, "sem", network=network)[:, columns] for part in parts])
    names = names or list(range(len(shares)))
    best = shares.topk(min(examples, len(shares)), dim=0).indices.T.tolist()
    return [
        Vote(int(s), int(chosen[s]), float(certainty[s]), [names[i] for i in rows])
        for s, rows in zip(simplices, best, strict=True)
    ]


def _names(images: Any) -> list[Any]:
    """The paths of images that are files."""
    are_files = isinstance(images, list | tuple) and all(isinstance(image, str | Path) for image in images)
    return [Path(image) for image in images] if are_files else []


def _training_images(run: Any) -> tuple[Any, list[Any]]:
    recipe = run.recipe
    if recipe.data == datasets.MEMORY:
        raise UserError("the run got its images from Python and did not keep them; give images")
    size = datasets.decoded_size(recipe.data, recipe.actual_decode_size)
    stream = (recipe.stream or None) if datasets.has_files(recipe.data) else False
    found = datasets.load(recipe.data, "train", recipe.data_dir, size=size, stream=stream)
    rows = torch.linspace(0, len(found) - 1, min(MOST, len(found))).round().long()
    root = datasets.root(recipe.data, recipe.data_dir)
    images = found.images[rows].to("cpu")  # streamed ones are decoded
    if not found.files or root is None:
        return images, rows.tolist()
    return images, [root / found.files[i] for i in rows.tolist()]
