"""Images: data sets by name or folder, loaders of batches, and augmentation.

Register your own data set with ``@dataset``.
"""

from simplicia.data import augmentation, datasets
from simplicia.data.image_set import ImageSet, ReadOptions, dataset

__all__ = ["ImageSet", "ReadOptions", "augmentation", "dataset", "datasets"]
