"""Classifiers: saved, loaded, exported, and used on new images; broken and foreign files are one sentence."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import simplicia
from simplicia import UserError, cli
from simplicia.classifier import KEY
from simplicia.data import datasets
from simplicia.evaluate.finetune import FinetuneSettings, SemiSettings, finetune, semi
from simplicia.evaluate.probe import ProbeSettings, fit, probe
from simplicia.evaluate.transfer import Splits

COLOURS = {"blue": (40, 60, 200), "green": (50, 170, 60), "red": (200, 50, 40)}
QUICK = ProbeSettings(lrs=(1.0,), temperatures=(0.1, 1.0), epochs=3)


def draw(folder, count, seed=0):
    """``folder/<colour>/*.png``: noisy images of three colours."""
    rng = np.random.default_rng(seed)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = np.clip(rng.normal(colour, 40, (20, 24, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{name}_{i}.png")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("data") / "photos", 20)


@pytest.fixture(scope="module")
def run(tmp_path_factory, photos):
    small = {"image_size": 16, "batch_size": 16, "epochs": 1, "sem": {"simplices": 8}, "byol": {"hidden": 16}}
    out = tmp_path_factory.mktemp("runs") / "a"
    return simplicia.pretrain("byol-sem", data=photos, encoder="tiny", out=out, quiet=True, **small)


@pytest.fixture(scope="module")
def sets(photos):
    return [datasets.load(photos, split, size=16) for split in ("train", "test")]


@pytest.fixture(scope="module")
def classifier(run, sets):
    return fit(run, sets[0], settings=QUICK).classifier()


def test_methods_are_those_of_scikit_learn(classifier, sets):
    test = sets[1]
    probabilities = classifier.predict_proba(test.images)
    assert probabilities.shape == (len(test), 3) and np.allclose(probabilities.sum(1), 1, atol=1e-5)
    assert classifier.classes_.tolist() == ["blue", "green", "red"]
    predicted = classifier.predict(test.images)
    assert (predicted == classifier.classes_[probabilities.argmax(1)]).all()
    right = (predicted == np.array(test.classes)[test.labels]).mean()
    names = [test.classes[i] for i in test.labels]
    assert classifier.score(test.images, test.labels) == classifier.score(test.images, names) == right > 0.6
    for labels, words in (([0], "need one each"), ([9] * len(test), "not from 0 to 2")):
        with pytest.raises(UserError, match=words):
            classifier.score(test.images, labels)
    with pytest.raises(UserError, match="device is 'gpu'"):
        classifier.to("gpu")


@pytest.mark.parametrize("layer", ["encoder", "embedder", "sem", "codes"])
def test_a_probe_predicts_what_its_result_says(run, sets, layer, tmp_path):
    kept = []
    result = probe(run, *sets, layer, QUICK, keep=kept.append)
    (trained,) = kept
    assert 100 * trained.score(sets[1].images, sets[1].labels) == pytest.approx(result.accuracy)
    assert trained.about.accuracy == result.accuracy and trained.about.layer == layer
    for path in (trained.save(), trained.save(tmp_path / "mine.safetensors")):
        again = simplicia.load_classifier(path)
        np.testing.assert_allclose(
            again.predict_proba(sets[1].images), trained.predict_proba(sets[1].images), atol=1e-6
        )
    in_run = load_file(run.path / f"results/probe-{layer}.safetensors")
    assert in_run.keys() == {"weight", "bias"}  # the rest is the run's
    program = torch.export.load(trained.export(tmp_path / "a.pt2")).module()
    images = torch.rand(5, 3, 16, 16)
    np.testing.assert_allclose(program(images).numpy(), trained.predict_proba(images), atol=1e-5)


def test_finetuned_classifiers_hold_everything(run, sets, tmp_path):
    splits = Splits(*datasets.split(sets[0], 0.2), sets[1], False)
    kept, before = [], run.encode(sets[1].images)
    how = FinetuneSettings(lrs=(0.01,), steps=3, batch_size=8)
    tuned = finetune(run, splits, settings=how, keep=kept.append)
    few = SemiSettings(fraction=0.5, lrs=(0.01,), epochs=(1,), temperatures=(1.0,), batch_size=8)
    share = semi(run, *sets, settings=few, keep=kept.append)
    assert torch.equal(run.encode(sets[1].images), before)  # the run's own encoder stays
    for result, trained in zip((tuned, share), kept, strict=True):
        accuracy = 100 * trained.score(sets[1].images, sets[1].labels)
        assert accuracy == pytest.approx(result.accuracy)
        path = trained.save()
        assert path == run.path / "results" / f"{trained.about.kind}-sem.safetensors"
        moved = shutil.copy(path, tmp_path / path.name)  # it needs no run
        again = simplicia.load_classifier(moved)
        np.testing.assert_array_equal(again.predict(sets[1].images), trained.predict(sets[1].images))
    assert run.classifier("finetune-sem").about.kind == "finetune"
    assert run.classifier().about.kind == "semi"  # the newest


def test_onnx_agrees_with_predict_proba(classifier, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(classifier.export(tmp_path / "a.onnx"))
    images = torch.rand(5, 3, 16, 16)
    (output,) = session.run(["probabilities"], {"images": images.numpy()})
    np.testing.assert_allclose(output, classifier.predict_proba(images), atol=1e-5)
    said = json.loads(session.get_modelmeta().custom_metadata_map["simplicia"])
    assert said["classes"] == ["blue", "green", "red"]
    with pytest.raises(UserError, match=r"ends in .pt2, .onnx"):
        classifier.export(tmp_path / "a.safetensors")


def test_a_classifier_of_a_run_with_an_encoder_of_ones_own(photos, sets, tmp_path):
    def module():
        return torch.nn.Sequential(torch.nn.AvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 6))

    small = {"image_size": 16, "batch_size": 16, "epochs": 1, "sem": {"simplices": 8}, "byol": {"hidden": 16}}
    run = simplicia.pretrain(
        "byol-sem", data=photos, encoder=module(), out=tmp_path / "run", quiet=True, **small
    )
    trained = fit(run, sets[0], settings=QUICK).classifier()
    path = trained.save(tmp_path / "mine.safetensors")
    again = simplicia.load_classifier(path, encoder=module())
    np.testing.assert_array_equal(again.predict(sets[1].images), trained.predict(sets[1].images))
    with pytest.raises(UserError, match="the encoder came from Python"):
        simplicia.load_classifier(path)
    kept = []
    splits = Splits(*datasets.split(sets[0], 0.2), sets[1], False)
    finetune(run, splits, settings=FinetuneSettings(lrs=(0.01,), steps=1, batch_size=8), keep=kept.append)
    kept[0].save()
    assert run.classifier().about.kind == "finetune"


def changed(path, **changes):
    """Rewrite what a classifier's file says about itself."""
    with safe_open(path, "pt") as file:
        about = {**json.loads(file.metadata()[KEY]), **changes}
    tensors = load_file(path)
    save_file(tensors, path, {KEY: json.dumps({k: v for k, v in about.items() if v is not None})})


def test_broken_foreign_and_mismatched_files_are_one_sentence(run, classifier, photos, tmp_path, capsys):
    own = classifier.save(tmp_path / "own.safetensors")
    other = tmp_path / "run"
    shutil.copytree(run.path, other)
    (other / "results").mkdir(exist_ok=True)
    here = other / "results" / "a.safetensors"

    def of_another_run(path):
        shutil.copy(classifier.save(), here)
        changed(here, run_id="0" * 16)
        shutil.copy(here, path)
        return here

    def later(path):
        shutil.copy(classifier.save(), here)
        changed(here, run_step=1)
        return here

    def foreign(path):
        save_file({"weight": torch.zeros(3)}, path)

    def fewer_classes(path):
        changed(path, classes=["blue", "green"])

    def other_encoder(path):
        with safe_open(path, "pt") as file:
            recipe = json.loads(file.metadata()[KEY])["recipe"]
        changed(path, recipe={**recipe, "encoder": "resnet18"})

    def other_layer(path):
        changed(path, layer="encoder")

    cases = [
        (lambda path: path.unlink(), "there is no classifier"),
        (lambda path: path.write_text("{}"), "cannot be read as a classifier"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "cannot be read as a classifier"),
        (foreign, "it is another file of tensors"),
        (fewer_classes, "it has 2 classes"),
        (other_encoder, "does not fit this model"),
        (other_layer, "does not fit this model"),
        (lambda path: changed(path, classes=["a", "a", "a"]), "not distinct"),
        (lambda path: changed(path, classes=["\ud800", "a", "b"]), "surrogates not allowed"),
        (lambda path: changed(path, recipe={"encoder": "tiny", "epoch": 3}), "epoch"),
        (lambda path: changed(path, recipe=None), "holds no encoder, and is not in the results of its run"),
        (lambda path: changed(path, mean="x"), "mean is 'x'"),
        (lambda path: changed(path, image_size=10**9), "pixels"),
        (lambda path: changed(path, layer="banana"), "banana"),
        (of_another_run, "was trained on another run"),
        (later, "which is now at step"),
    ]
    for i, (damage, words) in enumerate(cases):
        path = shutil.copy(own, tmp_path / f"{i}.safetensors")
        path = damage(path) if damage in (of_another_run, later) else (damage(path), path)[1]
        assert cli.main(["predict", str(path), str(photos)]) == 2, words
        error = capsys.readouterr().err
        assert words in error and len(error.strip().splitlines()) == 1, (words, error)
    with pytest.raises(UserError, match="is no name of a classifier"):
        run.classifier("../a")
    with pytest.raises(UserError, match="has no saved classifier"):
        shutil.rmtree(other / "results")
        simplicia.load(other).classifier()
    with pytest.raises(UserError, match=r"a classifier ends in \.safetensors"):
        classifier.save(tmp_path / "a.pkl")


def test_the_first_hour_from_a_labelled_folder_to_predictions(photos, tmp_path, monkeypatch, capsys):
    """Each step is a command, and the predictions of images it never saw are right."""
    monkeypatch.chdir(tmp_path)
    new = draw(tmp_path / "new", 3, seed=1)
    (new / "broken.png").write_text("")
    small = "--epochs 1 --image-size 16 --batch-size 16 --sem.simplices 8 --byol.hidden 16 --quiet"
    data = f"--data {photos}"
    assert cli.main(f"pretrain byol-sem {data} --out run {small}".split()) == 0
    assert cli.main(["probe", "run", "--layer", "encoder", "--epochs", "20", "--quiet"]) == 0
    output = capsys.readouterr().out
    assert "simplicia predict run/results/probe-quick-changed-encoder-epochs-20.safetensors" in " ".join(
        output.split()
    )
    saved = "run/results/probe-quick-changed-encoder-epochs-20.safetensors"
    for name, source in (("a.csv", saved), ("a.json", "run")):
        assert cli.main(["predict", source, "new", "--out", name, "--top", "2", "--quiet"]) == 0
    output = capsys.readouterr()
    assert "skipped broken.png" in output.err and "written to a.csv" in output.out
    rows = list(csv.DictReader(Path("a.csv").read_text().splitlines()))
    assert list(rows[0]) == ["file", "class", "probability", "class_2", "probability_2"] and len(rows) == 9
    assert sum(row["file"].split("/")[0] == row["class"] for row in rows) >= 7
    for row, same in zip(rows, json.loads(Path("a.json").read_text()), strict=True):
        assert row["file"] == same["file"] and row["class"] == same["class"] == same["top"][0]["class"]
        assert float(row["probability_2"]) == pytest.approx(same["top"][1]["probability"], abs=1e-6)
    words = f"finetune run {data} --layer encoder --steps 2 --lrs 0.01 --batch-size 8"
    words += " --classifier mine.safetensors"
    assert cli.main(words.split()) == 0
    shutil.move("run", "gone")
    assert cli.main(["predict", "mine.safetensors", "new/red/red_0.png"]) == 0
    assert "red_0.png" in capsys.readouterr().out
    for wrong, message in (
        (["predict", "mine.safetensors", "nowhere"], "there is no folder or image 'nowhere'"),
        (["predict", "mine.safetensors", "new", "--out", "a.txt"], "must end in .csv or .json"),
        (["predict", "mine.safetensors", "new", "--top", "0"], "--top"),
        (["predict", "mine.safetensors"], "required"),
    ):
        assert cli.main(wrong) == 2
        assert message in capsys.readouterr().err
