"""Images: data sets by name or folder, batches on the device, and random views of them."""

from simplicia.data import augmentation, datasets

__all__ = ["augmentation", "datasets"]
