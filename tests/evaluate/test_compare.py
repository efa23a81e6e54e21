"""Comparing runs on the command line: different measurements never share a row."""

import json
import shutil

import pytest
from PIL import Image

from simplicia import cli
from simplicia.cli.evaluate import column
from simplicia.data.datasets import load
from simplicia.evaluate.compare import compare

TINY = ["--epochs", "1", "--batch-size", "40", "--quiet", "--byol.hidden", "16"]
SEM = ["--sem.simplices", "8", "--online-every", "1", "--online-temperatures", "0", "0.1"]
SHORT = ["--epochs", "2", "--quiet"]


def save(images, labels, folder):
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        class_folder = folder / f"class{label}"
        class_folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(class_folder / f"{i}.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small image folder: 8 classes of the shapes, in train and test."""
    path = tmp_path_factory.mktemp("data") / "figures"
    for split, count in (("train", 80), ("test", 40)):
        images = load("shapes", split)
        chosen = (images.labels < 8).nonzero()[:count, 0]
        save(images.images[chosen], images.labels[chosen].tolist(), path / split)
    return path


@pytest.fixture(scope="module")
def runs(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("compare")
    for name, more in (("byol", []), ("byol-sem", SEM)):
        words = ["pretrain", name, "--data", str(folder), "--out", str(path / name), *TINY, *more]
        assert cli.main(words) == 0
    for words in (
        ["probe", "byol", "--layer", "encoder", *SHORT],
        ["probe", "byol-sem", "--layer", "encoder", *SHORT],
        ["probe", "byol-sem", "--preset", "cifar", "--seeds", "2", *SHORT],
        ["probe", "byol-sem", "--layer", "codes", "--network", "target", *SHORT],
        ["knn", "byol"],
        ["knn", "byol-sem", "--layer", "encoder"],
        ["knn", "byol-sem", "--layer", "codes"],
        ["knn", "byol-sem", "--temperature", "0.5"],
        ["knn", "byol-sem"],
        ["knn", "byol", "--data", "digits"],
    ):
        assert cli.main([words[0], str(path / words[1]), *words[2:]]) == 0
    return path


def rows(result, **wanted):
    return [row for row in result["rows"] if all(row[key] == value for key, value in wanted.items())]


def test_probe_command_writes_the_papers_protocol(runs):
    (file,) = (runs / "byol-sem/results").glob("probe-cifar-changed-sem-2-seeds-epochs-*.json")
    result = json.loads(file.read_text())
    assert result["protocol"] == "offline linear probe" and result["online"] is False
    assert (
        result["preset"] == "cifar, changed"
        and result["views"] == "crop and flip"
        and result["seeds"] == [0, 1]
    )
    assert set(result["selected"]) == {"lr", "l1", "l2"} and result["selected"]["lr"] in (0.01, 0.1, 0.2)
    assert [row["temperature"] for row in result["per_temperature"]] == [1e-4, 0.001, 0.01, 0.1, 1, 10]
    matrix = result["temperature_matrix"]["accuracy"]
    assert [len(row) for row in matrix] == [6] * 6
    diagonal = [row["accuracy"] for row in result["per_temperature"]]
    assert [matrix[i][i] for i in range(6)] == pytest.approx(diagonal)
    assert (result["train_images"], result["validation_images"], result["test_images"]) == (80, 9, 40)
    schema = {
        "dataset",
        "encoder",
        "network",
        "layer",
        "temperature",
        "accuracy",
        "standard_error",
        "seconds",
    }
    schema |= {"top5_accuracy", "top5_standard_error", "standard_deviation", "torch", "device", "commit"}
    assert schema <= result.keys()


def test_other_settings_change_a_preset_and_seeds_do_not(runs, tmp_path):
    for words, preset in ((["--seeds", "2", "--seed", "5"], "quick"), (["--epochs", "3"], "quick, changed")):
        path = tmp_path / "p.json"
        probe = ["probe", str(runs / "byol"), "--quiet", "--json", str(path)]
        assert cli.main([*probe, *words]) == 0
        assert json.loads(path.read_text())["preset"] == preset


def test_equal_measurements_share_a_row(runs):
    result = compare([runs / "byol", runs / "byol-sem"])
    assert [run["recipe"] for run in result["runs"]] == ["byol", "byol-sem"]
    for protocol in ("linear probe", "weighted kNN"):
        (row,) = rows(result, protocol=protocol, layer="encoder", when="offline", dataset="figures")
        stored = {"linear probe": "probe-quick-changed-encoder-*", "weighted kNN": "knn-encoder"}[protocol]
        for cell, name in zip(row["cells"], ("byol", "byol-sem"), strict=True):
            (file,) = (runs / name / "results").glob(f"{stored}.json")
            assert cell["accuracy"] == json.loads(file.read_text())["accuracy"]


def test_other_settings_do_not_overwrite_a_probe(runs, tmp_path, capsys):
    shutil.copytree(runs / "byol", run := tmp_path / "run")
    before = {path.name for path in (run / "results").glob("*.json")}
    for words in (
        [],
        ["--epochs", "1", "--seeds", "2"],
        ["--epochs", "1"],
        ["--epochs", "2", "--lrs", "0.01"],
    ):
        assert cli.main(["probe", str(run), "--quiet", *words]) == 0
    new = {path.name for path in (run / "results").glob("*.json")} - before
    changed = "", "-2-seeds-epochs-1", "-epochs-1", "-lrs-0.01-epochs-2"
    assert new == {f"probe-{'quick-changed-' if b else ''}encoder{b}.json" for b in changed}
    capsys.readouterr()
    assert cli.main(["compare", str(run)]) == 0
    assert "±: standard error of the test images, or the standard deviation over" in capsys.readouterr().out
    variants = [row["variant"] for row in compare([run])["rows"] if row["protocol"] == "linear probe"]
    assert len([v for v in variants if "2 seeds" in v]) == 1
    assert [v for v in variants if "lrs 0.01" in v and "nothing to choose" in v and "best of" not in v]
    assert [v for v in variants if "best of 3" in v and "changed" not in v]


def test_different_measurements_have_different_rows(runs):
    result = compare([runs / "byol", runs / "byol-sem"])
    assert rows(result, dataset="digits")[0]["cells"][1] is None
    online = [row for row in result["rows"] if row["online"]]
    temperatures = {row["temperature"] for row in online if row["layer"] == "sem"}
    assert temperatures == {"0", "0.1", "1 (own)"}
    assert all(row["cells"][0] is None and "standard_error" not in row["cells"][1] for row in online)
    assert len(rows(result, protocol="linear probe", layer="encoder")) == 2  # one online, one offline
    assert rows(result, network="target")[0]["layer"] == "codes"
    by_cosine = rows(result, protocol="weighted kNN", layer="sem")
    assert [row["temperature"] for row in by_cosine] == ["0.5", "1"]
    (chosen,) = rows(result, temperature="chosen")
    assert chosen["cells"][1]["temperature"] in (1e-4, 0.001, 0.01, 0.1, 1, 10)
    keys = [tuple(str(row[key]) for key in row if key != "cells") for row in result["rows"]]
    assert len(set(keys)) == len(keys)


def test_results_of_an_earlier_checkpoint_have_their_own_rows(runs, tmp_path):
    again = tmp_path / "run"
    shutil.copytree(runs / "byol", again)
    state = next((again / "checkpoint").iterdir()) / "state.json"
    content = json.loads(state.read_text())
    step = content["step"]
    state.write_text(json.dumps({**content, "step": step + 5, "total_steps": step + 9}))
    result = compare([again, runs / "byol"])
    for row in result["rows"]:
        old, new = row["cells"]
        assert (old is None) is not (new is None)
        assert (f"of an earlier checkpoint, step {step}" in row["variant"]) is (old is not None)
    assert column(result["runs"][0]).endswith(f", stopped at step {step + 5} of {step + 9})")
    assert "stopped" not in column(result["runs"][1])


def test_folders_with_the_same_name_have_different_files_and_rows(runs, folder, tmp_path, draw, capsys):
    again = tmp_path / "run"
    shutil.copytree(runs / "byol", again)
    for file in (again / "results").iterdir():
        file.unlink()
    paths = [draw(tmp_path / parent / "figures", {"train": 4, "test": 2}) for parent in "ab"]
    paths += [draw(tmp_path / name, {"train": 4, "test": 2}) for name in ("\u732b", "\u72ac")]
    for path in (folder, *paths):
        assert cli.main(["knn", str(again), "--data", str(path)]) == 0
    assert len(list((again / "results").iterdir())) == 5 and (again / "results/knn-encoder.json").exists()
    result = [row["dataset"] for row in compare([again])["rows"]]
    assert sorted(result) == sorted([str(folder), *map(str, paths[:2]), "\u732b", "\u72ac"])


def test_skipped_files_are_printed_and_stored(runs, tmp_path, draw, capsys):
    path = draw(tmp_path / "some", {"train": 4, "test": 2})
    for name in ("blue/blue_train_0.png", "red/red_train_1.png"):
        (path / "train" / name).write_bytes(b"no image")
    out = tmp_path / "result.json"
    assert cli.main(["knn", str(runs / "byol"), "--data", str(path), "--json", str(out)]) == 0
    message = "some: skipped train/blue/blue_train_0.png (not an image of a known format), and 1 more"
    assert message in capsys.readouterr().err
    result = json.loads(out.read_text())
    assert (result["skipped_files"], result["train_images"], result["data"]) == (2, 10, str(path))
    (path / "stray.png").write_bytes((path / "train/red/red_train_0.png").read_bytes())
    for name in ("train", "test"):
        (path / name).rename(path / f"{name}s")  # as classes
    assert "no labels to measure with: stray.png is outside" in complaint(
        capsys, "knn", str(runs / "byol"), "--data", str(path)
    )


def test_table_and_json_have_the_same_numbers(runs, capsys, tmp_path):
    words = ["compare", str(runs / "byol"), str(runs / "byol-sem"), "--json"]
    assert cli.main(words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert cli.main([*words, str(tmp_path / "c.json")]) == 0
    assert json.loads((tmp_path / "c.json").read_text()) == printed
    table = capsys.readouterr().out
    for row in printed["rows"]:
        for cell in row["cells"]:
            assert cell is None or f"{cell['accuracy']:.1f}" in table


def complaint(capsys, *words):
    status = cli.main([str(word) for word in words])
    errors = capsys.readouterr().err.strip().splitlines()
    assert status == 2 and len(errors) == 1, errors
    return errors[0]


def test_user_errors_are_one_line_with_exit_status_2(runs, folder, tmp_path, capsys):
    byol = runs / "byol"
    for words, message in (
        (("compare", tmp_path), "is not a run"),
        (("compare", byol, "--jsn"), "--json"),
        (("probe", byol, "--layer", "sem"), "no layer 'sem'"),
        (("probe", byol, "--preset", "cifra"), "'cifar'"),
        (("probe", byol, "--validation", "1.5"), "validation is 1.5"),
        (("probe", byol, "--validation", "-1"), "validation is -1"),
        (("probe", byol, "--validation", "30"), "needs 31"),
        (("probe", byol, "--seeds", "0"), "seeds is 0"),
        (("probe", byol, "--network", "teacher"), "target"),
    ):
        assert message in complaint(capsys, *words)
    unseen = tmp_path / "unseen"
    shutil.copytree(folder, unseen)
    shutil.rmtree(unseen / "train/class3")
    assert "no training image shows: class3" in complaint(capsys, "probe", byol, "--data", unseen)
    lonely = tmp_path / "lonely"
    shutil.copytree(folder, lonely)
    for path in sorted((lonely / "train/class2").iterdir())[1:]:
        path.unlink()
    message = complaint(capsys, "probe", byol, "--data", lonely, "--validation", 1)
    assert "'class2' has 1, and needs 2" in message
    message = complaint(capsys, "probe", byol, "--temperatures", 0.1)
    assert "--temperatures applies to layer sem; layer 'encoder' takes none" in message
    (tmp_path / "competition").mkdir()
    shutil.copytree(folder / "train", tmp_path / "competition/train")
    shutil.copytree(next((folder / "train").iterdir()), tmp_path / "competition/test")
    message = complaint(capsys, "knn", byol, "--data", tmp_path / "competition")
    assert "the test images of competition have no classes" in message


def tuned(**more):
    """A result of semi, or with other fields of another protocol."""
    trials = [{"lr": 0.1, "epochs": e, "temperature": t} for e in (1, 2) for t in (0.1, 1.0)]
    result = {"protocol": "semi-supervised, fine-tuned", "dataset": "d", "layer": "sem", "network": "online"}
    result |= {
        "accuracy": 50.0,
        "temperature": 0.1,
        "epochs": 1,
        "steps": 3,
        "fraction": 0.1,
        "trials": trials,
    }
    return result | {"labelled_list": "drawn from seed 0", "tune_batch_size": 8, "weight_decay": 0.0} | more


def test_rows_state_given_settings_and_not_chosen_ones(runs, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        (folder / "results").mkdir(parents=True)
        shutil.copy(runs / "byol" / "recipe.yaml", folder)

    def shared(first, second):
        (one / "results/a.json").write_text(json.dumps(first))
        (other / "results/a.json").write_text(json.dumps(second))
        return len(compare([one, other])["rows"]) == 1

    assert shared(tuned(), tuned(temperature=1.0, epochs=2, steps=6))
    (row,) = compare([one, other])["rows"]
    assert row["temperature"] == "chosen" and "1 or 2 epochs" in row["variant"]
    assert not shared(tuned(), tuned(fraction=0.01))
    assert not shared(tuned(), tuned(labelled_list="1percent.txt"))
    fixed = [{"lr": 0.1, "steps": 5, "temperature": 1.0}]
    finetuned = tuned(trials=fixed, fraction=None, labelled_list=None, epochs=None, temperature=1.0)
    assert shared(finetuned, finetuned) and not shared(finetuned, finetuned | {"steps": 20})
    assert not shared(finetuned, finetuned | {"temperature": 0.5})
    path = [{"regulariser": r, "validation_accuracy": 1.0} for r in (10.0, 1.0, 0.1)]
    plain = {"protocol": "transfer", "accuracy": 1.0, "path": path}
    assert shared(plain, plain | {"regulariser": 1.0}) and not shared(plain, plain | {"path": path[1:]})


@pytest.mark.parametrize(
    "damage",
    [
        {"accuracy": "high"},
        {"accuracy": float("nan")},
        {"accuracy": 10**400},
        {"standard_error": "x"},
        {"temperature": [1]},
        {"fraction": "x"},
        {"trials": 3},
        {"trials": [3]},
        {"trials": [{"epochs": 1}, {"epochs": "x"}]},
        {"trials": [{"temperature": 1}, {"temperature": []}]},
        {"path": [{}]},
        {"path": [{"regulariser": "x"}]},
        {"per_temperature": [{"accuracy": None}]},
        {"changed": [3]},
    ],
)
def test_results_with_invalid_numbers_are_left_out(runs, tmp_path, damage):
    copied = tmp_path / "run"
    shutil.copytree(runs / "byol", copied)
    before = compare([copied])["rows"]
    (copied / "results/odd.json").write_text(json.dumps(tuned()))
    assert len(compare([copied])["rows"]) == len(before) + 1
    (copied / "results/odd.json").write_text(json.dumps(tuned(**damage)))
    assert compare([copied])["rows"] == before


def test_damaged_and_foreign_files(runs, tmp_path, capsys):
    copied = tmp_path / "run"
    shutil.copytree(runs / "byol", copied)
    (copied / "results/notes.json").write_text('{"entropy": 1}')
    (copied / "results/odd.json").write_text('{"protocol": "x", "accuracy": 1, "per_temperature": [3]}')
    (copied / "log.jsonl").write_text('{"step": 1, "online_encoder_accu')
    assert compare([copied])["rows"] == compare([runs / "byol"])["rows"]
    (skipped,) = capsys.readouterr().err.splitlines()
    assert "results/odd.json is skipped: per_temperature is not a list" in skipped
    (copied / "results/odd.json").unlink()
    (copied / "results/torn.json").write_text('{"protocol": ')
    assert "torn.json cannot be read" in complaint(capsys, "compare", copied)
    shutil.rmtree(copied / "results")
    assert "no results" in complaint(capsys, "compare", copied)
