"""What all evaluations share: labelled images, the encoder's features, results that state their protocol."""

import math
from typing import Any

import torch
from torch import Tensor

from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.provenance import versions
from simplicia.run import Run


def labelled(run: Run, data: str | None = None, data_dir: str | None = None) -> tuple[ImageSet, ImageSet]:
    """Train and test images with labels: of the run's own data set, or of another."""
    name = data or run.recipe.data
    size = None if name in datasets.names() else run.recipe.image_size
    sets = []
    for split in ("train", "test"):
        images = datasets.load(name, split, data_dir or run.recipe.data_dir, size=size)
        if images.labels is None:
            raise UserError(
                f"{name} has no labels to measure with; give --data with a labelled set (folder/<class>/*)"
            )
        sets.append(images)
    train, test = sets
    if train.classes != test.classes:
        raise UserError(f"the classes of {name}'s train and test images are not the same")
    return train, test


@torch.no_grad()
def encoder_features(run: Run, images: Tensor, network: str = "online", batch_size: int = 256) -> Tensor:
    """The encoder's output for each image, on the run's device; computed once for each set of images."""
    key = id(images), network
    if key in run.features:
        return run.features[key][1]
    encoder = run.network(network).encoder
    features = torch.cat([encoder(run.view(part)).float() for part in images.split(batch_size)])
    if not features.isfinite().all():
        raise UserError(f"{run.path} gives features that are not finite; its training diverged")
    run.features[key] = images, features  # holding the images keeps their id from being used again
    return features


def result(run: Run, protocol: str, train: ImageSet, test: ImageSet, **more: Any) -> dict[str, Any]:
    """The fields every measurement states."""
    return {
        "protocol": protocol,
        "online": False,
        "run": run.recipe.name,
        "dataset": train.name,
        "encoder": run.recipe.encoder,
        "method": run.recipe.method,
        "sem": run.recipe.bottleneck == "sem",
        "bottleneck": run.recipe.bottleneck,
        "pretrain_epochs": run.recipe.epochs,
        "pretrain_step": run.step,
        "pretrain_seed": run.recipe.seed,
        "batch_size": run.recipe.batch_size,
        "train_images": len(train),
        "test_images": len(test),
        **more,
        **versions(run.device),
    }


def percent(correct: int, total: int) -> dict[str, float]:
    """An accuracy in percent with its standard error."""
    share = correct / total
    return {"accuracy": 100 * share, "standard_error": 100 * math.sqrt(share * (1 - share) / total)}
