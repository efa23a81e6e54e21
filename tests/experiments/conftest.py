"""Images for experiments: small, labelled, and drawn here."""

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a labelled set of small images: three colours in noise."""
    root = tmp_path_factory.mktemp("reproduce")
    for split, count in (("train", 20), ("test", 10)):
        for name, colour in (("red", (200, 60, 60)), ("green", (60, 200, 60)), ("blue", (60, 60, 200))):
            folder = root / "images" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                noise = np.random.default_rng(i).integers(-60, 55, (16, 16, 3))
                Image.fromarray((noise + colour).astype(np.uint8)).save(folder / f"{i}.png")
    return root
