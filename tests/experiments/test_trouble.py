"""What goes wrong: too little time, signals, runs that are not what they were, and cells that fail."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from small_experiment import call

from simplicia.errors import Failed, Unfinished, UserError
from simplicia.experiments import measures, store
from simplicia.experiments.experiment import Cell, Experiment
from simplicia.experiments.runner import Options, reproduce, results_path
from simplicia.train import checkpoint
from simplicia.train import run_dir as places

ENCODER = {"layer": "encoder"}
BYOL = "table1", "--only", "byol"


@pytest.fixture(scope="module")
def trained(place):
    """A place with BYOL's run, without SEM."""
    options = Options(str(place / "images"), epochs=2, batch_size=30, probe_epochs=2, quiet=True)
    options.runs, options.results = place / "runs", place / "first"
    reproduce(two_cells(1), options)
    return place


@pytest.fixture
def own(trained, tmp_path):
    """Options for a copy of those runs and results."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    options = Options(str(trained / "images"), epochs=2, batch_size=30, probe_epochs=2, quiet=True)
    options.runs, options.results = tmp_path / "runs", tmp_path / "results"
    (options.folder,) = options.runs.glob("[!.]*")
    return options


def two_cells(count=2, **changes):
    cells = Cell("BYOL", "byol", options=ENCODER), Cell("other", "byol", changes, options=ENCODER)
    return Experiment("x", "", cells[:count])


def measuring(monkeypatch, name, measure, asked=None):
    """Let a measure be a function of nothing."""
    found = {"protocol": "mine", "probe_seconds": 0.0}

    def once(job, **options):
        key = {"pretrain_step": job.recipe.epochs * 2}
        return [job.once(f"mine-{name}", asked or {}, lambda: {**found, **key, **(measure() or {})})]

    monkeypatch.setitem(measures.MEASURES, name, once)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_no_handler_of_errors_on_the_way_takes_a_signal_for_one(trained, monkeypatch, capsys, number):
    def entropy(job):
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        except Exception:
            pytest.fail("swallowed")

    monkeypatch.setitem(measures.MEASURES, "entropy", entropy)
    handler = signal.getsignal(number)
    assert call(trained, "entropy", "--only", "tau_p=1") == 128 + number
    error = capsys.readouterr().err
    assert "stopped; finished work is kept; continue with: simplicia reproduce " in error
    assert signal.getsignal(number) is handler


def test_a_measurement_that_does_not_fit_is_cut_said_and_left_out(own, monkeypatch):
    began = []
    shutil.rmtree(own.folder / "results")
    measuring(monkeypatch, "entropy", lambda: began.append(1) or time.sleep(60))
    cells = Cell("slow", "byol", measure="entropy"), Cell("BYOL", "byol", options=ENCODER)
    experiment, own.minutes, own.probe_minutes = Experiment("x", "", cells), 0.06, 0.0
    with pytest.raises(Unfinished):
        reproduce(experiment, own)
    for _ in range(9):  # what comes after it is done by other commands, which do not begin it again
        try:
            reproduce(experiment, own)
        except Unfinished:
            continue
        except Failed as error:
            assert "1 of 2 cells could not be measured: slow: its measurement takes more than 0.06" in str(
                error
            )
            break
    slow, sound = store.read(own.results / "other" / "x.json")
    assert (slow["cell"], slow["minutes"]) == ("slow", 0.06) and sound["accuracy"] > 0
    assert began == [1] and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    measuring(monkeypatch, "entropy", lambda: began.append(2))
    own.minutes = 0.3  # with more it is tried again
    reproduce(experiment, own)
    assert began == [1, 2] and all("failed" not in r for r in store.read(own.results / "other" / "x.json"))


def test_a_measurement_is_not_begun_after_training_with_too_little_time(own, monkeypatch):
    shutil.rmtree(own.runs)
    own.minutes, own.probe_minutes = 1.0, 0.999999
    with pytest.raises(Unfinished, match="too little time is left for a measurement"):
        reproduce(two_cells(1), own)
    assert not own.results.exists()


def test_a_run_trained_anew_is_measured_anew(own):
    (before,) = store.read(reproduce(two_cells(1), own))
    file = own.folder / "results" / "probe-demo-2-epochs-encoder.json"
    stored = json.loads(file.read_text())
    assert before["accuracy"] == stored["accuracy"]
    file.write_text(json.dumps({**stored, "accuracy": -1.0}))
    (again,) = store.read(reproduce(two_cells(1), own))
    assert again["accuracy"] == -1.0  # as it was stored
    shutil.rmtree(own.folder / "checkpoint")
    reproduce(Experiment("y", "", (Cell("BYOL", "byol", measure="spectrum", options=ENCODER),)), own)
    (anew,) = store.read(reproduce(two_cells(1), own))
    assert anew["accuracy"] == stored["accuracy"]
    state = json.loads((checkpoint.latest(own.folder / "checkpoint") / "state.json").read_text())
    assert json.loads(file.read_text())["run_id"] == state["id"] != stored["run_id"]
    assert [part["from_step"] for part in anew["trained_by"]] == [0] and anew["trained_by"][0]["commit"]


def test_any_other_setting_of_a_measurement_is_another_measurement(own, monkeypatch):
    (before,) = store.read(reproduce(two_cells(1), own))
    from simplicia.experiments import runner

    monkeypatch.setattr(runner, "SHAPES_PROBE", dataclasses.replace(runner.SHAPES_PROBE, momentum=0.5))
    (after,) = store.read(reproduce(two_cells(1), own))
    assert after["date"] >= before["date"] and after["probe_seconds"] != before["probe_seconds"]


def test_a_run_of_other_settings_is_refused_by_their_names(own, monkeypatch):
    from simplicia.train import recipes

    monkeypatch.setitem(recipes.DATA["own"], "stem_padding", 2)
    monkeypatch.setitem(recipes.DATA["own"], "log_every", 7)  # how it is watched is no other run
    with pytest.raises(UserError, match=r"was trained with stem_padding 1, not 2; remove it") as told:
        reproduce(two_cells(1), own)
    assert "log_every" not in str(told.value)
    with pytest.raises(Failed, match=r"1 of 2 cells .* BYOL: .*stem_padding"):
        reproduce(two_cells(**{"optim.lr": 0.5}), own)


@pytest.mark.parametrize("error", [UserError("no"), torch.OutOfMemoryError("memory")])
def test_one_bad_cell_does_not_stop_the_others(own, monkeypatch, error):
    def fail():
        raise error

    measuring(monkeypatch, "entropy", fail)
    cells = Cell("bad", "byol", measure="entropy"), Cell("BYOL", "byol", options=ENCODER)
    with pytest.raises(Failed, match="1 of 2 cells could not be measured: bad: "):
        reproduce(Experiment("x", "", cells), own)
    bad, sound = store.read(own.results / "other" / "x.json")
    assert bad["failed"] in ("no", "the device is out of memory") and sound["accuracy"] > 0
    measuring(monkeypatch, "entropy", lambda: None)
    own.retry = True
    (sound, good) = store.read(reproduce(Experiment("x", "", cells), own))
    assert good["cell"] == "bad" and "failed" not in good


def test_what_diverged_is_not_trained_again_by_every_command(trained, tmp_path):
    options = Options(str(trained / "images"), epochs=2, batch_size=30, probe_epochs=2, quiet=True)
    options.runs = options.results = tmp_path
    for begins in (True, False):
        with pytest.raises(Failed, match="1 of 2 cells could not be measured: other: the loss became"):
            reproduce(two_cells(**{"optim.lr": 1e30}), options)
        sound, hot = store.read(tmp_path / "other" / "x.json")
        assert "the loss became" in hot["failed"] and hot["accuracy"] is None and hot["epochs"] == 2
        assert sound["accuracy"] > 0
        assert (tmp_path / hot["run"] / "log.jsonl").exists() == begins
        (tmp_path / hot["run"] / "log.jsonl").unlink(missing_ok=True)
    options.retry = True
    with pytest.raises(Failed):
        reproduce(two_cells(**{"optim.lr": 1e30}), options)
    assert (tmp_path / hot["run"] / "log.jsonl").exists()
    store.put(tmp_path / "other" / "x.json", [{"cell": "else", "run": hot["run"], "accuracy": 1.0}])
    found = store.read(tmp_path / "other" / "x.json")
    assert [row["accuracy"] for row in found] == [sound["accuracy"], 1.0]  # what diverged once is sound now


def test_data_is_looked_at_before_a_run_is_trained(trained, tmp_path, capsys):
    where = "--runs", tmp_path / "runs", "--results", tmp_path / "results"
    there = "--data-dir", trained / "nowhere"
    assert call(trained, "transfer", "--only", "linear, flowers102, byol", *there, *where) == 2
    assert "flowers" in capsys.readouterr().err and not list(tmp_path.iterdir())
    shutil.copytree(trained / "images" / "train" / "red", tmp_path / "flat")
    assert call(trained, *BYOL, *where, "--data", tmp_path / "flat", "--batch-size", 10) == 2
    assert "no labels" in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_a_folder_is_the_same_by_any_path(own, trained, monkeypatch):
    reproduce(two_cells(1), own)
    monkeypatch.chdir(trained)
    (row,) = store.read(reproduce(two_cells(1), dataclasses.replace(own, data="images")))
    assert row["pretrained_on"] == own.data


def test_a_full_disk_is_told_before_training(trained, tmp_path, monkeypatch, capsys):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(30_000_000))
    where = "--runs", tmp_path / "runs", "--results", tmp_path / "results"
    assert call(trained, "table1", "--only", "byol + sem", *where) == 2
    error = capsys.readouterr().err
    assert "GB while it trains" in error and "0.0 GB free" in error and not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can write to")
def test_results_that_cannot_be_written_are_told_before_training(trained, tmp_path, capsys):
    where = "--runs", tmp_path / "runs", "--results", "/proc/results"
    assert call(trained, "table1", "--only", "byol + sem", *where) == 2
    assert "results cannot be written to" in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_a_run_that_another_process_trains_is_waited_for(own, capsys):
    shutil.rmtree(own.folder / "checkpoint")
    other = pytest.raises(Unfinished, match=r"is being trained or measured by another process$")
    with places.lock(own.folder), other:
        reproduce(two_cells(1), own)


def test_a_run_that_another_process_measures_is_left_to_it(own, capsys):
    for results in own.folder.rglob("results/*.json"):
        results.unlink()
    locks = own.runs / ".locks"
    locks.mkdir(exist_ok=True)
    with places.lock(locks, own.folder.name), pytest.raises(Unfinished, match="trained or measured by"):
        reproduce(two_cells(1), own)
    assert store.read(results_path(two_cells(1), own)) == [] and not list(own.folder.rglob("results/*.json"))
    assert len(store.read(reproduce(two_cells(1), own))) == 1


def test_weights_that_another_process_works_with_are_not_dropped(own):
    own.drop = True
    locks = own.runs / ".locks"
    locks.mkdir(exist_ok=True)
    with places.lock(locks, own.folder.name):
        reproduce(two_cells(1), own)  # measured before: it only reads
    assert list(own.folder.rglob("*.safetensors"))
    reproduce(two_cells(1), own)
    assert not list(own.folder.rglob("*.safetensors"))


def test_the_same_command_twice_at_once_shares_the_work(trained, tmp_path):
    """Two real processes; whoever comes to a run that is taken goes on to the next."""
    words = ["reproduce", "table1", "--only", "byol", "--data", str(trained / "images"), "--epochs", "2"]
    words += ["--batch-size", "30", "--probe-epochs", "2"]
    words += ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    command = [sys.executable, "-m", "simplicia", *words]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in "12"]
    told = [process.communicate(timeout=240)[0].decode() for process in both]
    assert {process.returncode for process in both} <= {0, 75}, told
    rows = store.read(tmp_path / "results/other/table1.json")
    assert sorted(row["cell"] for row in rows) == ["BYOL", "BYOL + SEM"], told
    assert all(len(row["trained_by"]) == 1 for row in rows)
    for layer in ("encoder", "sem"):
        assert sum(f"probes on {layer}" in text for text in told) == 1, told


def test_dropped_weights_are_trained_again_only_for_what_is_not_measured(own):
    own.drop = True
    (before,) = store.read(reproduce(two_cells(1), own))
    assert not list(own.folder.rglob("*.safetensors")) and (own.folder / "log.jsonl").is_file()
    with pytest.raises(UserError, match="its weights were dropped"):
        checkpoint.read(checkpoint.latest(own.folder / "checkpoint"))
    assert store.read(reproduce(two_cells(1), own)) == [before]
    assert not list(own.folder.rglob("*.safetensors"))
    both = Experiment(
        "x", "", (*two_cells(1).cells, Cell("spectrum", "byol", measure="spectrum", options=ENCODER))
    )
    own.drop = False
    first, second = store.read(reproduce(both, own))
    assert first == before and second["effective_rank"] > 1 and list(own.folder.rglob("*.safetensors"))


def test_weights_stay_while_a_cell_of_the_command_needs_them(own, monkeypatch):
    def fail():
        raise UserError("no")

    measuring(monkeypatch, "entropy", fail)
    own.drop = True
    cells = Cell("BYOL", "byol", options=ENCODER), Cell("bad", "byol", measure="entropy")
    (tensors,) = own.folder.rglob("*.safetensors")
    written = tensors.stat().st_mtime_ns
    with pytest.raises(Failed):
        reproduce(Experiment("x", "", cells), own)
    assert tensors.stat().st_mtime_ns == written


def test_coherence_of_two_layers_is_one_analysis(own, monkeypatch):
    from simplicia.analyze.study import Study

    count, original = [], Study.measure
    monkeypatch.setattr(Study, "measure", lambda self: count.append(1) or original(self))
    cells = [
        Cell(layer, "byol", measure="coherence", options={"layer": layer}) for layer in ("encoder", "ica")
    ]
    assert len(store.read(reproduce(Experiment("x", "", tuple(cells)), own))) == 2 and count == [1]
