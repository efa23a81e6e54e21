"""Data sets from real files: CIFAR's pickles, good and hostile, and folders of images of every kind."""

import contextlib
import os
import pickle
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from simplicia.data import cifar, folder
from simplicia.data.datasets import ImageSet, held_out, load, names, validation
from simplicia.data.image_files import decode as decode_file
from simplicia.errors import UserError


def decode(path, size):
    return decode_file(path, size)[0]


# -- the sets


def test_every_name_that_needs_no_file_loads():
    assert {"cifar10", "cifar100", "digits", "shapes"} < set(names())
    for name, split in (("digits", "train"), ("digits", "test"), ("shapes", "test")):
        images = load(name, split)
        assert images.name == name and len(images) == len(images.labels)
        assert images.images.shape[1:] == (3, 32, 32) and images.images.is_contiguous()
        assert set(images.labels.tolist()) == set(range(len(images.classes)))


def test_digits_are_split_evenly_and_without_overlap():
    train, test = load("digits"), load("digits", "test")
    assert len(train) + len(test) == 1797 and abs(len(test) - 360) < 5
    assert test.labels.bincount().min() >= 34
    assert load("digits", "test").images.equal(test.images)
    seen = {image.numpy().tobytes() for image in train.images}
    assert not any(image.numpy().tobytes() in seen for image in test.images)
    assert train.images.max() == 255  # 16 of 16


def test_statistics_are_those_of_the_pixels():
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (700, 3, 5, 4), dtype=np.uint8))
    images[:, 1] //= 2
    mean, std = ImageSet("mine", images).statistics()
    scaled = images.double().transpose(0, 1).flatten(1) / 255
    assert np.allclose(mean, scaled.mean(1)) and np.allclose(std, scaled.std(1, correction=0))
    assert ImageSet("cifar100", images).statistics()[0] == (0.5071, 0.4865, 0.4409)
    folder_of_that_name = ImageSet("cifar100", images, files=("a.png",) * 700)
    assert folder_of_that_name.statistics()[0] == mean
    assert min(ImageSet("mine", images * 0).statistics()[1]) > 0


def test_an_image_set_holds_images():
    for bad in (torch.zeros(2, 3, 4, 4), torch.zeros(2, 1, 4, 4).byte(), torch.zeros(0, 3, 4, 4).byte()):
        with pytest.raises(UserError, match="uint8 of shape"):
            ImageSet("mine", bad)
    with pytest.raises(UserError, match="need 2 labels"):
        ImageSet("mine", torch.zeros(2, 3, 4, 4).byte(), labels=torch.zeros(3))


def test_labels_count_classes_which_need_no_names():
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


def test_a_share_is_held_out_of_every_class():
    labels = np.array([0] * 50 + [1] * 9 + [2] * 2 + [3])
    mask = held_out(labels, 0.1)
    few = np.array([0, 1, 1, 2, 2, 2])
    assert np.bincount(few[~held_out(few, 0.9)]).tolist() == [1, 1, 1]  # something of each class remains
    assert [mask[labels == c].sum() for c in range(4)] == [5, 1, 1, 0]
    assert (held_out(labels, 0.1) == mask).all()
    assert (held_out(np.append(labels, [4] * 20), 0.1)[:-20] == mask).all()  # whatever else there is


def test_wrong_requests_are_answered_with_a_sentence(tmp_path, monkeypatch):
    monkeypatch.delenv("SIMPLICIA_DATA", raising=False)
    for request, answer in [
        ({"name": "cifar1000"}, "did you mean 'cifar100'"),
        ({"name": "no/such/folder"}, "there is no folder 'no/such/folder'"),
        ({"name": "digits", "split": "val"}, "unknown split 'val'"),
        ({"name": "digits", "size": 64}, "size 64 is for folders"),
        ({"name": "cifar100"}, "cifar-100-python below --data-dir or SIMPLICIA_DATA.*--download"),
        ({"name": "cifar10", "data_dir": tmp_path}, "cifar-10-batches-py.*data_batch_1.*--download"),
        ({"name": __file__}, "is a file"),
        ({"name": tmp_path, "size": 0}, "from 8 to 1024"),
    ]:
        with pytest.raises(UserError, match=answer):
            load(**request)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="could not be downloaded"):
        load("cifar10", data_dir=tmp_path / "file", download=True)


# -- CIFAR


def python2_pickle(value) -> bytes:
    """`value` as Python 2 wrote it with protocol 2: every string is a BINSTRING."""

    def write(value) -> bytes:
        if isinstance(value, bytes):
            return b"T" + struct.pack("<i", len(value)) + value
        if isinstance(value, int):
            return b"J" + struct.pack("<i", value)
        if isinstance(value, list):
            return b"](" + b"".join(map(write, value)) + b"e"
        if isinstance(value, dict):
            return b"}(" + b"".join(write(part) for item in value.items() for part in item) + b"u"
        empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + write(b"b") + b"tR"
        dtype = b"cnumpy\ndtype\n(" + write(b"u1") + b"K\x00K\x01tR"
        dtype += b"(K\x03" + write(b"|") + b"NNN" + write(-1) + write(-1) + b"K\x00tb"
        shape = b"(" + b"".join(map(write, value.shape)) + b"t"
        fortran = not value.flags.c_contiguous
        raw = write(value.tobytes(order="F" if fortran else "C"))
        return empty + b"(K\x01" + shape + dtype + (b"\x88" if fortran else b"\x89") + raw + b"tb"

    return b"\x80\x02" + write(value) + b"."


def python3_pickle(value) -> bytes:
    return pickle.dumps(value, protocol=2)


PIXELS = np.random.default_rng(0).integers(0, 256, (24, 3072), dtype=np.uint8)
FINE = [i % 4 for i in range(24)]
GOOD = {b"data": PIXELS, b"fine_labels": FINE, b"coarse_labels": [label // 2 for label in FINE],
        b"filenames": [b"%d.png" % i for i in range(24)], b"batch_label": b"batch 1 of 1"}  # fmt: skip
META = {b"fine_label_names": [b"apple", b"pear", b"bus", b"train"],
        b"coarse_label_names": [b"fruit", b"vehicles"]}  # fmt: skip


def write_cifar100(root, train: bytes, meta: bytes | None = None):
    home = root / "cifar-100-python"
    home.mkdir(exist_ok=True)
    (home / "train").write_bytes(train)
    (home / "meta").write_bytes(meta or python3_pickle(META))
    return root


@pytest.mark.parametrize(
    "dump", [python2_pickle, python3_pickle, lambda value: pickle.dumps(value, protocol=3)]
)
def test_cifar100_as_python_2_and_python_3_write_it(tmp_path, dump, monkeypatch):
    monkeypatch.setenv("SIMPLICIA_DATA", str(write_cifar100(tmp_path, dump(GOOD), dump(META))))
    images = load("cifar100")
    assert (
        images.images.equal(torch.from_numpy(PIXELS).reshape(24, 3, 32, 32)) and images.images.is_contiguous()
    )
    assert images.labels.tolist() == FINE and images.labels.dtype == torch.int64
    assert images.classes == ("apple", "pear", "bus", "train")
    assert images.superclass.tolist() == [0, 0, 1, 1] and images.superclasses == ("fruit", "vehicles")
    images.images.add_(1)  # the memory is ours


def test_the_writer_of_python_2_pickles_writes_pickles():
    value = pickle.loads(python2_pickle(GOOD), encoding="bytes")
    assert (value.pop(b"data") == PIXELS).all() and value == {k: v for k, v in GOOD.items() if k != b"data"}


@pytest.mark.parametrize("dump", [python2_pickle, python3_pickle])
def test_columns_first_and_numpy_1_spelling(tmp_path, dump):
    """Arrays may lie column by column, and NumPy 1 and 2 spell their module differently."""
    content = dump({**GOOD, b"data": np.asfortranarray(PIXELS)})
    old, new = b"cnumpy.core.multiarray\n", b"cnumpy._core.multiarray\n"
    for data in (content.replace(old, new), content.replace(new, old)):
        images = load("cifar100", data_dir=write_cifar100(tmp_path, data)).images
        assert images.equal(torch.from_numpy(PIXELS).reshape(24, 3, 32, 32))


def test_cifar10_joins_its_five_batches(tmp_path):
    home = tmp_path / "cifar-10-batches-py"
    home.mkdir()
    for i, part in enumerate(np.split(PIXELS[:20], 5)):
        (home / f"data_batch_{i + 1}").write_bytes(python3_pickle({b"data": part, b"labels": [i, 1, 2, 3]}))
    (home / "test_batch").write_bytes(python2_pickle({b"data": PIXELS[20:], b"labels": [4, 3, 2, 1]}))
    (home / "batches.meta").write_bytes(python2_pickle({b"label_names": [b"a", b"b", b"c", b"d", b"e"]}))
    train, test = load("cifar10", data_dir=tmp_path), load("cifar10", "test", data_dir=tmp_path)
    assert train.images.equal(torch.from_numpy(PIXELS[:20]).reshape(20, 3, 32, 32))
    assert train.labels.tolist()[::4] == [0, 1, 2, 3, 4] and test.labels.tolist() == [4, 3, 2, 1]
    assert train.classes == tuple("abcde") and train.superclass is None
    assert train.statistics()[1] == (0.2470, 0.2435, 0.2616)


class Calls:
    """Becomes a call of anything."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def hostile() -> dict[str, bytes]:
    touch = "touch HARMED"
    array = pickle.dumps(np.zeros(4, np.uint8), protocol=2)
    nested = b"\x80\x02}" + b")" + b"\x85" * 100_000 + b"K\x01s."
    text = b"X" + struct.pack("<i", 2**20) + b"a" * 2**20
    encode = b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R"
    return {
        "os.system": pickle.dumps(Calls(os.system, touch), protocol=2),
        "os.system inside": python3_pickle({**GOOD, b"filenames": [Calls(os.system, touch)]}),
        "protocol 0": pickle.dumps(Calls(os.system, touch), protocol=0),
        "protocol 4": pickle.dumps(Calls(os.system, touch), protocol=4),
        "eval": pickle.dumps(Calls(eval, "open('HARMED', 'w')"), protocol=2),
        "getattr": pickle.dumps(Calls(getattr, np.ndarray, "tofile"), protocol=2),
        "INST": b"(S'touch HARMED'\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nX\x0c\x00\x00\x00touch HARMEDo.",
        "NEWOBJ": b"\x80\x02cnumpy\nndarray\nK\x05\x85\x85\x81.",
        "dotted global": b"\x80\x02cnumpy\nndarray.__reduce__\n.",
        "dotted stack global": b"\x80\x04\x8c\x05numpy\x8c\x12ndarray.__reduce__\x93.",
        "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0ctouch HARMED\x85R.",
        "extension registry": b"\x80\x02\x82\x01.",
        "persistent id": b"\x80\x02K\x01Q.",
        "global alone": b"\x80\x02cnumpy\nndarray\n.",
        "huge ndarray": b"\x80\x02cnumpy\nndarray\n\x8a\x05\x00\x00\x00\x00\x7f\x85\x85R.",
        "huge ndarray, small number": b"\x80\x02cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85\x85R.",
        "huge reconstruct": array.replace(b"K\x00\x85", b"J\xff\xff\xff\x7f\x85", 1),
        "huge shape": array.replace(b"K\x04\x85", b"J\xff\xff\xff\x7f\x85", 1),
        "objects": python3_pickle({**GOOD, b"data": np.array([[None]] * 24, dtype=object)}),
        "numbers of 64 bits": python3_pickle({**GOOD, b"data": PIXELS.astype(np.int64)}),
        "state of a name": b"\x80\x02c_codecs\nencode\n}X\x01\x00\x00\x00aK\x01sb.",
        "state of a name, slots": b"\x80\x02c_codecs\nencode\nN}X\x08\x00\x00\x00__code__Ns\x86b.",
        "another codec": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.",
        "one string encoded without end": b"\x80\x02]" + text + b"q\x000" + b"](" + encode * 5000 + b"e.",
        "one string, no pop": b"\x80\x02](" + text + b"q\x00" + encode * 5000 + b"e.",
        "huge memo": b"\x80\x02]r\xff\xff\xff\x7f.",
        "huge bytes": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
        "huge string": b"\x80\x02T\xff\xff\xff\x7fabc.",
        "huge long": b"\x80\x02\x8b\xff\xff\xff\x7fabc.",
        "tuple in tuple as a key": nested,
        "itself": b"\x80\x02]q\x00h\x00a.",
        "truncated": python3_pickle(GOOD)[:-1000],
        "empty": b"",
        "no stack": b"\x80\x02\x85.",
        "no mark": b"\x80\x02t.",
        "no memo": b"\x80\x02h\x07.",
        "not a pickle": b"<!DOCTYPE html><title>404</title>",
        "a list": python3_pickle([GOOD]),
    }


@pytest.mark.parametrize("kind", hostile())
def test_a_hostile_file_does_nothing(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    write_cifar100(tmp_path, hostile()[kind])
    with pytest.raises(UserError, match="train' cannot be read as a CIFAR file"):
        load("cifar100", data_dir=tmp_path)
    assert not (tmp_path / "HARMED").exists()


def test_the_hostile_files_would_do_harm(tmp_path, monkeypatch):
    """Otherwise the test above would show nothing."""
    monkeypatch.chdir(tmp_path)
    for kind in (
        "os.system",
        "os.system inside",
        "protocol 0",
        "protocol 4",
        "eval",
        "INST",
        "OBJ",
        "stack global",
    ):
        pickle.loads(hostile()[kind])
        (tmp_path / "HARMED").unlink()


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_file_is_read_or_refused(tmp_path_factory, data):
    """Never another exception, wherever the damage is; most of the places are not pixels."""
    small = {**GOOD, b"data": PIXELS[:1], b"fine_labels": [0], b"coarse_labels": [0]}
    content = bytearray(data.draw(st.sampled_from([python2_pickle, python3_pickle]))(small))
    places = st.one_of(st.integers(0, 300), st.integers(-900, -1))
    for place, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=3)):
        content[place] = byte
    folder = write_cifar100(tmp_path_factory.mktemp("cifar"), bytes(content))
    with contextlib.suppress(UserError):
        load("cifar100", data_dir=folder)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    write_cifar100(tmp_path, b"")
    with (tmp_path / "cifar-100-python" / "train").open("wb") as file:
        file.truncate(cifar._MOST_BYTES + 1)  # sparse
    with pytest.raises(UserError, match="bytes"):
        load("cifar100", data_dir=tmp_path)


@pytest.mark.parametrize(
    "change, answer",
    [
        ({b"data": PIXELS[:, :3071]}, r"\(N, 3072\), not shape \(24, 3071\)"),
        ({b"data": PIXELS.reshape(24, 3, 32, 32)}, r"\(N, 3072\)"),
        ({b"data": PIXELS[0]}, r"\(N, 3072\)"),
        ({b"data": b"pixels"}, "not bytes"),
        ({b"data": None}, "not NoneType"),
        ({b"fine_labels": FINE[1:]}, "'fine_labels' in .* a list of 24 labels"),
        ({b"fine_labels": tuple(FINE)}, "a list of 24 labels"),
        ({b"fine_labels": [4, *FINE[1:]]}, "from 0 to 3"),
        ({b"fine_labels": [-1, *FINE[1:]]}, "from 0 to 3"),
        ({b"fine_labels": [True, *FINE[1:]]}, "from 0 to 3"),
        ({b"fine_labels": [b"0", *FINE[1:]]}, "from 0 to 3"),
        ({b"coarse_labels": [2] * 24}, "'coarse_labels' in .* from 0 to 1"),
        ({b"coarse_labels": [0, 1] * 11 + [1, 0]}, "each of 4 classes one superclass"),
        ({b"fine_labels": [0] * 24, b"coarse_labels": [0] * 24}, "each of 4 classes one superclass"),
    ],
)
def test_what_a_file_holds_is_checked(tmp_path, change, answer):
    with pytest.raises(UserError, match=answer):
        load("cifar100", data_dir=write_cifar100(tmp_path, python3_pickle({**GOOD, **change})))


@pytest.mark.parametrize("wrong", [[], [1, 2, 3, 4], b"apple", None])
def test_the_names_of_classes_are_checked(tmp_path, wrong):
    meta = python3_pickle({**META, b"fine_label_names": wrong})
    with pytest.raises(UserError, match=r"'fine_label_names' in .* is a list of names"):
        load("cifar100", data_dir=write_cifar100(tmp_path, python3_pickle(GOOD), meta))


def test_the_real_cifar100():
    if not os.path.isdir(os.path.join(os.environ.get("SIMPLICIA_DATA", ""), "cifar-100-python")):
        pytest.skip("SIMPLICIA_DATA does not name a folder with cifar-100-python")
    test = load("cifar100", "test")
    assert len(test) == 10_000 and test.labels.bincount().eq(100).all()
    assert test.superclass.bincount().eq(5).all() and len(test.superclasses) == 20
    measured = ImageSet("measured", test.images)
    assert np.allclose(measured.statistics(), test.statistics(), atol=0.01)


# -- folders


def picture(path, colour=(200, 30, 90), size=(40, 40), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path, **options)
    return path


def empty_png(width, height) -> bytes:
    """A picture that says how large it is, and ends."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_class_folders(tmp_path):
    for name, count in (("zebra", 20), ("ant", 30), ("Bee", 10)):
        for i in range(count):
            picture(tmp_path / "set" / name / ("deep/er" if i % 2 else "") / f"{i:02}.png", (i, count, 0))
    (tmp_path / "set" / "empty").mkdir()
    train, test = load(tmp_path / "set"), load(str(tmp_path / "set"), "test")
    assert train.name == "set" and train.classes == test.classes == ("Bee", "ant", "zebra")
    assert train.labels.bincount().tolist() == [9, 27, 18] and test.labels.bincount().tolist() == [1, 3, 2]
    assert not set(train.files) & set(test.files) and len({*train.files, *test.files}) == 60
    for images in (train, test):
        for image, label, file in zip(images.images, images.labels, images.files, strict=True):
            assert file.split("/")[0] == images.classes[label] and image[0, 0, 0] == int(file[-6:-4])
    assert load(tmp_path / "set", "test").files == test.files
    assert train.images.shape[1:] == (3, 32, 32) and train.labels.dtype == torch.int64


def test_images_alone_have_no_labels_and_no_test_split(tmp_path):
    for name in ("b.PNG", "a.JpEg", "c.tiff", ".hidden.png", "notes.txt", ".cache/d.png"):
        picture(tmp_path / name, format="JPEG" if name.startswith("a") else "PNG")
    images = load(tmp_path)
    assert images.files == ("a.JpEg", "b.PNG", "c.tiff") and images.labels is None and images.classes == ()
    with pytest.raises(UserError, match="neither classes nor a test folder"):
        load(tmp_path, "test")
    picture(tmp_path / "cats" / "d.png")  # mixed with folders: still without labels
    assert load(tmp_path).files[-1] == "cats/d.png" and load(tmp_path).labels is None


@pytest.mark.parametrize("held", ["test", "val", "valid", "validation"])
def test_split_folders(tmp_path, held):
    for name in ("a", "b", "c"):
        picture(tmp_path / "train" / name / "1.png")
    picture(tmp_path / held / "c" / "2.png")
    picture(tmp_path / "annotations" / "3.png")
    train, test = load(tmp_path), load(tmp_path, "test")
    assert train.files == ("train/a/1.png", "train/b/1.png", "train/c/1.png")
    assert test.files == (f"{held}/c/2.png",)
    assert test.labels.tolist() == [2] and test.classes == ("a", "b", "c")  # as in training


def test_test_comes_before_val_and_train_may_be_a_class(tmp_path):
    for path in ("both/train/x/1.png", "both/val/x/2.png", "both/test/x/3.png", "vehicles/train/1.png",
                 "vehicles/train/2.png", "vehicles/bus/3.png", "vehicles/bus/4.png",
                 "alone/train/x/1.png", "alone/train/x/2.png"):  # fmt: skip
        picture(tmp_path / path)
    assert load(tmp_path / "both", "test").files == ("test/x/3.png",)
    assert load(tmp_path / "vehicles").classes == ("bus", "train")
    assert load(tmp_path / "alone").classes == ("x",) and len(load(tmp_path / "alone", "test")) == 1


@pytest.mark.parametrize(
    "names", [("Train", "Test", "Val"), ("TRAIN", "TEST", "VALID"), ("training", "testing", "Validation")]
)
def test_splits_are_known_however_they_are_written(tmp_path, names):
    train, test, val = names
    for name in names:
        for kind in "xy":
            picture(tmp_path / name / kind / "1.png")
    assert load(tmp_path).files == (f"{train}/x/1.png", f"{train}/y/1.png")
    assert load(tmp_path, "test").files == (f"{test}/x/1.png", f"{test}/y/1.png")
    assert validation(tmp_path).files == (f"{val}/x/1.png", f"{val}/y/1.png")


def test_a_split_may_be_a_link_and_val_that_is_tested_on_is_not_chosen_on(tmp_path):
    for name in ("linked", "empty"):
        for split in ("train", "val"):
            picture(tmp_path / name / split / "x" / f"{split}.png")
    picture(tmp_path / "elsewhere" / "x" / "test.png")
    (tmp_path / "linked" / "test").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "empty" / "test").mkdir()
    assert load(tmp_path / "linked", "test").files == ("test/x/test.png",)
    assert validation(tmp_path / "linked").files == ("val/x/val.png",)
    assert load(tmp_path / "empty", "test").files == ("val/x/val.png",)
    assert validation(tmp_path / "empty") is None


def test_links_to_classes_are_followed_and_none_in_circles(tmp_path):
    for i in range(2):
        picture(tmp_path / "elsewhere" / f"{i}.png")
        picture(tmp_path / "set" / "a" / f"{i}.png")
    (tmp_path / "set" / "b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set" / "a" / "loop").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "all").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "up").symlink_to(tmp_path)
    (tmp_path / "elsewhere" / "deeper").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "a" / "file.png").symlink_to(tmp_path / "elsewhere" / "1.png")
    found = [load(tmp_path / "set", split) for split in ("train", "test")]
    files = sorted(file for images in found for file in images.files)
    assert files == ["a/0.png", "a/1.png", "a/file.png", "b/0.png", "b/1.png"]
    assert found[0].classes == ("a", "b")
    assert [path for path, reason in found[0].skipped if "not followed" in reason] == ["a/loop", "all", "up"]


def test_runs_in_a_folder_of_images_are_no_part_of_it_and_other_pictures_are_told(tmp_path, monkeypatch):
    for name in ("a/1.png", "a/2.jfif", "b/3.jpg", "b/4.png", "runs/x/analysis/thumbnails.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20)).save(tmp_path / name, "JPEG" if "png" not in name else "PNG")
    (tmp_path / "runs/x/recipe.yaml").write_text("name: x\n")
    for name in ("a/5.HEIC", "notes.txt"):
        (tmp_path / name).write_text("?")
    listing, test, _ = folder.layout(tmp_path)
    assert test is None and set(listing.classes) == {"a", "b"} and len(listing.files) == 4
    assert [(path.name, why.split()[0]) for path, why in listing.skipped] == [("5.HEIC", ".heic")]
    monkeypatch.chdir(tmp_path)
    assert sorted(folder.read_all(Path("."), 8).files) == ["a/1.png", "a/2.jfif", "b/3.jpg", "b/4.png"]


def test_a_set_of_links_alone_is_a_set(tmp_path):
    for name in "ab":
        for i in range(2):
            picture(tmp_path / "whole" / name / f"{i}.png")
        (tmp_path / "part").mkdir(exist_ok=True)
        (tmp_path / "part" / name).symlink_to(tmp_path / "whole" / name)
    assert load(tmp_path / "part").classes == ("a", "b") and not load(tmp_path / "part").skipped


def test_a_name_wins_over_a_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    picture(tmp_path / "digits" / "1.png")
    picture(tmp_path / "mine" / "1.png")
    assert len(load("digits", "test")) > 300
    assert len(load("./digits")) == len(load("mine")) == 1


@pytest.mark.parametrize(
    "side, size", [(8, 32), (63, 32), (64, 64), (100, 96), (127, 96), (200, 128), (500, 224)]
)
def test_the_size_suits_the_images(tmp_path, side, size):
    for i in range(3):
        picture(tmp_path / f"{i}.png", size=(side, side + 50))
    picture(tmp_path / "odd.png", size=(9, 9))
    (tmp_path / "broken.png").write_bytes(b"")
    assert load(tmp_path).images.shape[1:] == (3, size, size)
    assert load(tmp_path, size=48).images.shape[1:] == (3, 48, 48)


def test_unreadable_files_are_named_and_skipped(tmp_path):
    whole = picture(tmp_path / "whole.jpg", size=(300, 300)).read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.gif").write_text("not a picture")
    (tmp_path / "script.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n")
    (tmp_path / "bomb.png").write_bytes(empty_png(60_000, 60_000))
    (tmp_path / "large.png").write_bytes(empty_png(10_000, 10_000))
    calls = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's own, about the large one
        images = load(tmp_path, progress=lambda *call: calls.append(call))
    assert images.files == ("whole.jpg",) and images.images.shape == (1, 3, 224, 224)
    assert [path for path, _ in images.skipped] == [
        "bomb.png", "cut.jpg", "empty.png", "large.png", "script.jpg", "text.gif",
    ]  # fmt: skip
    assert all(reason for _, reason in images.skipped)
    assert calls == [(i, 7) for i in range(1, 8)]


def test_unreadable_images_do_not_shift_labels(tmp_path):
    for i in range(20):
        picture(tmp_path / "ab"[i % 2] / f"{i:02}.png", (i % 2 * 100, 0, 0))
    for name in ("a/02.png", "b/07.png"):
        (tmp_path / name).write_bytes(b"broken")
    images = [load(tmp_path, split) for split in ("train", "test")]
    assert sum(map(len, images)) == 18
    for part in images:
        assert part.images[:, 0, 0, 0].tolist() == (part.labels * 100).tolist()


def test_nothing_to_read_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no images to learn from"):
        load(tmp_path)
    (tmp_path / "a.jpg").write_text("no picture")
    with pytest.raises(UserError, match=r"none of the 1 images can be read, such as .*a\.jpg"):
        load(tmp_path)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="permissions do not stop this user")
def test_a_closed_folder_is_named(tmp_path):
    picture(tmp_path / "open" / "a.png")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    assert load(tmp_path).skipped[0][0] == "closed"
    closed.chmod(0o700)


def test_an_interrupted_load_ends(tmp_path):
    for i in range(50):
        picture(tmp_path / f"{i}.png")

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(tmp_path, progress=stop)


@pytest.mark.parametrize(
    "name, mode, expected",
    [("rgb.png", "RGB", (200, 30, 90)), ("palette.gif", "P", None), ("cmyk.jpg", "CMYK", (200, 30, 90)),
     ("grey.pgm", "L", (88, 88, 88)), ("bit.png", "1", None), ("web.webp", "RGB", (200, 30, 90)),
     ("alpha.png", "RGBA", (200, 30, 90)), ("la.png", "LA", (88, 88, 88)), ("b.bmp", "RGB", (200, 30, 90)),
     ("ycc.tif", "YCbCr", (200, 30, 90))],
)  # fmt: skip
def test_every_mode_becomes_rgb(tmp_path, name, mode, expected):
    colour = (200, 30, 90) if expected else (255, 255, 255)
    pixels = decode(picture(tmp_path / name, colour, mode=mode), 32).reshape(-1, 3).astype(int)
    assert abs(pixels - (expected or colour)).max() <= 6


def test_transparent_means_white(tmp_path):
    for name, image in {
        "rgba.png": Image.new("RGBA", (40, 40), (0, 0, 0, 0)),
        "la.png": Image.new("LA", (40, 40), (0, 0)),
        "half.png": Image.new("RGBA", (40, 40), (255, 255, 255, 128)),
        "palette.png": Image.new("P", (40, 40), 0),
        "key.png": Image.new("RGB", (40, 40), (1, 2, 3)),
    }.items():
        key = {"palette.png": 0, "key.png": (1, 2, 3)}.get(name)
        image.save(tmp_path / name, **({} if key is None else {"transparency": key}))
        assert (decode(tmp_path / name, 32) == 255).all(), name


def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path):
    ramp = np.tile(np.linspace(0, 65535, 64).astype(np.uint16), (64, 1))
    expected = np.round(ramp / 257)[..., None]
    Image.fromarray(ramp).save(tmp_path / "a.png")
    Image.fromarray(ramp).save(tmp_path / "a.tif")
    (tmp_path / "a.pgm").write_bytes(b"P5 64 64 65535\n" + ramp.astype(">u2").tobytes())
    Image.fromarray(ramp.astype(np.int32)).save(tmp_path / "int.tif")
    Image.fromarray((ramp / 65535).astype(np.float32)).save(tmp_path / "unit.tif")
    Image.fromarray((ramp / 257).astype(np.float32)).save(tmp_path / "bytes.tif")
    Image.fromarray((ramp.astype(np.float32) - 30000) * 7).save(tmp_path / "any.tif")
    for path in sorted(tmp_path.iterdir()):
        assert abs(decode(path, 64).astype(int) - expected).max() <= 1, path.name
    for top in (255, 4095):
        Image.fromarray((ramp // (65536 // (top + 1))).astype(np.uint16)).save(tmp_path / "few.png")
        Image.fromarray((ramp // (65536 // (top + 1))).astype(np.int32)).save(tmp_path / "few.tif")
        for name in ("few.png", "few.tif"):
            assert abs(decode(tmp_path / name, 64).astype(int) - expected).max() <= 1, (top, name)
    Image.fromarray(np.full((9, 9), -5, np.int32)).save(tmp_path / "flat.tif")
    Image.fromarray(np.full((9, 9), np.nan, np.float32)).save(tmp_path / "nan.tif")
    assert (decode(tmp_path / "flat.tif", 8) == 0).all() and (decode(tmp_path / "nan.tif", 8) == 0).all()


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_upright(tmp_path, orientation, suffix):
    """Against Pillow's own way: turn the whole picture first."""
    from PIL import ImageOps

    corners = np.zeros((48, 64, 3), np.uint8)
    corners[:24, :32], corners[:24, 32:], corners[24:, :32] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(corners).save(path, exif=exif, quality=95)
    upright = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    left, top = (upright.width - 48) // 2, (upright.height - 48) // 2
    centre = upright.crop((left, top, left + 48, top + 48)).resize((32, 32), Image.Resampling.BICUBIC)
    assert abs(decode(path, 32).astype(int) - np.asarray(centre)).mean() < 3
    found = load(tmp_path, size=32, keep_aspect=True)
    squeezed = np.asarray(upright.resize((32, 32), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    assert abs(found.images[0].numpy().astype(int) - squeezed).mean() < 3
    assert found.aspect_ratios.tolist() == [pytest.approx(upright.width / upright.height)]


def test_the_centre_is_what_remains_of_odd_pictures(tmp_path):
    wide = np.zeros((50, 150, 3), np.uint8)
    wide[:, 50:100] = 255
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert (decode(tmp_path / "wide.png", 32) == 255).all()
    for size in ((1, 5000), (5000, 1), (1, 1), (2, 65000)):
        assert (decode(picture(tmp_path / "line.jpg", (7, 7, 7), size=size), 224) == 7).all()


def test_only_the_first_frame_of_an_animation_counts(tmp_path):
    frames = [Image.new("RGB", (40, 40), (level, level, level)) for level in (10, 250)]
    for name in ("a.gif", "a.png", "a.webp", "a.tiff"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
        assert abs(decode(tmp_path / name, 32).astype(int) - 10).max() <= 3


def test_a_large_jpeg_is_reduced_well(tmp_path):
    """Reduced while decoding and then resized, it stays close to the picture resized in one go."""
    wave = 128 + 100 * np.sin(np.arange(1600) / 60)
    Image.fromarray((wave[None] * np.ones((1200, 1))).astype(np.uint8)).save(tmp_path / "a.jpg", quality=95)
    whole = Image.open(tmp_path / "a.jpg").convert("RGB").crop((200, 0, 1400, 1200))
    whole = np.asarray(whole.resize((64, 64), Image.Resampling.BICUBIC))
    assert abs(decode(tmp_path / "a.jpg", 64).astype(int) - whole).max() <= 4
