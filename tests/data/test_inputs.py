"""Images in every form that people have them in give the same pixels."""

import types

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset
from torchvision import datasets as torchvision_sets
from torchvision import transforms

from simplicia.data import inputs
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError

RNG = np.random.default_rng(0)
NHWC = RNG.integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
NCHW = torch.from_numpy(NHWC).permute(0, 3, 1, 2).contiguous()
LABELS = [0, 1, 2, 0, 1, 2]


def encoded(images, size=16, batch_size=4):
    return torch.cat(list(inputs.batches(images, size, batch_size)))


def hugging_face(columns=("picture", "animal")):
    """What ``datasets.Dataset`` offers: rows as dictionaries, ``column_names`` and typed ``features``."""
    image_type, class_type = type("Image", (), {}), type("ClassLabel", (), {"names": ["cat", "dog", "emu"]})
    rows = [
        {columns[0]: Image.fromarray(pixels), columns[1]: label}
        for pixels, label in zip(NHWC, LABELS, strict=True)
    ]

    class Rows(list):
        column_names, features = list(columns), {columns[0]: image_type(), columns[1]: class_type()}

    return Rows(rows)


@pytest.fixture
def folder(tmp_path):
    """``tmp_path/<class>/*.png`` with two images in each of three classes."""
    for i, (pixels, label) in enumerate(zip(NHWC, LABELS, strict=True)):
        path = tmp_path / "abc"[label]
        path.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path / f"{i}.png")
    return tmp_path


@pytest.mark.parametrize(
    "images",
    [
        NHWC,
        NCHW,
        NCHW.numpy(),
        NHWC.astype(np.int64),
        list(NHWC),
        [Image.fromarray(pixels) for pixels in NHWC],
        [Image.fromarray(NHWC[0]), NCHW[1], *NHWC[2:]],
        TensorDataset(NCHW),
        TensorDataset(NCHW, torch.tensor(LABELS)),
        DataLoader(TensorDataset(NCHW, torch.tensor(LABELS)), batch_size=5),
        hugging_face(),
        ImageSet("mine", NCHW),
        (pixels for pixels in NHWC),
    ],
    ids=lambda images: type(images).__name__,
)
def test_every_kind_gives_the_same_pixels(images):
    assert torch.equal(encoded(images), NCHW)


def test_floats_keep_their_precision():
    exact = torch.rand(3, 3, 16, 16)
    for floats in (exact, exact.double(), exact.permute(0, 2, 3, 1).numpy(), list(exact)):
        assert torch.equal(encoded(floats), exact)
    assert encoded([exact[0], NCHW[0]]).dtype == torch.float32  # mixed with 8 bits
    bigger = inputs.center_crop(torch.rand(1, 3, 40, 30), 16)
    assert bigger.shape[2:] == (16, 16) and (bigger * 255 - (bigger * 255).round()).abs().max() > 0.1


def test_grey_and_single_images():
    grey = NHWC[..., 0]
    for images in (grey, torch.from_numpy(grey), grey[:, None], grey[..., None]):
        assert torch.equal(encoded(images), torch.from_numpy(grey)[:, None].expand(-1, 3, -1, -1))
    for one in (NHWC[0], NCHW[0], NCHW[:1], Image.fromarray(NHWC[0])):
        assert torch.equal(encoded(one), NCHW[:1])
    assert torch.equal(encoded(grey[0]), encoded(grey)[:1])
    assert encoded(np.zeros((2, 8, 8), bool)).max() == 0


def test_paths_and_torchvision_folders(folder):
    paths = sorted(folder.rglob("*.png"), key=lambda path: int(path.stem))
    assert torch.equal(encoded(paths), NCHW) and torch.equal(encoded(np.array(list(map(str, paths)))), NCHW)
    images = inputs.image_set(paths, 16)
    assert torch.equal(images.images, NCHW) and images.labels is None and len(images.files) == 6
    assert inputs.image_set(paths).images.shape[2:] == (32, 32)  # the smallest of the usual sizes
    for data in (
        torchvision_sets.ImageFolder(folder),
        torchvision_sets.ImageFolder(folder, transforms.ToTensor()),
    ):
        images = inputs.image_set(data, 16)
        assert images.classes == ("a", "b", "c") and images.labels.tolist() == [0, 0, 1, 1, 2, 2]
        assert torch.equal(images.images, NCHW[[0, 3, 1, 4, 2, 5]])
    subset = torch.utils.data.Subset(data, [5, 0])
    assert inputs.image_set(subset, 16).classes == ("a", "b", "c")
    (folder / "a" / "0.png").write_text("no image")
    assert inputs.image_set(paths, 16).skipped[0][0].endswith("0.png")


def test_labels_and_classes_are_taken_where_there_are_any():
    images = inputs.image_set(hugging_face(), 16)
    assert images.classes == ("cat", "dog", "emu") and images.labels.tolist() == LABELS
    images = inputs.image_set(TensorDataset(NCHW, torch.tensor(LABELS)))
    assert images.classes == ("0", "1", "2") and images.labels.tolist() == LABELS
    boxes = [(pixels, {"boxes": []}) for pixels in NHWC]  # a data set for detection
    assert inputs.image_set(boxes).labels is None
    encoded_rows = [{"image": {"bytes": (b"x"), "path": None}}]
    with pytest.raises(UserError, match="cannot be read as an image"):
        inputs.image_set(encoded_rows, 16)


def test_images_of_several_shapes_become_squares():
    images = [Image.fromarray(NHWC[0]), np.zeros((20, 40, 3), np.uint8)]
    assert encoded(images).shape == (2, 3, 16, 16) and inputs.image_set(images, 16).images.shape[2:] == (
        16,
        16,
    )
    wide = inputs.image_set([Image.new("RGB", (40, 20)), Image.new("RGB", (20, 20))], 16, keep_aspect=True)
    assert wide.aspect_ratios.tolist() == [2.0, 1.0]


def test_rounding_to_8_bits_for_training_is_said(capfd):
    levels = NCHW.float() / 255
    assert torch.equal(inputs.image_set(levels).images, NCHW) and not capfd.readouterr().err
    inputs.image_set(levels * 0.999)
    output = capfd.readouterr()
    assert "rounded to 8 bits" in output.err + output.out


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.randn(2, 3, 8, 8), "from 0 to 1"),
        (np.full((2, 8, 8, 3), 300), "from 300 to 300"),
        (torch.full((1, 3, 8, 8), float("nan")), "from 0 to 1"),
        (torch.zeros(2, 5, 8, 8), "(N, 3, H, W), (N, H, W, 3) or grey"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.complex64), "(N, 3, H, W)"),
        ([], "there are no images"),
        (None, "images are a NoneType"),
        ({"image": NHWC}, "images are a dict"),
        ([1, 2], "an image is a int"),
        ([{"picture": 1}], "its image must be called 'image'"),
        (types.SimpleNamespace(column_names={"train": [], "test": []}, features={}), "such as data['train']"),
        (types.SimpleNamespace(column_names=["text"], features={}), "none of them holds images"),
    ],
)
def test_what_cannot_be_read_is_an_error_of_one_sentence(images, words):
    for take in (encoded, inputs.image_set):
        with pytest.raises(UserError) as error:
            take(images)
        assert (words in str(error.value) or "no images" in str(error.value)) and "\n" not in str(error.value)


def test_a_data_loader_is_no_set_to_train_on():
    with pytest.raises(UserError, match=r"such as loader\.dataset"):
        inputs.image_set(DataLoader(TensorDataset(NCHW)))
