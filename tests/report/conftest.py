"""Three small runs with reports: with SEM and probes, without SEM, and analysed without labels."""

import dataclasses
import json
import shutil

import pytest
from PIL import Image

import simplicia
from simplicia.cli import main
from simplicia.data.datasets import load
from simplicia.evaluate import ProbeSettings, knn, probe
from simplicia.evaluate.features import load_labelled
from simplicia.settings import with_changes
from simplicia.train import checkpoint, recipes
from simplicia.train.recipe import write_yaml

OPTIONS = {"hidden": 16, "out": 8}
CPU = ("--device", "cpu")


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """The folders of runs "sem", "base" and "unlabelled", analysed and with a report."""
    root = tmp_path_factory.mktemp("report")
    run = simplicia.pretrain(
        "shapes-byol-sem",
        out=root / "sem",
        quiet=True,
        epochs=1,
        batch_size=500,
        log_every=2,
        image_size=16,
        options=OPTIONS,
        **{"sem.simplices": 12},
    )
    train, test = (
        dataclasses.replace(s, images=s.images[:n], labels=s.labels[:n])
        for s, n in zip(load_labelled(run), (400, 200), strict=True)
    )
    settings = ProbeSettings(lrs=(1.0,), l1=(0.0,), temperatures=(0.0, 0.1, 1.0), epochs=2)
    for layer in ("sem", "encoder"):
        run.write_result(f"probe-{layer}", probe(run, train, test, layer, settings))
    run.write_result("knn-codes", knn(run, train, test, "codes"))
    with (run.path / "log.jsonl").open("a") as log:
        for line in (
            {"step": 5, "online_encoder_accuracy": 6.25, "online_knn_accuracy": 12.5},
            {"step": 10, "online_encoder_accuracy": 8.0 + 1 / 3, "online_knn_accuracy": 14.0},
            {"step": 10, "warning": "collapse: <b>a test of warnings</b>"},
        ):
            log.write(json.dumps(line) + "\n")

    # the run without SEM needs no training
    recipe = with_changes(recipes.get("shapes-byol"), {"options": OPTIONS})
    (root / "base").mkdir()
    write_yaml(recipe, root / "base/recipe.yaml")
    tensors = {f"method.{key}": value for key, value in recipe.build().state_dict().items()}
    state = {"total_steps": 9, "seconds": 1.0, "loss": 1.0, "mean": [0.5] * 3, "std": [0.2] * 3}
    checkpoint.save(root / "base/checkpoint", 1, tensors, state)

    shutil.copytree(root / "sem", root / "unlabelled")
    image_folder = root / "pictures"
    image_folder.mkdir()
    for i, image in enumerate(load("shapes", "test").images[:40]):
        Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(image_folder / f"<i>{i}'\"&.png")
    few = ("--images", "300", "--fit-images", "500")
    folders = {name: root / name for name in ("sem", "base", "unlabelled")}
    assert main(["analyze", str(root / "sem"), str(root / "base"), *few, *CPU]) == 0
    options = "--data", str(image_folder), "--out", str(root / "unlabelled/analysis")
    assert main(["analyze", str(root / "unlabelled"), *options, *few, *CPU]) == 0
    for folder in folders.values():
        assert main(["report", str(folder), *CPU]) == 0
    return folders
