"""Runs and results that version 0.1 wrote (commit 749f3f7) load, resume, report and compare."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import simplicia
from simplicia.cli import main
from simplicia.errors import Interrupted
from simplicia.train.trainer import Hook, Trainer

FIXTURES = Path(__file__).parent / "fixtures" / "v0.1"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())
SEEDED = json.loads((FIXTURES / "losses.json").read_text())["runs"]


@pytest.fixture
def run_dir(tmp_path):
    return Path(shutil.copytree(FIXTURES / "run", tmp_path / "run"))


def test_an_interrupted_run_of_0_1_resumes_to_the_weights_that_0_1_reached(run_dir):
    assert simplicia.load(run_dir, device="cpu").step == 79
    assert main(["pretrain", "shapes-byol-sem", "--out", str(run_dir), "--resume", "--device", "cpu"]) == 0
    run = simplicia.load(run_dir, device="cpu")
    assert run.finished and run.step == EXPECTED["total_steps"]
    assert run.state["loss"] == pytest.approx(EXPECTED["loss"], rel=1e-3)
    for name, value in run.method.state_dict().items():
        expected = EXPECTED["sums"][f"method.{name}"]
        scale = value.double().abs().sum().item()
        assert value.double().sum().item() == pytest.approx(expected, abs=1e-3 * scale + 1e-6), name
    lines = [json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()]
    logged = {line["step"]: line["loss"] for line in lines if "loss" in line}
    expected = {line["step"]: line["loss"] for line in EXPECTED["log"] if "loss" in line}
    assert logged == pytest.approx(expected, rel=1e-3)


def test_a_run_of_0_1_encodes(run_dir):
    run = simplicia.load(run_dir, device="cpu")
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    assert run.encode(images).shape == (3, 16 * 5)
    assert run.encode(images, "codes").shape == (3, 16)


def test_results_of_0_1_compare(run_dir, capsys):
    assert main(["compare", str(run_dir), "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    measured = {(row["protocol"], row["layer"]): row["cells"][0]["accuracy"] for row in table["rows"]}
    assert measured["weighted kNN", "codes"] == pytest.approx(
        json.loads((run_dir / "results/knn-codes.json").read_text())["accuracy"]
    )
    assert ("linear probe", "sem") in measured
    assert any(row["online"] for row in table["rows"])


def test_an_analysis_of_0_1_becomes_a_report(run_dir):
    page = run_dir / "report.html"
    assert main(["report", str(run_dir), "--out", str(page), "--device", "cpu"]) == 0
    assert "shapes-byol-sem" in page.read_text()


class StopAfter(Hook):
    """Ends a training after some steps: later losses are not compared."""

    def __init__(self, steps):
        self.steps = steps

    def after_step(self, trainer, output):
        if trainer.done == self.steps:
            trainer.request_stop(0, "")


@pytest.mark.parametrize("name", sorted(SEEDED))
def test_seeded_cpu_runs_have_the_losses_of_0_1(name, tmp_path, monkeypatch):
    expected = {int(step): loss for step, loss in SEEDED[name]["losses"].items()}
    first = {step: loss for step, loss in expected.items() if step <= 20}

    run_dir = tmp_path / "run"
    changes = SEEDED[name]["changes"]
    fit = Trainer.fit
    monkeypatch.setattr(Trainer, "fit", lambda self, hooks: fit(self, [*hooks, StopAfter(max(first))]))
    with suppress(Interrupted):
        simplicia.pretrain(name, out=run_dir, device="cpu", quiet=True, **changes)
    lines = [json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()]
    logged = {line["step"]: line["loss"] for line in lines if "loss" in line}
    assert {step: logged[step] for step in first} == pytest.approx(first, rel=1e-3)
