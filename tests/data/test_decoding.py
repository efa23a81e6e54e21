"""The cache of decoded images: equal to the files, decoded once, never confused with other files."""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import simplicia
from simplicia.data import datasets, decoding, image_files
from simplicia.devices import launch
from simplicia.errors import UserError
from simplicia.settings import with_changes
from simplicia.train import recipes
from simplicia.train.trainer import Trainer


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(12):
        noise = np.random.default_rng(i).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{i:02d}.png")
    (folder / "03.png").write_bytes(b"no image")
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMPLICIA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def read(photos, size=16, **options):
    return datasets.load(str(photos), "train", size=size, **options)


def times(cache):
    """When each cached file was written: it changes when images are decoded again."""
    return {path: path.stat().st_mtime_ns for path in cache.iterdir()}


def same(one, other):
    assert one.images.equal(other.images) and (one.files, one.skipped) == (other.files, other.skipped)


def test_a_replaced_file_of_equal_size_and_date_is_decoded_again(tmp_path, cache):
    """Only the time of change (ctime) differs."""
    (tmp_path / "bitmaps").mkdir()
    for level in (10, 110):
        Image.new("RGB", (16, 16), (level,) * 3).save(tmp_path / "new.bmp")
        os.utime(tmp_path / "new.bmp", ns=(10**18, 10**18))
        os.replace(tmp_path / "new.bmp", tmp_path / "bitmaps" / "a.bmp")
        assert read(tmp_path / "bitmaps").images.unique().tolist() == [level]


def test_cached_images_equal_decoded_ones(photos, cache, monkeypatch):
    first = read(photos)
    assert len(first) == 11 and first.skipped[0][0] == "03.png"
    assert sorted(path.suffix for path in cache.iterdir()) == [".json", ".npy"]
    before = times(cache)
    second = read(photos)
    same(first, second)
    assert times(cache) == before
    monkeypatch.delenv("SIMPLICIA_CACHE")
    same(second, read(photos))
    second.images[0] = 7  # changes the tensor, not the file
    monkeypatch.setenv("SIMPLICIA_CACHE", str(cache))
    same(first, read(photos))


def test_changed_files_and_other_sizes_are_decoded_again(photos, cache):
    first = read(photos)
    Image.new("RGB", (20, 24), "red").save(photos / "05.png")
    os.utime(photos / "05.png", ns=(1, 1))
    changed = read(photos)
    assert not changed.images.equal(first.images) and changed.images[4, 0].eq(255).all()
    assert read(photos, 8).images.shape[2:] == (8, 8)
    (photos / "05.png").unlink()
    assert len(read(photos)) == 10 and len(list(cache.glob("*.npy"))) == 4


@pytest.mark.parametrize("damage", ["cut", "json", "empty", "shape"])
def test_a_damaged_cache_is_rebuilt(photos, cache, damage):
    first = read(photos)
    (pixels,), (about,) = cache.glob("*.npy"), cache.glob("*.json")
    content = {"cut": pixels.read_bytes()[:500], "json": b"[]", "empty": b"", "shape": b""}[damage]
    damaged = about if damage == "json" else pixels
    damaged.unlink()  # the first set still maps the old file
    damaged.write_bytes(content)
    if damage == "shape":
        np.save(pixels, np.zeros((12, 3, 8, 8), dtype=np.uint8))
    same(first, read(photos))
    same(first, read(photos))


def test_keep_aspect_has_its_own_cache_with_aspect_ratios(photos, cache, monkeypatch):
    squares = read(photos)
    first = read(photos, keep_aspect=True)
    assert squares.aspect_ratios is None and first.aspect_ratios.tolist() == pytest.approx([24 / 20] * 11)
    assert not first.images.equal(squares.images)
    before = times(cache)
    second = read(photos, keep_aspect=True)
    same(first, second)
    assert times(cache) == before and second.aspect_ratios.equal(first.aspect_ratios)
    monkeypatch.delenv("SIMPLICIA_CACHE")
    same(first, read(photos, keep_aspect=True))


@pytest.mark.parametrize("aspects", [[], [1.2] * 10 + [-1.0], [1.2] * 10 + ["wide"], None])
def test_damaged_aspect_ratios_are_rebuilt(photos, cache, aspects):
    first = read(photos, keep_aspect=True)
    (about,) = cache.glob("*.json")
    content = json.loads(about.read_text()) | {"aspects": aspects}
    about.write_text(json.dumps(content))
    assert read(photos, keep_aspect=True).aspect_ratios.equal(first.aspect_ratios)


def test_an_interrupt_loses_nothing_that_was_decoded(photos, cache, monkeypatch):
    def stop(done, total):
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(photos, progress=stop)
    assert sorted(path.suffix for path in cache.iterdir()) == [".journal", ".partial"]
    decode, decoded = image_files.decode, []
    monkeypatch.setattr(
        image_files, "decode", lambda path, *more: decoded.append(path.name) or decode(path, *more)
    )
    first = read(photos)
    assert sorted(decoded) == [f"{i:02d}.png" for i in range(7, 12)]
    assert sorted(path.suffix for path in cache.iterdir()) == [".json", ".npy"]
    monkeypatch.delenv("SIMPLICIA_CACHE")
    same(first, read(photos))


FILL = """
import sys, time
from simplicia.data import datasets
show = lambda done, _: print(done, flush=True) or time.sleep(0.05)
images = datasets.load(sys.argv[1], size=16, progress=show)
print("sum", images.images.long().sum().item())
"""


def test_a_killed_process_loses_nothing_and_another_one_goes_on(photos, cache):
    """The second process waits for the first while it lives."""

    def start():
        command = [sys.executable, "-c", FILL, str(photos)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    killed = start()
    while killed.stdout.readline().strip() != "3":
        pass
    waits = start()
    killed.kill()
    last = int((["3", *killed.stdout.read().split()])[-1])
    lines = waits.communicate()[0].splitlines()
    assert int(lines[0]) in (last, last + 1, last + 2) and waits.returncode == 0
    assert lines[-1] == f"sum {read(photos).images.long().sum().item()}"


@pytest.mark.parametrize("damage", ["boot", "torn", "journal"])
def test_a_damaged_journal_starts_over_or_goes_on(photos, cache, damage):
    def stop(done, total):
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(photos, progress=stop)
    (journal,) = cache.glob("*.journal")
    text = journal.read_text()
    changed = {"boot": text.replace('["', '["another'), "torn": text[:-3], "journal": "no journal"}[damage]
    journal.write_text(changed)
    first = []
    images = read(photos, progress=lambda done, total: first.append(done))
    assert first[0] == {"boot": 1, "torn": 7, "journal": 1}[damage]
    same(images, read(photos))


def test_a_cache_larger_than_memory_opens_and_trains(tmp_path, monkeypatch):
    """A file with holes, of twice the memory and swap that there is."""
    lines = Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else []
    sizes = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if "kB" in line}
    if "MemTotal" not in sizes:
        pytest.skip("needs /proc/meminfo")
    shape = (2 * (sizes["MemTotal"] + sizes["SwapTotal"])) // (3 * 256 * 256) + 1, 3, 256, 256
    pixels, about = tmp_path / "x.npy", tmp_path / "x.json"
    with pixels.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        try:
            file.truncate(file.tell() + np.prod(shape))
        except OSError:
            pytest.skip("the file system has no files of this size")
    count = shape[0]
    about.write_text(json.dumps({"readable": list(range(count)), "aspects": [1.0] * count, "skipped": []}))
    images, report = decoding._read_cache(pixels, about, shape)
    assert images.shape == shape and len(report.readable) == count
    published = datasets.ImageSet("imagenet", datasets._as_tensor(images), standard=True)
    recipe = recipes.get("byol-sem")
    changes = {"batch_size": 4, "image_size": 32, "encoder": "tiny", "stem": "small", "sem.simplices": 8}
    recipe = with_changes(recipe, {**changes, "precision": "32", "options": {"hidden": 32, "out": 16}})
    trainer = Trainer(recipe.checked(), published, launch("cpu", 1, "32"))
    assert all(trainer.step(step).loss.isfinite() for step in range(2))


def test_temporary_errors_are_not_cached(photos, cache, monkeypatch):
    decode = image_files.decode

    def fails(path, size, keep_aspect):
        if path.name == "05.png":
            raise OSError(24, "Too many open files")
        return decode(path, size, keep_aspect)

    with monkeypatch.context() as patch:
        patch.setattr(image_files, "decode", fails)
        some = read(photos)
    assert len(some) == 10 and ("05.png", "Too many open files") in some.skipped
    assert list(cache.iterdir()) == []
    every = read(photos)
    assert len(every) == 11 and every.images[4].float().std() > 10
    assert some.images[0].equal(every.images[0])  # though its mapped file is gone


def test_leftovers_of_killed_processes_are_removed(photos, cache):
    read(photos)
    (pixels,) = cache.glob("*.npy")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = platform.node()
    name = pixels.with_suffix(".json").name
    theirs = cache / f".{name}.{host}.{ended.pid}.0a.writing"
    running = cache / f".{name}.{host}.{os.getppid()}.0a.writing"
    elsewhere = cache / f".{name}.another-{host}.{ended.pid}.0a.writing"
    for path in (theirs, running, elsewhere):
        path.write_bytes(b"half")
    pixels.unlink()
    read(photos)
    assert not theirs.exists() and running.exists() and elsewhere.exists()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_folders_without_search_permission_are_skipped(tmp_path, photos):
    shutil.copytree(photos, tmp_path / "set/a")
    shutil.copytree(photos, tmp_path / "set/b")
    (tmp_path / "set/b").chmod(0o444)
    try:
        images = datasets.load(tmp_path / "set", size=16)
        assert images.classes == ("a",) and any(path.startswith("b/") for path, _ in images.skipped)
    finally:
        (tmp_path / "set/b").chmod(0o755)


def test_images_larger_than_memory_need_the_cache(photos, cache, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: 64)
    assert len(read(photos)) == 11
    monkeypatch.delenv("SIMPLICIA_CACHE")
    with pytest.raises(UserError, match="name a folder in SIMPLICIA_CACHE"):
        read(photos)


def test_an_unwritable_or_full_cache_raises(photos, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SIMPLICIA_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(UserError, match=r"cannot be kept in .*below"):
        read(photos)
    monkeypatch.setenv("SIMPLICIA_CACHE", str(tmp_path / "small"))
    monkeypatch.setattr(decoding.shutil, "disk_usage", lambda path: type("", (), {"free": 100})())
    with pytest.raises(UserError, match=r"12 decoded images of 16 x 16 take 0\.0 GB, and .*small"):
        read(photos)
    assert not list((tmp_path / "small").iterdir())


def test_training_on_cached_images_repeats(photos, cache, tmp_path):
    small = {"epochs": 1, "batch_size": 4, "image_size": 16, "encoder": "tiny", "quiet": True}
    small |= {"stem": "small", "sem.simplices": 8, "options": {"hidden": 32, "out": 16}}
    losses = [
        simplicia.pretrain("byol-sem", data=str(photos), out=tmp_path / f"run{i}", **small).state["loss"]
        for i in range(2)
    ]
    assert losses[0] == losses[1] and torch.tensor(losses).isfinite().all()
