"""Robustness: every kind of test set in miniature, both probes, classes mapped by name, and errors."""

import dataclasses
import io
import json
import shutil
import types

import numpy as np
import pytest
import torch
from PIL import Image

import simplicia
from simplicia import cli
from simplicia.data.datasets import split
from simplicia.errors import UserError
from simplicia.evaluate import ProbeSettings
from simplicia.evaluate import probe as probed
from simplicia.evaluate.compare import compare
from simplicia.evaluate.corruptions import names
from simplicia.evaluate.features import load_labelled
from simplicia.evaluate.probe import fit, preset, preset_for
from simplicia.evaluate.robustness import OtherSet, fit_probe, measure_corruptions, robustness
from simplicia.evaluate.sgd import Probes
from simplicia.evaluate.transfer import TransferSettings, choose, features
from simplicia.result import digest

FEW = TransferSettings(regularisers=5)
QUICK = ProbeSettings(lrs=(0.1, 1.0), temperatures=(0.0, 0.1, 1.0), epochs=3, batch_size=16)
WORDS = {
    "logistic": "--regularisers 3",
    "quick": "--epochs 2 --batch-size 16",
    "cifar": "--epochs 1 --seeds 2",
}


@pytest.fixture(scope="module")
def run(small_run):
    return simplicia.load(small_run, "cpu")


@pytest.fixture(scope="module")
def sets(run, colours):
    return load_labelled(run, str(colours))


@pytest.fixture(scope="module", params=["logistic", "SGD"])
def probe(request, run, sets):
    """Either kind, on codes."""
    return fit_probe(run, sets[0], "codes", None, FEW if request.param == "logistic" else QUICK)


def arrays(folder, test, corruptions=("fog", "spatter"), seed=0):
    """A CIFAR-C in miniature: severity s is the clean images plus noise of that strength."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    clean = test.images.permute(0, 2, 3, 1).numpy().astype(float)
    for name in corruptions:
        noisy = [np.clip(clean + rng.normal(0, 40 * s, clean.shape), 0, 255) for s in range(5)]
        np.save(folder / f"{name}.npy", np.concatenate(noisy).astype(np.uint8))
    np.save(folder / "labels.npy", np.tile(test.labels.numpy(), 5))
    return folder


@pytest.mark.parametrize("kind", WORDS)
def test_command_measures_every_kind_of_set(small_run, colours, sets, draw, capsys, tmp_path, kind):
    v2 = draw(tmp_path, {"v2": 4}) / "v2"
    c = tmp_path / "colours-C"
    for corruption in ("fog", "snow"):
        draw(c / corruption, {str(s): 2 for s in range(1, 6)})
    npy = arrays(tmp_path / "C", sets[1])
    out = tmp_path / "r.json"
    words = ["robustness", small_run, "--data", colours, "--probe", kind, "--corrupt", "--json", out]
    assert cli.main([*map(str, words), *WORDS[kind].split(), "--sets", str(v2), str(c), str(npy)]) == 0
    result, said = json.loads(out.read_text()), capsys.readouterr().out
    plain, folders, published, made = result["sets"]
    assert plain["kind"] == "class folders" and plain["images"] == 12 and plain["classes"] == 3
    assert folders["kind"] == "corruption folders" and folders["per_corruption"].keys() == {"fog", "snow"}
    assert folders["images"] == 60 and len(folders["standard_missing"]) == 13
    assert published["kind"] == "arrays" and published["per_corruption"]["fog"][0] == result["accuracy"]
    assert published["corruptions_in_mean"] == 1  # spatter is no standard one
    assert published["accuracy"] == pytest.approx(np.mean(published["per_corruption"]["fog"]))
    assert list(made["per_corruption"]) == names() and "frost is drawn" in made["kind"]
    assert made["accuracy"] == pytest.approx(np.mean(list(made["per_corruption"].values())))
    assert result["test_images"] == 30 and result["train_images"] == 48
    for row in result["sets"]:
        assert row["set"] in said and f"{row['accuracy']:.1f}" in said
    if kind == "logistic":
        assert result["protocol"] == "robustness, logistic regression on clean images"
        assert result["layer"] == "codes" and len(result["path"]) == 3
    else:
        assert result["protocol"] == "robustness, linear probe by SGD on clean images"
        assert result["layer"] == "sem" and result["preset"] == f"{kind}, changed"
        assert result["views"] == ("crop and flip" if kind == "cifar" else "none")
        assert len(result.get("seed_accuracies", [0])) == len(plain.get("seed_accuracies", [0]))


@pytest.mark.parametrize("layer", ["encoder", "sem", "codes"])
def test_the_probe_by_sgd_is_the_one_that_probe_reports(run, sets, layer):
    settings = dataclasses.replace(preset("cifar"), temperatures=(1000.0, 0.1), epochs=2, seeds=2, seed=3)
    own, result = (
        probed(run, *sets, layer, settings),
        robustness(run, *sets, [], False, layer, None, settings),
    )
    apart = {"protocol", "per_temperature", "temperature_matrix", "seconds", "date"}
    for key in own.to_json().keys() - apart:
        assert result[key] == own[key], key
    assert (
        result["epochs"] == 2
        and result["seeds"] == [3, 4]
        and result["selected"].keys() == {"lr", "l1", "l2"}
    )
    assert own["temperature"] == {"sem": 0.1, "codes": 0.0}.get(layer)  # the second is chosen
    trained = fit(run, sets[0], layer, settings)
    dense = run.encode(
        sets[1].images, "sem" if layer == "codes" else layer, 0.0 if layer == "codes" else own["temperature"]
    )
    scores = fit_probe(run, sets[0], layer, None, settings).scores(sets[1].images)
    for seed, (weight, bias) in enumerate(trained.probes):
        expected = dense @ weight[trained.best] + bias[trained.best]
        torch.testing.assert_close(scores[seed], expected, rtol=1e-4, atol=1e-5)


def test_the_logistic_probe_scores_as_the_features_it_was_fitted_on(run, sets):
    train, test = sets
    fit_on, choose_on = split(train, FEW.validation, FEW.seed)
    for layer, temperature in (("codes", None), ("sem", 0.5), ("encoder", None)):
        x, held_out = (features(run, part.images, layer, temperature) for part in (fit_on, choose_on))
        result, _ = choose(x, fit_on.labels, held_out, choose_on.labels, 3, FEW)
        expected = features(run, test.images, layer, temperature).times(result.weight) + result.bias
        probe = fit_probe(run, train, layer, temperature, FEW)
        (scores,) = probe.scores(test.images)
        torch.testing.assert_close(scores, expected)
        assert probe.correct(test.images, test.labels) == [(expected.argmax(1) == test.labels).sum()]


def test_the_papers_probe_is_the_default(small_run, draw, tmp_path):
    known = {"cifar10": "cifar", "data/cifar100": "cifar", "imagenet": "imagenet", "shapes": "quick"}
    assert {name: preset_for(name) for name in known} == known
    folder, out = draw(tmp_path / "cifar10", {"train": 6, "test": 3}), tmp_path / "r.json"
    c = draw(tmp_path, {"v2": 2}) / "v2"
    for data, name in ((folder, "cifar"), (tmp_path / "own", "quick")):
        if name == "quick":
            folder.rename(data)
        words = ["robustness", small_run, "--sets", c, "--epochs", 2, "--data", data, "--json", out]
        assert cli.main(list(map(str, words))) == 0
        result, expected = json.loads(out.read_text()), preset(name)
        assert result["preset"] == f"{name}, changed" and result["epochs"] == 2
        assert result["grid"]["lrs"] == list(expected.lrs) and result["layer"] == "sem"
        assert result["grid"]["temperatures"] == list(expected.temperatures)


def test_every_probe_has_its_file(small_run, colours, draw, tmp_path):
    copied, v2 = tmp_path / "run", draw(tmp_path, {"v2": 2}) / "v2"
    shutil.copytree(small_run, copied)
    for words in ("logistic", "logistic --regularisers 3", "quick", "quick --epochs 1", "cifar --epochs 1"):
        call = f"robustness {copied} --data {colours} --sets {v2} --probe {words}"
        assert cli.main(call.split()) == 0
    number = digest(str(v2.resolve()))
    assert {path.name for path in (copied / "results").iterdir()} == {
        f"robustness-codes-v2-{number}.json",
        f"robustness-codes-regularisers-3-v2-{number}.json",
        f"robustness-quick-sem-v2-{number}.json",
        f"robustness-quick-changed-sem-epochs-1-v2-{number}.json",
        f"robustness-cifar-changed-sem-epochs-1-v2-{number}.json",
    }
    rows = compare([copied])["rows"]
    assert len(rows) == 5  # none hides another
    by_sgd = [row for row in rows if "SGD" in row["protocol"]]
    assert len(by_sgd) == 3 and all(row["temperature"] == "chosen" for row in by_sgd)


def test_a_set_with_some_classes_is_classified_among_these(probe, run, sets, tmp_path):
    """As ImageNet-R and -A have 200 of 1,000 classes: by the names of their folders."""
    test = sets[1]
    images, labels = test.images, test.labels
    kept = labels != 0
    for i in kept.nonzero()[:, 0].tolist():
        class_folder = tmp_path / "sub" / test.classes[labels[i]]
        class_folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[i].permute(1, 2, 0).numpy()).save(class_folder / f"{i}.png")
    result = OtherSet(tmp_path / "sub", test.classes, 16).measure(probe)
    scores = probe.scores(images[kept])[0, :, 1:]  # columns of green and red alone
    right = (scores.argmax(1) + 1 == labels[kept]).double().mean().item()
    assert result["classes"] == 2 and result["images"] == 20
    assert result["accuracy"] == pytest.approx(100 * right)
    of_all = (probe.scores(images[kept])[0].argmax(1) == labels[kept]).double().mean().item()
    assert result["accuracy_among_all"] == pytest.approx(100 * of_all)


def test_a_subset_is_easier_than_guessing_among_all(probe, sets):
    among = torch.tensor([1, 2])
    kept = sets[1].labels != 0
    images, labels = sets[1].images[kept], sets[1].labels[kept]
    worst = torch.zeros(3)
    worst[0] = 100.0  # a probe that prefers blue is always wrong, unless blue is left out
    weight, bias = probe.classifiers
    biased = dataclasses.replace(probe, classifiers=Probes(weight, bias + worst))
    assert biased.correct(images, labels) == [0] < biased.correct(images, labels, among)


def test_corrupted_images_are_the_same_every_time(probe, sets):
    one, same = (measure_corruptions(probe, sets[1], seed=3) for _ in range(2))
    assert one == same and one["images"] == 75 * 30
    seen = []
    watched = types.SimpleNamespace(run=probe.run, correct=lambda x, *_: seen.append(x) or [0])
    for seed in (3, 4):
        measure_corruptions(watched, sets[1], seed=seed)
    noise = names().index("gaussian_noise") * 5
    assert not seen[noise].equal(seen[75 + noise])


def test_skipped_files_are_printed_and_counted(probe, sets, draw, tmp_path, capsys):
    path = draw(tmp_path / "other", {"": 4})
    broken = next(path.glob("*/*.png")).with_name("broken.png")
    broken.write_bytes(b"no image")
    result = OtherSet(path, sets[0].classes, 16).measure(probe)
    assert result["skipped_files"] == 1 and "skipped" in (message := capsys.readouterr().err)
    assert f"{broken.parent.name}/broken.png" in message


@pytest.mark.parametrize("settings", [FEW, QUICK, dataclasses.replace(QUICK, augment=True)])
def test_the_probe_never_sees_a_test_set(run, sets, settings, tmp_path):
    train, test = sets
    poisoned = dataclasses.replace(test, images=255 - test.images, labels=test.labels.roll(10))
    fixed = arrays(tmp_path / "fixed", test)
    honest, other = (
        robustness(run, train, tested, [arrays(tmp_path / str(i), tested), fixed], settings=settings)
        for i, tested in enumerate((test, poisoned))
    )
    for key in ("selected", "temperature", "validation_accuracy", "validation_images"):
        assert honest[key] == other[key]
    assert honest["sets"][1] == other["sets"][1]  # the same probe, on the same images
    assert honest["accuracy"] != other["accuracy"]


def test_user_errors_are_one_line_with_exit_status_2(small_run, colours, sets, draw, fails, tmp_path):
    def message(*words):
        return fails("robustness", small_run, "--data", colours, *words)

    assert "nothing to test on" in message()
    assert "unknown probe 'logistics'; did you mean 'logistic'" in message(
        "--corrupt", "--probe", "logistics"
    )
    assert "unknown option --regularisers" in message("--corrupt", "--regularisers", 3)
    assert "did you mean --temperatures" in message("--corrupt", "--temperature", 0.1)
    assert "did you mean --temperature?" in message("--corrupt", "--probe=logistic", "--temperatures", 0.1)
    assert "epochs is 0" in message("--corrupt", "--epochs", 0)
    assert "its bottleneck is 'sem'" in message("--corrupt", "--layer", "quantised")
    with pytest.raises(UserError, match="a probe by SGD has those of its settings' grid"):
        robustness(simplicia.load(small_run, "cpu"), *sets, [], temperature=0.1)
    assert "<corruption>/<severity>/<class>/*" in message("--sets", tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "has no folders of classes" in message("--sets", tmp_path / "empty")
    grey = draw(tmp_path, {"grey": 2}, colours={"grey": (9, 9, 9)}) / "grey"
    assert "no class of the training images, such as 'grey'" in message("--sets", grey)
    broken = arrays(tmp_path / "short", sets[1])
    np.save(broken / "labels.npy", np.zeros(7, dtype=np.int64))
    assert "has 7 labels, but fog.npy has 150 images" in message("--sets", broken)
    np.save(broken / "labels.npy", np.full(150, 3))
    assert "whole numbers from 0 to 2" in message("--sets", broken)
    (broken / "labels.npy").unlink()
    assert "labels.npy cannot be read" in message("--sets", broken)
    odd = arrays(tmp_path / "odd", sets[1])
    np.save(odd / "fog.npy", np.zeros((12, 4, 4, 3), dtype=np.uint8))
    assert "five severities" in message("--sets", odd)
    hostile = arrays(tmp_path / "hostile", sets[1])
    pickled, archive, valid = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(pickled, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.savez(archive, fog=np.zeros(5))
    np.save(valid, np.zeros((10, 4, 4, 3), dtype=np.uint8))
    negative = valid.getvalue().replace(b"(10,", b"(-5,")
    for content in (pickled.getvalue(), archive.getvalue(), b"", b"PK\x03\x04 torn", negative):
        (hostile / "fog.npy").write_bytes(content)
        assert "fog.npy cannot be read as an array" in message("--sets", hostile)
