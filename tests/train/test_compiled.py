"""The compiled step matches the eager one, in one process and in several."""

import json
import os
import subprocess
import sys

import pytest
import torch
from PIL import Image

from simplicia import devices
from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.settings import with_changes
from simplicia.train import recipes, step
from simplicia.train.trainer import Trainer

SMALL = {"batch_size": 16, "sem.simplices": 8, "sem.vertices": 4, "options.hidden": 32}


def losses(name, engine):
    recipe = with_changes(recipes.get(name), SMALL)
    shapes = datasets.load("shapes")
    data = ImageSet("shapes", shapes.images[:64], shapes.labels[:64], shapes.classes)
    torch.manual_seed(0)
    training = Trainer(recipe, data, devices.launch("cpu", 1, "32"), engine)
    values = [training.step(i).loss.item() for i in range(4)]
    return values, training


@pytest.mark.parametrize("name", ["byol", "swav"])
def test_compiled_steps_match_eager_ones(name, monkeypatch):
    monkeypatch.setattr(step, "BACKEND", "aot_eager")
    eager, plain = losses(f"shapes-{name}-sem", "eager")
    fast, compiled = losses(f"shapes-{name}-sem", "compiled")
    assert type(compiled.step) is step.CompiledStep and eager[0] != eager[-1]
    assert fast == pytest.approx(eager, rel=1e-4)
    assert list(compiled.step.tensors()) == list(plain.step.tensors())


def test_the_compiled_step_lifts_torchs_recompile_limit(monkeypatch):
    monkeypatch.setattr(step, "BACKEND", "eager")
    double, triple = (
        torch.compile(function, fullgraph=True, dynamic=False, backend="eager")
        for function in (lambda x: 2 * x, lambda x: 3 * x)
    )
    with torch._dynamo.config.patch(recompile_limit=8):
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
            for size in range(1, 10):
                double(torch.ones(size))
        losses("shapes-byol-sem", "compiled")
        for size in range(1, 20):
            assert triple(torch.ones(size)).sum() == 3 * size


TWO = """
import sys
from simplicia.cli import main
from simplicia.train import step
step.BACKEND = "aot_eager"
sys.exit(main(sys.argv[1:]))
"""


def test_two_compiled_processes_match_two_eager_ones(tmp_path):
    """Communication between processes is not compiled."""
    for i, image in enumerate(datasets.load("shapes", "test").images[:32]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{i:03d}.png")
    script = tmp_path / "two.py"
    script.write_text(TWO)
    logged = {}
    for engine in ("eager", "compiled"):
        out = tmp_path / "runs" / engine
        words = ["pretrain", "simclr-sem", "--out", out, "--engine", engine, "--processes", "2", "--quiet"]
        words += ["--data", tmp_path, "--device", "cpu", "--epochs", "2", "--batch-size", "16"]
        words += ["--image-size", "16", "--encoder", "tiny", "--stem", "small", "--log-every", "1"]
        words += ["--sem.simplices", "8", "--simclr.hidden", "32"]
        command = [sys.executable, script, *map(str, words)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr[-2000:]
        lines = (out / "log.jsonl").read_text().splitlines()
        logged[engine] = [row["loss"] for row in map(json.loads, lines) if "loss" in row]
    assert len(logged["eager"]) == 4
    assert logged["compiled"] == pytest.approx(logged["eager"], rel=1e-3)
