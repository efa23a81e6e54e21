"""Registered data sets, image sets and requests that cannot be served."""

import numpy as np
import pytest
import torch

from simplicia import cli
from simplicia.data import ImageSet, ReadOptions, dataset
from simplicia.data.datasets import REGISTRY, decoded_size, has_files, held_out, load, names
from simplicia.errors import UserError

BUILT_IN = [name for name in names() if REGISTRY[name].where in ("built in", "with scikit-learn")]


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_data_sets_have_two_labelled_splits(name):
    side, train, test = REGISTRY[name].image_size, load(name), load(name, "test")
    for images in (train, test):
        assert images.name == name and images.labels.dtype == torch.int64
        assert images.images.shape == (len(images.labels), 3, side, side) and images.images.is_contiguous()
        assert set(images.labels.tolist()) == set(range(len(images.classes)))
    assert train.classes == test.classes and load(name, "test").images.equal(test.images)
    seen = {image.numpy().tobytes() for image in train.images}
    assert not any(image.numpy().tobytes() in seen for image in test.images)


def test_digits_hold_out_a_fifth_of_each_class():
    train, test = load("digits"), load("digits", "test")
    assert len(train) + len(test) == 1797 and abs(len(test) - 360) < 5
    assert test.labels.bincount().min() >= 34
    assert train.images.max() == 255  # 16 of 16


def test_a_registered_data_set_is_listed_and_loads(capsys):
    grey, seen = ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)), []

    @dataset("flat", "one grey", image_size=8, statistics=grey)
    def read(split: str, options: ReadOptions) -> ImageSet:
        seen.append((split, options.data_dir))
        return ImageSet("flat", torch.full((2, 3, 8, 8), 128, dtype=torch.uint8), torch.tensor([0, 1]))

    try:
        assert "flat" in names() and not has_files("flat") and load("flat").statistics() == grey
        assert load("flat", "test", data_dir="here").classes == ("0", "1") and str(seen[-1][1]) == "here"
        assert cli.main(["datasets"]) == 0
        output = capsys.readouterr().out
        assert "one grey" in output and all(name in output for name in names())
        read.__module__ = "elsewhere"
        with pytest.raises(ValueError, match="'flat' is taken by elsewhere; choose another name"):
            dataset("flat", "another")(lambda split, options: None)
    finally:
        del REGISTRY["flat"]


def test_image_files_are_decoded_at_the_size_of_the_run():
    assert [decoded_size(name, 96) for name in ("imagenet", "flowers102", "some/folder")] == [96] * 3
    assert [decoded_size(name, 96) for name in ("cifar10", "cifar100", "digits", "shapes")] == [None] * 4
    assert decoded_size("imagenet", 0) is None


def test_statistics_are_published_or_computed_from_the_pixels():
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (700, 3, 5, 4), dtype=np.uint8))
    images[:, 1] //= 2
    mean, std = ImageSet("mine", images).statistics()
    scaled = images.double().transpose(0, 1).flatten(1) / 255
    assert np.allclose(mean, scaled.mean(1)) and np.allclose(std, scaled.std(1, correction=0))
    assert ImageSet("cifar100", images).statistics()[0] == (0.5071, 0.4865, 0.4409)
    folder_of_that_name = ImageSet("cifar100", images, files=("a.png",) * 700)
    assert folder_of_that_name.statistics()[0] == mean
    assert min(ImageSet("mine", images * 0).statistics()[1]) > 0


def test_image_set_rejects_other_tensors():
    for bad in (torch.zeros(2, 3, 4, 4), torch.zeros(2, 1, 4, 4).byte(), torch.zeros(0, 3, 4, 4).byte()):
        with pytest.raises(UserError, match="uint8 of shape"):
            ImageSet("mine", bad)
    with pytest.raises(UserError, match="need 2 labels"):
        ImageSet("mine", torch.zeros(2, 3, 4, 4).byte(), labels=torch.zeros(3))


def test_labels_are_class_numbers_and_name_the_classes_by_default():
    images = torch.zeros(2, 3, 4, 4).byte()
    assert ImageSet("mine", images, torch.tensor([2, 0])).classes == ("0", "1", "2")
    for labels, classes, words in (
        (
            torch.tensor([2, 0]),
            ("a", "b"),
            "labels are from 0 to 2; they count classes from 0 on, and there are 2",
        ),
        (torch.tensor([-1, 0]), (), "labels are from -1 to 0"),
        (torch.tensor([0, 10**12]), (), "labels are from 0 to 1000000000000"),
        (torch.tensor([0.0, 1.0]), (), "labels are torch.float32"),
    ):
        with pytest.raises(UserError, match=words):
            ImageSet("mine", images, labels, classes)


def test_held_out_takes_a_share_of_every_class():
    labels = np.array([0] * 50 + [1] * 9 + [2] * 2 + [3])
    mask = held_out(labels, 0.1)
    few = np.array([0, 1, 1, 2, 2, 2])
    assert np.bincount(few[~held_out(few, 0.9)]).tolist() == [1, 1, 1]  # an image of each class remains
    assert [mask[labels == c].sum() for c in range(4)] == [5, 1, 1, 0]
    assert (held_out(labels, 0.1) == mask).all()
    assert (
        held_out(np.append(labels, [4] * 20), 0.1)[:-20] == mask
    ).all()  # does not depend on other classes


def test_wrong_requests_raise_user_errors(tmp_path, monkeypatch):
    monkeypatch.delenv("SIMPLICIA_DATA", raising=False)
    for request, answer in [
        ({"name": "cifar1000"}, "did you mean 'cifar100'"),
        ({"name": "no/such/folder"}, "there is no folder 'no/such/folder'"),
        ({"name": "digits", "split": "val"}, "unknown split 'val'"),
        ({"name": "digits", "size": 64}, "size 64 is for folders"),
        ({"name": "cifar100"}, "cifar-100-python below data_dir or SIMPLICIA_DATA.*--download"),
        ({"name": "cifar10", "data_dir": tmp_path}, "cifar-10-batches-py.*data_batch_1.*--download"),
        ({"name": __file__}, "is a file"),
        ({"name": tmp_path, "size": 0}, "from 8 to 1024"),
    ]:
        with pytest.raises(UserError, match=answer):
            load(**request)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="could not be downloaded"):
        load("cifar10", data_dir=tmp_path / "file", download=True)
