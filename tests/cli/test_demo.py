"""The demo with fewer images: its outputs are complete, and training beats an untrained encoder by far."""

import dataclasses
import json

import pytest
import torch
from PIL import Image

import simplicia
from simplicia import cli
from simplicia.data.datasets import load
from simplicia.evaluate import probe
from simplicia.evaluate.features import encoder_features
from simplicia.evaluate.probe import preset


def test_the_demo_draws_and_measures(tmp_path, capsys, fewer_shapes):
    assert cli.main(["demo", "--out", str(tmp_path / "demo"), "--epochs", "4", "--seeds", "2"]) == 0
    out = capsys.readouterr().out
    result = json.loads((tmp_path / "demo" / "demo.json").read_text())
    page = tmp_path / "demo" / "report.html"
    order = [out.rindex(word) for word in ("what some codes stand for", "linear probe", str(page), "next: ")]
    assert order == sorted(order) and "linear probe" in page.read_text()
    with Image.open(tmp_path / "demo" / "simplices.png") as image:
        assert image.width > 500 and len(image.getcolors(10**6) or []) > 1000
    assert 0 < result["entropy"] < result["ln_vertices"]
    alone, sem, codes = result["probes"]
    assert [(row["model"], row["layer"]) for row in (alone, sem, codes)] == [
        ("VICReg", "encoder"),
        ("VICReg + SEM", "sem"),
        ("VICReg + SEM", "codes"),
    ]
    runs = [tmp_path / f"demo/shapes-vicreg-sem-seed-{seed}" for seed in (0, 1)]
    stored = [json.loads((run / "results/probe-sem.json").read_text()) for run in runs]
    for seed, probed in enumerate(stored):
        rows = probed["per_temperature"]
        best = max(rows, key=lambda row: row["validation_accuracy"])  # on held-out training images
        assert (sem["temperatures"][seed], sem["seed_accuracies"][seed]) == (
            best["temperature"],
            pytest.approx(best["accuracy"]),
        )
    assert codes["temperatures"] == [0, 0] and alone["temperatures"] == [None, None]
    assert sem["accuracy"] == pytest.approx(sum(sem["seed_accuracies"]) / 2)
    for row in result["probes"]:
        assert f"{row['accuracy']:.1f} ± {row['standard_deviation']:.1f}" in out

    trained = simplicia.load(tmp_path / "demo/shapes-vicreg-seed-0")
    untrained = simplicia.run.Run(trained.path, trained.recipe, trained.recipe.build(), trained.state)
    train, test = load("shapes"), load("shapes", "test")
    untrained.method.train()
    with torch.no_grad():  # fair: an untrained encoder with BatchNorm statistics of these images
        encoder_features(untrained, train.images[:2000])
    untrained.method.eval()
    settings = dataclasses.replace(preset("demo"), epochs=20)
    chance, ours = (probe(r, train, test, "encoder", settings)["accuracy"] for r in (untrained, trained))
    assert chance < 50 and ours > chance + 15, (chance, ours)
