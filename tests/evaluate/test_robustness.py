"""Robustness: every kind of test set in miniature, classes mapped by name, and mistakes."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image

import simplicia
from simplicia import cli
from simplicia.evaluate.corruptions import names
from simplicia.evaluate.robustness import OtherSet, Probe, corrupted, robustness
from simplicia.evaluate.transfer import TransferSettings, choose, features, splits

FEW = TransferSettings(regularisers=5)


@pytest.fixture(scope="module")
def run(small_run):
    return simplicia.load(small_run, "cpu")


@pytest.fixture(scope="module")
def sets(run, colours):
    return splits(run, str(colours))


@pytest.fixture(scope="module")
def probe(run, sets):
    train, val = (features(run, s.images, "codes") for s in sets[:2])
    return Probe(
        run, choose(train, sets.train.labels, val, sets.val.labels, 3, FEW).fit, "codes", None, "online"
    )


def arrays(folder, sets, corruptions=("fog", "spatter"), seed=0):
    """A CIFAR-C in miniature: severity s is the clean images plus noise of that strength."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    clean = sets.test.images.permute(0, 2, 3, 1).numpy().astype(float)
    for name in corruptions:
        noisy = [np.clip(clean + rng.normal(0, 40 * s, clean.shape), 0, 255) for s in range(5)]
        np.save(folder / f"{name}.npy", np.concatenate(noisy).astype(np.uint8))
    np.save(folder / "labels.npy", np.tile(sets.test.labels.numpy(), 5))
    return folder


def test_the_verb_measures_every_kind_of_set(small_run, colours, sets, draw, capsys, tmp_path):
    v2 = draw(tmp_path, {"v2": 4}) / "v2"
    c = tmp_path / "colours-C"
    for corruption in ("fog", "snow"):
        draw(c / corruption, {str(s): 2 for s in range(1, 6)})
    npy = arrays(tmp_path / "C", sets)
    out = tmp_path / "r.json"
    words = ["robustness", small_run, "--data", colours, "--regularisers", 3, "--corrupt", "--json", out]
    assert cli.main([*map(str, words), "--sets", str(v2), str(c), str(npy)]) == 0
    found, said = json.loads(out.read_text()), capsys.readouterr().out
    plain, folders, published, made = found["sets"]
    assert plain["kind"] == "class folders" and plain["images"] == 12 and plain["classes"] == 3
    assert folders["kind"] == "corruption folders" and folders["per_corruption"].keys() == {"fog", "snow"}
    assert folders["images"] == 60 and len(folders["standard_missing"]) == 13
    assert published["kind"] == "arrays" and published["per_corruption"]["fog"][0] == found["accuracy"]
    assert published["corruptions_in_mean"] == 1  # spatter is no standard one
    assert published["accuracy"] == pytest.approx(np.mean(published["per_corruption"]["fog"]))
    assert list(made["per_corruption"]) == names() and "frost is drawn" in made["kind"]
    assert made["accuracy"] == pytest.approx(np.mean(list(made["per_corruption"].values())))
    assert "logistic regression" in found["probe"] and found["test_images"] == 30
    for row in found["sets"]:
        assert row["set"] in said and f"{row['accuracy']:.1f}" in said


def test_the_probe_scores_as_the_features_it_was_fitted_on(probe, run, sets):
    expected = features(run, sets.test.images, "codes").times(probe.fit.weight) + probe.fit.bias
    torch.testing.assert_close(probe.scores(sets.test.images), expected)
    right = int((expected.argmax(1) == sets.test.labels).sum())
    assert probe.correct(sets.test.images, sets.test.labels) == right


def test_a_subset_of_the_classes_is_guessed_among_these(probe, run, sets, tmp_path):
    """As ImageNet-R and -A have 200 of 1,000 classes: by the names of their folders."""
    images, labels = sets.test.images, sets.test.labels
    kept = labels != 0
    for i in kept.nonzero()[:, 0].tolist():
        place = tmp_path / "sub" / sets.test.classes[labels[i]]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[i].permute(1, 2, 0).numpy()).save(place / f"{i}.png")
    found = OtherSet(tmp_path / "sub", sets.train.classes, 16).measure(probe)
    scores = probe.scores(images[kept])[:, 1:]  # columns of green and red alone
    right = (scores.argmax(1) + 1 == labels[kept]).double().mean().item()
    assert found["classes"] == 2 and found["images"] == 20
    assert found["accuracy"] == pytest.approx(100 * right)


def test_a_subset_is_easier_than_guessing_among_all(probe, sets):
    among = torch.tensor([1, 2])
    kept = sets.test.labels != 0
    images, labels = sets.test.images[kept], sets.test.labels[kept]
    worst = torch.zeros(3)
    worst[0] = 100.0  # a probe that prefers blue is always wrong, unless blue is left out
    biased = Probe(probe.run, probe.fit._replace(bias=probe.fit.bias + worst), "codes", None, "online")
    assert biased.correct(images, labels) == 0 < biased.correct(images, labels, among)


def test_corrupted_images_are_the_same_every_time(probe, sets):
    one, same = (corrupted(probe, sets.test, seed=3) for _ in range(2))
    assert one == same and one["images"] == 75 * 30


def test_the_probe_never_sees_a_test_set(run, sets):
    honest = robustness(run, sets, [], settings=FEW)
    poisoned = dataclasses.replace(sets.test, images=255 - sets.test.images, labels=sets.test.labels.roll(10))
    other = robustness(run, sets._replace(test=poisoned), [], settings=FEW)
    assert all(honest[key] == other[key] for key in ("regulariser", "weight_norm", "validation_accuracy"))
    assert honest["accuracy"] != other["accuracy"]


def test_mistakes_are_one_line_and_status_two(small_run, colours, sets, draw, fails, tmp_path):
    def told(*words):
        return fails("robustness", small_run, "--data", colours, *words)

    assert "nothing to test on" in told()
    assert "<corruption>/<severity>/<class>/*" in told("--sets", tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "has no folders of classes" in told("--sets", tmp_path / "empty")
    grey = draw(tmp_path, {"grey": 2}, colours={"grey": (9, 9, 9)}) / "grey"
    assert "no class of the training images, such as 'grey'" in told("--sets", grey)
    broken = arrays(tmp_path / "short", sets)
    np.save(broken / "labels.npy", np.zeros(7, dtype=np.int64))
    assert "has 7 labels, but fog.npy has 150 images" in told("--sets", broken)
    np.save(broken / "labels.npy", np.full(150, 3))
    assert "whole numbers from 0 to 2" in told("--sets", broken)
    (broken / "labels.npy").unlink()
    assert "labels.npy cannot be read" in told("--sets", broken)
    odd = arrays(tmp_path / "odd", sets)
    np.save(odd / "fog.npy", np.zeros((12, 4, 4, 3), dtype=np.uint8))
    assert "five severities" in told("--sets", odd)
    hostile = arrays(tmp_path / "hostile", sets)
    np.save(hostile / "fog.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert "fog.npy cannot be read as an array" in told("--sets", hostile)
    (hostile / "fog.npy").write_bytes(b"")
    assert "fog.npy cannot be read as an array" in told("--sets", hostile)
    with (hostile / "fog.npy").open("wb") as file:
        np.savez(file, fog=np.zeros(5))
    assert "it is an archive of several" in told("--sets", hostile)
    (hostile / "fog.npy").write_bytes(b"PK\x03\x04 torn")
    assert "fog.npy cannot be read as an array" in told("--sets", hostile)
