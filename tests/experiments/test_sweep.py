"""Sweeps: held-out images decide, a killed sweep goes on where it was, and no trial is done twice."""

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import simplicia
from simplicia import cli
from simplicia.data import datasets
from simplicia.errors import UserError
from simplicia.evaluate import probe
from simplicia.experiments import sweep_outcome as outcome
from simplicia.experiments.sweep import sweep
from simplicia.experiments.sweep_plan import Range, read_grid, read_search
from simplicia.train import checkpoint, recipes, trainer
from simplicia.train import run_dir as place

CLASSES = ("one", "two", "three")
SMALL = {
    "epochs": 2,
    "batch_size": 16,
    "image_size": 16,
    "encoder": "tiny",
    "stem": "small",
    "sem.simplices": 4,
    "sem.vertices": 3,
    "options": {"hidden": 16, "out": 8},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eighty-four noisy images of three classes; a fifth of them become its test split."""
    from PIL import Image

    path, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for i in range(84):
        picture = rng.integers(0, 200, (16, 16, 3))
        picture[..., i % 3] += 55
        (path / CLASSES[i % 3]).mkdir(exist_ok=True)
        Image.fromarray(picture.astype(np.uint8)).save(path / CLASSES[i % 3] / f"{i}.png")
    return path


@pytest.fixture
def quick(folder):
    return {"data": str(folder), "probe_epochs": 2, "temperatures": (0.0, 1.0), "quiet": True, **SMALL}


def test_a_grid_is_its_points_measured_on_images_no_trial_trained_on(folder, quick, tmp_path, monkeypatch):
    out, probed = tmp_path / "sweep", []
    keep = lambda run, train, held, **rest: (  # noqa: E731
        probed.append((set(train.files), set(held.files))) or probe(run, train, held, **rest)
    )
    monkeypatch.setattr("simplicia.experiments.sweep.probe", keep)
    grid = {"sem.simplices": "2,4", "sem.temperature": [0.5, 1.0]}
    found = sweep("byol-sem", grid=grid, out=out, **{**quick, "holdout": 0.2})
    settings = [(r["settings"]["sem.simplices"], r["settings"]["sem.temperature"]) for r in found["trials"]]
    assert settings == [(2, 0.5), (2, 1.0), (4, 0.5), (4, 1.0)]
    train = datasets.load(str(folder))
    fit_on, held = datasets.split(train, 0.2)
    assert (found["train_images"], found["validation_images"]) == (len(fit_on), len(held))
    assert probed == [(set(fit_on.files), set(held.files))] * 4
    for row in found["trials"]:
        run = simplicia.load(out / f"trial-{row['trial']:04d}", device="cpu")
        assert run.finished and run.recipe.sem.simplices == row["settings"]["sem.simplices"]
        assert run.state["images"] == len(fit_on)
        correct = row["validation_accuracy"] * len(held) / 100
        assert correct == pytest.approx(round(correct))
        assert [cell["temperature"] for cell in row["per_temperature"]] == [0.0, 1.0]
        assert row["downstream_temperature"] in (0.0, 1.0)
    best = max(found["trials"], key=lambda row: row["validation_accuracy"])
    assert found["best"] == best and json.loads((out / "sweep.json").read_text())["best"] == best
    rows = list(csv.DictReader((out / "sweep.csv").open()))
    assert [float(r["validation_accuracy"]) for r in rows] == [
        r["validation_accuracy"] for r in found["trials"]
    ]
    assert "<svg" in (out / "sweep.svg").read_text()
    # asked again it has nothing to do; another grid is another sweep
    before = [p.stat().st_mtime_ns for p in sorted(out.glob("trial-*/checkpoint/*/*"))]
    again = sweep("byol-sem", out=out, resume=True, quiet=True)
    assert again["trials"] == found["trials"]
    assert before == [p.stat().st_mtime_ns for p in sorted(out.glob("trial-*/checkpoint/*/*"))]
    with pytest.raises(UserError, match="begun with another grid"):
        sweep("byol-sem", grid={"sem.simplices": "2,8"}, out=out, resume=True)
    with pytest.raises(UserError, match="begun with another settings"):
        sweep("byol-sem", out=out, resume=True, epochs=3)
    with pytest.raises(UserError, match="holds a sweep; add --resume"):
        sweep("byol-sem", out=out, **quick)
    lock = place.lock(out, "lock")
    with pytest.raises(UserError, match="by another process"):
        sweep("byol-sem", out=out, resume=True)
    lock.close()


def test_the_test_split_decides_nothing(folder, quick, tmp_path, monkeypatch):
    """It is not even read."""
    search = {"optim.lr": "0.01..1:log", "sem.vertices": "2..5"}
    asked = []
    load = datasets.load
    monkeypatch.setattr(
        datasets,
        "load",
        lambda name, split="train", *a, **k: (asked.append(split), load(name, split, *a, **k))[1],
    )
    found = sweep("byol-sem", search=search, trials=2, out=tmp_path / "sweep", **quick)
    assert set(asked) == {"train"}
    for row in found["trials"]:
        assert row["online"], "pruning watches the online probe"
        assert 0.01 <= row["settings"]["optim.lr"] <= 1 and row["settings"]["sem.vertices"] in range(2, 6)


def test_a_search_that_is_taken_up_again_has_as_many_trials_as_it_was_begun_with(quick, tmp_path):
    search = {"optim.lr": "0.01..1:log"}
    found = sweep("byol-sem", search=search, trials=2, prune=False, out=tmp_path / "sweep", **quick)
    again = sweep("byol-sem", out=tmp_path / "sweep", resume=True, quiet=True)
    assert again["trials"] == found["trials"] and len(found["trials"]) == 2
    more = sweep("byol-sem", out=tmp_path / "sweep", trials=3, resume=True, quiet=True)
    assert len(more["trials"]) == 3 and more["trials"][:2] == found["trials"]


def test_what_comes_next_is_the_model_that_won(folder, tmp_path, capsys):
    small = "--epochs 1 --batch-size 16 --image-size 16 --encoder tiny --sem.simplices 4 --byol.momentum 0.9"
    words = f"--data {folder} --out {tmp_path / 's'} {small} --byol.hidden 16 --probe-epochs 1 --device cpu"
    assert cli.main(["sweep", "byol-sem", *words.split(), "--grid", "method=simclr", "--quiet"]) == 0
    (told,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("next, on all"))
    flags = shlex.split(told.split("simplicia pretrain ")[1])
    assert flags[-2:] == ["--method", "simclr"] and "hidden" not in told and "momentum" not in told
    assert cli.main(["pretrain", *flags, "--out", str(tmp_path / "run"), "--dry-run", "--device", "cpu"]) == 0


def test_trials_below_the_median_are_stopped(quick, tmp_path):
    """At a temperature of a million all simplices are uniform, and an online probe can only guess."""
    out, temperatures = tmp_path / "sweep", [0.3, 0.4, 0.5, 0.6, 1e6]
    longer = {**quick, "epochs": 6, "batch_size": 4, "sem.simplices": 64, "holdout": 0.3}
    found = sweep("byol-sem", grid={"sem.temperature": temperatures}, prune=True, out=out, **longer)
    assert [row["state"] for row in found["trials"]] == [*["complete"] * 4, "pruned"]
    for row in found["trials"][:4]:
        assert list(row["online"]) == list("123456") and row["validation_accuracy"] is not None
    last = found["trials"][4]
    assert last["validation_accuracy"] is None
    epoch = list(last["online"])[-1]
    assert 2 <= int(epoch) < 6  # not before a third of the epochs
    best = [max(v for e, v in r["online"].items() if e <= epoch) for r in found["trials"][:4]]
    assert max(last["online"].values()) < np.median(best)
    assert found["best"]["trial"] < 4


def command(folder, out, *words):
    small = [f"--{k}={v}" for k, v in SMALL.items() if k != "options"]
    heads = ["--byol.hidden=16", "--byol.out=8", "--probe-epochs=2", "--downstream-temperatures", "0", "1"]
    verb = ["sweep", "byol-sem", "--data", str(folder), "--out", str(out), "--device", "cpu", "--quiet"]
    return [sys.executable, "-m", "simplicia", *verb, *small, *heads, *words]


def test_a_killed_sweep_goes_on_and_is_the_sweep_that_was_not_killed(folder, quick, tmp_path):
    out = tmp_path / "sweep"
    search = ["--search", "optim.lr=0.01..1:log", "sem.temperature=0.1..10:log", "--no-prune"]
    words = [*search, "--trials", "12", "--epochs=6", "--checkpoint-minutes=0.0001", "--log-every=1"]
    alone = os.environ | {
        "OMP_NUM_THREADS": str(torch.get_num_threads())
    }  # sums in the same order everywhere
    process = subprocess.Popen(command(folder, out, *words), stderr=subprocess.PIPE, env=alone)
    deadline = time.monotonic() + 300
    while checkpoint.latest(out / "trial-0002/checkpoint") is None:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed = checkpoint.read(checkpoint.latest(out / "trial-0002/checkpoint"))[1]
    assert killed["step"] < killed["total_steps"]
    done = {
        p: p.stat().st_mtime_ns for t in ("0000", "0001") for p in (out / f"trial-{t}/checkpoint").glob("*")
    }
    resumed = [sys.executable, "-m", "simplicia", "sweep", "byol-sem", "--out", str(out), "--resume"]
    finished = subprocess.run(
        [*resumed, "--quiet", "--trials", "12", "--device", "cpu"],
        capture_output=True,
        text=True,
        timeout=600,
        env=alone,
    )
    assert finished.returncode == 0, finished.stderr
    assert "best: trial" in finished.stdout
    (told,) = (
        line for line in finished.stdout.splitlines() if line.startswith("next, on all training images")
    )
    assert f"--data {folder} " in told and "--byol.hidden " in told  # as it was begun
    found = json.loads((out / "sweep.json").read_text())
    assert [row["trial"] for row in found["trials"]] == list(range(12))
    assert {row["state"] for row in found["trials"]} == {"complete"}
    drawn = [tuple(row["settings"].values()) for row in found["trials"]]
    assert len(set(drawn)) == 12
    assert all(p.stat().st_mtime_ns == when for p, when in done.items())  # finished trials were left alone
    steps = [json.loads(line)["step"] for line in (out / "trial-0002/log.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps)) and steps[-1] == killed["total_steps"]

    straight = sweep(
        "byol-sem",
        search={"optim.lr": "0.01..1:log", "sem.temperature": "0.1..10:log"},
        prune=False,
        trials=3,
        out=tmp_path / "straight",
        device="cpu",
        **{**quick, "epochs": 6},
    )
    for one, two in zip(straight["trials"], found["trials"], strict=False):
        assert one["settings"] == two["settings"]
        assert one["validation_accuracy"] == two["validation_accuracy"]


def test_a_trial_that_cannot_be_trained_does_not_end_the_sweep(quick, tmp_path):
    out = tmp_path / "sweep"
    found = sweep("byol-sem", grid={"sem.blocks": "1,7"}, out=out, **quick)
    assert [row["state"] for row in found["trials"]] == ["complete", "failed"]
    assert "7" in found["trials"][1]["reason"]
    with pytest.raises(UserError, match="no trial"):
        sweep("byol-sem", grid={"sem.blocks": "7,5"}, out=tmp_path / "none", **quick)


def test_a_trial_too_large_for_the_gpu_fails_once(quick, tmp_path, monkeypatch):
    """There is no GPU here to fill: the second trial's training says it is full."""
    from simplicia.experiments import sweep as study

    begun, train = [], study.pretrain

    def pretrain(recipe, **options):
        begun.append(recipe.sem.simplices)
        if recipe.sem.simplices == 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return train(recipe, **options)

    monkeypatch.setattr(study, "pretrain", pretrain)
    found = sweep("byol-sem", grid={"sem.simplices": "2,4"}, out=tmp_path / "sweep", device="cpu", **quick)
    assert [row["state"] for row in found["trials"]] == ["complete", "failed"]
    assert found["trials"][1]["reason"] == "CUDA out of memory."
    assert sweep("byol-sem", out=tmp_path / "sweep", resume=True, quiet=True)["trials"] == found["trials"]
    assert begun == [2, 4]


def test_rows_without_simplices_have_their_point_and_no_temperature(tmp_path):
    """A quantiser has one accuracy where SEM has one for each temperature; the figure takes either first."""
    sem = [{"temperature": t, "accuracy": a} for t, a in ((0.0, 50.0), (0.1, 60.0))]
    cells = {"sem": sem, "vq": [{"temperature": None, "accuracy": 40.0}]}
    for names in (["sem", "vq"], ["none", "sem"]):
        rows = [
            {
                "settings": {"bottleneck": name},
                "validation_accuracy": 55.0,
                "standard_error": 1.0,
                "per_temperature": cells.get(name, cells["vq"]),
            }
            for name in names
        ]
        plan = {"search": {}, "recipe": {"name": "a recipe"}}
        path = tmp_path / f"{names[0]}.svg"
        outcome.draw({"trials": rows, "settings": ["bottleneck"], "plan": plan}, path)
        assert path.read_text().count("downstream temperature") == 2


def test_a_recipe_alone_is_a_sweep_over_the_downstream_temperature(quick, tmp_path, capsys):
    found = sweep("byol-sem", out=tmp_path / "sweep", **{**quick, "temperatures": (0.0, 0.1, 1.0)})
    assert [cell["temperature"] for cell in found["best"]["per_temperature"]] == [0.0, 0.1, 1.0]
    assert "downstream temperature" in (tmp_path / "sweep/sweep.svg").read_text()
    words = f"--out {tmp_path / 'sweep'} --resume --downstream-temperatures 0 0.1 1 --quiet"
    assert cli.main(["sweep", "byol-sem", *words.split()]) == 0
    shown = capsys.readouterr().out
    for cell in found["best"]["per_temperature"]:
        assert re.search(rf"0\W+{cell['temperature']:g}\W+{cell['accuracy']:.2f}", shown)


def test_what_is_swept_is_read_as_the_setting_has_it():
    recipe = recipes.get("shapes-byol-sem")
    grid = read_grid(recipe, {"sem.simplices": "16,64", "byol.momentum": "0.9,0.99", "encoder": ["tiny"]})
    assert grid == {"sem.simplices": [16, 64], "options.momentum": [0.9, 0.99], "encoder": ["tiny"]}
    search = read_search(recipe, {"optim.lr": "0.1..1:log", "sem.vertices": "2..9", "optim.clip": "0,1"})
    assert search["optim.lr"] == Range(0.1, 1.0, log=True)
    assert search["sem.vertices"] == Range(2, 9, whole=True)
    assert search["optim.clip"] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--grid sem.simplexes=1,2", "'sem.simplices'"),
        ("--grid sem.simplices", "is not SETTING=VALUES"),
        ("--grid sem.simplices=1,x", "a whole number"),
        ("--grid sem.temperature=1,-1", "temperature is -1"),
        ("--grid views.crop_scale=1,2", "2 values"),
        ("--grid byol.hiden=1,2", "'hidden'"),
        ("--search optim.lr=1..0.1", "rising"),
        ("--search optim.lr=0..1:log", "above 0"),
        ("--search encoder=tiny..resnet18", "two numbers"),
        ("--search optim.lr=0.1..1 --grid epochs=1,2", "give one of them"),
        ("--grid holdout=0.1,0.2", "cannot be swept"),
        ("--holdout 0 --grid epochs=1,2", "holdout is 0"),
        ("--epochs many", "a whole number"),
        ("--resume", "give --out"),
        ("--resume --out mistyped", "there is no sweep in mistyped"),
    ],
)
def test_mistakes_are_told_before_anything_is_made(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sweep", "shapes-byol-sem", *words.split()]) == 2
    errors = capsys.readouterr().err
    assert told in errors and len(errors.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_images_without_labels_are_refused(folder, quick, tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in folder.glob("one/*.png"):
        shutil.copy(path, flat)
    with pytest.raises(UserError, match="has no labels"):
        sweep("byol-sem", grid={"epochs": "1,2"}, out=tmp_path / "sweep", **{**quick, "data": str(flat)})


def test_pretrain_holds_out_and_tells_who_watches(folder, tmp_path, monkeypatch):
    """Online probes are measured on the images held out, and what the watcher raises ends the run."""
    seen, tested = [], []
    real = trainer.OnlineProbe
    keep = lambda method, train, test, *rest: (  # noqa: E731
        tested.append((train.files, test.files)) or real(method, train, test, *rest)
    )
    monkeypatch.setattr(trainer, "OnlineProbe", keep)

    def watch(epoch, accuracies):
        seen.append((epoch, accuracies))
        if epoch == 2:
            raise StopIteration

    small = {"data": str(folder), "holdout": 0.25, "online_every": 1, "quiet": True, **SMALL, "epochs": 9}
    with pytest.raises(StopIteration):
        simplicia.pretrain("byol-sem", out=tmp_path / "run", on_online=watch, **small)
    assert [epoch for epoch, _ in seen] == [1, 2]
    train = datasets.load(str(folder))
    fit_on, held = datasets.split(train, 0.25)
    assert len(fit_on) + len(held) == len(train) and set(fit_on.files).isdisjoint(held.files)
    assert torch.bincount(held.labels).min() >= 4
    assert tested == [(fit_on.files, held.files)]


def test_what_is_told_to_do_next_has_no_probes_that_only_pruning_wanted(folder, tmp_path, capsys):
    small = "--epochs 1 --batch-size 16 --image-size 16 --encoder tiny --sem.simplices 4 --byol.hidden 16"
    words = f"--data {folder} --out {tmp_path / 's'} {small} --probe-epochs 1 --device cpu".split()
    search = ["--search", "optim.lr=0.1..1", "--trials", "1", "--quiet"]
    assert cli.main(["sweep", "byol-sem", *words, *search]) == 0
    (told,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("next, on all"))
    assert json.loads((tmp_path / "s/sweep.json").read_text())["plan"]["recipe"]["online_every"] == 1
    assert "--optim.lr " in told and "online" not in told
