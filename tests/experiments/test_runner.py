"""The runner under stress: too little time, signals, changed runs, other processes, and cells that fail."""

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

from simplicia.analyze.study import Study
from simplicia.errors import Failed, Unfinished, UserError
from simplicia.evaluate.probe import PRESETS
from simplicia.experiments import measures, store
from simplicia.experiments.experiment import Cell, Experiment
from simplicia.experiments.reproduce import Session, reproduce
from simplicia.experiments.store import CellResult
from simplicia.train import checkpoint, recipes, run_dir

ENCODER = {"layer": "encoder"}


def two_cells(count=2, **changes):
    cells = Cell("BYOL", "byol", options=ENCODER), Cell("other", "byol", changes, options=ENCODER)
    return Experiment("x", "", cells[:count])


def measuring(monkeypatch, name, measure):
    """Replace a measurement by a function of nothing."""

    def values(run):
        measure()
        return {"protocol": "mine"}

    def once(job):
        return [job.row(job.once(f"mine-{name}", {}, values))]

    monkeypatch.setitem(measures.MEASURES, name, once)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_not_swallowed_by_error_handlers(images, table1, monkeypatch, capsys, number):
    def entropy(job):
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        except Exception:
            pytest.fail("swallowed")

    monkeypatch.setitem(measures.MEASURES, "entropy", entropy)
    handler = signal.getsignal(number)
    assert call(images, table1, "entropy", "--only", "tau_p=1") == 128 + number
    error = capsys.readouterr().err
    assert "stopped; finished work is kept; continue with: simplicia reproduce " in error
    assert signal.getsignal(number) is handler


def test_measurement_that_does_not_fit_is_cut_off_and_skipped_later(own, monkeypatch):
    began = []
    shutil.rmtree(own.folder / "results")
    measuring(monkeypatch, "entropy", lambda: began.append(1) or time.sleep(60))
    cells = Cell("slow", "byol", measure="entropy"), Cell("BYOL", "byol", options=ENCODER)
    experiment, own.minutes, own.probe_minutes = Experiment("x", "", cells), 0.06, 0.0
    with pytest.raises(Unfinished):
        reproduce(experiment, own)
    for _ in range(9):  # later commands run the remaining measurements and skip this one
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
    assert began == [1, 2] and all(r.failed is None for r in store.read(own.results / "other" / "x.json"))


def test_no_measurement_starts_with_too_little_time(own):
    shutil.rmtree(own.runs)
    own.minutes, own.probe_minutes = 1.0, 0.999999
    with pytest.raises(Unfinished, match="too little time is left for a measurement"):
        reproduce(two_cells(1), own)
    assert not own.results.exists()


def test_retrained_run_is_measured_again(own):
    (before,) = store.read(reproduce(two_cells(1), own))
    file = own.folder / "results" / "probe-demo-2-epochs-encoder.json"
    stored = json.loads(file.read_text())
    assert before["accuracy"] == stored["accuracy"]
    file.write_text(json.dumps({**stored, "accuracy": -1.0}))
    (again,) = store.read(reproduce(two_cells(1), own))
    assert again["accuracy"] == -1.0  # as it was stored
    shutil.rmtree(own.folder / "checkpoint")
    reproduce(Experiment("y", "", (Cell("BYOL", "byol", measure="spectrum", options=ENCODER),)), own)
    (retrained,) = store.read(reproduce(two_cells(1), own))
    assert retrained["accuracy"] == stored["accuracy"]
    state = json.loads((checkpoint.latest(own.folder / "checkpoint") / "state.json").read_text())
    assert json.loads(file.read_text())["run_id"] == state["id"] != stored["run_id"]
    assert [part["from_step"] for part in retrained["trained_by"]] == [0] and retrained["trained_by"][0][
        "commit"
    ]


def test_changed_settings_of_a_measurement_measure_again(own, monkeypatch):
    (before,) = store.read(reproduce(two_cells(1), own))
    monkeypatch.setitem(PRESETS, "demo", dataclasses.replace(PRESETS["demo"], momentum=0.5))
    (after,) = store.read(reproduce(two_cells(1), own))
    assert after["date"] >= before["date"] and after["probe_seconds"] != before["probe_seconds"]


def test_run_with_other_settings_is_refused(own, monkeypatch):
    monkeypatch.setitem(recipes.DATA["own"], "stem_padding", 2)
    monkeypatch.setitem(recipes.DATA["own"], "log_every", 7)  # logging settings do not make another run
    with pytest.raises(UserError, match=r"was trained with stem_padding 1, not 2; remove it") as error:
        reproduce(two_cells(1), own)
    assert "log_every" not in str(error.value)
    with pytest.raises(Failed, match=r"1 of 2 cells .* BYOL: .*stem_padding"):
        reproduce(two_cells(**{"optim.lr": 0.5}), own)


@pytest.mark.parametrize(
    "error",
    [
        UserError("no"),
        torch.OutOfMemoryError("memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ],
)
def test_failed_cell_does_not_stop_the_others(own, monkeypatch, error):
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
    assert good["cell"] == "bad" and good.failed is None


def test_diverged_run_is_not_trained_again_without_retry(own):
    file = own.results / "other" / "x.json"
    for trains in (True, False):
        with pytest.raises(Failed, match="1 of 2 cells could not be measured: other: the loss became"):
            reproduce(two_cells(**{"optim.lr": 1e30}), own)
        sound, diverged = store.read(file)
        assert "the loss became" in diverged.failed and diverged.accuracy is None and diverged.epochs == 2
        assert sound.accuracy > 0
        log = own.runs / diverged.run / "log.jsonl"
        assert log.exists() == trains
        log.unlink(missing_ok=True)
    own.retry = True
    with pytest.raises(Failed):
        reproduce(two_cells(**{"optim.lr": 1e30}), own)
    assert log.exists()
    store.put(file, [CellResult("else", run=diverged.run, accuracy=1.0)])
    assert [row.accuracy for row in store.read(file)] == [sound.accuracy, 1.0]  # it no longer diverges


def test_data_is_checked_before_training(images, tmp_path, capsys):
    missing = "--data-dir", tmp_path / "nowhere"
    assert call(images, tmp_path, "transfer", "--only", "linear, flowers102, byol", *missing) == 2
    assert "flowers" in capsys.readouterr().err and not list(tmp_path.iterdir())
    shutil.copytree(images / "train" / "red", tmp_path / "flat")
    assert call(tmp_path / "flat", tmp_path, "table1", "--only", "byol", "--batch-size", 10) == 2
    assert "no labels" in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_data_folder_is_the_same_by_any_path(own, images, monkeypatch):
    reproduce(two_cells(1), own)
    monkeypatch.chdir(images.parent)
    (row,) = store.read(reproduce(two_cells(1), dataclasses.replace(own, data="images")))
    assert row.pretrained_on == own.data


def test_full_disk_is_reported_before_training(images, tmp_path, monkeypatch, capsys):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(30_000_000))
    assert call(images, tmp_path, "table1", "--only", "byol + sem") == 2
    error = capsys.readouterr().err
    assert "GB while it trains" in error and "0.0 GB free" in error and not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can write to")
def test_unwritable_results_are_reported_before_training(images, tmp_path, capsys):
    assert call(images, tmp_path, "table1", "--only", "byol + sem", "--results", "/proc/results") == 2
    assert "results cannot be written to" in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_run_that_another_process_trains_is_unfinished(own):
    shutil.rmtree(own.folder / "checkpoint")
    other = pytest.raises(Unfinished, match=r"is being trained or measured by another process$")
    with run_dir.lock(own.folder), other:
        reproduce(two_cells(1), own)


def test_run_that_another_process_measures_is_left_to_it(own):
    for results in own.folder.rglob("results/*.json"):
        results.unlink()
    locks = own.runs / ".locks"
    locks.mkdir(exist_ok=True)
    with run_dir.lock(locks, own.folder.name), pytest.raises(Unfinished, match="trained or measured by"):
        reproduce(two_cells(1), own)
    assert store.read(Session(two_cells(1), own).path) == [] and not list(own.folder.rglob("results/*.json"))
    assert len(store.read(reproduce(two_cells(1), own))) == 1


def test_weights_in_use_by_another_process_are_not_dropped(own):
    own.drop = True
    locks = own.runs / ".locks"
    locks.mkdir(exist_ok=True)
    with run_dir.lock(locks, own.folder.name):
        reproduce(two_cells(1), own)  # measured before: it only reads
    assert list(own.folder.rglob("*.safetensors"))
    reproduce(two_cells(1), own)
    assert not list(own.folder.rglob("*.safetensors"))


def test_two_processes_share_the_work(images, tmp_path):
    """Each continues with the next run if the other one works on this one."""
    words = ["reproduce", "table1", "--only", "byol", "--data", str(images), "--epochs", "2"]
    words += ["--batch-size", "30", "--probe-epochs", "2"]
    words += ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    command = [sys.executable, "-m", "simplicia", *words]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in "12"]
    outputs = [process.communicate(timeout=240)[0].decode() for process in both]
    assert {process.returncode for process in both} <= {0, 75}, outputs
    rows = store.read(tmp_path / "results/other/table1.json")
    assert sorted(row["cell"] for row in rows) == ["BYOL", "BYOL + SEM"], outputs
    assert all(len(row["trained_by"]) == 1 for row in rows)


def test_dropped_weights_are_retrained_only_for_new_measurements(own):
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


def test_a_process_killed_while_it_removes_checkpoints_leaves_none(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 3, {"a": torch.zeros(2)}, {})

    def killed(path, **_):
        next(path.iterdir()).unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.discard(tmp_path)
    assert checkpoint.latest(tmp_path) is None


def test_weights_stay_while_a_cell_needs_them(own, monkeypatch):
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


def test_coherence_is_of_the_probes_weights_and_of_a_plain_classifier_for_ica(own, monkeypatch):
    count, original = [], Study.measure
    monkeypatch.setattr(Study, "measure", lambda self: count.append(1) or original(self))
    cells = [
        Cell(layer, "byol", measure="coherence", options={"layer": layer}) for layer in ("encoder", "ica")
    ]
    encoder, ica = store.read(reproduce(Experiment("x", "", tuple(cells)), own))
    assert count == [1] and "plain" in ica.protocol
    assert encoder.protocol == "coherence of the linear probe's weights" and "lr" in encoder.selected
    probed = store.read(reproduce(Experiment("x", "", (Cell("BYOL", "byol", options=ENCODER),)), own))[-1]
    assert encoder["classifier_accuracy"] == pytest.approx(probed.accuracy)
