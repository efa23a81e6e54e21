"""Streamed images: the pixels of the files, in an order that nothing but the seed decides."""

import io
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import warm
from PIL import Image

import simplicia
from simplicia import cli
from simplicia.data import crops, datasets, image_files, streaming, workers
from simplicia.data.augmentation import ViewSettings, sample_boxes
from simplicia.data.crops import crop_encoded, random_box
from simplicia.data.streaming import StreamLoader
from simplicia.errors import UserError
from simplicia.train import checkpoint

CPU = torch.device("cpu")
FLAT = ViewSettings.crop_flip()
PROCESSES = workers.MOST_THREADS + 1  # so many workers are processes
both = pytest.mark.parametrize("threads", [2, PROCESSES])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.delenv("SIMPLICIA_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def smooth(seed, size=(60, 44)):
    """A picture of a few colours that flow into each other, as photographs do."""
    noise = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def spelt(folder, count, classes=2, size=(20, 16)):
    """Pictures of one colour, whose red and green spell their number."""
    for i in range(count):
        path = folder / str(i % classes) / f"{i:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (i // 100, i % 100, 7)).save(path)
    return folder


def numbers(images):
    """The numbers that views spell; both views of a picture spell the same."""
    pixels = images[..., 3, 3].long()
    assert images.flatten(3).float().std(3).max() == 0 and pixels[:, 0].equal(pixels[:, -1])
    return (100 * pixels[:, 0, 0] + pixels[:, 0, 1]).tolist()


def loader(folder, batch=8, seed=0, rank=0, world=1, threads=2, views=ViewSettings, **options):
    images = datasets.load(str(folder), size=16, stream=True, threads=threads, keep_aspect=True, **options)
    return StreamLoader(images.images, batch, seed, CPU, rank, world, views=views(), size=8)


def children(process):
    found = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True).stdout
    return [pid for pid in map(int, found.split()) if is_alive(pid)]  # pgrep itself was one


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# ---- Pixels


@pytest.mark.parametrize("size", [16, 32, 64])
def test_centre_squares_equal_those_that_are_decoded_to_memory(tmp_path, size):
    for seed in range(4):
        path = tmp_path / f"{seed}.jpg"
        smooth(seed, (120 + 40 * seed, 90)).save(path, quality=92)
        expected = image_files.decode(path, size)[0].transpose(2, 0, 1).astype(int)
        (found,) = crop_encoded(path.read_bytes(), lambda *s: [crops.centre_square(*s)], size)
        difference = np.abs(found.numpy().astype(int) - expected)
        assert difference.max() <= 2 and difference.mean() <= 0.05


@pytest.mark.parametrize("scale", [(0.08, 1.0), (1.0, 1.0), (0.001, 0.01)])
def test_random_boxes_are_those_of_the_views_on_the_device(scale):
    for seed in range(50):
        torch.manual_seed(seed)
        expected = sample_boxes(1, 375, 500, scale, (3 / 4, 4 / 3), CPU)[0].tolist()
        torch.manual_seed(seed)
        draws = [torch.rand(1, 10), torch.rand(1, 10), torch.rand(2, 1)]
        found = random_box([x for d in draws for x in d.view(-1).tolist()], 375, 500, scale, (3 / 4, 4 / 3))
        assert np.abs(np.subtract(found, expected)).max() <= 1  # 32 and 64 bits may round differently
    assert random_box([0.5] * 20 + [1 - 1e-16] * 2, 1, 5000, (1, 1), (3 / 4, 4 / 3))[2:] == (1, 1)


def kinds():
    """Pictures of unusual kinds, and whether they can be read."""
    picture = smooth(0)
    turned = Image.Exif()
    turned[0x0112] = 6

    def save(image, kind, **options):
        file = io.BytesIO()
        image.save(file, kind, **options)
        return file.getvalue()

    jpeg, deep = save(picture, "JPEG"), np.asarray(picture.convert("L"), dtype=np.uint16) * 257
    bomb = bytearray(save(Image.new("RGB", (64, 64)), "JPEG"))
    start = bomb.index(b"\xff\xc0") + 5
    bomb[start : start + 4] = b"\xff\xff\xff\xff"  # 65,535 x 65,535
    yield "cmyk", save(picture.convert("CMYK"), "JPEG"), True
    yield "grey", save(picture.convert("L"), "JPEG"), True
    yield "turned", save(picture, "JPEG", exif=turned), True
    yield "deep", save(Image.fromarray(deep), "PNG"), True
    yield "transparent", save(picture.convert("RGBA"), "PNG"), True
    yield "animated", save(picture, "GIF", save_all=True, append_images=[smooth(1), smooth(2)]), True
    yield "webp", save(picture, "WEBP", lossless=True), True
    yield "trailing", jpeg + b"\0" * 9, True
    yield "large", save(smooth(0, (1200, 880)), "JPEG"), True
    yield "truncated", jpeg[: len(jpeg) // 2], False
    yield "empty", b"", False
    yield "text", b"no image", False
    yield "bomb", bytes(bomb), False


@pytest.mark.parametrize("name, data, readable", list(kinds()), ids=lambda x: x if isinstance(x, str) else "")
def test_unusual_files_are_decoded_as_they_are_to_memory(tmp_path, name, data, readable):
    path = tmp_path / "file"
    path.write_bytes(data)
    if not readable:
        with pytest.raises(Exception):  # noqa: B017
            crop_encoded(data, lambda *s: [crops.centre_square(*s)], 16)
        return
    expected, aspect = image_files.decode(path, 16)
    shapes = []
    (found,) = crop_encoded(data, lambda *s: shapes.append(s) or [crops.centre_square(*s)], 16)
    assert np.abs(found.permute(1, 2, 0).numpy().astype(int) - expected).max() <= 2
    assert shapes[0][1] / shapes[0][0] == pytest.approx(aspect)


# ---- Order


def test_every_image_of_an_epoch_is_seen_once_over_all_processes(tmp_path):
    folder = spelt(tmp_path / "photos", 130, classes=1)
    ranks = [loader(folder, seed=3, rank=rank, world=4) for rank in range(4)]
    seen = []
    for epoch in range(2):
        steps = range(epoch * ranks[0].batches, (epoch + 1) * ranks[0].batches)
        order = []
        for step in steps:
            for data in ranks:
                indices = data.indices(step)
                images, _ = data.gather(data.fetch(step, indices))
                files = [int(data.stream.files[i][-8:-4]) for i in indices]
                assert numbers(images) == files
                order += files
        assert len(order) == len(set(order)) == ranks[0].count // 8 * 8
        seen.append(order)
    assert seen[0] != seen[1]
    for data in ranks:
        data.close()


@pytest.mark.parametrize("steps", [(7, 8, 8, 5, 6, 30, 31), (11, 12, 5, 0)])
def test_views_depend_on_the_step_only(tmp_path, steps):
    """Whatever the threads, the processes, and what was read before."""
    folder = tmp_path / "photos"
    (folder / "a").mkdir(parents=True)
    for i in range(60):
        smooth(i).save(folder / "a" / f"{i:02d}.jpg")
    one = loader(folder, threads=1)
    halves = [loader(folder, rank=r, world=2, threads=count) for r, count in enumerate((4, PROCESSES))]
    together = {step: one.fetch(step, one.indices(step)) is None or one.images.clone() for step in range(32)}
    for step in steps:
        parts = []
        for data in halves:
            data.fetch(step, data.indices(step))
            parts.append(data.images.clone())
        assert torch.cat(parts).equal(together[step])
    assert not together[0].equal(together[6])
    for data in (one, *halves):
        data.close()


def test_a_slow_consumer_never_has_more_than_the_ring(tmp_path):
    data = loader(spelt(tmp_path / "photos", 80, classes=1))
    for step in range(4):
        data.fetch(step, data.indices(step))
        time.sleep(0.05)
        assert set(data.pending) == {step + i for i in range(1, streaming.AHEAD + 1)}
    assert len(data.buffers) == streaming.AHEAD + 1
    data.close()
    assert not data.pending


def order(folder, threads, first, last, send):
    """Send what each step reads."""
    images = datasets.load(str(folder), size=16, stream=True, threads=threads)
    data = StreamLoader(images.images, 8, 5, CPU, views=ViewSettings(), size=8)
    for step in range(first, last):
        data.fetch(step, data.indices(step))
        pixels = data.images[:, 0, :, 3, 3].long()
        send((step, *(100 * pixels[:, 0] + pixels[:, 1]).tolist(), data.images.sum().item()))
    data.close()


@pytest.mark.parametrize("threads", [1, PROCESSES])
def test_a_killed_process_sees_the_same_order_when_it_starts_again(tmp_path, threads):
    """And its workers end with it."""
    folder = spelt(tmp_path / "photos", 60, classes=1)

    def start(*words):
        receiver, sender = warm.SERVER.Pipe(duplex=False)
        process = warm.SERVER.Process(target=order, args=(folder, *words, sender.send))
        process.start()
        sender.close()  # then a process that fails ends the receiver
        return process, receiver

    def run(*words):
        process, receiver = start(*words)
        seen = [receiver.recv() for _ in range(words[1], words[2])]
        process.join()
        return seen

    whole = run(3, 0, 16)
    killed, receiver = start(threads, 0, 10**6)
    before = [receiver.recv() for _ in range(5)]
    started = children(killed.pid)
    assert len(started) == (threads if threads == PROCESSES else 0)
    killed.kill()
    killed.join()
    deadline = time.monotonic() + 30
    while any(map(is_alive, started)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_alive, started))
    assert before + run(2, 5, 16) == whole and len(whole) == 16


def test_threads_go_on_after_a_worker_was_killed(tmp_path, capfd):
    folder = spelt(tmp_path / "photos", 100, classes=1)
    expected, data, others = (
        loader(folder, threads=1),
        loader(folder, threads=PROCESSES),
        children(os.getpid()),
    )
    for step in range(12):
        if step == 3:
            os.kill(next(pid for pid in children(os.getpid()) if pid not in others), signal.SIGKILL)
        for each in (expected, data):
            each.fetch(step, each.indices(step))
        assert data.images.equal(expected.images)
        if step == 8 and data.workers.in_processes:
            time.sleep(1)
    assert not data.workers.in_processes
    for each in (expected, data):
        each.close()
    assert capfd.readouterr().err.count("threads go on in its place") == 1


def test_an_interrupt_of_all_processes_is_left_to_the_first(tmp_path, photos):
    words = ["--data", str(photos), "--out", str(tmp_path / "run"), "--data-device", "stream"]
    words += ["--data-threads", str(PROCESSES), "--epochs", "5000", "--encoder", "tiny", "--batch-size", "8"]
    command = [sys.executable, "-m", "simplicia", "pretrain", "byol", *words, "--image-size", "16"]
    training = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        while not (line := training.stderr.readline()).startswith("byol: ") or "/" not in line:
            assert line, "it ended"
        os.killpg(training.pid, signal.SIGINT)
        rest = training.communicate(timeout=60)[1]
    finally:
        training.kill()
    assert training.returncode == 130 and "Traceback" not in rest and "--resume" in rest


# ---- Files that cannot be read


@both
def test_a_few_bad_files_are_replaced_and_named_once(tmp_path, capfd, threads):
    folder = spelt(tmp_path / "photos", 200)
    bad, instead = loader(folder).stream.files[10:12]
    (folder / bad).write_bytes(b"no \x1b[31m image")
    (folder / bad).rename(folder / bad.replace(".png", "\x1b[31m.png"))
    data, bad, instead = loader(folder, batch=20, threads=threads), int(bad[2:6]), int(instead[2:6])
    for step in range(2 * data.batches):
        indices = data.indices(step)
        images, _ = data.gather(data.fetch(step, indices))
        files = [int(data.stream.files[i][2:6]) for i in indices]
        assert numbers(images) == [instead if f == bad else f for f in files]
    data.close()
    text = capfd.readouterr().err
    assert text.count("cannot be read") == 1 and "1 image of" in text and rf"{bad:04d}\x1b[31m.png" in text
    assert "\x1b[31m" not in text


@both
def test_more_bad_files_than_a_share_stop(tmp_path, threads):
    folder = spelt(tmp_path / "photos", 100)
    for i in (3, 4, 51):
        (folder / str(i % 2) / f"{i:04d}.png").write_bytes(b"")
    data = loader(folder, batch=30, threads=threads)
    with pytest.raises(UserError, match=r"[12] images? .* cannot be read.*more than 1 % of 90"):
        for step in range(3):
            data.fetch(step, data.indices(step))
    data.close()
    assert loader(folder, batch=30, most_unreadable=1.0).fetch(0, torch.arange(30)) is not None


@both
def test_a_file_that_vanishes_during_a_run_is_replaced(tmp_path, threads):
    folder = spelt(tmp_path / "photos", 100, classes=1)
    data = loader(folder, batch=30, most_unreadable=0.1, threads=threads)
    path = folder / data.stream.files[data.indices(2)[0]]
    path.unlink()
    for step in range(6):
        data.fetch(step, data.indices(step))
    assert list(data.stream.problems.values()) == ["is gone"]
    data.close()


def test_nothing_is_measured_on_other_images(tmp_path):
    folder = spelt(tmp_path / "photos", 40)
    (folder / "0" / "0010.png").write_bytes(b"no image")
    images = datasets.load(str(folder), size=16, stream=True)
    assert images.statistics()[0][2] == pytest.approx(7 / 255)
    with pytest.raises(UserError, match=r"'0/0010.png' \(not an image"):
        images.images.to("cpu")


# ---- Training


SMALL = {
    "epochs": 2, "batch_size": 8, "image_size": 16, "sem.simplices": 8, "encoder": "tiny", "stem": "small",
    "log_every": 1, "quiet": True, "options": {"hidden": 32, "out": 16},
}  # fmt: skip


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    for i in range(36):
        path = folder / str(i % 2) / f"{i:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        smooth(i).save(path)
    return folder


def losses(path):
    lines = map(json.loads, (path / "log.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def test_a_killed_training_resumes_to_the_same_losses(tmp_path, photos):
    whole = simplicia.pretrain(
        "byol-sem", data=str(photos), data_device="stream", out=tmp_path / "a", **SMALL
    )
    assert whole.recipe.data_device == "stream" and whole.finished
    words = [
        "--encoder",
        "tiny",
        "--epochs",
        "2",
        "--batch-size",
        "8",
        "--image-size",
        "16",
        "--stem",
        "small",
    ]
    words += ["--sem.simplices", "8", "--log-every", "1", "--byol.hidden", "32", "--byol.out", "16"]
    words += ["--checkpoint-minutes", "0.00001", "--out", str(tmp_path / "b"), "--data", str(photos)]
    command = ["pretrain", "byol-sem", *words, "--data-device", "stream", "--data-threads"]
    killed = warm.start([*command, "1"])
    deadline = time.monotonic() + 120
    while killed.is_alive() and time.monotonic() < deadline:
        newest = checkpoint.latest(tmp_path / "b" / "checkpoint")
        if newest is not None and int(newest.name[-9:]) >= 2:
            killed.kill()
        time.sleep(0.01)
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert cli.main([*command, "3", "--resume"]) == 0
    assert losses(tmp_path / "b") == losses(tmp_path / "a") and len(losses(tmp_path / "a")) == 8
    tensors = [checkpoint.read(checkpoint.latest(tmp_path / x / "checkpoint"))[0] for x in "ab"]
    assert all(tensors[0][key].equal(tensors[1][key]) for key in tensors[0])


def test_a_streamed_run_is_not_resumed_on_decoded_images(tmp_path, photos):
    out = tmp_path / "run"
    simplicia.pretrain("byol-sem", data=str(photos), data_device="stream", out=out, **SMALL)
    with pytest.raises(UserError, match="gives other views"):
        simplicia.pretrain("byol-sem", out=out, resume=True, quiet=True, data_device="host")
    assert simplicia.pretrain("byol-sem", out=out, resume=True, quiet=True).finished


def test_online_probes_learn_from_streamed_images(tmp_path, photos):
    run = simplicia.pretrain(
        "byol-sem", data=str(photos), data_device="stream", out=tmp_path / "run", online_every=2, **SMALL
    )
    lines = map(json.loads, (run.path / "log.jsonl").read_text().splitlines())
    assert any("online_knn_accuracy" in line for line in lines)


def test_auto_records_that_it_streams(tmp_path, photos, monkeypatch):
    monkeypatch.setattr("simplicia.data.decoding.free_memory", lambda: 10_000)
    run = simplicia.pretrain("byol-sem", data=str(photos), out=tmp_path / "run", **SMALL)
    assert run.recipe.data_device == "stream"
    monkeypatch.undo()
    assert simplicia.pretrain("byol-sem", out=run.path, resume=True, quiet=True).finished
