"""Progress in a real pseudo-terminal, whose screen is read as a person sees it, and in redirected output."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image
from terminal import in_terminal

import simplicia

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a pseudo-terminal")
TINY = "--epochs 2 --batch-size 16 --image-size 16 --encoder tiny --sem.simplices 8 --byol.hidden 32"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Sixty small images in two class folders."""
    folder = tmp_path_factory.mktemp("photos")
    for i, image in enumerate(simplicia.data.datasets.load("shapes", "test").images[:60]):
        path = folder / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return folder


def script(tmp_path, body):
    """A script that draws progress without torch."""
    path = tmp_path / "script.py"
    path.write_text(f"import time\nfrom simplicia import progress\nfrom simplicia.progress import *\n{body}")
    return [path]


def test_one_bar_while_another_begins_and_lines_above_it(tmp_path):
    body = """
bar = Progress("outer", 4)
for i in range(4):
    inner = Progress("inner", 9)
    inner.update(5)
    time.sleep(0.15)
    inner.close()
    say([f"line {i}"])
    bar.update(i + 1, "words")
bar.close()
"""
    seen = in_terminal(script(tmp_path, body), 60)
    seen.check(0)
    assert seen.lines == [f"line {i}" for i in range(4)]
    assert any("outer" in line and "inner 5/9" in line for frame in seen.frames for line in frame)


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_long_names_and_words_fit_any_width(columns, tmp_path):
    body = """
bar = Progress("a recipe with a long name", 200_000)
for step in range(99_000, 99_010):
    bar.update(step, "loss 1.234, 12,345 images/s")
    time.sleep(0.1)
bar.close()
print("done")
"""
    seen = in_terminal(script(tmp_path, body), columns)
    seen.check(0)
    assert seen.lines == ["done"]
    shown = max(frame[0] for frame in seen.frames if len(frame) == 1 and "/200000" in frame[0])
    assert "/200000" in shown and len(shown) <= columns - 4


def test_ctrl_c_at_a_bar_as_wide_as_the_terminal_leaves_nothing(tmp_path):
    body = """
try:
    bar = Progress("label " * 9, 100)
    for i in range(99):
        bar.update(i, "words " * 9)
        time.sleep(0.1)
except KeyboardInterrupt:
    progress.close_live()
    print("stopped")
"""

    def act(_, terminal):
        time.sleep(0.3)  # the bar has begun
        os.write(terminal, b"\x03")

    seen = in_terminal(script(tmp_path, body), 60, act)
    seen.check(0)
    assert seen.lines == ["stopped"]


def test_redirected_progress_follows_the_clock_even_without_updates(tmp_path):
    body = """
progress.FIRST, progress.LONGEST = 0.1, 0.2
bar = Progress("slow", 50)
time.sleep(0.15)
bar.update(10, "loss 1.5")
time.sleep(1)
bar.close()
time.sleep(0.5)
"""
    done = subprocess.run(
        [sys.executable, *script(tmp_path, body)], capture_output=True, text=True, check=True
    )
    first, *others = done.stderr.splitlines()
    assert first == "slow: 0/50, 0 s so far"
    assert 2 <= len(others) <= 6 and all(line.startswith("slow: 10/50, loss 1.5, ") for line in others)
    assert others[-1].endswith(" s left") and done.stdout == ""


def test_a_bar_that_is_quiet_or_short_prints_nothing_when_redirected(tmp_path):
    body = 'a = Progress("a", 9, quiet=True)\nb = Progress("b", 9)\nb.update(9)\nb.close()\na.close()\n'
    done = subprocess.run(
        [sys.executable, *script(tmp_path, body)], capture_output=True, text=True, check=True
    )
    assert done.stdout == done.stderr == ""


def test_pretraining_on_a_narrow_terminal(photos, tmp_path):
    words = ["-m", "simplicia", "pretrain", "byol-sem", "--data", photos, "--out", tmp_path / "run"]
    seen = in_terminal([*words, *TINY.split()], 60)
    seen.check(0)
    assert seen.lines[0].startswith("byol-sem: 54 images of photos")  # a tenth is for testing
    assert any("loss" in line and "━" in line for frame in seen.frames for line in frame)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_training_leaves_a_clean_terminal(number, photos, tmp_path):
    words = ["-m", "simplicia", "pretrain", "byol-sem", "--data", photos, "--out", tmp_path / "run"]

    def act(process, terminal):
        if number == signal.SIGINT:
            os.write(terminal, b"\x03")  # Ctrl-C
        else:
            os.kill(process, number)

    seen = in_terminal([*words, *TINY.split(), "--epochs", "5000"], 100, act, "loss ")
    seen.check(128 + number)
    assert "continue with: simplicia pretrain byol-sem" in "".join(seen.lines)


def test_a_sweep_has_one_bar_at_a_time(photos, tmp_path):
    words = ["-m", "simplicia", "sweep", "byol-sem", "--data", photos, "--out", tmp_path / "sweep"]
    more = ["--grid", "optim.lr=0.1,0.5", "--probe-epochs", "1", "--downstream-temperatures", "1"]
    seen = in_terminal([*words, *TINY.split(), *more], 100)
    seen.check(0)
    text = "\n".join(seen.lines)
    assert "trial 0 (1 of 2): optim.lr 0.1" in text and "on held-out images" in text
    best = re.search(r"best: trial (\d), ([\d.]+)", text)  # the number that the lines above have
    assert f"trial {best[1]} ({int(best[1]) + 1} of 2): {best[2]} % on held-out images" in text


def test_names_of_recipes_stay_in_one_piece_on_a_terminal():
    seen = in_terminal(["-m", "simplicia", "recipes"], 80)
    assert seen.status == 0
    words = set(" ".join(seen.lines).split())
    assert {"cifar10-barlow-sem", "shapes-barlow-sem", "imagenet-byol-sem-x4"} <= words


def test_a_measurement_that_is_stopped_leaves_a_clean_terminal(photos):
    run = Path(__file__).parents[1] / "fixtures/v0.1/run"
    words = ["-m", "simplicia", "probe", run, "--data", photos, "--epochs", "100000"]
    seen = in_terminal(words, 80, lambda process, _: os.kill(process, signal.SIGTERM))
    seen.check(143)
    assert seen.lines[-1] == "simplicia: terminated"
    assert "is unfinished: this is step 79 of 156" in "".join(seen.lines)


def test_the_log_begins_with_the_first_step_and_the_console_follows_the_clock(photos, tmp_path):
    """With 1,000 steps between lines, as on a slow CPU."""
    code = "from simplicia import progress, cli; progress.FIRST = 0.2; progress.LONGEST = 0.3; cli.main()"
    words = ["pretrain", "byol-sem", "--data", photos, "--out", tmp_path / "run", *TINY.split()]
    words = [sys.executable, "-c", code, *words, "--epochs", "60", "--log-every", "1000"]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True)
    log = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log if "loss" in line] == [1, 2, 4, 8, 16, 32, 64, 128, 180]
    lines = [line for line in done.stderr.splitlines() if line.startswith("byol-sem: ") and "/180" in line]
    assert len(lines) >= 2 and "loss " in lines[-1] and "images/s" in lines[-1] and " left" in lines[-1]
