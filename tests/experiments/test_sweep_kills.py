"""A sweep killed at any moment ends with the trials of one that was not.

Only the trials' own training is replaced: moments inside it are those of ``pretrain``, tested there.
"""

import errno
import json
import os
import sys
from collections import namedtuple
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError
from sqlalchemy import event
from sqlalchemy.engine import Engine

from simplicia import cli
from simplicia.errors import Interrupted, UserError
from simplicia.experiments import runner
from simplicia.experiments.runner import Measurement
from simplicia.experiments.sweep import _study, sweep
from simplicia.settings import with_changes
from simplicia.train import recipes
from simplicia.train.trainer import Trainer

SEARCH = {"optim.lr": "0.01..1:log", "sem.temperature": "0.1..10:log", "sem.vertices": "2..9"}
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


def measured(recipe):
    accuracy = 100 * abs(recipe.optim.lr - recipe.sem.temperature) % 100
    row = {"temperature": 0.0, "accuracy": accuracy, "standard_error": 1.0}
    return Measurement.make(**row, per_temperature=[row], layer="sem", seconds=1.0)


@pytest.fixture(autouse=True)
def without_training(monkeypatch):
    def once(self, folder, recipe, *rest, **more):
        folder.mkdir(exist_ok=True)
        return measured(recipe)

    monkeypatch.setattr(runner.Runner, "once", once)
    monkeypatch.setattr("simplicia.experiments.sweep._split", lambda *rest: ("images", "held"))
    monkeypatch.setattr("simplicia.train.checkpoint.state_of", lambda path: {"seconds": 1.0})


def begin(out, seed=0):
    return sweep(
        "shapes-byol-sem", search=SEARCH, trials=3, prune=False, out=out, seed=seed, device="cpu", quiet=True
    )


def killed_at(moment, out):
    """Begin a sweep in a process that ends at its nth access to the sweep's files; False if it has fewer."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    left = [moment]

    def count(*_):
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)

    def watch(name, arguments):
        if name in ("open", "os.mkdir", "os.rename", "os.remove") and str(out) in str(arguments[0]):
            count()

    for name in ("before_cursor_execute", "commit"):
        event.listen(Engine, name, count)
    sys.addaudithook(watch)
    begin(out)
    os._exit(0)


def trials(out):
    return [(row["settings"], row["validation_accuracy"]) for row in json.loads(out.read_text())["trials"]]


def is_new(out):
    return not any((out / name).exists() for name in ("plan.json", "study.db"))


def test_killed_sweep_ends_with_the_same_trials(tmp_path):
    begin(tmp_path / "reference")
    reference, new = trials(tmp_path / "reference/sweep.json"), 0
    assert len({str(settings) for settings, _ in reference}) == 3
    for moment in (0, 1, 2, 3, 5, *range(8, 1000, 23)):
        out = tmp_path / str(moment)
        if not killed_at(moment, out):
            break
        new += is_new(out)
        if is_new(out):
            begin(out)
        else:
            sweep("shapes-byol-sem", out=out, resume=True, device="cpu", quiet=True)
        assert trials(out / "sweep.json") == reference, moment
        assert not list(out.glob(".*writing*")), moment
    assert new and moment > 100


def test_folder_with_temporary_files_of_a_killed_process_is_new(tmp_path):
    for name in ("lock", ".plan.json.host.1.writing"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match="there is no sweep in"):
        sweep("shapes-byol-sem", out=tmp_path, resume=True)
    assert len(begin(tmp_path).trials) == 3
    with pytest.raises(UserError, match="holds a sweep; add resume=True"):
        begin(tmp_path)


def test_sweep_without_its_plan_is_not_resumed(tmp_path, capsys):
    """Version 0.1 created its database before it stored the plan there."""
    _study(tmp_path)
    words = ["sweep", "shapes-byol-sem", "--out", str(tmp_path), "--resume", "--quiet"]
    assert cli.main(words) == 2
    assert "has no plan" in capsys.readouterr().err and not (tmp_path / "sweep.json").exists()
    (tmp_path / "plan.json").write_text('{"plan": {"grid"')
    assert cli.main(words) == 2
    assert "cannot be read as the plan of a sweep" in capsys.readouterr().err


def test_sweep_of_0_1_is_resumed(tmp_path):
    reference = begin(tmp_path)
    stored = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").unlink()
    for name, value in stored.items():
        _study(tmp_path).set_user_attr(name, value)
    assert sweep("shapes-byol-sem", out=tmp_path, resume=True, quiet=True).trials == reference.trials
    assert json.loads((tmp_path / "plan.json").read_text()) == stored


def failing(monkeypatch, errors):
    """Trials raise these errors, one after the other, and then none; the number of attempts is returned."""
    attempts = []

    def once(self, folder, recipe, *rest, **more):
        attempts.append(folder.name)
        if errors and (error := errors.pop(0)) is not None:
            raise error
        return measured(recipe)

    monkeypatch.setattr(runner.Runner, "once", once)
    return attempts


def no_checkpoint(cause):
    error = UserError("no checkpoint could be written")
    error.__cause__ = OSError(str(cause))  # as checkpoint.save raises it
    error.__cause__.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        *(OSError(getattr(errno, name), name) for name in ("ENOSPC", "EDQUOT", "EIO", "EROFS")),
        no_checkpoint(OSError(errno.ENOSPC, "No space left on device")),
        no_checkpoint(SafetensorError("I/O error: No space left on device (os error 28)")),
    ],
)
def test_disk_error_stops_the_sweep_and_its_trial_is_continued(tmp_path, monkeypatch, error, capsys):
    reference = begin(tmp_path / "reference")
    attempts = failing(monkeypatch, [None, error])
    with pytest.raises(
        UserError, match=r"stopped in trial-0001: .*continue with: simplicia sweep .* --resume"
    ):
        begin(tmp_path / "sweep")
    result = sweep("shapes-byol-sem", out=tmp_path / "sweep", resume=True, quiet=True)
    assert result.trials == reference.trials
    assert attempts == ["trial-0000", "trial-0001", "trial-0001", "trial-0002"]


def test_sweep_of_a_recipe_from_a_file_names_no_recipe_to_continue_with(tmp_path, monkeypatch):
    """Its name is not one that the command line knows."""
    failing(monkeypatch, [OSError(errno.ENOSPC, "full")])
    recipe = with_changes(recipes.get("shapes-byol-sem"), {"name": "mine"})
    with pytest.raises(UserError, match="continue with: the same command and resume=True"):
        sweep(recipe, search=SEARCH, trials=3, out=tmp_path, device="cpu", quiet=True)


def test_full_disk_of_the_database_stops_the_sweep(tmp_path, monkeypatch):
    import optuna
    import sqlalchemy

    reference, tell = begin(tmp_path / "reference"), optuna.Study.tell

    def full(self, *rest, **more):
        cause = sqlalchemy.exc.OperationalError("INSERT", {}, Exception("database or disk is full"))
        raise optuna.exceptions.StorageInternalError("An exception") from cause

    monkeypatch.setattr(optuna.Study, "tell", full)
    with pytest.raises(UserError, match="stopped in trial-0000: database or disk is full; make room"):
        begin(tmp_path / "sweep")
    monkeypatch.setattr(optuna.Study, "tell", tell)
    result = sweep("shapes-byol-sem", out=tmp_path / "sweep", resume=True, quiet=True)
    assert result.trials == reference.trials


def test_disk_without_room_for_a_checkpoint_stops_the_sweep(tmp_path, monkeypatch):
    trainer = SimpleNamespace(method=torch.nn.Linear(9, 9))
    usage = namedtuple("usage", "free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(0))
    with pytest.raises(UserError) as error:
        Trainer.check_disk(trainer, tmp_path)
    failing(monkeypatch, [error.value])
    with pytest.raises(UserError, match="stopped in trial-0000: a checkpoint takes"):
        begin(tmp_path / "sweep")


@pytest.mark.parametrize("failed", [0, 1, 2])
def test_failed_trials_are_retried_in_their_place(tmp_path, monkeypatch, failed):
    """A failed trial is tried again in its place, also before the other trials were run."""
    reference, out = begin(tmp_path / "reference"), tmp_path / "sweep"
    stop = Interrupted("stopped", 15) if failed < 2 else None
    attempts = failing(monkeypatch, [*[None] * failed, KeyError("a fault"), stop])
    with pytest.raises(Interrupted) if stop else nullcontext():
        begin(out)
    row = json.loads((out / "sweep.json").read_text())["trials"][failed]
    assert (row["state"], row["reason"]) == ("failed", "KeyError: 'a fault'")
    words = ["sweep", "shapes-byol-sem", "--out", str(out), "--resume", "--quiet", "--device", "cpu"]
    assert cli.main([*words, "--retry"]) == 0
    rows = json.loads((out / "sweep.json").read_text())["trials"]
    assert [row["trial"] for row in rows] == [0, 1, 2]
    assert rows[failed] == reference.trials[failed].to_json()
    assert rows[: failed + 1] == [trial.to_json() for trial in reference.trials[: failed + 1]]
    count = len(attempts)
    assert attempts.count(f"trial-{failed:04d}") == 2
    assert cli.main([*words, "--retry"]) == 0 and len(attempts) == count


def test_large_seeds_are_seeds(tmp_path):
    assert len(begin(tmp_path, seed=10**6).trials) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 3}, "epochs 6, not 3;"),
        ({"temperatures": (0.5, 1.0)}, r"temperatures \[.*\], not \[0.5, 1.0\];"),
        ({"search": {"optim.lr": "0.1..1"}}, "another search;"),
        ({"prune": True}, "prune False, not True;"),
    ],
)
def test_sweep_is_not_resumed_with_other_settings(tmp_path, changes, message):
    begin(tmp_path)
    with pytest.raises(UserError, match=f"was begun with {message} give the same, or another out"):
        sweep("shapes-byol-sem", out=tmp_path, resume=True, **changes)
