"""Images: data sets by name or folder, loaders of batches, and augmentation.

Register your own data set with ``@dataset``.
"""

from simplicia.data import (  # noqa: F401  (registers the data sets)
    augmentation,
    cifar,
    datasets,
    digits,
    imagenet,
    shapes,
    transfer_sets,
)
from simplicia.data.datasets import ImageSet, ReadOptions, dataset

__all__ = ["ImageSet", "ReadOptions", "augmentation", "dataset", "datasets"]
