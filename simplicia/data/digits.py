"""The handwritten digits of scikit-learn, 8 x 8 pixels, upscaled to 32 x 32."""

import numpy as np
import torch

from simplicia.data.datasets import ImageSet, ReadOptions, dataset, held_out


@dataset("digits", "handwritten digits, 10 classes", where="with scikit-learn", image_size=32)
def read(split: str, options: ReadOptions) -> ImageSet:
    """One split; a fixed fifth of each class is the test split."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    chosen = held_out(bunch.target, 0.2) == (split == "test")
    grey = torch.from_numpy(bunch.images[chosen])[:, None] * (255 / 16)
    grey = torch.nn.functional.interpolate(grey, size=(32, 32), mode="bilinear")
    return ImageSet(
        name="digits",
        images=grey.round().to(torch.uint8).repeat(1, 3, 1, 1),
        labels=torch.from_numpy(bunch.target[chosen].astype(np.int64)),
        classes=tuple("0123456789"),
    )
