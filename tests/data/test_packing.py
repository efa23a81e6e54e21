"""Packed images: the same data set in shards, whatever kills the packing."""

import json
import signal
import subprocess
import sys
import tarfile
import time

import numpy as np
import pytest
from PIL import Image

from simplicia.cli import main
from simplicia.data import datasets, packing
from simplicia.data.source_index import open_source, save_packed
from simplicia.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.delenv("SIMPLICIA_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path):
    """Two splits of two classes; some pictures are large."""
    folder = tmp_path / "photos"
    for i in range(40):
        noise = np.random.default_rng(i).integers(0, 256, (5, 6, 3), dtype=np.uint8)
        split, extension = ("train", "jpg") if i < 30 else ("val", "png")
        path = folder / split / "ab"[i % 2] / f"no.{i:02d}.{extension}"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = (96, 64) if i % 3 else (40, 30)
        Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).save(path)
    return folder


def contents(out):
    return {path.relative_to(out): path.read_bytes() for path in sorted(out.rglob("*.tar"))}


def test_packed_images_are_the_same_data_set(tmp_path, photos):
    out = tmp_path / "packed"
    assert packing.pack(photos, out, size=32) == (40, [])
    assert packing.check(out) == 40
    for split in ("train", "test"):
        before, after = (datasets.load(str(path), split, size=32, stream=True) for path in (photos, out))
        assert after.classes == before.classes and after.labels.equal(before.labels)
        difference = (before.images.to("cpu").int() - after.images.to("cpu").int()).abs()
        assert len(before) == len(after) > 0 and difference.float().mean() < 6
    source = open_source(out / "train")
    assert source.entries[1] == "a/no_02.jpg"
    sizes = set()
    with tarfile.open(out / "train" / "00000.tar") as tar:
        for member in tar:
            if member.name.endswith(".jpg"):
                sizes.add(Image.open(tar.extractfile(member)).size)
        small = photos / "train" / "a" / "no.00.jpg"
        assert sizes == {(48, 32), (40, 30)}  # copied if it is not larger
        assert tar.extractfile("a/no_00.jpg").read() == small.read_bytes()


def test_shards_can_be_packed_again(tmp_path, photos):
    once, twice = tmp_path / "once", tmp_path / "twice"
    packing.pack(photos, once, size=32)
    packing.pack(once, twice, size=32)
    assert contents(once) == contents(twice)  # JPEGs of that size are copied


PACK = """
import sys, time
from pathlib import Path
from simplicia.data import packing
packing.SHARD = 4
packing.pack(Path(sys.argv[1]), Path(sys.argv[2]), 32, progress=lambda *_: time.sleep(0.2))
"""


def test_packing_goes_on_after_a_kill(tmp_path, photos, monkeypatch):
    out, whole = tmp_path / "packed", tmp_path / "whole"
    killed = subprocess.Popen([sys.executable, "-c", PACK, str(photos), str(out)])
    deadline = time.monotonic() + 60
    while len(list(out.glob("*/*.tar"))) < 3 and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    monkeypatch.setattr(packing, "SHARD", 4)
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*.tar")}
    with pytest.raises(UserError, match="not finished"):
        packing.check(out)
    packing.pack(photos, out, 32)
    packing.pack(photos, whole, 32)
    assert contents(out) == contents(whole) and packing.check(out) == 40
    assert before and all(path.stat().st_mtime_ns == changed for path, changed in before.items())
    assert not list(out.rglob("*.writing"))


def test_check_finds_a_changed_shard(tmp_path, photos):
    out = tmp_path / "packed"
    packing.pack(photos, out, size=32)
    shard = out / "val" / "00000.tar"
    content = bytearray(shard.read_bytes())
    content[900] ^= 1
    shard.write_bytes(content)
    with pytest.raises(UserError, match=r"val/00000.tar' has changed"):
        packing.check(out)


def test_hostile_plans_and_indexes_are_one_sentence(tmp_path, photos):
    out = tmp_path / "packed"
    packing.pack(photos, out, size=32)
    plan = json.loads((out / "pack.json").read_text())
    (out / "pack.json").write_text(json.dumps(plan | {"more": 1}))
    with pytest.raises(UserError, match="was begun with other settings"):
        packing.pack(photos, out, size=32)
    (out / "pack.json").write_text(json.dumps(plan | {"images": 5}))
    with pytest.raises(UserError, match="is not finished"):
        packing.check(out)
    (out / "pack.json").write_text(json.dumps(plan))
    for digests in (5, []):
        source = open_source(out / "train")
        source.about["sha256"] = digests
        save_packed(source)
        with pytest.raises(UserError, match="has no digests"):
            packing.check(out)


def test_bad_files_are_left_out_or_stop(tmp_path, photos):
    (photos / "train" / "a" / "no.04.jpg").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(
            UserError, match=r"1 of 40 images cannot be read, such as 'a/no.04.jpg' \(is empty\)"
        ):
            packing.pack(photos, tmp_path / "packed", size=32)
    count, left_out = packing.pack(photos, tmp_path / "other", size=32, most_unreadable=0.1)
    assert count == 39 and left_out == [("a/no.04.jpg", "is empty")]
    assert packing.check(tmp_path / "other") == 39


def test_another_plan_is_refused(tmp_path, photos):
    packing.pack(photos, tmp_path / "packed", size=32)
    with pytest.raises(UserError, match="begun with other size"):
        packing.pack(photos, tmp_path / "packed", size=48)
    with pytest.raises(UserError, match="inside of"):
        packing.pack(photos, photos / "packed")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        packing.pack(photos, tmp_path / "other")


def test_the_verb(tmp_path, photos, capsys):
    words = ["pack", str(photos), str(tmp_path / "packed"), "--quiet"]
    assert main([*words, "--size", "32"]) == 0 and "40 images packed" in capsys.readouterr().out
    assert main([*words, "--check"]) == 0 and "as they were packed" in capsys.readouterr().out
    assert main(["pack", str(tmp_path / "packed"), "--check", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["pack", str(photos)]) == 2 and "two folders" in capsys.readouterr().err
    assert main(["pack", str(tmp_path / "none"), str(tmp_path / "x")]) == 2
