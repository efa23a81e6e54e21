"""Both loaders give the same batches in the same order."""

import json

import pytest
import torch

import simplicia
from simplicia.data import datasets
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
def test_both_loaders_give_the_same_batches(steps, world):
    results = [list(batches(kind, steps, **world)) for kind in (DeviceLoader, HostLoader)]
    for (indices, images), (same, streamed) in zip(*results, strict=True):
        assert indices == same and images[:, 0, 0, 0].tolist() == indices
        assert streamed.equal(images)


def test_an_epoch_has_each_image_once_and_every_epoch_another_order():
    order = [i for indices, _ in batches(DeviceLoader, range(12)) for i in indices]
    first, second = order[:48], order[48:]
    assert len(set(first)) == len(set(second)) == 48 and first != second


def test_host_loader_reuses_one_buffer_on_the_device():
    data = HostLoader(IMAGES, 8, 0, CPU)
    address = data.images.data_ptr()
    rows = [data.fetch(step, data.indices(step)) for step in range(3)]
    assert data.images.data_ptr() == address and data.images.shape == (8, 3, 4, 4)
    assert all(r is data.fixed_rows for r in rows) and data.fixed_rows.tolist() == list(range(8))


def test_choose_loader_follows_the_setting():
    assert choose_loader(IMAGES, CPU) is choose_loader(IMAGES, CPU, "device") is DeviceLoader
    assert choose_loader(IMAGES, CPU, "host") is HostLoader


def test_runs_with_either_loader_are_identical(tmp_path, capfd):
    images = datasets.part(datasets.load("shapes", "test"), torch.arange(120))
    small = {"epochs": 2, "batch_size": 30, "image_size": 8, "sem.simplices": 8, "log_every": 3}
    small |= {"data": images, "holdout": 0.25, "online_every": 1, "options": {"hidden": 32, "out": 16}}
    results = []
    for where in ("device", "host"):
        run = simplicia.pretrain("shapes-byol-sem", out=tmp_path / where, data_device=where, **small)
        results.append(checkpoint.read(checkpoint.latest(run.path / "checkpoint"))[0])
        assert ("stay in host memory" in capfd.readouterr().err) == (where == "host")
    one, other = results
    assert one.keys() == other.keys() and all(one[key].equal(other[key]) for key in one)
    lines = ((tmp_path / where / "log.jsonl").read_text().splitlines() for where in ("device", "host"))
    first, second = ([{**json.loads(line), "images_per_s": 0} for line in log] for log in lines)
    assert first == second
