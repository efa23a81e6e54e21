"""Codes as Parquet files, read by pyarrow and, if it is installed, by Hugging Face's datasets."""

import json

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from simplicia.data import datasets
from simplicia.evaluate.encode import encode


@pytest.fixture(scope="module")
def written(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parquet")
    photos, rng = folder / "photos", np.random.default_rng(0)
    photos.mkdir()
    for name in ("a.png", "b\x1b.png"):
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(photos / name)
    layers = ["codes", "sem"]
    encode(run, "digits", folder / "digits.parquet", layers, None, "online", None, True)
    encode(run, str(photos), folder / "files.parquet", ["codes"], None, "online", None, True)
    return folder


def test_rows_are_images_with_codes_labels_and_classes(run, written):
    table = pyarrow.parquet.read_table(written / "digits.parquet")
    train, test = (datasets.load("digits", split) for split in ("train", "test"))
    assert table.num_rows == len(train) + len(test)
    assert table["labels"].to_pylist() == torch.cat([train.labels, test.labels]).tolist()
    assert set(table["split"].to_pylist()) == {"train", "test"}
    assert json.loads(table.schema.metadata[b"simplicia"])["classes"] == list(train.classes)
    codes = np.stack(table["codes"].to_numpy(zero_copy_only=False))
    assert codes.dtype == np.uint8 and np.array_equal(
        codes[:9], run.encode(train.images[:9], "codes").numpy()
    )
    sem = torch.tensor(np.stack(table["sem"].to_numpy(zero_copy_only=False)[:9]))
    torch.testing.assert_close(sem, run.encode(train.images[:9], "sem"))


def test_files_are_named_and_printable(written):
    table = pyarrow.parquet.read_table(written / "files.parquet")
    assert table.column_names == ["files", "codes"] and table["files"].to_pylist() == ["a.png", "b\\x1b.png"]


def test_hugging_face_reads_it(written, monkeypatch):
    hugging_face = pytest.importorskip("datasets")
    rows = hugging_face.Dataset.from_parquet(
        str(written / "digits.parquet"), cache_dir=str(written / "cache")
    )
    assert len(rows[0]["codes"]) == 16 and rows.num_rows > 1000
