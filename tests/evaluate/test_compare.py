"""Runs side by side through the command line: what was measured differently never shares a row."""

import json
import shutil

import pytest
from PIL import Image

from simplicia import cli
from simplicia.data.datasets import load
from simplicia.evaluate.compare import compare

TINY = ["--epochs", "1", "--batch-size", "40", "--quiet", "--byol.hidden", "16"]
SEM = ["--sem.simplices", "8", "--online-every", "1", "--online-temperatures", "0", "0.1"]
SHORT = ["--epochs", "2", "--quiet"]


def save(images, labels, folder):
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = folder / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{i}.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small set of one's own: 8 classes of the shapes, in train and test."""
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


def rows(found, **wanted):
    return [row for row in found["rows"] if all(row[key] == value for key, value in wanted.items())]


def test_the_verb_writes_the_papers_protocol(runs):
    found = json.loads((runs / "byol-sem/results/probe-cifar-sem.json").read_text())
    assert found["protocol"] == "offline linear probe" and found["online"] is False
    assert found["preset"] == "cifar" and found["views"] == "crop and flip" and found["seeds"] == [0, 1]
    assert set(found["selected"]) == {"lr", "l1", "l2"} and found["selected"]["lr"] in (0.01, 0.1, 0.2)
    assert [row["temperature"] for row in found["per_temperature"]] == [1e-4, 0.001, 0.01, 0.1, 1, 10]
    matrix = found["temperature_matrix"]["accuracy"]
    assert [len(row) for row in matrix] == [6] * 6
    diagonal = [row["accuracy"] for row in found["per_temperature"]]
    assert [matrix[i][i] for i in range(6)] == pytest.approx(diagonal)
    assert (found["train_images"], found["validation_images"], found["test_images"]) == (80, 9, 40)
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
    assert schema <= found.keys()


def test_what_was_measured_alike_shares_a_row(runs):
    found = compare([runs / "byol", runs / "byol-sem"])
    assert [run["recipe"] for run in found["runs"]] == ["byol", "byol-sem"]
    for protocol in ("linear probe", "weighted kNN"):
        (row,) = rows(found, protocol=protocol, layer="encoder", when="offline", dataset="figures")
        stored = {"linear probe": "probe-encoder", "weighted kNN": "knn-encoder"}[protocol]
        for cell, name in zip(row["cells"], ("byol", "byol-sem"), strict=True):
            assert (
                cell["accuracy"]
                == json.loads((runs / name / f"results/{stored}.json").read_text())["accuracy"]
            )


def test_what_was_measured_otherwise_does_not(runs):
    found = compare([runs / "byol", runs / "byol-sem"])
    assert rows(found, dataset="digits")[0]["cells"][1] is None
    online = [row for row in found["rows"] if row["online"]]
    temperatures = {row["temperature"] for row in online if row["layer"] == "sem"}
    assert temperatures == {"0", "0.1", "1 (own)"}
    assert all(row["cells"][0] is None and "standard_error" not in row["cells"][1] for row in online)
    assert len(rows(found, protocol="linear probe", layer="encoder")) == 2  # one online, one offline
    assert rows(found, network="target")[0]["layer"] == "codes"
    by_cosine = rows(found, protocol="weighted kNN", layer="sem")
    assert [row["temperature"] for row in by_cosine] == ["0.5", "1"]
    (chosen,) = rows(found, temperature="chosen")
    assert chosen["cells"][1]["temperature"] in (1e-4, 0.001, 0.01, 0.1, 1, 10)
    keys = [tuple(str(row[key]) for key in row if key != "cells") for row in found["rows"]]
    assert len(set(keys)) == len(keys)


def test_the_table_and_the_json_say_the_same(runs, capsys, tmp_path):
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


def test_mistakes_are_one_line_and_status_two(runs, folder, tmp_path, capsys):
    byol = runs / "byol"
    for words, told in (
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
        assert told in complaint(capsys, *words)
    unseen = tmp_path / "unseen"
    shutil.copytree(folder, unseen)
    shutil.rmtree(unseen / "train/class3")
    assert "no training image shows: class3" in complaint(capsys, "probe", byol, "--data", unseen)
    lonely = tmp_path / "lonely"
    shutil.copytree(folder, lonely)
    for path in sorted((lonely / "train/class2").iterdir())[1:]:
        path.unlink()
    assert "'class2' has 1" in complaint(capsys, "probe", byol, "--data", lonely)


def test_damaged_and_foreign_files(runs, tmp_path, capsys):
    copied = tmp_path / "run"
    shutil.copytree(runs / "byol", copied)
    (copied / "results/notes.json").write_text('{"entropy": 1}')
    (copied / "results/odd.json").write_text('{"protocol": "x", "accuracy": 1, "per_temperature": [3]}')
    (copied / "log.jsonl").write_text('{"step": 1, "online_encoder_accu')
    assert compare([copied])["rows"] == compare([runs / "byol"])["rows"]
    (copied / "results/torn.json").write_text('{"protocol": ')
    assert "torn.json cannot be read" in complaint(capsys, "compare", copied)
    shutil.rmtree(copied / "results")
    assert "no results" in complaint(capsys, "compare", copied)
