"""Gradient accumulation: gradients are means over micro-batches; queues and centres see every one."""

import os
import subprocess
import sys

import pytest
import torch
from PIL import Image

import simplicia
from simplicia import cli, devices
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
    """A trainer on the shapes with these indices, in this order, without randomness."""
    recipe = with_changes(recipes.get(name), {**SMALL, "batch_size": batch_size, **changes})
    shapes = datasets.load("shapes")
    # a name with constant statistics: those computed from a subset would differ
    data = ImageSet("cifar100", shapes.images[indices], shapes.labels[indices], shapes.classes)
    torch.manual_seed(0)
    trainer = Trainer(
        recipe, data, devices.launch("cpu", 1, "32"), engine, lambda: datasets.load("shapes", "test")
    )
    trainer.step.data.orders = {0: torch.arange(len(data))}
    return trainer


def moved(trainer):
    """The loss of the first step, and how far it moves each trained weight."""
    weights = {name: p for name, p in trainer.method.named_parameters() if p.requires_grad}
    before = {name: p.detach().clone() for name, p in weights.items()}
    loss = trainer.step(0).loss.item()
    return loss, {name: p.detach() - before[name] for name, p in weights.items()}


@pytest.mark.parametrize("name", ["byol", "byol-sem", "simclr-sem", "barlow", "vicreg-sem"])
def test_a_step_is_the_mean_over_its_micro_batches(name):
    name, sgd = f"shapes-{name}", {"optim.momentum": 0.0, "optim.weight_decay": 0.0}
    loss, step_ = moved(training(name, range(24), 24, process_batch_size=8, **sgd))
    # the learning rate scales with the batch size: separate steps move a third as far
    separate = [moved(training(name, range(i, i + 8), 8, **sgd)) for i in (0, 8, 16)]
    assert loss == pytest.approx(sum(loss for loss, _ in separate) / 3, rel=1e-5)
    for key, change in step_.items():
        expected = sum(changes[key] for _, changes in separate)
        assert torch.allclose(change, expected, rtol=1e-3, atol=1e-6), key
    assert sum(change.abs().sum() for change in step_.values()) > 0.01


def test_a_single_micro_batch_equals_the_full_batch():
    full, same, larger = (
        moved(training("shapes-byol-sem", range(16), 16, process_batch_size=m)) for m in (0, 16, 64)
    )
    split = moved(training("shapes-byol-sem", range(16), 16, process_batch_size=8))
    for other, equal in ((same, True), (larger, True), (split, False)):
        assert all(torch.equal(full[1][key], other[1][key]) for key in full[1]) is equal


def test_queues_and_centres_are_updated_by_each_micro_batch():
    moco = training("shapes-moco", range(24), 24, process_batch_size=8, **{"options.queue": 32})
    keys = []
    moco.method.queue.push, push = lambda k: (keys.append(k), push(k)), moco.method.queue.push
    moco.step(0)
    assert [k.shape[1] for k in keys] == [8, 8, 8] and moco.method.queue.pointer == 24
    assert torch.equal(moco.method.queue.vectors[:, :24], torch.cat(keys, 1))
    centres = []
    dino = training("shapes-dino", range(24), 24, process_batch_size=8)
    update = dino.method.after_micro_batch
    dino.method.after_micro_batch = lambda: (centres.append(dino.method.batch_center.clone()), update())
    dino.step(0)
    expected = torch.zeros(())
    for centre in centres:
        expected = expected + (centre - expected) * (1 - dino.method.center_momentum)
    assert len(centres) == 3 and torch.allclose(dino.method.center, expected, atol=1e-6)


def test_online_probes_learn_from_every_micro_batch():
    trainer = training("shapes-byol-sem", range(24), 24, process_batch_size=8, online_every=1)
    indices = []
    trainer.step.probe.learn, learn = lambda o, i: (indices.append(i), learn(o, i)), trainer.step.probe.learn
    trainer.step(0)
    assert torch.equal(torch.cat(indices), torch.arange(24)) and len(indices) == 3


def test_compiled_micro_batches_match_eager_ones(monkeypatch):
    monkeypatch.setattr(step, "BACKEND", "aot_eager")
    (plain, a), (fast, b) = (
        moved(training("shapes-byol-sem", range(16), 16, engine, process_batch_size=8))
        for engine in ("eager", "compiled")
    )
    assert fast == pytest.approx(plain, rel=1e-5)
    assert all(torch.allclose(a[key], b[key], rtol=1e-3, atol=1e-6) for key in a)


def test_micro_batches_in_two_processes_match_one_process(tmp_path):
    """Two micro-batches of eight images, in one process or split between two: the same weights."""
    for i, image in enumerate(datasets.load("shapes", "test").images[:16]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{i:03d}.png")
    trained = []
    for processes, micro_batch in ((1, 8), (2, 4)):
        out = tmp_path / "runs" / str(processes)
        words = ["pretrain", "byol", "--out", out, "--processes", processes, "--quiet", "--data", tmp_path]
        words += ["--batch-size", 16, "--process-batch-size", micro_batch, "--epochs", 1, "--device", "cpu"]
        words += ["--image-size", 16, "--encoder", "tiny", "--stem", "small", "--byol.hidden", 32]
        words += ["--optim.warmup-epochs", 0, "--views.jitter", 0, "--views.grey", 0, "--views.flip", 0]
        words += ["--views.solarise", 0, 0, "--views.crop-scale", 1, 1, "--views.crop-ratio", 1, 1]
        words = list(map(str, words))
        if processes == 1:
            assert cli.main(words) == 0
        else:
            command = [sys.executable, "-m", "simplicia", *words]
            done = subprocess.run(
                command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )
            assert done.returncode == 0, done.stderr[-2000:]
        trained.append(simplicia.load(out).method)
    one, two = ({k: p.detach() for k, p in m.named_parameters()} for m in trained)
    assert all(torch.allclose(one[key], two[key], rtol=1e-4, atol=1e-6) for key in one)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"micro_batch": 7}, "process_batch_size is 7; batch_size, 500, must be a multiple of it"),
        ({"micro_batch_size": 1}, "process_batch_size is 1; BatchNorm needs at least 2 images"),
        ({"process_batch_size": -2}, "process_batch_size is -2; it must be at least 0"),
        (
            {"process_batch_size": 100, "processes": 2},
            "process_batch_size is 100; 2 processes have 250 images each, which must be a multiple of it",
        ),
        ({"process_batch_size": 50, "engine": "captured"}, "engine is 'captured', but "),
    ],
)
def test_invalid_micro_batch_sizes_are_errors(changes, message, tmp_path):
    with pytest.raises(UserError, match=message):
        simplicia.pretrain("shapes-byol", out=tmp_path / "run", batch_size=500, quiet=True, **changes)
    assert not (tmp_path / "run").exists()


def test_an_automatic_batch_size_must_be_a_multiple_too(tmp_path):
    for i, image in enumerate(datasets.load("shapes", "test").images[:16]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{i:03d}.png")
    with pytest.raises(UserError, match="process_batch_size is 4; 4 processes have 6 images each"):
        check_processes(with_changes(recipes.get("byol"), {"batch_size": 24, "process_batch_size": 4}), 4)
    with pytest.raises(UserError, match="process_batch_size is 3; batch_size, 4, must be a multiple"):
        simplicia.pretrain("byol", data=str(tmp_path), out=tmp_path / "run", process_batch_size=3, quiet=True)
