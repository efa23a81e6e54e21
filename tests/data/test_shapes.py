"""The drawn data set: the same every time, balanced, and about shape alone."""

import numpy as np
import pytest
import torch

from simplicia.data.shapes import SUPERCLASSES, shapes


@pytest.fixture(scope="module")
def train():
    return shapes("train")


def test_shapes_has_balanced_labelled_splits_and_superclasses(train):
    test = shapes("test")
    assert (len(train), len(test)) == (5000, 1000)
    assert train.images.shape == (5000, 3, 32, 32) and train.images.dtype == torch.uint8
    assert train.images.is_contiguous()
    for images in (train, test):
        assert images.labels.bincount(minlength=20).eq(len(images) // 20).all()
        assert images.labels.dtype == torch.int64
    assert len(train.classes) == 20 and len(set(train.classes)) == 20 and len(train.superclasses) == 5
    above = dict(zip(train.classes, train.superclass.tolist(), strict=True))
    assert train.superclasses[above["star"]] == "polygons" and train.superclasses[above["tracks"]] == "groups"
    assert (train.labels[:-1] <= train.labels[1:]).float().mean() < 0.6  # shuffled


def test_the_images_are_the_same_every_time():
    first = shapes("test")
    shapes.cache_clear()
    again = shapes("test")
    assert first is not again and first.images.equal(again.images) and first.labels.equal(again.labels)


def test_colour_and_brightness_do_not_reveal_the_class(train):
    def share(values):
        between = torch.stack([values[train.labels == c].mean(0) for c in range(20)]).std(0)
        return (between / values.std(0)).max()

    mean = train.images.float().mean((2, 3))
    assert share(mean - mean.mean(1, keepdim=True)) < 0.1
    assert share(mean.mean(1, keepdim=True)) < 0.3  # a larger figure covers more pixels


def test_every_figure_is_visible_in_greyscale():
    """Compare with the same random image without its figure."""
    from simplicia.data import shapes as module

    for group in SUPERCLASSES.values():
        for name, figure in group.items():
            drawn, empty = (
                module._draw(kind, 32, np.random.Generator(np.random.PCG64(3))).astype(float)
                for kind in (figure, lambda u, v, uniform, figure=figure: figure(u, v, uniform) * 0 + 9)
            )
            changed = abs(drawn.mean(1) - empty.mean(1)) > 20
            share = changed.mean((1, 2))
            assert share.mean() > 0.05, name
            assert share.mean() < 0.6, name
