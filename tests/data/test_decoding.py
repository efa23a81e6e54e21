"""Decoded images kept on disk are the images, are made once, and never stand for other files."""

import json
import os
import platform
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from simplicia.data import datasets, decoding, image_files
from simplicia.errors import UserError


@pytest.fixture
def photos(tmp_path):
    place = tmp_path / "photos"
    place.mkdir()
    for i in range(12):
        noise = np.random.default_rng(i).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(noise).save(place / f"{i:02d}.png")
    (place / "03.png").write_bytes(b"no image")
    return place


def test_a_file_that_takes_the_place_of_another_is_seen(tmp_path, cache):
    """Of one size, with its date: only the time of the change tells."""
    (tmp_path / "bitmaps").mkdir()
    for level in (10, 110):
        Image.new("RGB", (16, 16), (level,) * 3).save(tmp_path / "new.bmp")
        os.utime(tmp_path / "new.bmp", ns=(10**18, 10**18))
        os.replace(tmp_path / "new.bmp", tmp_path / "bitmaps" / "a.bmp")
        assert read(tmp_path / "bitmaps").images.unique().tolist() == [level]


def test_levels_of_many_bits_are_those_of_the_whole_picture(tmp_path):
    levels = np.full((20, 40), 2000, dtype=np.uint16)
    levels[0, 0] = 60000  # outside of the centre square
    Image.fromarray(levels).save(tmp_path / "a.png")
    square, aspect = image_files.decode(tmp_path / "a.png", 8)
    whole, _ = image_files.decode(tmp_path / "a.png", 8, keep_aspect=True)
    assert aspect == 2 and int(square[4, 4, 0]) == int(whole[4, 4, 0])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMPLICIA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def read(photos, size=16):
    return datasets.load(str(photos), "train", size=size)


def same(one, other):
    assert one.images.equal(other.images) and (one.files, one.skipped) == (other.files, other.skipped)


def test_what_is_kept_is_what_is_decoded(photos, cache, monkeypatch):
    first = read(photos)
    assert len(first) == 11 and first.skipped[0][0] == "03.png"
    assert sorted(path.suffix for path in cache.iterdir()) == [".json", ".npy"]
    decode = decoding.decode
    monkeypatch.setattr(decoding, "decode", None)  # nobody decodes again
    second = read(photos)
    same(first, second)
    monkeypatch.setattr(decoding, "decode", decode)
    monkeypatch.delenv("SIMPLICIA_CACHE")
    same(second, read(photos))
    second.images[0] = 7  # a tensor as any other, and the file stays as it is
    monkeypatch.setenv("SIMPLICIA_CACHE", str(cache))
    same(first, read(photos))


def test_other_files_and_sizes_are_decoded_anew(photos, cache):
    first = read(photos)
    Image.new("RGB", (20, 24), "red").save(photos / "05.png")
    os.utime(photos / "05.png", ns=(1, 1))
    changed = read(photos)
    assert not changed.images.equal(first.images) and changed.images[4, 0].eq(255).all()
    assert read(photos, 8).images.shape[2:] == (8, 8)
    (photos / "05.png").unlink()
    assert len(read(photos)) == 10 and len(list(cache.glob("*.npy"))) == 4


@pytest.mark.parametrize("damage", ["cut", "json", "empty", "shape"])
def test_what_is_damaged_is_made_again(photos, cache, damage):
    first = read(photos)
    (pixels,), (about,) = cache.glob("*.npy"), cache.glob("*.json")
    content = {"cut": pixels.read_bytes()[:500], "json": b"[]", "empty": b"", "shape": b""}[damage]
    damaged = about if damage == "json" else pixels
    damaged.unlink()  # the first set still reads what was there
    damaged.write_bytes(content)
    if damage == "shape":
        np.save(pixels, np.zeros((12, 3, 8, 8), dtype=np.uint8))
    same(first, read(photos))
    same(first, read(photos))


def test_whole_pictures_are_kept_apart_with_their_shapes(photos, cache, monkeypatch):
    squares = read(photos)
    first = datasets.load(str(photos), "train", size=16, keep_aspect=True)
    assert squares.aspect_ratios is None and first.aspect_ratios.tolist() == pytest.approx([24 / 20] * 11)
    assert not first.images.equal(squares.images)
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "decode", None)  # nobody decodes again
        second = datasets.load(str(photos), "train", size=16, keep_aspect=True)
    same(first, second)
    assert second.aspect_ratios.equal(first.aspect_ratios)
    monkeypatch.delenv("SIMPLICIA_CACHE")
    same(first, datasets.load(str(photos), "train", size=16, keep_aspect=True))


@pytest.mark.parametrize("aspects", [[], [1.2] * 10 + [-1.0], [1.2] * 10 + ["wide"], None])
def test_damaged_shapes_are_read_anew(photos, cache, aspects):
    first = datasets.load(str(photos), "train", size=16, keep_aspect=True)
    (about,) = cache.glob("*.json")
    said = json.loads(about.read_text()) | {"aspects": aspects}
    about.write_text(json.dumps(said))
    assert datasets.load(str(photos), "train", size=16, keep_aspect=True).aspect_ratios.equal(
        first.aspect_ratios
    )


def test_an_interrupted_decoding_leaves_nothing(photos, cache, monkeypatch):
    def stop(path, size, keep_aspect):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(decoding, "decode", stop)
        with pytest.raises(KeyboardInterrupt):
            read(photos)
    assert list(cache.iterdir()) == []
    assert len(read(photos)) == 11


def test_a_file_that_could_not_be_opened_is_tried_again(photos, cache, monkeypatch):
    decode = decoding.decode

    def fails(path, size, keep_aspect):
        if path.name == "05.png":
            raise OSError(24, "Too many open files")
        return decode(path, size, keep_aspect)

    with monkeypatch.context() as patch:
        patch.setattr(decoding, "decode", fails)
        some = read(photos)
    assert len(some) == 10 and ("05.png", "Too many open files") in some.skipped
    assert list(cache.iterdir()) == []
    every = read(photos)
    assert len(every) == 11 and every.images[4].float().std() > 10
    assert some.images[0].equal(every.images[0])  # though its file is gone


def test_what_killed_processes_left_is_removed(photos, cache):
    read(photos)
    (pixels,) = cache.glob("*.npy")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = platform.node()
    theirs = cache / f".{pixels.name}.{host}.{ended.pid}.writing"
    running = cache / f".{pixels.name}.{host}.{os.getppid()}.writing"
    elsewhere = cache / f".{pixels.name}.another-{host}.{ended.pid}.writing"
    for path in (theirs, running, elsewhere):
        path.write_bytes(b"half")
    pixels.unlink()
    read(photos)
    assert not theirs.exists() and running.exists() and elsewhere.exists()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_folders_that_cannot_be_searched_are_skipped(tmp_path, photos):
    shutil.copytree(photos, tmp_path / "set/a")
    shutil.copytree(photos, tmp_path / "set/b")
    (tmp_path / "set/b").chmod(0o444)
    try:
        found = datasets.load(tmp_path / "set", size=16)
        assert found.classes == ("a",) and any(path.startswith("b/") for path, _ in found.skipped)
    finally:
        (tmp_path / "set/b").chmod(0o755)


def test_images_beyond_the_memory_need_a_place_on_disk(photos, cache, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: 64)
    assert len(read(photos)) == 11
    monkeypatch.delenv("SIMPLICIA_CACHE")
    with pytest.raises(UserError, match="name a folder in SIMPLICIA_CACHE"):
        read(photos)


def test_a_place_that_cannot_be_written_or_is_full_is_told(photos, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SIMPLICIA_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(UserError, match=r"cannot be kept in .*below"):
        read(photos)
    monkeypatch.setenv("SIMPLICIA_CACHE", str(tmp_path / "small"))
    monkeypatch.setattr(decoding.shutil, "disk_usage", lambda place: type("", (), {"free": 100})())
    with pytest.raises(UserError, match=r"12 decoded images of 16 x 16 take 0\.0 GB, and .*small"):
        read(photos)
    assert not list((tmp_path / "small").iterdir())


def test_a_kept_set_trains_as_any_other(photos, cache, tmp_path):
    import simplicia

    small = {"epochs": 1, "batch_size": 4, "image_size": 16, "encoder": "tiny", "quiet": True}
    small |= {"stem": "small", "sem.simplices": 8, "options": {"hidden": 32, "out": 16}}
    losses = [
        simplicia.pretrain("byol-sem", data=str(photos), out=tmp_path / f"run{i}", **small).state["loss"]
        for i in range(2)
    ]
    assert losses[0] == losses[1] and torch.tensor(losses).isfinite().all()
