"""Faults around a run: signals, peers that end or hang, other images, other processes, hostile recipes."""

import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from PIL import Image

import simplicia
from simplicia import errors
from simplicia.distributed import watched_peers
from simplicia.errors import Interrupted, UserError
from simplicia.experiments.sweep import sweep
from simplicia.settings import with_changes
from simplicia.train import checkpoint, recipes, run_dir
from simplicia.train.recipe import read_yaml
from simplicia.train.step import Step

SMALL = {"encoder": "tiny", "sem.simplices": 8, "options": {"hidden": 32, "out": 16}, "quiet": True}
SMALL |= {"epochs": 2, "batch_size": 16, "image_size": 16, "stem": "small", "log_every": 1}
WORDS = "--encoder tiny --sem.simplices 8 --byol.hidden 32 --byol.out 16 --batch-size 16 --image-size 16"


@pytest.fixture
def photos(tmp_path):
    path = tmp_path / "photos"
    path.mkdir()
    for i, image in enumerate(simplicia.data.datasets.load("shapes", "test").images[:48]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path / f"{i:03d}.png")
    return path


@pytest.fixture
def stopped(photos, tmp_path, monkeypatch):
    """A run on the photos that a signal stopped at step 2 of 6."""
    original = Step.__call__

    def call(self, number):
        output = original(self, number)
        if number == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return output

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Step, "__call__", call)
        simplicia.pretrain("byol-sem", out=tmp_path / "run", data=str(photos), **SMALL)
    return tmp_path / "run"


def resume(run, **changes):
    return simplicia.pretrain("byol-sem", out=run, resume=True, quiet=True, **changes)


def change_state(run, **changes):
    file = checkpoint.latest(run / "checkpoint") / "state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_resuming_on_swapped_images_is_an_error(stopped, photos):
    shutil.move(photos / "000.png", photos / "tmp")
    shutil.move(photos / "001.png", photos / "000.png")
    shutil.move(photos / "tmp", photos / "001.png")  # same names, same colours
    with pytest.raises(UserError, match="other images, or on these in another order"):
        resume(stopped)


def test_resuming_on_renamed_images_is_an_error(stopped, photos):
    shutil.move(photos / "000.png", photos / "0000.png")  # same pixels, same order
    with pytest.raises(UserError, match="names or pixels differ"):
        resume(stopped)


def test_another_number_of_processes_may_resume_and_is_recorded(stopped):
    part = {"commit": "a", "device": "cpu", "processes": 2, "from_step": 0}
    change_state(stopped, processes=2, trained_by=[part])
    run = resume(stopped, allow_other_processes=True)  # the option of earlier versions
    assert run.finished and run.state["processes"] == 1
    before, now = run.state["trained_by"]
    assert before == part and now["from_step"] == 2 and "processes" not in now


def test_the_resume_command_keeps_the_number_of_processes(stopped, monkeypatch):
    recipe = read_yaml(stopped / "recipe.yaml")
    assert run_dir.resume_command(stopped, recipe, 2).endswith("resume=True, processes=2)")
    monkeypatch.setattr(errors, "at_terminal", True)
    assert run_dir.resume_command(stopped, recipe, 2).endswith("--resume --processes 2")
    assert "processes" not in run_dir.resume_command(stopped, recipe, 1)


def test_a_run_without_its_seconds_is_resumed(stopped):
    file = checkpoint.latest(stopped / "checkpoint") / "state.json"
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "seconds"}))
    assert resume(stopped).finished


def test_leftovers_are_removed_by_the_process_that_holds_the_lock(stopped):
    half = stopped / "checkpoint" / ".writing-000000003-abc"
    half.mkdir()
    with run_dir.lock(stopped), pytest.raises(UserError, match="another process"):
        resume(stopped)
    assert half.exists()
    resume(stopped)
    assert not half.exists()


def test_a_symbolic_link_is_not_opened_as_a_lock(tmp_path):
    (tmp_path / ".lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"):
        run_dir.lock(tmp_path)
    assert not (tmp_path / "victim").exists()


def test_a_warning_is_logged_once_for_a_resumed_run(stopped, monkeypatch):
    def lines():
        return [json.loads(line) for line in (stopped / "log.jsonl").read_text().splitlines()]

    with (stopped / "log.jsonl").open("a") as file:
        file.write(json.dumps({"step": 2, "warning": "collapse: …", "kind": "collapse"}) + "\n")
    monkeypatch.setattr("simplicia.train.monitor.warnings", lambda *a: {"collapse": "collapse: …"})
    resume(stopped)
    assert [line["step"] for line in lines() if "warning" in line] == [2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [1]\nb: *a\n", "aliases"),
        ("options: " + "{a: " * 30_000, "more than 100000 characters"),
        ("options: " + '{a: "}", b: ' * 101, "a line has more than 100 brackets"),
        (f"seed: 0x{'F' * 900}\n", "seed is .*; it must be"),
        (f"sem: [0x{'F' * 9000}]\n", "recipe.yaml: Exceeds the limit"),
    ],
)
def test_recipes_that_take_too_long_or_too_much_memory_are_refused(tmp_path, text, message):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        read_yaml(tmp_path / "recipe.yaml")


@pytest.mark.parametrize("name", ["", "..", "../outside", "/outside", "\ud800", "a\0b", "a\x1b[31m"])
@pytest.mark.parametrize("train", [simplicia.pretrain, sweep])
def test_a_recipe_cannot_choose_a_folder_elsewhere(name, train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = with_changes(recipes.get("shapes-byol-sem"), {"name": name})
    with pytest.raises(UserError, match="cannot be that of a folder; give out"):
        train(recipe)
    assert list(tmp_path.iterdir()) == []


IMPATIENT = """
import functools, sys
from simplicia import api, cli
api.watched_peers = functools.partial(api.watched_peers, patience=10.0)
sys.exit(cli.main(sys.argv[1:]))
"""


def start(photos, out, *words, program=("-m", "simplicia")):
    command = ["pretrain", "byol-sem", "--data", photos, "--out", out, *WORDS.split(), *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, *program, *map(str, command)],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not (out / "log.jsonl").exists() or not (out / "log.jsonl").read_text():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    return process


def peer_of(process):
    """The second process of a training with two."""
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    return int(children.stdout.split()[0])


FOREVER = ("--epochs", "100000", "--log-every", "5", "--quiet")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_hangup_saves_a_checkpoint(photos, tmp_path, processes):
    words = ("--processes", "2", "--device", "cpu") if processes == 2 else ()
    process = start(photos, tmp_path / "run", *FOREVER, *words)
    process.send_signal(signal.SIGHUP)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGHUP and errors.count("--resume") == 1
    assert errors.rstrip().endswith("--resume --processes 2" if processes == 2 else "--resume")
    assert simplicia.load(tmp_path / "run").step > 0


@pytest.mark.skipif(shutil.which("pgrep") is None, reason="pgrep finds the second process")
@pytest.mark.parametrize("kind", ["killed", "stopped"])
def test_a_process_that_loses_its_peer_exits_with_an_error_message(photos, tmp_path, kind):
    """With 10 s of patience: nobody waits for the 30 s of the default here."""
    assert inspect.signature(watched_peers).parameters["patience"].default == 30.0
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    words = "--processes", "2", "--device", "cpu", "--checkpoint-minutes", "0.002"
    process = start(photos, tmp_path / "run", *FOREVER, *words, program=[tmp_path / "impatient.py"])
    peer = peer_of(process)
    while checkpoint.latest(tmp_path / "run/checkpoint") is None:
        time.sleep(0.05)
    try:
        if kind == "killed":
            os.kill(peer, signal.SIGKILL)
        else:
            os.kill(peer, signal.SIGSTOP)
        process.wait(timeout=40)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a stopped process would keep the pipe open
    errors = process.stderr.read()
    assert "Traceback" not in errors
    assert process.returncode == 1 and "another process of this training ended" in errors
    assert "did not answer for 10 s" in errors or kind == "killed"
    newest = checkpoint.latest(tmp_path / "run/checkpoint")
    assert checkpoint.read(newest)[1]["step"] > 0  # what was saved is kept
