"""The drawn data set: the same every time, balanced, and about shape alone."""

import numpy as np
import pytest
import torch

from simplicia.data.shapes import SUPERCLASSES, shapes
from simplicia.errors import UserError


@pytest.fixture(scope="module")
def train():
    return shapes("train")


def test_it_is_a_whole_data_set(train):
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


def test_the_same_seed_draws_the_same_and_another_does_not():
    first, again, other = shapes("test", 60), shapes("test", 60), shapes("test", 60, seed=1)
    assert first.images.equal(again.images) and first.labels.equal(again.labels)
    assert not first.images.equal(other.images)


def test_the_splits_share_no_image():
    train, test = (shapes(split, 400).images.flatten(1).numpy() for split in ("train", "test"))
    assert len(np.unique(np.concatenate([train, test]), axis=0)) == 800


@pytest.mark.parametrize("count", [1, 19, 21, 333])
def test_any_count_is_as_even_as_it_can_be(count):
    labels = shapes(count=count).labels
    counts = labels.bincount(minlength=20)
    assert len(labels) == count and counts.max() - counts.min() <= 1


def test_no_colour_belongs_to_a_class_and_brightness_hardly(train):
    def share(values):
        between = torch.stack([values[train.labels == c].mean(0) for c in range(20)]).std(0)
        return (between / values.std(0)).max()

    mean = train.images.float().mean((2, 3))
    assert share(mean - mean.mean(1, keepdim=True)) < 0.1
    assert share(mean.mean(1, keepdim=True)) < 0.3  # a larger figure is more ink


def test_every_figure_is_visible_in_grey():
    """Against the same picture without its figure, which the same random numbers draw."""
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


@pytest.mark.parametrize("wrong", [{"split": "val"}, {"count": 0}, {"seed": -1}])
def test_what_cannot_be_drawn_is_said(wrong):
    with pytest.raises(UserError):
        shapes(**wrong)
