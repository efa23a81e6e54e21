"""Experiments as users run them: trained, stopped, resumed, measured once, and written as JSON."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from small_experiment import call, options_for, rows

from simplicia import cli
from simplicia.experiments import get, store
from simplicia.experiments.experiment import Cell, Experiment
from simplicia.experiments.reproduce import reproduce
from simplicia.train import checkpoint
from simplicia.train.step import Step

ROOT = Path(__file__).parents[2]
FIELDS = {
    *("experiment", "cell", "dataset", "encoder", "method", "sem", "epochs", "batch_size", "accuracy"),
    *("protocol", "online", "layer", "temperature", "seconds", "probe_seconds", "device", "seed", "commit"),
    *("paper", "standard_error", "selected"),
}


def test_result_states_how_it_was_measured(measured):
    base, sem = rows(measured, "table1")
    for row in (base, sem):
        assert row.to_json().keys() >= FIELDS and row["experiment"] == "table1" and row["online"] is False
        assert (row["epochs"], row["batch_size"], row["seed"], row["paper"]) == (2, 30, 0, None)
        assert row["probe"] == "demo-2-epochs" and row["seconds"] > 0 < row["probe_seconds"]
        stored = json.loads((measured / "runs" / row["run"] / "results" / _probe(row)).read_text())
        assert row["accuracy"] == stored["accuracy"] > 100 / 3
    assert (base["cell"], base["sem"], base["layer"]) == ("BYOL", False, "encoder")
    assert (sem["cell"], sem["sem"], sem["layer"]) == ("BYOL + SEM", True, "sem")
    assert not (measured / "results" / "paper").exists()


def _probe(row):
    return f"probe-demo-2-epochs-{row['layer']}.json"


def test_repeated_command_only_shows_the_table(images, measured, capsys):
    files = {path: path.stat().st_mtime_ns for path in (measured / "runs").rglob("*") if path.is_file()}
    before = rows(measured, "table1")
    assert call(images, measured, "table1", "--only", "byol") == 0
    out = capsys.readouterr().out
    assert rows(measured, "table1") == before
    assert files == {
        path: path.stat().st_mtime_ns for path in (measured / "runs").rglob("*") if path.is_file()
    }
    for row in before:
        assert f"| {row['cell']} | {row['accuracy']:.1f} ± {row['standard_error']:.1f} |" in out


def test_experiments_share_runs_and_probes(images, measured, capsys):
    run = rows(measured, "table1")[1]["run"]
    folders = {path.name for path in (measured / "runs").iterdir()}
    file = measured / "runs" / run / "results" / "probe-demo-2-epochs-sem.json"
    time_of_probe, probe = file.stat().st_mtime_ns, json.loads(file.read_text())
    assert call(images, measured, "hard-discretisation", "--only", "sem") == 1
    message = "BYOL + SEM, tau_d=0.0001: temperature is 0.0001; the probe 'demo-2-epochs' has 0, 0.1, 1"
    assert message in capsys.readouterr().err
    assert call(images, measured, "tau-downstream", "--only", "rn-18") == 0
    assert call(images, measured, "entropy", "--only", "tau_p=1") == 0
    assert call(images, measured, "spectrum", "--only", "rn-18 byol", "rn-18 sem") == 0
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
    encoder, of_sem, embedder = rows(measured, "spectrum")
    assert (of_sem["layer"], of_sem["sem"]) == ("encoder", True) and of_sem["values"] != encoder["values"]
    assert (encoder["layer"], encoder["features"], embedder["features"]) == ("encoder", 128, 256 * 13)
    assert len(embedder["values"]) == embedder["images"] == 30


def test_equal_time_trains_sem_for_the_time_of_its_base(images, measured, monkeypatch):
    for name in ("TIMED_STEPS", "TIMED_ROUNDS"):
        monkeypatch.setattr(f"simplicia.experiments.job.{name}", 1)
    words = "equal-time", "--only", "=byol, time of 200 epochs", "=byol + sem, time of 200 epochs"
    assert call(images, measured, *words, "--no-training") == 2  # a time was not measured yet
    assert call(images, measured, *words) == 0
    base, sem = rows(measured, "equal-time")
    assert base["run"] == rows(measured, "table1")[0]["run"] and base["epochs"] == 2
    assert base["ms_per_step"] == base["base_ms_per_step"] == sem["base_ms_per_step"] > 0
    assert sem["epochs"] == max(1, int(2 * sem["base_ms_per_step"] / sem["ms_per_step"]))
    assert sem["step_seconds"] == pytest.approx(2 * sem["epochs"] * sem["ms_per_step"] / 1e3)
    times = {path.name: path.read_text() for path in (measured / "runs" / "step-times").iterdir()}
    assert len(times) == 2
    monkeypatch.setattr("simplicia.experiments.job.Session.step_ms", None)  # stored times decide from now on
    assert call(images, measured, *words) == 0 and rows(measured, "equal-time")[1] == sem
    target = measured / "time.svg"
    words = ["--data", str(images), "--results", str(measured / "results"), "--figure", str(target)]
    assert cli.main(["reproduce", "equal-time", *words]) == 0  # of all epochs
    assert ">BYOL + SEM<" in target.read_text() and ">seconds of steps<" in target.read_text()


def test_holdout_reads_no_test_image_and_knn_votes(images, tmp_path):
    shutil.copytree(images, tmp_path / "images")
    options = options_for(tmp_path / "images", tmp_path)
    held_out = Cell("held out", "byol", {"holdout": 0.1}, measure="holdout")
    cells = held_out, Cell("kNN", "byol", {"holdout": 0.1}, measure="knn", options={"k": 10})
    holdout, knn = store.read(reproduce(Experiment("x", "", cells), options))
    assert holdout.protocol == "offline linear probe, on held-out training images"
    stored = json.loads(next(tmp_path.rglob("results/holdout.json")).read_text())
    assert (stored["train_images"], stored["test_images"]) == (54, 6)
    assert knn.protocol == "weighted kNN" and knn.probe == "k=10" and knn.accuracy > 0


def test_coherence_and_bound_of_a_trained_run(images, measured, capsys):
    assert call(images, measured, "coherence", "--only", "BYOL + SEM") == 0
    (coherence,) = rows(measured, "coherence")
    assert (measured / "runs" / coherence["run"] / coherence["graph"]).is_file()
    assert coherence["coherence"] == [] and coherence["coherence_at_5"] is None  # no superclasses
    assert call(images, measured, "bound") == 0
    bound = rows(measured, "bound")
    theory = [row for row in bound if row["protocol"] == "Theorem 1, in theory"]
    assert len(theory) == 8 and all(0 <= row["supremum"] <= row["bound"] < row["base"] for row in theory)
    of_run = [row for row in bound if row["protocol"] == "Theorem 1, measured"]
    assert len(of_run) == 7 and all(row["measured"] <= row["supremum"] for row in of_run)
    assert "**The terms of Theorem 1" in capsys.readouterr().out


def test_transfer_semi_and_robustness(images, measured):
    shutil.copytree(images, measured / "data" / "flowers-102")
    options = options_for(images, measured, data_dir=str(measured / "data"))

    def measure(**settings):  # those of ImageNet's cells, on the small run
        cell = Cell("BYOL + SEM", "byol-sem", **settings)
        return store.read(reproduce(Experiment(cell.measure, "", (cell,)), options))

    (transfer,) = measure(measure="transfer", options={"to": "flowers102"})
    assert (transfer["dataset"], transfer["layer"], transfer["temperature"]) == ("flowers102", "codes", 0.0)
    assert transfer["pretrained_on"] == str(images) and transfer["accuracy"] > 100 / 3
    (top1,) = measure(measure="semi", options={"fraction": 0.1})  # no top-5 among three classes
    assert (top1["cell"], top1["probe"]) == ("BYOL + SEM, top-1", "epochs 2")
    clean, corrupted = measure(measure="robustness")
    assert (clean["cell"], corrupted["cell"]) == ("BYOL + SEM, clean", "BYOL + SEM, corruptions")
    assert len(corrupted["per_corruption"]) == 15
    probe = next(row for row in rows(measured, "table1") if row["sem"])  # the experiment's own, cut down
    assert all(clean[key] == probe[key] for key in ("accuracy", "selected", "temperature", "layer", "probe"))
    assert "linear probe by SGD" in clean["protocol"] and clean["probe"] == "demo-2-epochs"
    stored = measured / "runs" / clean["run"] / "results" / "robustness-demo-2-epochs.json"
    once, values = stored.stat().st_mtime_ns, json.loads(stored.read_text())
    assert values["epochs"] == 2 and values["preset"] == clean["probe"]
    assert measure(measure="robustness") == [clean, corrupted] and stored.stat().st_mtime_ns == once
    severities = corrupted["per_severity"]
    assert corrupted["accuracy"] == pytest.approx(sum(severities) / len(severities))


def test_robustness_uses_the_available_imagenet_test_sets(images, tmp_path):
    """Published corrupted images replace generated ones."""
    for split, name in (("train", "train"), ("test", "val")):
        shutil.copytree(images / split, tmp_path / "imagenet" / name)
    shutil.copytree(images / "test/red", tmp_path / "imagenet-r/red")
    for severity in "12345":
        shutil.copytree(images / "test", tmp_path / "imagenet-c/fog" / severity)
    options = options_for("imagenet", tmp_path, data_dir=str(tmp_path))
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


def test_list_shows_timed_hours_and_estimates(monkeypatch, capsys):
    few = {name: get(name) for name in ("bound", "entropy", "robustness")}
    monkeypatch.setattr("simplicia.experiments.EXPERIMENTS", few)
    assert cli.main(["reproduce", "--list", "--epochs", "1000", "--results", str(ROOT / "results")]) == 0
    lines = capsys.readouterr().out.splitlines()
    bound, entropy, robustness = (next(s for s in lines if s.startswith(name)) for name in few)
    assert re.search(r" 1 +0\.6 +7 +4 +cifar100", bound)  # 11 ms, 195,000 steps
    assert re.search(r" 5 +2\.\d, estimate +7 +19 +cifar100", entropy)
    assert re.search(r" 2 +- +- +- +imagenet", robustness)


def test_no_training_measures_trained_runs_only(images, measured, tmp_path, capsys):
    runs = {path.name for path in (measured / "runs").glob("[!.]*")}
    assert call(images, measured, "coherence", "--no-training") == 0
    assert {row["cell"] for row in rows(measured, "coherence")} == {"BYOL", "BYOL, ICA", "BYOL + SEM"}
    assert {path.name for path in (measured / "runs").glob("[!.]*")} == runs
    assert call(images, measured, "coherence", "--no-training", "--runs", tmp_path / "none") == 2
    assert "no run that coherence needs is trained to its end in" in capsys.readouterr().err


def test_shared_reason_is_reported_once(tmp_path, capsys):
    words = f"reproduce table1 --only byol --data nope --runs {tmp_path} --results {tmp_path}"
    assert cli.main(words.split()) == 2
    error = capsys.readouterr().err
    assert error.count("unknown data set or folder 'nope'") == 2
    assert "BYOL + SEM is skipped, for the same" in error
    assert not (tmp_path / "other").exists()


def test_note_is_stored_with_training_and_measurement(images, tmp_path, capsys):
    words = "table1", "--only", "=byol", "--note"
    assert call(images, tmp_path, *words, "two | at a time") == 0
    assert capsys.readouterr().out.count("; two \\| at a time.**") == 1
    assert call(images, tmp_path, *words, "another") == 0  # measures nothing
    (row,) = rows(tmp_path, "table1")
    assert row["note"] == row["trained_by"][0]["note"] == "two | at a time"


def test_each_seed_has_its_result(images, measured):
    assert call(images, measured, "table1", "--only", "byol + sem", "--seeds", "0", "1") == 0
    table = rows(measured, "table1")
    assert [(row["cell"], row["seed"]) for row in table] == [
        ("BYOL", 0),
        ("BYOL + SEM", 0),
        ("BYOL + SEM", 1),
    ]
    assert table[1]["run"] != table[2]["run"]


def test_command_stops_at_its_deadline_and_continues(images, tmp_path, capsys):
    words = "table1", "--only", "simclr + sem", "--probe-minutes", "0", "--minutes"
    assert call(images, tmp_path, *words, "0.02", epochs=100_000) == 75
    error = capsys.readouterr().err
    assert re.search(
        r"stopped at step \d+ of 200000: the time is up; continue with: simplicia reproduce", error
    )
    (run,) = (tmp_path / "runs").glob("simclr-sem-100000-*")
    step = json.loads((checkpoint.latest(run / "checkpoint") / "state.json").read_text())["step"]
    assert f"step {step} of" in error
    assert call(images, tmp_path, *words, "1e-9", epochs=100_000) == 75
    assert "too little time is left for training" in capsys.readouterr().err
    assert call(images, tmp_path, *words, "0.02", epochs=100_000) == 75
    later = int(re.search(r"step (\d+) of", capsys.readouterr().err)[1])
    assert later > step  # and only the newest checkpoint is kept
    assert [path.name for path in (run / "checkpoint").iterdir()] == [f"step-{later:09d}"]
    assert not any("SimCLR" in row["cell"] for row in rows(tmp_path, "table1"))


def test_results_by_the_papers_protocol_have_their_own_folder(tmp_path):
    assert cli.main(["reproduce", "cost", "--only", "counted", "--results", str(tmp_path)]) == 0
    counted = store.read(tmp_path / "paper" / "cost.json")
    assert len(counted) == 6 and counted[0]["paper_parameters"] == 16_500_000
    assert all(abs(row["flops"] / row["paper_flops"] - 1) < 0.02 for row in counted)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "reproduce takes an experiment's name"),
        ("tabel1", "did you mean 'table1'?"),
        ("table1 --only nothing", "no cell of table1 has nothing in its name"),
        ("table1 --seeds -1", "not a whole number from 0 up"),
        ("table1 --minutes 2", "minutes is 2, and no measurement is started with less than 3"),
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
def test_wrong_input_is_an_error_of_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SIMPLICIA_DATA", raising=False)
    assert cli.main(["reproduce", *words.split(), "--quiet"]) == 2
    errors = capsys.readouterr().err
    assert len(errors.strip().splitlines()) == 1 and message in errors, errors
    assert not (tmp_path / "results").exists()


def test_killed_command_continues_from_the_checkpoint(images, tmp_path, monkeypatch, capsys):
    """Stopped by a signal, then killed as a real process, then run to its end."""
    cut = "--epochs", "5", "--batch-size", "30", "--probe-epochs", "2", "--only", "identity"
    words = "reproduce", "embedder-type", "--data", str(images), *cut
    monkeypatch.chdir(tmp_path)
    step = Step.__call__

    def signal_at_3(self, number):
        if number == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Step, "__call__", signal_at_3)
        assert cli.main(words) == 143
    error = capsys.readouterr().err
    assert "stopped at step 4 of 10; finished work is kept; continue with: " in error
    (run,) = (tmp_path / "runs").glob("[!.]*")
    assert [path.name for path in (run / "checkpoint").iterdir()] == ["step-000000004"]
    log, deadline = (run / "log.jsonl").stat().st_ino, time.monotonic() + 120
    process = subprocess.Popen([sys.executable, "-m", "simplicia", *words], stderr=subprocess.PIPE)
    while (run / "log.jsonl").stat().st_ino == log and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)  # a resumed training rewrites its log
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
