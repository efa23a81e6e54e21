"""Sources give the same bytes however images are kept, and notice when their data changed."""

import io
import json
import os
import tarfile

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from simplicia.data import datasets, source_index, sources
from simplicia.data.source_index import open_source
from simplicia.data.sources import Unreadable
from simplicia.errors import UserError

CLASSES = ("bird", "cat", "ünï\x1b")


def encoded(seed, kind="JPEG", size=(24, 20)):
    noise = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, kind)
    return file.getvalue()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.delenv("SIMPLICIA_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "simplicia"


@pytest.fixture
def photos(tmp_path):
    """12 photos of 3 classes, in folders that have been left alone for a while."""
    folder = tmp_path / "photos"
    for i in range(12):
        path = folder / CLASSES[i // 4] / f"{i:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(i))
    settle(folder)
    return folder


def settle(folder):
    """Make a folder look as if nothing happened there lately."""
    for place in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        os.utime(place, ns=(10**18, 10**18))


def as_tar(folder, photos, label=lambda i: (".cls", str(i // 4))):
    """Two shards, with members in another order than their keys' labels."""
    folder.mkdir()
    files = sorted(photos.rglob("*.jpg"))
    for shard in range(2):
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as tar:
            for i in range(6 * shard, 6 * shard + 6):
                tar.add(files[i], f"{i:04d}.jpg")
                extension, text = label(i)
                about = tarfile.TarInfo(f"{i:04d}{extension}")
                about.size = len(text.encode())
                tar.addfile(about, io.BytesIO(text.encode()))
    return folder


def as_table(folder, photos, kind):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    folder.mkdir()
    files = sorted(photos.rglob("*.jpg"))
    rows = [{"bytes": file.read_bytes(), "path": None} for file in files]
    features = {"image": {"_type": "Image"}, "label": {"names": list(CLASSES), "_type": "ClassLabel"}}
    about = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    for shard in range(2):
        part = slice(6 * shard, 6 * shard + 6)
        table = pa.table({"image": rows[part], "label": [i // 4 for i in range(12)][part]})
        table = table.replace_schema_metadata(about)
        if kind == "parquet":
            pyarrow.parquet.write_table(table, folder / f"{shard}.parquet", row_group_size=4)
        else:
            opener = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
            with opener(str(folder / f"{shard}.arrow"), table.schema) as writer:
                writer.write_table(table, max_chunksize=4)
    return folder


@pytest.mark.parametrize("kind", ["folder", "tar", "json", "parquet", "stream", "file"])
def test_every_kind_of_source_gives_the_same_bytes_and_labels(tmp_path, photos, kind):
    if kind == "folder":
        folder = photos
    elif kind == "tar":
        folder = as_tar(tmp_path / "shards", photos)
        (folder / "classes.json").write_text(json.dumps(CLASSES))
    elif kind == "json":
        folder = as_tar(
            tmp_path / "shards", photos, lambda i: (".json", json.dumps({"label": CLASSES[i // 4]}))
        )
    else:
        folder = as_table(tmp_path / "tables", photos, kind)
    files = sorted(photos.rglob("*.jpg"))
    for _ in range(2):  # built, and from its index
        source = open_source(folder)
        assert [source.read(i) for i in range(12)] == [file.read_bytes() for file in files]
        assert source.classes == CLASSES and source.labels.tolist() == [i // 4 for i in range(12)]
        assert len(set(source.entries)) == 12
    some = source.only(np.array([7, 2]))
    assert some.read(1) == files[2].read_bytes() and some.labels.tolist() == [1, 0]
    assert list(some.entries) == [source.entries[7], source.entries[2]]


def test_an_index_is_used_until_its_folder_changes(photos, cache):
    first = open_source(photos)
    (index,) = cache.glob("*.index")
    written = index.stat().st_mtime_ns
    assert list(open_source(photos).entries) == list(first.entries)
    assert index.stat().st_mtime_ns == written
    (photos / "cat" / "new.jpg").write_bytes(encoded(99))
    assert len(open_source(photos)) == 13
    (photos / "cat" / "new.jpg").unlink()
    assert len(open_source(photos)) == 12


def test_an_index_of_a_folder_that_just_changed_is_not_trusted(photos, cache):
    """A file added within the clock's resolution leaves a folder's time as it was."""
    (photos / "bird" / "one.jpg").write_bytes(encoded(50))
    state = (photos / "bird").stat()
    assert len(open_source(photos)) == 13
    (photos / "bird" / "two.jpg").write_bytes(encoded(51))
    os.utime(photos / "bird", ns=(state.st_atime_ns, state.st_mtime_ns))
    assert len(open_source(photos)) == 14


@pytest.mark.parametrize("damage", [b"", b"no index", "cut", "label"])
def test_a_damaged_index_is_rebuilt(photos, cache, damage):
    first = open_source(photos)
    (index,) = cache.glob("*.index")
    if damage == "label":
        source_index.save_index(_mislabelled(first), index)
    else:
        content = index.read_bytes()[:-40] if damage == "cut" else damage
        index.unlink()  # the first source still maps the old file
        index.write_bytes(content)
    again = open_source(photos)
    assert list(again.entries) == list(first.entries) and again.labels.tolist() == first.labels.tolist()


def _mislabelled(source):
    label = np.array(source.table.label)
    label[0] = 7
    return sources.Source(source.root, source.table._replace(label=label), source.about)


def test_files_that_change_or_vanish_are_noticed_when_they_are_read(photos):
    source = open_source(photos)
    path = photos / source.entries[3]
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(Unreadable, match="has changed"):
        source.read(3)
    path.write_bytes(data)
    with pytest.raises(Unreadable, match="has changed"):  # of the same size, and written to
        source.read(3)
    (photos / source.entries[4]).unlink()
    with pytest.raises(Unreadable, match="is gone"):
        source.read(4)
    assert source.read(5)


@pytest.mark.parametrize("kind", ["tar", "parquet", "file"])
def test_shards_that_change_or_vanish_are_noticed_when_they_are_read(tmp_path, photos, kind):
    make = as_tar if kind == "tar" else lambda *places: as_table(*places, kind)
    source = open_source(make(tmp_path / "shards", photos))
    first, second = (source.root / name for name, *_ in source.about["shards"])
    first.write_bytes(first.read_bytes())  # the same again
    second.unlink()
    for i, message in ((0, "has changed"), (11, "is gone")):
        with pytest.raises(Unreadable, match=message):
            source.read(i)


def test_a_shard_that_was_cut_gives_what_is_left_of_it(tmp_path, photos):
    folder = as_tar(tmp_path / "shards", photos)
    shard = folder / "001.tar"
    shard.write_bytes(shard.read_bytes()[:3000])
    source = open_source(folder)
    assert 6 < len(source) < 12 and all(source.read(i) for i in range(len(source)))
    ((path, reason),) = source.skipped
    assert path == shard and "damaged" in reason


def test_an_index_beside_shards_that_does_not_match_is_one_sentence(tmp_path, photos):
    folder = as_tar(tmp_path / "shards", photos)
    source_index.save_packed(open_source(folder))
    assert len(open_source(folder)) == 12
    with (folder / "000.tar").open("ab") as file:
        file.write(b"more")
    with pytest.raises(UserError, match="does not match its shards"):
        open_source(folder)


def test_an_index_from_a_stranger_reads_nothing_outside_of_its_folder(tmp_path, photos):
    folder = as_tar(tmp_path / "shards", photos)
    (tmp_path / "secret").write_bytes(b"secret" * 100)
    source = open_source(folder)
    stolen = {**source.about, "shards": [["../secret", 600, 0]] * 2}
    source_index.save_index(sources.Source(folder, source.table, stolen), folder / source_index.INDEX)
    with pytest.raises(UserError, match="does not match"):
        open_source(folder)
    with pytest.raises(Unreadable, match="outside"):
        sources.Source(folder, source.table, stolen).read(0)


@pytest.mark.parametrize(
    "changes",
    [
        {"name_end": np.arange(12)[::-1].copy()},
        {"name_end": np.arange(12, dtype=np.float32)},
        {"size": np.ones((12, 2), np.int64)},
        {"size": np.full(12, -5)},
        {"offset": np.full(12, -5)},
        {"label": np.full(12, -7)},
        {"built": None},
        {"classes": [1, 2, 3]},
    ],
    ids=str,
)
def test_an_index_with_impossible_values_does_not_match(changes, tmp_path, photos):
    folder = as_tar(tmp_path / "shards", photos)
    source = open_source(folder)
    arrays = source.table._asdict() | {k: v for k, v in changes.items() if k in source.table._fields}
    about = source.about | {"folders": [], "version": 1, "built": 1, **changes}
    about = {name: value for name, value in about.items() if name not in source.table._fields}
    save_file(arrays, folder / source_index.INDEX, {"about": json.dumps(about)})
    with pytest.raises(UserError, match="does not match its shards"):
        open_source(folder)


def test_an_image_that_ends_after_its_shard_is_unreadable(tmp_path, photos):
    folder = as_tar(tmp_path / "shards", photos)
    source = open_source(folder)
    huge = source.table._replace(size=np.full(12, 2**60))
    with pytest.raises(Unreadable, match="outside of its shard"):
        sources.Source(folder, huge, source.about).read(0)


def header(kind, size):
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    "start",
    [
        (header(tarfile.GNUTYPE_LONGNAME, 4) + b"name".ljust(512, b"\0")) * 3000,
        header(tarfile.XHDTYPE, 2**60),
        header(tarfile.XHDTYPE, 40) + b"99999999999999999999 path=x\n".ljust(512, b"\0"),
    ],
    ids=["nested", "huge", "length"],
)
def test_a_hostile_tar_header_is_a_damaged_shard(start, tmp_path, photos):
    folder = as_tar(tmp_path / "shards", photos)
    (folder / "000.tar").write_bytes(start + (folder / "000.tar").read_bytes())
    source = open_source(folder)
    ((path, reason),) = source.skipped
    assert len(source) == 6 and path.name == "000.tar" and "damaged after 0 images" in reason
    (folder / "001.tar").write_bytes(start)
    with pytest.raises(UserError, match=r"such as those of '000\.tar': the shard is damaged"):
        datasets.read_all(folder, 32)


def test_names_of_classes_may_be_nested_without_end(tmp_path, photos):
    folder = as_tar(tmp_path / "shards", photos)
    (folder / "classes.json").write_text("[" * 100_000)
    assert open_source(folder).classes == ("0", "1", "2")


def test_names_of_classes_that_no_file_can_hold_are_escaped(tmp_path, photos):
    folder = as_tar(tmp_path / "shards", photos)
    (folder / "classes.json").write_text('["\\ud800", "é", "b"]')
    assert open_source(folder).classes == ("\\ud800", "é", "b")


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("case", ["numbers", "twice", "label", "names"])
def test_hostile_tables_are_one_sentence(kind, case, tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    rows = [{"bytes": 3 if case == "numbers" else encoded(i)} for i in range(4)]
    columns = {"image": pa.array(rows), "label": pa.array([0, 1, 0, 2**31 - 1 if case == "label" else 1])}
    columns = [*columns.items(), *([("image", columns["image"])] if case == "twice" else [])]
    table = pa.Table.from_arrays([column for _, column in columns], names=[name for name, _ in columns])
    table = table.replace_schema_metadata({"huggingface": "[" * 100_000}) if case == "names" else table
    if kind == "parquet":
        pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    else:
        with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as stream:
            stream.write_table(table)
    if case == "names":
        assert open_source(tmp_path).classes == ("0", "1")
        return
    words = "labels are below 1,000,000" if case == "label" else "has no column of images"
    with pytest.raises(UserError, match=words):
        open_source(tmp_path)


def test_shards_in_one_folder_are_split_by_their_names(tmp_path, photos):
    folder = as_tar(tmp_path / "shards", photos)
    (folder / "000.tar").rename(folder / "photos-train-000.tar")
    (folder / "001.tar").rename(folder / "photos-validation-000.tar")
    train, test = (datasets.load(str(folder), split, size=16, stream=True) for split in ("train", "test"))
    assert len(train) == len(test) == 6 and train.classes == test.classes
    assert train.labels.tolist() == [0, 0, 0, 0, 1, 1] and test.labels.tolist() == [1, 1, 2, 2, 2, 2]
    with pytest.raises(UserError, match="shards, which are streamed"):
        datasets.load(str(folder))


def test_streamed_splits_equal_decoded_ones(photos):
    for split in ("train", "test"):
        streamed, decoded = (datasets.load(str(photos), split, size=16, stream=s) for s in (True, False))
        assert streamed.streamed and not decoded.streamed and len(streamed) == len(decoded)
        assert list(streamed.files) == list(decoded.files) and streamed.classes == decoded.classes
        assert streamed.labels.equal(decoded.labels) and streamed.source == decoded.source
        difference = (streamed.images.to("cpu").int() - decoded.images.int()).abs()
        assert difference.max() <= 2
    chosen = datasets.part(streamed, streamed.labels.nonzero()[:, 0])
    assert list(chosen.files) == [f for f, y in zip(streamed.files, streamed.labels, strict=True) if y]


def test_auto_streams_what_does_not_fit_into_memory(photos, monkeypatch):
    def load():
        return datasets.load(str(photos), size=16, stream=None)

    assert not load().streamed
    monkeypatch.setattr("simplicia.data.decoding.free_memory", lambda: 10_000)
    assert load().streamed
    datasets.load(str(photos), size=16, stream=True)  # leaves an index
    assert load().streamed
    monkeypatch.setattr("simplicia.data.decoding.free_memory", lambda: 10**6)
    assert not load().streamed
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")  # each process would have a copy
    assert load().streamed


def test_sets_without_files_are_not_streamed():
    with pytest.raises(UserError, match="digits has no image files to stream"):
        datasets.load("digits", stream=True)
