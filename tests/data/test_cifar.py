"""CIFAR's pickles: as Python 2 and 3 write them, damaged, and hostile."""

import contextlib
import os
import pickle
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from simplicia.data import ImageSet, cifar
from simplicia.data.datasets import load
from simplicia.errors import UserError


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
def test_cifar100_pickled_by_python_2_and_3(tmp_path, dump, monkeypatch):
    monkeypatch.setenv("SIMPLICIA_DATA", str(write_cifar100(tmp_path, dump(GOOD), dump(META))))
    images = load("cifar100")
    assert (
        images.images.equal(torch.from_numpy(PIXELS).reshape(24, 3, 32, 32)) and images.images.is_contiguous()
    )
    assert images.labels.tolist() == FINE and images.labels.dtype == torch.int64
    assert images.classes == ("apple", "pear", "bus", "train")
    assert images.superclass.tolist() == [0, 0, 1, 1] and images.superclasses == ("fruit", "vehicles")
    images.images.add_(1)  # the tensor is writable


def test_python2_pickle_writes_valid_pickles():
    value = pickle.loads(python2_pickle(GOOD), encoding="bytes")
    assert (value.pop(b"data") == PIXELS).all() and value == {k: v for k, v in GOOD.items() if k != b"data"}


@pytest.mark.parametrize("dump", [python2_pickle, python3_pickle])
def test_fortran_order_and_module_names_of_numpy_1_and_2(tmp_path, dump):
    """Arrays may lie column by column, and NumPy 1 and 2 spell their module differently."""
    content = dump({**GOOD, b"data": np.asfortranarray(PIXELS)})
    old, new = b"cnumpy.core.multiarray\n", b"cnumpy._core.multiarray\n"
    for data in (content.replace(old, new), content.replace(new, old)):
        images = load("cifar100", data_dir=write_cifar100(tmp_path, data)).images
        assert images.equal(torch.from_numpy(PIXELS).reshape(24, 3, 32, 32))


def test_cifar10_concatenates_its_five_batches(tmp_path):
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
    """Pickles as a call of any function."""

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
def test_hostile_pickles_are_rejected_without_running(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    write_cifar100(tmp_path, hostile()[kind])
    with pytest.raises(UserError, match="train' cannot be read as a CIFAR file"):
        load("cifar100", data_dir=tmp_path)
    assert not (tmp_path / "HARMED").exists()


def test_hostile_pickles_would_run_in_pickle_loads(tmp_path, monkeypatch):
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
def test_damaged_files_load_or_raise_a_user_error(tmp_path_factory, data):
    """No other exception for any damage; most of the changed bytes are not pixels."""
    small = {**GOOD, b"data": PIXELS[:1], b"fine_labels": [0], b"coarse_labels": [0]}
    content = bytearray(data.draw(st.sampled_from([python2_pickle, python3_pickle]))(small))
    positions = st.one_of(st.integers(0, 300), st.integers(-900, -1))
    for position, byte in data.draw(
        st.lists(st.tuples(positions, st.integers(0, 255)), min_size=1, max_size=3)
    ):
        content[position] = byte
    folder = write_cifar100(tmp_path_factory.mktemp("cifar"), bytes(content))
    with contextlib.suppress(UserError):
        load("cifar100", data_dir=folder)


def test_oversized_files_are_not_read(tmp_path):
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
def test_invalid_content_is_rejected(tmp_path, change, answer):
    with pytest.raises(UserError, match=answer):
        load("cifar100", data_dir=write_cifar100(tmp_path, python3_pickle({**GOOD, **change})))


@pytest.mark.parametrize("wrong", [[], [1, 2, 3, 4], b"apple", None])
def test_invalid_class_names_are_rejected(tmp_path, wrong):
    meta = python3_pickle({**META, b"fine_label_names": wrong})
    with pytest.raises(UserError, match=r"'fine_label_names' in .* is a list of names"):
        load("cifar100", data_dir=write_cifar100(tmp_path, python3_pickle(GOOD), meta))


def test_real_cifar100():
    if not os.path.isdir(os.path.join(os.environ.get("SIMPLICIA_DATA", ""), "cifar-100-python")):
        pytest.skip("SIMPLICIA_DATA does not name a folder with cifar-100-python")
    test = load("cifar100", "test")
    assert len(test) == 10_000 and test.labels.bincount().eq(100).all()
    assert test.superclass.bincount().eq(5).all() and len(test.superclasses) == 20
    measured = ImageSet("measured", test.images)
    assert np.allclose(measured.statistics(), test.statistics(), atol=0.01)
