"""Batches of images: the same ones in the same order, wherever the images lie."""

import json

import pytest
import torch

import simplicia
from simplicia.data.loaders import DeviceLoader, HostLoader, choose_loader
from simplicia.train import checkpoint

CPU = torch.device("cpu")
IMAGES = torch.arange(50, dtype=torch.uint8).view(-1, 1, 1, 1).expand(50, 3, 4, 4).contiguous()


ASPECT_RATIOS = 1 + torch.arange(50) / 100


def batches(kind, steps, **world):
    data = kind(IMAGES, 8, 3, CPU, aspect_ratios=ASPECT_RATIOS, **world)
    for step in steps:
        indices = data.indices(step)
        images, aspect_ratios = data.gather(data.fetch(step, indices))
        assert aspect_ratios.equal(ASPECT_RATIOS[indices])
        yield indices.tolist(), images.clone()


@pytest.mark.parametrize("world", [{}, {"rank": 1, "world": 2}])
@pytest.mark.parametrize("steps", [range(20), (7, 8, 8, 5, 6, 30, 31), (11, 12, 5)])
def test_streamed_batches_are_the_resident_ones(steps, world):
    found = [list(batches(kind, steps, **world)) for kind in (DeviceLoader, HostLoader)]
    for (indices, images), (same, streamed) in zip(*found, strict=True):
        assert indices == same and images[:, 0, 0, 0].tolist() == indices
        assert streamed.equal(images)


def test_an_epoch_has_each_image_once_and_the_next_another_order():
    order = [i for indices, _ in batches(DeviceLoader, range(12)) for i in indices]
    first, second = order[:48], order[48:]
    assert len(set(first)) == len(set(second)) == 48 and first != second


def test_a_streamed_batch_is_always_at_the_same_place():
    data = HostLoader(IMAGES, 8, 0, CPU)
    address = data.images.data_ptr()
    rows = [data.fetch(step, data.indices(step)) for step in range(3)]
    assert data.images.data_ptr() == address and data.images.shape == (8, 3, 4, 4)
    assert all(r is data.fixed_rows for r in rows) and data.fixed_rows.tolist() == list(range(8))


def test_what_is_asked_for_is_where_images_go():
    assert choose_loader(IMAGES, CPU) is choose_loader(IMAGES, CPU, "device") is DeviceLoader
    assert choose_loader(IMAGES, CPU, "host") is HostLoader


def test_a_run_is_the_same_wherever_its_images_lie(tmp_path, capfd):
    small = {"epochs": 2, "batch_size": 512, "image_size": 16, "sem.simplices": 8, "log_every": 3}
    found = []
    for where in ("device", "host"):
        out = tmp_path / where
        run = simplicia.pretrain("shapes-byol-sem", out=out, data_device=where, online_every=1, **small)
        found.append(checkpoint.read(checkpoint.latest(run.path / "checkpoint"))[0])
        assert ("stay in host memory" in capfd.readouterr().err) == (where == "host")
    assert found[0].keys() == found[1].keys() and all(found[0][k].equal(found[1][k]) for k in found[0])
    lines = ((tmp_path / where / "log.jsonl").read_text().splitlines() for where in ("device", "host"))
    one, other = ([{**json.loads(line), "images_per_s": 0} for line in log] for log in lines)
    assert one == other
