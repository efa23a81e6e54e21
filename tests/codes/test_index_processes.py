"""Real processes: killed builds, two writers, a full disk."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import numpy as np
import pytest

from simplicia.codes import Index, build, changes, informative
from simplicia.train.run_dir import lock

KILLS = 20
# builds with a part for every batch, so that a kill falls between parts as often as within one
SLOW = """
import sys
from simplicia import cli
from simplicia.codes import build
build.BATCH, build.MOST_ROWS = 8, 8
sys.exit(cli.main(sys.argv[1:]))
"""


def start(*words, code=SLOW, **options):
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def forked(words, delay):
    """Run a command in a forked process, and SIGKILL it after a while; whether it was killed."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            from simplicia import cli

            build.BATCH = build.MOST_ROWS = 8
            with open(os.devnull, "w") as null:
                os.dup2(null.fileno(), 1)
                os.dup2(null.fileno(), 2)
            status = cli.main(list(map(str, words)))
        finally:
            os._exit(status)
    deadline = time.monotonic() + delay
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def content(path):
    index = Index.open(path)
    return index.names, index.simplices, index.codes().tolist(), [g.names for g in index.duplicates()]


def test_a_kill_leaves_the_old_or_the_new_index(run, photos, tmp_path, shapes, save_images):
    """Builds and additions are killed at random moments until 20 were; each goes on to the same index."""
    out, rng = tmp_path / "photos.index", random.Random(0)
    options = ["--simplices", "8", "--quiet", "--device", "cpu"]
    assert not forked(["index", run.path, photos, "--out", out, *options], 600)
    old, first = content(out), out.read_bytes()
    save_images(photos, shapes[:40], start=500)
    for words in (["index", run.path, photos], ["index", run.path, "--add", photos]):
        out.write_bytes(first)
        begun = time.monotonic()
        assert not forked([*words, "--out", out, *options], 600)
        usual, new, killed = time.monotonic() - begun, content(out), 0
        assert new != old
        while killed < KILLS // 2:
            out.write_bytes(first)
            while forked([*words, "--out", out, *options], rng.uniform(0, 1.2 * usual)):
                killed += 1
                assert content(out) in (old, new)
            assert content(out) == new
            assert not list(tmp_path.glob("*.building")) and not list(tmp_path.glob("*writing*"))


def test_a_killed_build_does_not_encode_again(run, photos, tmp_path):
    out = tmp_path / "photos.index"
    words = ["index", run.path, photos, "--out", out, "--device", "cpu"]
    parts, delay = tmp_path / "photos.index.building", 0.02
    while not list(parts.glob("part-*")):
        forked(words, delay)
        assert not out.exists()
        delay *= 1.1
    kept = {path: path.stat().st_mtime_ns for path in parts.glob("part-*")}
    seen, real = [], build.see
    build.see = lambda path, size: (seen.append(path), real(path, size))[1]
    try:
        index = Index.build(run, photos, out)
    finally:
        build.see = real
    assert len(index) == 120 and kept
    assert len(seen) == len(set(seen)) < 120


def test_a_build_killed_while_it_removes_its_parts_keeps_the_order(run, photos, tmp_path, monkeypatch):
    """Half of the parts would go on to an index with the other half at its end."""
    out = tmp_path / "photos.index"
    monkeypatch.setattr(build, "BATCH", 8)
    monkeypatch.setattr(build, "MOST_ROWS", 8)
    names = Index.build(run, photos, out).names

    def killed(folder):
        sorted(folder.glob("part-*"))[3].unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(changes.shutil, "rmtree", killed)
        Index.build(run, photos, out)
    assert Index.build(run, photos, out).names == names
    assert not [path.name for path in tmp_path.iterdir() if "building" in path.name]


def test_parts_of_a_stopped_build_keep_the_order_of_the_files(run, photos, tmp_path, monkeypatch):
    whole = content(Index.build(run, photos, tmp_path / "a.index").path)
    monkeypatch.setattr(build, "BATCH", 8)
    monkeypatch.setattr(build, "MOST_ROWS", 8)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(informative, "choose", Mock(side_effect=KeyboardInterrupt))
        Index.build(run, photos, tmp_path / "b.index")
    assert len(list((tmp_path / "b.index.building").glob("part-*"))) == 15
    assert content(Index.build(run, photos, tmp_path / "b.index").path) == whole


def test_an_index_that_is_being_written_is_refused(run, photos, tmp_path):
    out = tmp_path / "photos.index"
    index = Index.build(run, photos, out)
    before = out.read_bytes()
    with lock(tmp_path, ".photos.index.lock"):
        for words in (
            ["index", run.path, photos, "--out", out],
            ["index", run.path, "--out", out, "--remove", "000.png"],
        ):
            process = start(*words)
            _, error = process.communicate(timeout=120)
            assert process.returncode == 2 and "is being written by another process" in error
        assert len(index.search(np.zeros((1, 16), int), k=3).names[0]) == 3  # readers go on
    assert out.read_bytes() == before


def test_a_full_disk_leaves_the_old_index(run, photos, tmp_path, shapes, save_images):
    """A limit on the size of files fails a write as a full disk does."""
    out = tmp_path / "photos.index"
    Index.build(run, photos, out)
    before = out.read_bytes()
    save_images(photos, shapes[:60], start=500)

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), len(before)))

    for words in (
        ["index", run.path, photos, "--out", out],
        ["index", run.path, "--out", out, "--add", photos],
    ):
        process = start(*words, preexec_fn=limit)
        _, error = process.communicate(timeout=120)
        assert process.returncode == 2 and "the index cannot be written to" in error.splitlines()[-1], error
        assert "Traceback" not in error and out.read_bytes() == before
    assert not list(tmp_path.glob("*writing*"))
    assert len(Index.build(run, photos, out)) == 180
