"""Batches that go through the networks in parts: gradients are means, queues and centres miss nothing."""

import os
import subprocess
import sys

import pytest
import torch
from PIL import Image

import simplicia
from simplicia import devices
from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.settings import with_changes
from simplicia.train import recipes, step
from simplicia.train.auto import check_processes
from simplicia.train.trainer import Trainer

PLAIN_VIEWS = {
    "views": {"jitter_prob": 0.0, "grey": 0.0, "flip": 0.0, "solarise": (0.0, 0.0), "crop_ratio": (1.0, 1.0)},
    "views.crop_scale": (1.0, 1.0),
}
SMALL = {
    "sem.simplices": 8,
    "sem.vertices": 4,
    "options.hidden": 32,
    "optim.warmup_epochs": 0.0,
    **PLAIN_VIEWS,
}


def training(name, indices, batch_size, engine="eager", **changes):
    """On the shapes of these numbers, in this order, without anything random."""
    recipe = with_changes(recipes.get(name), {**SMALL, "batch_size": batch_size, **changes})
    whole = datasets.load("shapes")
    # under a name whose mean and deviation are constants: those of a part would be its own
    data = ImageSet("cifar100", whole.images[indices], whole.labels[indices], whole.classes)
    torch.manual_seed(0)
    made = Trainer(
        recipe, data, devices.launch("cpu", 1, "32"), engine, lambda: datasets.load("shapes", "test")
    )
    made.step.data.order, made.step.data.epoch = torch.arange(len(data)), 0
    return made


def moved(made):
    """How far the first step moves each trained weight."""
    weights = {name: p for name, p in made.method.named_parameters() if p.requires_grad}
    before = {name: p.detach().clone() for name, p in weights.items()}
    loss = made.step(0).loss.item()
    return loss, {name: p.detach() - before[name] for name, p in weights.items()}


@pytest.mark.parametrize("name", ["byol", "byol-sem", "simclr-sem", "barlow", "vicreg-sem"])
def test_a_step_is_the_mean_of_those_on_its_parts(name):
    name, sgd = f"shapes-{name}", {"optim.momentum": 0.0, "optim.weight_decay": 0.0}
    loss, step_ = moved(training(name, range(24), 24, micro_batch=8, **sgd))
    # the rate is scaled with the batch, so that parts move a third as far by themselves
    parts = [moved(training(name, range(i, i + 8), 8, **sgd)) for i in (0, 8, 16)]
    assert loss == pytest.approx(sum(loss for loss, _ in parts) / 3, rel=1e-5)
    for key, found in step_.items():
        expected = sum(part[key] for _, part in parts)
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-6), key
    assert sum(found.abs().sum() for found in step_.values()) > 0.01


def test_a_batch_in_one_part_is_the_batch():
    whole, same, larger = (
        moved(training("shapes-byol-sem", range(16), 16, micro_batch=m)) for m in (0, 16, 64)
    )
    parted = moved(training("shapes-byol-sem", range(16), 16, micro_batch=8))
    for other, equal in ((same, True), (larger, True), (parted, False)):
        assert all(torch.equal(whole[1][key], other[1][key]) for key in whole[1]) is equal


def test_queues_and_centres_take_up_each_part():
    moco = training("shapes-moco", range(24), 24, micro_batch=8, **{"options.queue": 32})
    keys = []
    moco.method.queue.push, push = lambda k: (keys.append(k), push(k)), moco.method.queue.push
    moco.step(0)
    assert [k.shape[1] for k in keys] == [8, 8, 8] and moco.method.queue.pointer == 24
    assert torch.equal(moco.method.queue.vectors[:, :24], torch.cat(keys, 1))
    centres = []
    dino = training("shapes-dino", range(24), 24, micro_batch=8)
    take_up = dino.method.after_micro_batch
    dino.method.after_micro_batch = lambda: (centres.append(dino.method.batch_center.clone()), take_up())
    dino.step(0)
    expected = torch.zeros(())
    for centre in centres:
        expected = expected + (centre - expected) * (1 - dino.method.center_momentum)
    assert len(centres) == 3 and torch.allclose(dino.method.center, expected, atol=1e-6)


def test_online_probes_learn_from_every_part():
    made = training("shapes-byol-sem", range(24), 24, micro_batch=8, online_every=1)
    seen = []
    made.step.probe.learn, learn = lambda o, i: (seen.append(i), learn(o, i)), made.step.probe.learn
    made.step(0)
    assert torch.equal(torch.cat(seen), torch.arange(24)) and len(seen) == 3


def test_compiled_parts_are_the_eager_ones(monkeypatch):
    monkeypatch.setattr(step, "BACKEND", "aot_eager")
    (plain, a), (fast, b) = (
        moved(training("shapes-byol-sem", range(16), 16, engine, micro_batch=8))
        for engine in ("eager", "compiled")
    )
    assert fast == pytest.approx(plain, rel=1e-5)
    assert all(torch.allclose(a[key], b[key], rtol=1e-3, atol=1e-6) for key in a)


def test_parts_in_two_processes_are_parts_in_one(tmp_path):
    """Four parts of four images each, one after the other or two and two: the same weights."""
    for i, image in enumerate(datasets.load("shapes", "test").images[:16]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{i:03d}.png")
    found = []
    for processes, micro_batch in ((1, 4), (2, 8)):
        out = tmp_path / "runs" / str(processes)
        words = ["pretrain", "byol", "--out", out, "--processes", processes, "--quiet", "--data", tmp_path]
        words += ["--batch-size", 16, "--micro-batch", micro_batch, "--epochs", 1, "--device", "cpu"]
        words += ["--image-size", 16, "--encoder", "tiny", "--stem", "small", "--byol.hidden", 32]
        words += ["--optim.warmup-epochs", 0, "--views.jitter", 0, "--views.grey", 0, "--views.flip", 0]
        words += ["--views.solarise", 0, 0, "--views.crop-scale", 1, 1, "--views.crop-ratio", 1, 1]
        command = [sys.executable, "-m", "simplicia", *map(str, words)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(simplicia.load(out).method)
    one, two = ({k: p.detach() for k, p in m.named_parameters()} for m in found)
    assert all(torch.allclose(one[key], two[key], rtol=1e-4, atol=1e-6) for key in one)


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"micro_batch": 7}, "micro_batch_size is 7; batch_size, 500, must be a multiple of it"),
        ({"micro_batch": 1}, "micro_batch_size is 1; BatchNorm needs at least 2 images"),
        ({"micro_batch": -2}, "micro_batch_size is -2; it must be at least 0"),
        ({"micro_batch": 5, "processes": 2}, "micro_batch_size is 5; 2 processes need a multiple of that"),
        ({"micro_batch": 50, "engine": "captured"}, "engine is 'captured', but "),
    ],
)
def test_parts_that_cannot_be_are_told(changes, told, tmp_path):
    with pytest.raises(UserError, match=told):
        simplicia.pretrain("shapes-byol", out=tmp_path / "run", batch_size=500, quiet=True, **changes)
    assert not (tmp_path / "run").exists()


def test_a_batch_chosen_from_the_images_must_be_a_multiple_too(tmp_path):
    for i, image in enumerate(datasets.load("shapes", "test").images[:16]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{i:03d}.png")
    with pytest.raises(UserError, match="micro_batch_size is 2; 4 processes need a multiple"):
        check_processes(with_changes(recipes.get("byol"), {"batch_size": 16, "micro_batch": 2}), 4)
    with pytest.raises(UserError, match="micro_batch_size is 3; batch_size, 4, must be a multiple"):
        simplicia.pretrain("byol", data=str(tmp_path), out=tmp_path / "run", micro_batch=3, quiet=True)
