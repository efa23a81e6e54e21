"""Experiments as their users run them: trained, stopped, taken up, measured once, and written as JSON."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from small_experiment import call, rows

from simplicia import cli
from simplicia.experiments import get, store
from simplicia.experiments.experiment import Cell, Experiment
from simplicia.experiments.runner import Options, reproduce
from simplicia.train import checkpoint
from simplicia.train.step import Step

FIELDS = {
    *("experiment", "cell", "dataset", "encoder", "method", "sem", "epochs", "batch_size", "accuracy"),
    *("protocol", "online", "layer", "temperature", "seconds", "probe_seconds", "device", "seed", "commit"),
    *("paper", "standard_error", "selected"),
}


@pytest.fixture(scope="module")
def measured(place):
    assert call(place, "table1", "--only", "byol") == 0
    return place


def test_a_cell_states_all_that_is_needed_to_believe_it(measured, capsys):
    base, sem = rows(measured, "table1")
    for row in (base, sem):
        assert row.keys() >= FIELDS and row["experiment"] == "table1" and row["online"] is False
        assert (row["epochs"], row["batch_size"], row["seed"], row["paper"]) == (2, 30, 0, None)
        assert row["probe"] == "demo-2-epochs" and row["seconds"] > 0 < row["probe_seconds"]
        stored = json.loads((measured / "runs" / row["run"] / "results" / _probe(row)).read_text())
        assert row["accuracy"] == stored["accuracy"] > 100 / 3
    assert (base["cell"], base["sem"], base["layer"]) == ("BYOL", False, "encoder")
    assert (sem["cell"], sem["sem"], sem["layer"]) == ("BYOL + SEM", True, "sem")
    assert not (measured / "results" / "paper").exists()


def _probe(row):
    return f"probe-demo-2-epochs-{row['layer']}.json"


def test_again_nothing_is_trained_or_probed_and_the_table_is_shown(measured, capsys):
    files = {path: path.stat().st_mtime_ns for path in (measured / "runs").rglob("*") if path.is_file()}
    before = rows(measured, "table1")
    assert call(measured, "table1", "--only", "byol") == 0
    out = capsys.readouterr().out
    assert rows(measured, "table1") == before
    assert files == {
        path: path.stat().st_mtime_ns for path in (measured / "runs").rglob("*") if path.is_file()
    }
    for row in before:
        assert f"| {row['cell']} | {row['accuracy']:.1f} ± {row['standard_error']:.1f} |" in out


def test_other_experiments_take_the_same_run_and_the_same_probe(measured, capsys):
    run = rows(measured, "table1")[1]["run"]
    folders = {path.name for path in (measured / "runs").iterdir()}
    file = measured / "runs" / run / "results" / "probe-demo-2-epochs-sem.json"
    time_of_probe, probe = file.stat().st_mtime_ns, json.loads(file.read_text())
    assert call(measured, "hard-discretisation", "--only", "sem") == 1
    told = "BYOL + SEM, tau_d=0.0001: temperature is 0.0001; the probe 'demo-2-epochs' has 0, 0.1, 1"
    assert told in capsys.readouterr().err
    assert call(measured, "tau-downstream", "--only", "rn-18") == 0
    assert call(measured, "entropy", "--only", "tau_p=1") == 0
    assert call(measured, "spectrum", "--only", "rn-18") == 0
    assert file.stat().st_mtime_ns == time_of_probe
    assert {path.name for path in (measured / "runs").iterdir()} == folders
    by_temperature = {row["temperature"]: row["accuracy"] for row in probe["per_temperature"]}
    hard = rows(measured, "hard-discretisation")
    assert [(row["cell"], row["layer"], row["temperature"]) for row in hard] == [
        ("BYOL + SEM, tau_d=0", "codes", 0.0),
        ("BYOL + SEM, tau_d=0.1", "sem", 0.1),
    ]
    assert hard[1]["accuracy"] == by_temperature[0.1]
    downstream = rows(measured, "tau-downstream")
    assert {row["temperature"]: row["accuracy"] for row in downstream} == by_temperature
    (entropy,) = rows(measured, "entropy")
    assert 0 < entropy["mean_entropy"] < entropy["ln_vertices"] == pytest.approx(np.log(13))
    assert sum(entropy["counts"]) == entropy["count"] == 60 * 256
    encoder, embedder = rows(measured, "spectrum")
    assert (encoder["layer"], encoder["features"], embedder["features"]) == ("encoder", 128, 256 * 13)
    assert len(embedder["values"]) == embedder["images"] == 30


def test_coherence_and_the_bound_come_from_the_run_as_well(measured, capsys):
    assert call(measured, "coherence", "--only", "BYOL + SEM") == 0
    (coherence,) = rows(measured, "coherence")
    assert (measured / "runs" / coherence["run"] / coherence["graph"]).is_file()
    assert coherence["coherence"] == [] and coherence["coherence_at_5"] is None  # no superclasses
    assert call(measured, "bound") == 0
    found = rows(measured, "bound")
    theory = [row for row in found if row["protocol"] == "Theorem 1, in theory"]
    assert len(theory) == 8 and all(0 <= row["supremum"] <= row["bound"] < row["base"] for row in theory)
    of_run = [row for row in found if row["protocol"] == "Theorem 1, measured"]
    assert len(of_run) == 7 and all(row["measured"] <= row["supremum"] for row in of_run)
    assert "**The terms of Theorem 1" in capsys.readouterr().out


def test_other_protocols_are_measured_and_kept_too(measured):
    shutil.copytree(measured / "images", measured / "data" / "flowers-102", dirs_exist_ok=True)
    options = Options(str(measured / "images"), str(measured / "data"), 2, 30, quiet=True)
    options.runs, options.results, options.probe_epochs = measured / "runs", measured / "results", 2

    def measure(**settings):  # those of ImageNet's cells, on the small run
        cell = Cell("BYOL + SEM", "byol-sem", **settings)
        return store.read(reproduce(Experiment(cell.measure, "", (cell,)), options))

    (transfer,) = measure(measure="transfer", options={"to": "flowers102"})
    assert (transfer["dataset"], transfer["layer"], transfer["temperature"]) == ("flowers102", "codes", 0.0)
    assert transfer["pretrained_on"] == str(measured / "images") and transfer["accuracy"] > 100 / 3
    (top1,) = measure(measure="semi", options={"fraction": 0.1})  # of three classes five guesses are all
    assert (top1["cell"], top1["probe"]) == ("BYOL + SEM, top-1", "epochs 2")
    clean, corrupted = measure(measure="robustness")
    assert (clean["cell"], corrupted["cell"]) == ("BYOL + SEM, clean", "BYOL + SEM, corruptions")
    assert len(corrupted["per_corruption"]) == 15
    probe = next(row for row in rows(measured, "table1") if row["sem"])  # the experiment's own, cut down
    assert all(clean[key] == probe[key] for key in ("accuracy", "selected", "temperature", "layer", "probe"))
    assert "linear probe by SGD" in clean["protocol"] and clean["probe"] == "demo-2-epochs"
    stored = measured / "runs" / clean["run"] / "results" / "robustness-demo-2-epochs.json"
    once, found = stored.stat().st_mtime_ns, json.loads(stored.read_text())
    assert found["epochs"] == 2 and found["preset"] == clean["probe"]
    assert measure(measure="robustness") == [clean, corrupted] and stored.stat().st_mtime_ns == once
    severities = corrupted["per_severity"]
    assert corrupted["accuracy"] == pytest.approx(sum(severities) / len(severities))


def test_after_imagenet_its_other_test_sets_are_measured(place, tmp_path):
    """Those that are there, the published corrupted images instead of some made here."""
    for split, name in (("train", "train"), ("test", "val")):
        shutil.copytree(place / "images" / split, tmp_path / "imagenet" / name)
    shutil.copytree(place / "images/test/red", tmp_path / "imagenet-r/red")
    for severity in "12345":
        shutil.copytree(place / "images/test", tmp_path / "imagenet-c/fog" / severity)
    options = Options("imagenet", str(tmp_path), 2, 30, quiet=True)
    options.runs, options.results, options.probe_epochs = tmp_path / "runs", tmp_path / "results", 2
    small = {"encoder": "tiny", "stem": "small", "sem.simplices": 16, "options.hidden": 32}
    small |= {"image_size": 16, "stored_size": 0}
    cell = Cell("BYOL + SEM", "byol-sem", small, measure="robustness")
    clean, others, corrupted = store.read(
        reproduce(Experiment("robustness", "", (cell,), data="imagenet"), options)
    )
    assert [r["cell"][12:] for r in (clean, others, corrupted)] == ["clean", "R", "corruptions"]
    assert clean["pretrained_on"] == "imagenet" and clean["standard_error"] is not None
    assert others["set"] == "imagenet-r" and others["accuracy_among_present"] == 100  # it has one class
    (stored,) = (tmp_path / "runs" / others["run"] / "results").glob("robustness-*.json")
    assert others["accuracy"] == json.loads(stored.read_text())["sets"][0]["accuracy_among_all"]
    assert corrupted["set"] == "imagenet-c" and corrupted["accuracy"] == pytest.approx(clean["accuracy"])
    shutil.rmtree(tmp_path / "imagenet-c")
    *_, made_here = store.read(reproduce(Experiment("robustness", "", (cell,), data="imagenet"), options))
    assert len(made_here["per_corruption"]) == 15


def test_a_list_says_what_is_measured_and_what_is_an_estimate(monkeypatch, capsys):
    few = {name: get(name) for name in ("bound", "entropy", "robustness")}
    monkeypatch.setattr("simplicia.experiments.EXPERIMENTS", few)
    assert cli.main(["reproduce", "--list", "--epochs", "1000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    bound, entropy, robustness = (next(s for s in lines if s.startswith(name)) for name in few)
    assert re.search(r" 1 +0\.6 +7 +4 +cifar100", bound)  # 11.221 ms, 195,000 steps, and a measurement
    assert re.search(r" 5 +3\.\d, estimate +7 +19 +cifar100", entropy)
    assert re.search(r" 2 +- +- +- +imagenet", robustness)


def test_without_training_only_what_is_trained_is_measured(measured, tmp_path, capsys):
    runs = {path.name for path in (measured / "runs").glob("[!.]*")}
    assert call(measured, "coherence", "--no-training") == 0
    assert {row["cell"] for row in rows(measured, "coherence")} == {"BYOL", "BYOL, ICA", "BYOL + SEM"}
    assert {path.name for path in (measured / "runs").glob("[!.]*")} == runs
    assert call(measured, "coherence", "--no-training", "--runs", tmp_path / "none") == 2
    assert "no run that coherence needs is trained to its end in" in capsys.readouterr().err


def test_one_reason_for_all_cells_is_told_once(tmp_path, capsys):
    words = f"reproduce table1 --only byol --data nope --runs {tmp_path} --results {tmp_path}"
    assert cli.main(words.split()) == 2
    told = capsys.readouterr().err
    assert told.count("unknown data set 'nope'") == 2 and "BYOL + SEM is left out, for the same" in told
    assert not (tmp_path / "other").exists()


def test_a_note_stays_with_what_was_measured_then(place, tmp_path, capsys):
    words = "table1", "--only", "byol", "--runs", tmp_path, "--results", tmp_path / "results", "--note"
    assert call(place, *words, "two | at a time") == 0
    shown = capsys.readouterr().out
    assert shown.count("; two \\| at a time.**") == 1
    assert call(place, *words, "another") == 0  # measures nothing
    assert [row["note"] for row in rows(tmp_path, "table1")] == ["two | at a time"] * 2
    assert [row["trained_by"][0]["note"] for row in rows(tmp_path, "table1")] == ["two | at a time"] * 2


def test_seeds_are_cells_of_their_own(measured):
    assert call(measured, "table1", "--only", "byol + sem", "--seeds", "0", "1") == 0
    found = rows(measured, "table1")
    assert [(row["cell"], row["seed"]) for row in found] == [
        ("BYOL", 0),
        ("BYOL + SEM", 0),
        ("BYOL + SEM", 1),
    ]
    assert found[1]["run"] != found[2]["run"]


def test_it_stops_in_time_says_so_and_goes_on(place, capsys):
    words = "table1", "--only", "simclr + sem", "--probe-minutes", "0", "--minutes"
    assert call(place, *words, "0.02", epochs=100_000) == 75
    error = capsys.readouterr().err
    assert re.search(r"stopped at step \d+ of 200000: the time is up; continue with: simplicia", error)
    (run,) = (place / "runs").glob("simclr-sem-100000-*")
    step = json.loads((checkpoint.latest(run / "checkpoint") / "state.json").read_text())["step"]
    assert f"step {step} of" in error
    assert call(place, *words, "1e-9", epochs=100_000) == 75
    assert "too little time is left for training" in capsys.readouterr().err
    assert call(place, *words, "0.02", epochs=100_000) == 75
    later = int(re.search(r"step (\d+) of", capsys.readouterr().err)[1])
    assert later > step  # and only the newest checkpoint is kept
    assert [path.name for path in (run / "checkpoint").iterdir()] == [f"step-{later:09d}"]
    assert not any("SimCLR" in row["cell"] for row in rows(place, "table1"))


def test_the_papers_rules_and_others_go_apart(tmp_path):
    assert cli.main(["reproduce", "cost", "--only", "counted", "--results", str(tmp_path)]) == 0
    found = store.read(tmp_path / "paper" / "cost.json")
    assert len(found) == 6 and found[0]["paper_parameters"] == 16_500_000
    assert all(abs(row["flops"] / row["paper_flops"] - 1) < 0.02 for row in found)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "reproduce takes an experiment's name"),
        ("tabel1", "did you mean 'table1'?"),
        ("table1 --only nothing", "no cell of table1 has nothing in its name"),
        ("table1 --seeds -1", "not a whole number from 0 up"),
        ("table1 --minutes 2", "minutes is 2, and no measurement is begun with less than 3"),
        ("table1 --minutes soon", "'soon' is not a number from 0 up"),
        ("table1 --device tpu9", "choose auto"),
        ("table1 --epoch 3", "--epochs"),
        ("table1 --list", "'table1' is an experiment to run; --list and --page are for all"),
        ("table1 --page x.md", "--list and --page are for all"),
        ("table1 --data=", "data is empty"),
        ("table1 --data nowhere/here", "there is no folder 'nowhere/here'"),
        ("table1 --only byol --data-dir nowhere", "nowhere"),
        ("table1 --only byol", "SIMPLICIA_DATA, and neither is given; simplicia pretrain --download"),
        ("robustness", "imagenet needs 'imagenet' below --data-dir or SIMPLICIA_DATA; neither is given"),
    ],
)
def test_mistakes_are_one_line(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SIMPLICIA_DATA", raising=False)
    assert cli.main(["reproduce", *words.split(), "--quiet"]) == 2
    errors = capsys.readouterr().err
    assert len(errors.strip().splitlines()) == 1 and told in errors, errors
    assert not (tmp_path / "results").exists()


def test_killed_it_goes_on_where_it_was(place, tmp_path, monkeypatch, capsys):
    """Told to stop, then killed as a real process, then run to its end."""
    cut = "--epochs", "5", "--batch-size", "30", "--probe-epochs", "2", "--only", "identity"
    words = "reproduce", "embedder-type", "--data", str(place / "images"), *cut
    monkeypatch.chdir(tmp_path)
    step = Step.__call__

    def told(self, number):
        if number == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Step, "__call__", told)
        assert cli.main(words) == 143
    error = capsys.readouterr().err
    assert "stopped at step 4 of 10; finished work is kept; continue with: " in error
    (run,) = (tmp_path / "runs").glob("[!.]*")
    assert [path.name for path in (run / "checkpoint").iterdir()] == ["step-000000004"]
    log, deadline = (run / "log.jsonl").stat().st_ino, time.monotonic() + 120
    process = subprocess.Popen([sys.executable, "-m", "simplicia", *words], stderr=subprocess.PIPE)
    while (run / "log.jsonl").stat().st_ino == log and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)  # a training that begins writes its log anew
    process.kill()
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert [path.name for path in (run / "checkpoint").iterdir()] == ["step-000000004"]
    assert not (tmp_path / "results").exists()
    assert cli.main(words) == 0
    (row,) = store.read(tmp_path / "results" / "other" / "embedder-type.json")
    assert (row["cell"], row["epochs"], row["run"]) == ("identity", 5, run.name)
    shown = f"| identity | {row['accuracy']:.1f} ± {row['standard_error']:.1f} |"
    assert shown in capsys.readouterr().out
    # the part before the stop was not trained again
    steps = [json.loads(line)["step"] for line in (run / "log.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps)) and steps[-1] == 10
