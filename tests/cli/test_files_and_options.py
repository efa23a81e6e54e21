"""Recipes in files, options by their common names, and what ``encode`` writes."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

import simplicia
from simplicia import cli
from simplicia.train import recipes
from simplicia.train.recipe import read_yaml

SMALL = "--epochs 1 --batch-size 16 --image-size 16 --encoder tiny --sem.simplices 8 --byol.hidden 32 --quiet"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Forty small images in two class folders."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    for i, image in enumerate(simplicia.data.datasets.load("shapes", "test").images[:40]):
        path = folder / ("cat", "dog")[i % 2] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return folder


@pytest.fixture(scope="module")
def run(photos, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    words = ["pretrain", "byol-sem", "--data", str(photos), "--out", str(path), "--device", "cpu"]
    assert cli.main([*words, *SMALL.split()]) == 0
    return path


def losses(path):
    lines = map(json.loads, (path / "log.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def complaint(capsys, *words):
    assert cli.main(list(map(str, words))) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("words", [["FILE"], ["--config", "FILE"], ["--config=FILE"]])
def test_a_runs_own_recipe_repeats_it(words, run, tmp_path):
    again = [word.replace("FILE", str(run / "recipe.yaml")) for word in words]
    out = tmp_path / "again"
    assert cli.main(["pretrain", *again, "--out", str(out), "--device", "cpu", "--quiet"]) == 0
    assert losses(out) == losses(run) and len(losses(run)) >= 2
    assert cli.main(["pretrain", *again, "--out", str(out), "--resume", "--quiet"]) == 0


def test_printed_recipes_are_recipes_in_files(tmp_path, capsys):
    for name in recipes.names():
        assert cli.main(["recipes", name]) == 0
        path = tmp_path / f"{name}.yaml"
        path.write_text(capsys.readouterr().out)
        assert read_yaml(path) == recipes.get(name).checked() == recipes.get(str(path))


def test_a_recipe_and_a_config_file_are_one_too_many(tmp_path, capsys):
    assert "give one of the two" in complaint(capsys, "pretrain", "byol", "--config", "x.yaml")
    assert "there is no file" in complaint(capsys, "pretrain", tmp_path / "missing.yaml")
    assert "unknown recipe 'x'; simplicia recipes lists them" in complaint(capsys, "pretrain", "x")
    assert "must be a YAML file" in complaint(capsys, "pretrain", "--config", "x.json")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--lr", "--optim.lr"),
        ("--learning-rate", "--optim.lr"),
        ("--weight-decay", "--optim.weight-decay"),
        ("--temperature", "--sem.temperature"),
        ("--simplices", "--sem.simplices"),
        ("--vertices", "--sem.vertices"),
        ("--momentum", "--byol.momentum or --optim.momentum"),
        ("-n", "--epochs"),
        ("-o", "--out"),
    ],
)
def test_common_names_lead_to_the_option(given, meant, capsys):
    assert f"did you mean {meant}?" in complaint(capsys, "pretrain", "byol-sem", given, "2")


@pytest.mark.parametrize(
    ("recipe", "option", "value"),
    [("byol", "--sem.vertices", 3), ("byol-sem", "--vq.decay", 0.5), ("byol-vq", "--sem.temperature", 2)],
)
def test_options_of_a_missing_bottleneck_are_refused(recipe, option, value, capsys):
    assert f"{option} does nothing" in complaint(capsys, "pretrain", recipe, option, value)


def test_help_has_two_levels(capsys):
    pages = []
    for level in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            cli.main(["pretrain", "byol-sem", level])
        pages.append(capsys.readouterr().out)
    basics, everything = pages
    assert "--optim.lr" in basics and "--optim.eta" not in basics and "--help-all shows" in basics
    assert "--optim.eta" in everything and len(everything) > 2 * len(basics)
    assert "\nsettings:" not in everything  # every setting of a recipe has a group
    assert "(default: True)" not in everything and "cifar100-byol-sem" in everything


def test_a_verb_without_further_options_has_one_level_of_help(capsys):
    with pytest.raises(SystemExit):
        cli.main(["recipes", "--help"])
    assert "--help-all" not in capsys.readouterr().out


def test_encode_keeps_labels_and_writes_tables(run, photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("photos-codes.npz", "photos-codes-2.npz"):  # nothing is overwritten
        assert cli.main(["encode", str(run), str(photos), "--layer", "codes", "--quiet"]) == 0
        assert f"written to {name}" in capsys.readouterr().out
    with np.load("photos-codes.npz") as arrays:
        assert set(arrays) == {"codes", "files", "labels", "classes"}
        named = [file.split("/")[0] for file in arrays["files"]]
        assert list(arrays["classes"][arrays["labels"]]) == named == ["cat"] * 20 + ["dog"] * 20
        codes = arrays["codes"]
    assert cli.main(["encode", str(run), str(photos), "--layer", "codes", "sem", "--out", "all.csv"]) == 0
    with open("all.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == named and rows[0]["file"] == "cat/00.png"
    assert [[int(row[f"codes_{i}"]) for i in range(8)] for row in rows] == codes.tolist()
    expected = simplicia.load(run).encode([photos / "dog" / "39.png"]).flatten()
    np.testing.assert_allclose([float(rows[-1][f"sem_{i}"]) for i in range(8 * 13)], expected, atol=1e-5)
