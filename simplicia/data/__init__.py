"""Images: data sets by name or folder, batches on the device, and random views of them."""

from simplicia.data import datasets, views

__all__ = ["datasets", "views"]
