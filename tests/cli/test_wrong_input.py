"""Inputs that once ended in a traceback, a raw control character or a silent wrong file."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import simplicia
from simplicia import cli
from simplicia.errors import UserError
from simplicia.train import checkpoint

FIXTURE = Path(__file__).parents[1] / "fixtures/v0.1/run"
EVIL = "\x1b]0;PWN\x07x\nsimplicia: all is well.png"


@pytest.fixture
def run(tmp_path):
    return shutil.copytree(FIXTURE, tmp_path / "run")


def complaint(capfd, *words):
    """The one line that a command with status 2 prints to standard error."""
    assert cli.main(list(map(str, words))) == 2
    *_, line = capfd.readouterr().err.splitlines()
    assert line.startswith("simplicia: ")
    return line


@pytest.mark.parametrize(
    ("option", "value", "most"),
    [
        ("--optim.lr", "1e300", "1e+30"),
        ("--optim.weight-decay", "1e300", "1e+30"),
        ("--dino.teacher-temperature", "1e300", "1e+30"),
        ("--image-size", "9223372036854775807", "8192"),
        ("--stem-padding", "2147483648", "32"),
        ("--sem.simplices", "99999999999", "2.14748e+09"),
    ],
)
def test_settings_have_a_largest_value(option, value, most, tmp_path, capfd):
    line = complaint(capfd, "pretrain", "shapes-dino-sem", option, value, "--out", tmp_path / "run")
    assert f"at most {most}" in line


def test_options_of_verbs_have_a_largest_value(capfd):
    assert "'9223372036854775807' is too large" in complaint(capfd, "bound", "--vertices", 2**63 - 1)


def test_a_nul_character_in_an_argument_is_refused(run, capfd):
    assert "NUL character" in complaint(capfd, "encode", run, "a\0b", "--out", "x.npz")


def test_names_of_images_are_escaped(run, tmp_path, capfd):
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (40, 40), "red").save(folder / "good.png")
    (folder / EVIL).write_bytes(b"no image")
    assert cli.main(["encode", str(run), str(folder), "--out", str(tmp_path / "x.npz")]) == 0
    output = "".join(capfd.readouterr())
    assert "\\x1b]0;PWN" in output and not set(output) & {"\x1b", "\x07"}
    assert not any(line.startswith("simplicia: all is well") for line in output.splitlines())


def test_the_list_of_experiments_escapes_the_folder_of_results(capfd):
    assert cli.main(["reproduce", "--list", "--results", "a\nsimplicia: all is well"]) == 0
    assert "a\\nsimplicia: all is well" in " ".join(capfd.readouterr().out.split())


@pytest.mark.parametrize("layer", ["sem", "codes"])
def test_encode_refuses_features_that_are_not_finite(run, tmp_path, layer):
    loaded = simplicia.load(run)
    newest = checkpoint.latest(run / "checkpoint")
    tensors, state = checkpoint.read(newest)
    key = next(k for k in tensors if k.startswith("method.online.encoder") and tensors[k].is_floating_point())
    tensors[key].fill_(float("nan"))
    shutil.rmtree(newest)
    checkpoint.save(run / "checkpoint", state.pop("step"), tensors, state)
    Image.new("RGB", (40, 40), "red").save(tmp_path / "a.png")
    out = tmp_path / "x.npz"
    assert cli.main(["encode", str(run), str(tmp_path / "a.png"), "--out", str(out), "--layer", layer]) == 2
    assert not out.exists() and torch.isfinite(loaded.encode(tmp_path / "a.png")).all()


@pytest.mark.parametrize("header", ["(-5, 32, 32, 3)", "(9223372036854775807,)", "("])
def test_arrays_with_impossible_headers_are_refused(header, run, tmp_path, capfd):
    folder = tmp_path / "set"
    folder.mkdir()
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {header}}}".ljust(117) + "\n"
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(100)
    (folder / "fog.npy").write_bytes(content)
    np.save(folder / "labels.npy", np.zeros(10, int))
    assert "cannot be read as an array" in complaint(
        capfd, "robustness", run, "--sets", folder, "--epochs", 1
    )


def test_compare_reports_and_skips_results_with_other_types(run, capfd):
    path = run / "results/knn-sem.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seeds": 3}))
    assert cli.main(["compare", str(run)]) == 0
    assert f"{path} is skipped: seeds is '3'" in capfd.readouterr().err


def test_a_page_of_results_shows_what_a_row_does_not_say_as_unknown(tmp_path):
    (tmp_path / "paper").mkdir()
    rows = json.loads((Path(__file__).parents[2] / "results/paper/table1.json").read_text())
    for row in rows:
        del row["pretrained_on"]
    (tmp_path / "paper/table1.json").write_text(json.dumps(rows))
    page = tmp_path / "page.md"
    assert cli.main(["reproduce", "--results", str(tmp_path), "--page", str(page)]) == 0
    assert "unknown data" in page.read_text()


def test_a_nul_character_in_a_list_of_files_is_refused(tmp_path):
    meta = tmp_path / "food-101/meta"
    meta.mkdir(parents=True)
    for split in ("train", "test"):
        (meta / f"{split}.json").write_text('{"pizza": ["pizza/a\\u0000b"]}')
    with pytest.raises(UserError, match="which is not below"):
        simplicia.data.datasets.load("food101", "train", tmp_path, size=32)


def test_a_report_of_a_run_that_cannot_be_written_to(run, tmp_path, monkeypatch):
    """Root may write anywhere, so writing into the run is made to fail as on a read-only disk."""
    assert cli.main(["report", str(run), "--out", str(tmp_path / "first.html")]) == 0
    real = os.open

    def read_only(path, flags, *rest, **options):
        if flags & (os.O_WRONLY | os.O_RDWR) and str(run) in str(path):
            raise OSError(30, "Read-only file system", str(path))
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", read_only)
    assert cli.main(["report", str(run), "--out", str(tmp_path / "second.html")]) == 0
    assert (tmp_path / "second.html").stat().st_size > 1000


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is a full disk")
@pytest.mark.parametrize("words", [["methods"], ["--help"]])
def test_an_output_on_a_full_disk_is_one_sentence(words):
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "simplicia", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=settings)
    assert done.returncode == 2
    assert done.stderr == "simplicia: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("value", [0, False, "", 3, {}])
def test_rows_of_a_result_are_a_list(value, run, capfd):
    path = run / "results/probe-quick-changed-sem-epochs-2.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"per_temperature": value}))
    assert cli.main(["compare", str(run)]) in (0, 2) and "Traceback" not in capfd.readouterr().err
