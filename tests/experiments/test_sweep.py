"""Sweeps: held-out images decide, a killed sweep continues where it was, and no trial runs twice."""

import csv
import json
import re
import shlex
import shutil
import sqlite3
import time
from contextlib import closing

import numpy as np
import pytest
import torch
import warm
from PIL import Image

import simplicia
from simplicia import cli
from simplicia.cli.pretrain import best_command
from simplicia.data import datasets
from simplicia.errors import UserError
from simplicia.evaluate import probe
from simplicia.experiments import runner
from simplicia.experiments.sweep import sweep
from simplicia.experiments.sweep_outcome import SweepResult, TrialResult, draw
from simplicia.experiments.sweep_plan import Plan, Range, read_values
from simplicia.settings import as_dict, with_changes
from simplicia.train import checkpoint, recipes, run_dir, trainer

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
    path, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for i in range(84):
        pixels = rng.integers(0, 200, (16, 16, 3))
        pixels[..., i % 3] += 55
        (path / CLASSES[i % 3]).mkdir(exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path / CLASSES[i % 3] / f"{i}.png")
    return path


@pytest.fixture
def quick(folder):
    return {"data": str(folder), "probe_epochs": 2, "temperatures": (0.0, 1.0), "quiet": True, **SMALL}


def test_grid_measures_every_combination_on_held_out_images(folder, quick, tmp_path, monkeypatch):
    out, probed = tmp_path / "sweep", []
    keep = lambda run, train, held, **rest: (  # noqa: E731
        probed.append((set(train.files), set(held.files))) or probe(run, train, held, **rest)
    )
    monkeypatch.setattr("simplicia.experiments.sweep.probe", keep)
    grid = {"sem.simplices": "2,4", "sem.temperature": [0.5, 1.0]}
    result = sweep("byol-sem", grid=grid, out=out, **{**quick, "holdout": 0.2})
    settings = [(r["settings"]["sem.simplices"], r["settings"]["sem.temperature"]) for r in result["trials"]]
    assert settings == [(2, 0.5), (2, 1.0), (4, 0.5), (4, 1.0)]
    train = datasets.load(str(folder))
    fit_on, held = datasets.split(train, 0.2)
    assert (result["train_images"], result["validation_images"]) == (len(fit_on), len(held))
    assert probed == [(set(fit_on.files), set(held.files))] * 4
    for row in result["trials"]:
        run = simplicia.load(out / f"trial-{row['trial']:04d}", device="cpu")
        assert run.finished and run.recipe.sem.simplices == row["settings"]["sem.simplices"]
        assert run.state["images"] == len(fit_on)
        correct = row["validation_accuracy"] * len(held) / 100
        assert correct == pytest.approx(round(correct))
        assert [cell["temperature"] for cell in row["per_temperature"]] == [0.0, 1.0]
        assert row["downstream_temperature"] in (0.0, 1.0)
    best = max(result["trials"], key=lambda row: row["validation_accuracy"])
    assert result["best"] == best and json.loads((out / "sweep.json").read_text())["best"] == best.to_json()
    rows = list(csv.DictReader((out / "sweep.csv").open()))
    assert [float(r["validation_accuracy"]) for r in rows] == [
        r["validation_accuracy"] for r in result["trials"]
    ]
    assert "<svg" in (out / "sweep.svg").read_text()
    # asked again it has nothing to do; another grid is another sweep
    before = [p.stat().st_mtime_ns for p in sorted(out.glob("trial-*/checkpoint/*/*"))]
    again = sweep("byol-sem", out=out, resume=True, quiet=True)
    assert again["trials"] == result["trials"]
    assert before == [p.stat().st_mtime_ns for p in sorted(out.glob("trial-*/checkpoint/*/*"))]
    with pytest.raises(UserError, match="begun with another grid"):
        sweep("byol-sem", grid={"sem.simplices": "2,8"}, out=out, resume=True)
    with pytest.raises(UserError, match=r"begun with epochs 2, not 3;"):
        sweep("byol-sem", out=out, resume=True, epochs=3)
    with pytest.raises(UserError, match="holds a sweep; add resume=True"):
        sweep("byol-sem", out=out, **quick)
    lock = run_dir.lock(out, "lock")
    with pytest.raises(UserError, match="by another process"):
        sweep("byol-sem", out=out, resume=True)
    lock.close()


def test_test_split_is_not_read(folder, quick, tmp_path, monkeypatch):
    search = {"optim.lr": "0.01..1:log", "sem.vertices": "2..5"}
    asked = []
    load = datasets.load
    monkeypatch.setattr(
        datasets,
        "load",
        lambda name, split="train", *a, **k: (asked.append(split), load(name, split, *a, **k))[1],
    )
    result = sweep("byol-sem", search=search, trials=2, out=tmp_path / "sweep", **quick)
    assert set(asked) == {"train"}
    for row in result["trials"]:
        assert row["online"], "pruning watches the online probe"
        assert 0.01 <= row["settings"]["optim.lr"] <= 1 and row["settings"]["sem.vertices"] in range(2, 6)


def test_resumed_search_keeps_its_number_of_trials(quick, tmp_path):
    search = {"optim.lr": "0.01..1:log"}
    result = sweep("byol-sem", search=search, trials=2, prune=False, out=tmp_path / "sweep", **quick)
    again = sweep("byol-sem", out=tmp_path / "sweep", resume=True, quiet=True)
    assert again["trials"] == result["trials"] and len(result["trials"]) == 2
    more = sweep("byol-sem", out=tmp_path / "sweep", trials=3, resume=True, quiet=True)
    assert len(more["trials"]) == 3 and more["trials"][:2] == result["trials"]


DAMAGES = {
    "a state that Optuna does not know": "UPDATE trials SET state = 'LOST'",
    "a name that is not text": "UPDATE trial_params SET param_name = CAST(x'ad' AS TEXT)",
}


@pytest.mark.parametrize("damage", [*DAMAGES, "bytes that are gone"])
def test_damaged_database_is_an_error_of_one_sentence(quick, tmp_path, damage):
    out = tmp_path / "sweep"
    sweep("byol-sem", search={"optim.lr": "0.01..1:log"}, trials=1, prune=False, out=out, **quick)
    if damage in DAMAGES:
        with closing(sqlite3.connect(out / "study.db")) as database, database:
            database.execute(DAMAGES[damage])
    else:
        content = (out / "study.db").read_bytes()
        (out / "study.db").write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"the sweep's database .*study\.db cannot be used: .") as raised:
        sweep("byol-sem", out=out, trials=2, resume=True, quiet=True)
    assert "\n" not in str(raised.value)


def test_printed_command_trains_the_best_model(folder, tmp_path, capsys):
    small = "--epochs 1 --batch-size 16 --image-size 16 --encoder tiny --sem.simplices 4 --byol.momentum 0.9"
    words = f"--data {folder} --out {tmp_path / 's'} {small} --byol.hidden 16 --probe-epochs 1 --device cpu"
    assert cli.main(["sweep", "byol-sem", *words.split(), "--grid", "method=simclr", "--quiet"]) == 0
    (command,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("next, on all"))
    flags = shlex.split(command.split("simplicia pretrain ")[1])
    assert flags[-2:] == ["--method", "simclr"] and "hidden" not in command and "momentum" not in command
    assert cli.main(["pretrain", *flags, "--out", str(tmp_path / "run"), "--dry-run", "--device", "cpu"]) == 0


def test_printed_command_can_empty_a_setting_of_the_recipes_file():
    recipe = with_changes(recipes.get("byol-sem"), {"online_temperatures": (0.1, 1.0)})
    swept = with_changes(recipe, {"online_temperatures": "none"})
    outcome = {"plan": {"recipe": as_dict(swept), "prune": False}, "best": {"settings": {"optim.lr": 0.1}}}
    arguments = shlex.split(best_command("mine.yaml", recipe, outcome))
    assert arguments == ["mine.yaml", "--online-temperatures", "none", "--optim.lr", "0.1"]
    assert with_changes(recipe, {"online_temperatures": ["none"]}) == swept  # as the option reads it


def test_trials_below_the_median_are_pruned(quick, tmp_path):
    """At a temperature of a million all simplices are uniform, and an online probe can only guess."""
    out, temperatures = tmp_path / "sweep", [0.3, 0.4, 0.5, 0.6, 1e6]
    longer = {**quick, "epochs": 6, "batch_size": 4, "sem.simplices": 64, "holdout": 0.3}
    result = sweep("byol-sem", grid={"sem.temperature": temperatures}, prune=True, out=out, **longer)
    assert [row["state"] for row in result["trials"]] == [*["complete"] * 4, "pruned"]
    for row in result["trials"][:4]:
        assert list(row["online"]) == list("123456") and row["validation_accuracy"] is not None
    last = result["trials"][4]
    assert last["validation_accuracy"] is None
    epoch = list(last["online"])[-1]
    assert 2 <= int(epoch) < 6  # not before a third of the epochs
    best = [max(v for e, v in r["online"].items() if e <= epoch) for r in result["trials"][:4]]
    assert max(last["online"].values()) < np.median(best)
    assert result["best"]["trial"] < 4


def command(folder, out, *words):
    small = [f"--{k}={v}" for k, v in SMALL.items() if k != "options"]
    heads = ["--byol.hidden=16", "--byol.out=8", "--probe-epochs=2", "--downstream-temperatures", "0", "1"]
    verb = ["sweep", "byol-sem", "--data", str(folder), "--out", str(out), "--device", "cpu", "--quiet"]
    return [*verb, *small, *heads, *words]


def test_killed_sweep_continues_as_if_it_had_not_been_killed(folder, quick, tmp_path, capsys):
    out = tmp_path / "sweep"
    search = ["--search", "optim.lr=0.01..1:log", "sem.temperature=0.1..10:log", "--no-prune"]
    words = [*search, "--trials", "6", "--epochs=6", "--checkpoint-minutes=0.0001", "--log-every=1"]
    process = warm.start(command(folder, out, *words))
    deadline = time.monotonic() + 300
    while checkpoint.latest(out / "trial-0002/checkpoint") is None:
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.join()
    killed = checkpoint.read(checkpoint.latest(out / "trial-0002/checkpoint"))[1]
    assert killed["step"] < killed["total_steps"]
    done = {
        p: p.stat().st_mtime_ns for t in ("0000", "0001") for p in (out / f"trial-{t}/checkpoint").glob("*")
    }
    resumed = [
        "sweep",
        "byol-sem",
        "--out",
        str(out),
        "--resume",
        "--quiet",
        "--trials",
        "6",
        "--device",
        "cpu",
    ]
    assert cli.main(resumed) == 0
    printed = capsys.readouterr().out
    assert "best: trial" in printed
    (command_line,) = (
        line for line in printed.splitlines() if line.startswith("next, on all training images")
    )
    assert f"--data {folder} " in command_line and "--byol.hidden " in command_line  # as it was begun
    result = json.loads((out / "sweep.json").read_text())
    assert [row["trial"] for row in result["trials"]] == list(range(6))
    assert {row["state"] for row in result["trials"]} == {"complete"}
    drawn = [tuple(row["settings"].values()) for row in result["trials"]]
    assert len(set(drawn)) == 6
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
    for one, two in zip(straight["trials"], result["trials"], strict=False):
        assert one["settings"] == two["settings"]
        assert one["validation_accuracy"] == two["validation_accuracy"]


def test_failed_trial_does_not_end_the_sweep(quick, tmp_path):
    out = tmp_path / "sweep"
    result = sweep("byol-sem", grid={"sem.blocks": "1,7"}, out=out, **quick)
    assert [row["state"] for row in result["trials"]] == ["complete", "failed"]
    assert "7" in result["trials"][1]["reason"]
    with pytest.raises(UserError, match="no trial"):
        sweep("byol-sem", grid={"sem.blocks": "7,5"}, out=tmp_path / "none", **quick)


def full_host():
    torch.empty(10**15)


def full_device():  # there is no GPU here to fill
    raise torch.OutOfMemoryError("CUDA out of memory.")


def broken():
    raise KeyError("a fault\nof two lines")


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        (full_host, "the device is out of memory"),
        (full_device, "the device is out of memory"),
        (broken, "KeyError: 'a fault"),
    ],
)
def test_trial_that_raises_fails_once(quick, tmp_path, monkeypatch, fail, reason):
    begun, train = [], runner.pretrain

    def pretrain(recipe, **options):
        begun.append(recipe.sem.simplices)
        return fail() if recipe.sem.simplices == 2 else train(recipe, **options)

    monkeypatch.setattr(runner, "pretrain", pretrain)
    result = sweep("byol-sem", grid={"sem.simplices": "2,4"}, out=tmp_path / "sweep", device="cpu", **quick)
    assert [row["state"] for row in result["trials"]] == ["failed", "complete"]
    assert result["trials"][0]["reason"].startswith(reason)
    assert sweep("byol-sem", out=tmp_path / "sweep", resume=True, quiet=True)["trials"] == result["trials"]
    assert begun == [2, 4]


def test_figure_of_trials_with_and_without_temperatures(tmp_path):
    """A quantiser has one accuracy where SEM has one for each temperature; either may come first."""
    sem = [{"temperature": t, "accuracy": a} for t, a in ((0.0, 50.0), (0.1, 60.0))]
    none = [{"temperature": None, "accuracy": 40.0}]
    for names in (["sem", "vq"], ["none", "sem"]):
        trials = [
            TrialResult(i, "complete", {"bottleneck": name}, 55.0, 1.0, 0.1, sem if name == "sem" else none)
            for i, name in enumerate(names)
        ]
        plan = {"search": {}, "recipe": {"name": "a recipe"}}
        path = tmp_path / f"{names[0]}.svg"
        draw(SweepResult(plan, ["bottleneck"], trials, trials[0], 9, 1), path)
        assert path.read_text().count("downstream temperature") == 2


def test_figure_of_two_settings_and_of_a_search(tmp_path):
    points = [(8, 0.1), (8, 1.0), (64, 0.1)]
    trials = [TrialResult(i, "complete", {"L": n, "tau": t}, 50.0 + i) for i, (n, t) in enumerate(points)]
    for search in ({}, {"L": 0, "tau": 0}):
        plan = {"search": search, "recipe": {"name": "a recipe"}}
        draw(SweepResult(plan, ["L", "tau"], trials, trials[2], 9, 1), tmp_path / "s.svg")
        svg = (tmp_path / "s.svg").read_text()
        assert ">52.0<" in svg if not search else svg.count("validation accuracy, %") == 2
        assert len(set(re.findall(r'id="(axes_[12])"', svg))) == 2  # a panel for each, or the colour bar


def test_recipe_alone_is_swept_over_the_downstream_temperature(quick, tmp_path, capsys):
    result = sweep("byol-sem", out=tmp_path / "sweep", **{**quick, "temperatures": (0.0, 0.1, 1.0)})
    assert [cell["temperature"] for cell in result["best"]["per_temperature"]] == [0.0, 0.1, 1.0]
    assert "downstream temperature" in (tmp_path / "sweep/sweep.svg").read_text()
    words = f"--out {tmp_path / 'sweep'} --resume --downstream-temperatures 0 0.1 1 --quiet"
    assert cli.main(["sweep", "byol-sem", *words.split()]) == 0
    shown = capsys.readouterr().out
    for cell in result["best"]["per_temperature"]:
        assert re.search(rf"0\W+{cell['temperature']:g}\W+{cell['accuracy']:.2f}", shown)


def test_plan_of_0_1_is_read():
    plan = Plan(
        recipe=recipes.get("shapes-byol-sem"),
        grid={},
        search={"optim.lr": Range(0.1, 1.0, log=True), "sem.vertices": Range(2, 9, integer=True)},
        temperatures=(0.0, 1.0),
        probe_epochs=3,
        prune=True,
    )
    stored = json.loads(json.dumps(as_dict(plan)))
    assert Plan.from_dict(stored) == plan
    for values in stored["search"].values():
        values["whole"] = values.pop("integer")
    assert Plan.from_dict(stored) == plan


def test_values_are_read_as_the_type_of_their_setting():
    recipe = recipes.get("shapes-byol-sem")
    grid = read_values(recipe, {"sem.simplices": "16,64", "byol.momentum": "0.9,0.99", "encoder": ["tiny"]})
    assert grid == {"sem.simplices": [16, 64], "options.momentum": [0.9, 0.99], "encoder": ["tiny"]}
    assert read_values(recipe, {"views.jitter": "0.5"}) == {"views.jitter_prob": [0.5]}  # its name in 0.1
    search = read_values(
        recipe, {"optim.lr": "0.1..1:log", "sem.vertices": "2..9", "optim.clip": "0,1"}, ranges=True
    )
    assert search["optim.lr"] == Range(0.1, 1.0, log=True)
    assert search["sem.vertices"] == Range(2, 9, integer=True)
    assert search["optim.clip"] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("words", "message"),
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
def test_wrong_input_is_reported_before_anything_is_created(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sweep", "shapes-byol-sem", *words.split()]) == 2
    errors = capsys.readouterr().err
    assert message in errors and len(errors.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_images_without_labels_are_refused(folder, quick, tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in folder.glob("one/*.png"):
        shutil.copy(path, flat)
    with pytest.raises(UserError, match="has no labels"):
        sweep("byol-sem", grid={"epochs": "1,2"}, out=tmp_path / "sweep", **{**quick, "data": str(flat)})


def test_pretrain_holds_out_images_and_calls_on_online(folder, tmp_path, monkeypatch):
    """Online probes are measured on the held-out images; an exception in the callback ends the run."""
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


def test_printed_command_has_no_online_probes_that_only_pruning_needed(folder, tmp_path, capsys):
    small = "--epochs 1 --batch-size 16 --image-size 16 --encoder tiny --sem.simplices 4 --byol.hidden 16"
    words = f"--data {folder} --out {tmp_path / 's'} {small} --probe-epochs 1 --device cpu".split()
    search = ["--search", "optim.lr=0.1..1", "--trials", "1", "--quiet"]
    assert cli.main(["sweep", "byol-sem", *words, *search]) == 0
    (command,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("next, on all"))
    assert json.loads((tmp_path / "s/sweep.json").read_text())["plan"]["recipe"]["online_every"] == 1
    assert "--optim.lr " in command and "online" not in command
