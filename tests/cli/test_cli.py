"""The command line as users see it: tables, files, and one-line errors with exit status 2."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
from PIL import Image

import simplicia
from simplicia import cli, errors, methods
from simplicia.cli.verbs import OutputFile, Verb
from simplicia.data import datasets
from simplicia.errors import UserError
from simplicia.settings import Range

TINY = [
    "--epochs",
    "1",
    "--batch-size",
    "250",
    "--image-size",
    "16",
    "--sem.simplices",
    "8",
    "--byol.hidden",
    "32",
    "--quiet",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "run"
    assert cli.main(["pretrain", "shapes-byol-sem", "--out", str(path), *TINY]) == 0
    return path


def save_images(folder, names, size=(32, 32)):
    """Save images of shapes under these names, next to a file that is no image; returns their pixels."""
    images = simplicia.data.datasets.load("shapes", "test").images[: len(names)]
    for name, image in zip(names, images, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).resize(size).save(folder / name)
    (folder / "broken.jpg").write_bytes(b"")
    return images


def fails(capsys, *words):
    status = cli.main([str(w) for w in words])
    errors = capsys.readouterr().err
    assert status == 2, errors
    assert len(errors.strip().splitlines()) == 1 and errors.startswith("simplicia: ")
    return errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pretrian", "'pretrain'"),
        ("pretrain cifar100-boyl-sem", "'cifar100-byol-sem'"),
        ("pretrain --epochs 3", "recipe's name first"),
        ("pretrain shapes-byol --epoch 3", "--epochs"),
        ("pretrain shapes-byol --sem.vertex 3", "--sem.vertices"),
        ("pretrain shapes-byol --epochs many", "a whole number"),
        ("pretrain shapes-byol --epochs", "expected one argument"),
        ("pretrain shapes-byol-sem --sem.vertices 0", "vertices is 0"),
        ("pretrain shapes-byol --sem.temperature -1 --bottleneck sem", "temperature is -1"),
        ("pretrain shapes-byol --byol.hiden 3", "--byol.hidden"),
        ("pretrain shapes-byol --method=dino --byol.hidden 3", "--byol.hidden"),
        ("pretrain shapes-byol --byol.hidden 0", "byol.hidden is 0"),
        ("pretrain shapes-byol --byol.momentum 2", "byol.momentum is 2"),
        ("pretrain shapes-moco --moco.queue -1", "moco.queue is -1"),
        ("pretrain shapes-moco --moco.temperature 0", "must be above 0"),
        ("pretrain shapes-byol-sem --sem.second-temperature -1", "second_temperature is -1"),
        (
            "pretrain byol --data nowhere --encoder banana",
            "unknown encoder 'banana'",
        ),  # before reading
        ("sweep shapes-byol-sem --grid encoder=tiny,banana", "unknown encoder 'banana'"),
        ("pretrain shapes-byol --stem-padding -1", "stem_padding is -1"),
        ("pretrain shapes-byol --encoder resnet18.nonsense", "(nonsense)"),
        ("pretrain shapes-byol --engine fast", "'eager'"),
        ("pretrain byol --data=", "data is empty"),
        ("encode RUN . --out x.npz --temperature -1", "from 0 up"),
        ("knn RUN --json .", "not the path of a file"),
        ("pretrain shapes-byol --device cuda:7", "cuda:7"),
        ("pretrain shapes-byol --device tpu9", "choose auto"),
        ("pretrain shapes-byol surplus", "surplus"),
        ("pretrain shapes-byol --batch-size 100000", "batch_size is 100000"),
        ("pretrain byol-sem", "--data"),
        ("pretrain byol-sem --data no/such/folder", "no/such/folder"),
        ("pretrain byol-sem --data shaps", "'shapes'"),
        ("pretrain cifar100-byol --data-dir no/such", "no/such"),
        ("probe no/such/run", "is not a run"),
        ("knn RUN --k 0", "above 0"),
        ("probe RUN --lrs fast", "a number"),
        ("probe RUN --layer sen", "'sem'"),
        ("probe RUN --network teacher", "target"),
        ("probe RUN --data no/such", "no/such"),
        ("encode RUN nothing --out x.npz", "nothing"),
        ("encode RUN . --out x.txt", ".npz or .csv"),
        ("recipes byoll", "'byol'"),
    ],
)
def test_user_errors_are_one_line_with_exit_status_2(words, message, capsys, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SIMPLICIA_DATA", raising=False)
    errors = fails(capsys, *(str(run) if w == "RUN" else w for w in words.split()))
    assert message in errors
    assert list(tmp_path.iterdir()) == []  # nothing left half-written


def test_an_empty_folder_is_an_error_before_training(capsys, tmp_path):
    (tmp_path / "photos").mkdir()
    words = ["pretrain", "byol", "--data", tmp_path / "photos", "--out", tmp_path / "run"]
    assert "photos" in fails(capsys, *words)
    assert not (tmp_path / "run").exists()


def test_a_real_process_prints_no_traceback():
    done = subprocess.run(
        [sys.executable, "-m", "simplicia", "pretrain", "shapes-boyl"], capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("simplicia: unknown recipe 'shapes-boyl'; did you mean 'shapes-byol'")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words", ["", "--help", "--version", "recipes", "datasets", "methods", "recipes byol-sem"]
)
def test_listings(words, capsys):
    assert cli.main(words.split()) == 0
    out = capsys.readouterr().out
    expected = {"recipes": "cifar100-swav-sem", "datasets": "cifar100", "methods": "final_momentum"}
    assert expected.get(words, "simplicia" if words != "recipes byol-sem" else "method: byol") in out


@pytest.mark.parametrize("verb", ["pretrain", "probe", "knn", "encode", "demo", "recipes"])
def test_help(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([verb, "--help"])
    assert stop.value.code == 0 and f"simplicia {verb}" in capsys.readouterr().out


def test_help_explains_settings_and_shows_the_recipes_values(capsys):
    with pytest.raises(SystemExit):
        cli.main(["pretrain", "shapes-swav-sem", "--help-all"])
    page = " ".join(capsys.readouterr().out.split())
    assert re.search(r"--optim.clip X [^()]+gradient[^-]* \(default: 0.0\)", page)
    assert re.search(r"--optim.name lars\|sgd [^-]+ \(default: sgd\)", page)
    assert re.search(r"--swav.prototypes N [^-]+ \(default: 256\)", page)  # the recipe's, not the method's
    assert "--data-dir" in page and "--data_dir" not in page


def test_options_take_underscores_and_former_names_but_do_not_show_them(capsys):
    arguments = "pretrain shapes-byol --views.jitter 0.5 --batch_size 100000"
    assert "batch_size is 100000" in fails(capsys, *arguments.split())
    with pytest.raises(SystemExit):
        cli.main(["pretrain", "shapes-byol", "--help-all"])
    page = capsys.readouterr().out
    assert "--views.jitter-prob" in page and "--views.jitter " not in page
    former = fails(capsys, *["pretrain", "shapes-byol", "--views.jitter", "2"])
    assert "views.jitter_prob is 2" in former


def test_every_setting_of_a_recipe_has_a_group_in_the_help(capsys):
    with pytest.raises(SystemExit):
        cli.main(["pretrain", "shapes-byol", "--help-all"])
    page = capsys.readouterr().out
    assert "\nsettings:" not in page and "\ntraining:" in page
    training = page.partition("\ntraining:")[2].partition("\n\n")[0]
    assert "--process-batch-size" in training


@pytest.mark.parametrize("method", methods.names())
def test_every_setting_is_explained(method, capsys):
    with pytest.raises(SystemExit):
        cli.main(["pretrain", f"shapes-{method}-sem", "--help-all"])
    page = " ".join(capsys.readouterr().out.partition("--dry-run")[2].split())
    assert page.count("(default:") > 40
    assert re.findall(r"--\S+ (?:[A-Z]+|\S*\|\S*)(?: \[X \.\.\.\])? \(default", page) == []


def test_an_option_of_another_method_is_an_error(capsys):
    assert cli.main(["pretrain", "shapes-byol", "--simclr.temperature", "0.2"]) == 2
    assert "--simclr.temperature is an option of simclr, and the method is byol" in capsys.readouterr().err


def test_resuming_a_missing_run_warns(capsys, tmp_path):
    words = f"pretrain shapes-byol --out {tmp_path / 'mistyped'} --resume --dry-run"
    assert cli.main(words.split()) == 0
    assert f"there is no run in {tmp_path / 'mistyped'} to resume" in capsys.readouterr().err


def test_probe_prints_a_table_and_writes_the_same_numbers(run, capsys, tmp_path):
    words = ["--epochs", "2", "--lrs", "0.1", "--l1", "0", "--temperatures", "0", "1"]
    assert cli.main(["probe", str(run), *words, "--json", str(tmp_path / "p.json")]) == 0
    out = capsys.readouterr().out
    result = json.loads((tmp_path / "p.json").read_text())
    assert (result["online"], result["layer"], result["protocol"]) == (False, "sem", "offline linear probe")
    for row in result["per_temperature"]:
        assert f"{row['accuracy']:.1f}" in out
    assert "1,000 test images of shapes, 20 classes" in " ".join(out.split())
    assert {"dataset", "encoder", "network", "seconds", "torch", "device", "standard_error"} <= result.keys()
    assert cli.main(["knn", str(run), "--layer", "codes"]) == 0
    stored = json.loads((run / "results" / "knn-codes.json").read_text())
    assert stored["layer"] == "codes" and f"{stored['accuracy']:.1f}" in capsys.readouterr().out


def test_encode_turns_images_into_codes(run, tmp_path, capsys):
    names, photos = ["a.png", "b.png", "deep/c.png", "deep/d.png"], tmp_path / "photos"
    images = save_images(photos, names)
    out = tmp_path / "codes.npz"
    assert cli.main(["encode", str(run), str(photos), "--layer", "codes", "--out", str(out)]) == 0
    assert "broken.jpg" in capsys.readouterr().err
    with np.load(out) as arrays:  # refuses pickles by default
        assert set(arrays) == {"codes", "files"}
        assert list(arrays["files"]) == names
        assert arrays["codes"].dtype == np.uint8 and arrays["codes"].shape == (4, 8)
        assert (arrays["codes"] == simplicia.load(run).encode(images, "codes").numpy()).all()


def test_encode_takes_named_sets_and_several_layers(run, tmp_path, capsys):
    out = tmp_path / "both.npz"
    words = ["encode", str(run), "digits", "--layer", "codes", "sem", "encoder", "--out", str(out), "--quiet"]
    assert cli.main([*words, "--temperature", "0.5"]) == 0
    assert "1,797 images, layer codes, sem, encoder" in capsys.readouterr().out
    sets = [simplicia.data.datasets.load("digits", split) for split in ("train", "test")]
    images, loaded = np.concatenate([s.images.numpy() for s in sets]), simplicia.load(run)
    with np.load(out) as arrays:
        assert set(arrays) == {"codes", "sem", "encoder", "labels", "classes", "split"}
        for layer, temperature in (("codes", None), ("sem", 0.5), ("encoder", None)):
            expected = loaded.encode(images[-5:], layer, temperature).numpy()
            np.testing.assert_allclose(arrays[layer][-5:], expected, atol=1e-5)
        assert arrays["labels"].tolist() == [y for s in sets for y in s.labels.tolist()]
        assert (arrays["split"] == "train").sum() == len(sets[0])
        assert list(arrays["classes"]) == [*"0123456789"]
    words = ["encode", str(run), "digits", "--layer", "encoder", "--out", str(out), "--temperature", "0.5"]
    assert cli.main(words) == 2 and "layer 'encoder' takes none" in capsys.readouterr().err


def test_a_folder_without_labels_trains_but_cannot_be_probed(run, tmp_path, capsys):
    photos, out = tmp_path / "photos", tmp_path / "run"
    save_images(photos, [f"{i}.jpg" for i in range(40)], (50, 40))
    assert cli.main(["pretrain", "byol-sem", "--data", str(photos), "--out", str(out), "--epochs", "1"]) == 0
    said = capsys.readouterr().err
    assert "skipped 1 unreadable file: broken.jpg" in said
    for choice in ("image_size 32", "encoder tiny", "stem small", "batch_size 8", "sem.simplices 256"):
        assert choice in said
    assert "no labels" in fails(capsys, "probe", out)


def test_a_damaged_checkpoint_is_named(run, tmp_path, capsys):
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    (tensors,) = broken.glob("checkpoint/*/tensors.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-100])
    assert "is damaged" in fails(capsys, "probe", broken)
    words = ["pretrain", "shapes-byol-sem", "--out", broken, "--resume", *TINY]
    assert "is damaged" in fails(capsys, *words)


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path):
    words = [sys.executable, "-m", "simplicia", "pretrain", "shapes-byol-sem", "--out", "run", *TINY]
    limited = f"ulimit -f 500 && exec {shlex.join(words)}"  # no file can grow beyond 500 kB
    done = subprocess.run(["bash", "-c", limited], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "no checkpoint could be written" in done.stderr
    assert list((tmp_path / "run" / "checkpoint").iterdir()) == []


def test_a_full_disk_keeps_the_old_json(tmp_path):
    (tmp_path / "bound.json").write_text("before")
    words = [sys.executable, "-m", "simplicia", "bound", "--json", "bound.json"]
    limited = f"ulimit -f 0 && exec {shlex.join(words)}"
    done = subprocess.run(["bash", "-c", limited], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "bound.json" in done.stderr and done.stderr.count("\n") == 1
    assert (tmp_path / "bound.json").read_text() == "before" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "number, status, word", [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_ends_a_command_with_one_line(number, status, word, tmp_path, monkeypatch, capsys):
    (tmp_path / "1.png").write_bytes(b"")
    monkeypatch.setenv("SIMPLICIA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "suitable_size", lambda *files: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    assert cli.main(["pretrain", "byol", "--data", str(tmp_path), "--out", str(tmp_path / "run")]) == status
    assert capsys.readouterr().err == f"simplicia: {word}\n" and signal.getsignal(number) is before
    assert not (tmp_path / "run").exists()


def test_an_output_folder_that_cannot_be_written(capsys):
    out = "/proc/simplicia-run"  # not even root can write there
    assert out in fails(capsys, "pretrain", "shapes-byol", "--out", out, "--quiet")


def test_steps_on_real_cifar100(capsys):
    try:
        test = simplicia.data.datasets.load("cifar100", "test")
    except UserError:
        pytest.skip("no CIFAR-100 in SIMPLICIA_DATA")
    assert len(test) == 10_000 and len(test.classes) == 100 and len(test.superclasses) == 20
    small = "--batch-size 64 --encoder tiny --sem.simplices 32 --byol.hidden 64 --device cpu --dry-run"
    assert cli.main(["pretrain", "cifar100-byol-sem", *small.split()]) == 0  # takes three steps
    output = capsys.readouterr().err
    assert "50,000 images of cifar100" in output and "steps: 781,000 (781 per epoch)" in output


def test_help_is_printed_without_torch():
    code = "import sys; from simplicia.cli import main; main(['--help']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "reproduce" in done.stdout and done.stdout.endswith("False\n")


def test_the_parameters_of_a_verb_are_its_arguments_and_options(capsys, monkeypatch):
    monkeypatch.setattr(errors, "at_terminal", True)
    calls = []

    @dataclass(kw_only=True)
    class Shared:
        run: Annotated[str, "folder of a run"]
        share: Annotated[float, "of 100 %", Range(low=0)] = 0.5

    def function(
        given: Shared,
        files: Annotated[tuple[str, ...], "files"] = (),
        *,
        only: Annotated[list[str] | None, "collected when repeated"] = None,
        taus: Annotated[tuple[float, ...] | None, "the last ones count"] = None,
        list_: Annotated[bool, "a flag"] = False,
        prune: Annotated[bool | None, "yes, no or undecided"] = None,
        json: Annotated[bool | OutputFile | None, "with or without a value"] = None,
    ) -> None:
        """Do nothing."""
        calls.append((given.run, given.share, [*files], only, taus, list_, prune, json))

    verb = Verb("try RUN [FILE …]", function)
    verb.run(["here"])
    words = "here a b --only x --only y z --taus 1 2 --taus 3 --list --no-prune --json --share 2"
    verb.run(words.split())
    verb.run(["--json", "out.json", "--prune", "here"])
    assert calls == [
        ("here", 0.5, [], None, None, False, None, None),
        ("here", 2.0, ["a", "b"], ["x", "y", "z"], [3.0], True, False, True),
        ("here", 0.5, [], None, None, False, True, Path("out.json")),
    ]
    for words, message in (
        ([], "required: RUN"),
        (["here", "--share", "-1"], "--share: '-1' is not a number from 0 up; see simplicia try --help"),
        (["here", "--shares", "1"], "unknown option --shares; did you mean --share"),
        (["here", "--json", "."], "'.' is not the path of a file"),
    ):
        with pytest.raises(UserError) as error:
            verb.run(words)
        assert message in str(error.value)
    with pytest.raises(SystemExit):
        verb.run(["--help"])
    page = " ".join(capsys.readouterr().out.split())
    assert "--share X of 100 % (default: 0.5)" in page and "--prune, --no-prune yes, no or undecided" in page
