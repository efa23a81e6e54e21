"""Probe and kNN: the grid is its probes one by one, and choosing never sees the test set."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import simplicia
from simplicia.data.datasets import ImageSet, load
from simplicia.errors import UserError
from simplicia.evaluate import ProbeSettings, knn, probe
from simplicia.evaluate.probe import _Features, _fit
from simplicia.neighbours import overlap, vote

QUICK = ProbeSettings(lrs=(0.1, 1.0), l1=(0.0, 1e-3), temperatures=(0.0, 1.0), epochs=5, batch_size=64)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("probe") / "run"
    small = {"epochs": 1, "batch_size": 250, "sem.simplices": 16, "options": {"hidden": 32, "out": 16}}
    return simplicia.pretrain("shapes-byol-sem", out=path, quiet=True, **small)


@pytest.fixture(scope="module")
def sets():
    return tuple(
        dataclasses.replace(s, images=s.images[:n], labels=s.labels[:n])
        for s, n in ((load("shapes"), 400), (load("shapes", "test"), 200))
    )


def test_the_grid_is_its_probes_trained_one_by_one(run, sets):
    train, _ = sets
    labels, indices = train.labels, torch.arange(len(train))
    temperatures = (0.5, 1.0)
    grid = [(lr, l1) for lr in QUICK.lrs for l1 in QUICK.l1]
    source = _Features(run, train.images, run.network(), "sem", temperatures, QUICK, "online")
    weight, bias = _fit(source, indices, labels, 20, [grid] * 2, QUICK)
    for t, temperature in enumerate(temperatures):
        x = run.encode(train.images, "sem", temperature)
        for i, (lr, l1) in enumerate(grid):
            linear = torch.nn.Linear(x.shape[1], 20)
            torch.nn.init.zeros_(linear.weight)
            torch.nn.init.zeros_(linear.bias)
            optimizer = torch.optim.SGD(linear.parameters(), lr, momentum=0.9)
            generator = torch.Generator().manual_seed(QUICK.seed)
            for epoch in range(QUICK.epochs):
                optimizer.param_groups[0]["lr"] = lr * (1 if epoch < 3 else 0.1 if epoch < 4 else 0.01)
                for part in torch.randperm(len(x), generator=generator).split(64):
                    loss = F.cross_entropy(linear(x[part]), labels[part]) + l1 * linear.weight.abs().sum()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            columns = slice(20 * i, 20 * i + 20)
            torch.testing.assert_close(weight[t, :, columns].T, linear.weight, rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(bias[t, 0, columns], linear.bias, rtol=1e-3, atol=1e-5)


def test_choosing_never_sees_the_test_set(run, sets):
    train, test = sets
    honest = probe(run, train, test, "sem", QUICK)
    poisoned = dataclasses.replace(test, images=255 - test.images, labels=test.labels.flip(0))
    other = probe(run, train, poisoned, "sem", QUICK)
    for key in ("temperature", "lr", "l1", "validation_accuracy", "grid"):
        assert honest[key] == other[key]
    assert honest["accuracy"] != other["accuracy"]


def test_the_headline_is_the_row_chosen_on_validation(run, sets):
    found = probe(run, *sets, "sem", QUICK)
    rows = found["per_temperature"]
    assert [row["temperature"] for row in rows] == [0.0, 1.0]
    best = max(rows, key=lambda row: row["validation_accuracy"])
    assert all(found[key] == best[key] for key in best)
    assert found["validation_images"] == 40 and found["train_images"] == 400 and found["online"] is False


def test_codes_are_temperature_zero(run, sets):
    codes = probe(run, *sets, "codes", QUICK)
    sharp = probe(run, *sets, "sem", dataclasses.replace(QUICK, temperatures=(0.0,)))
    assert codes["accuracy"] == sharp["accuracy"] and codes["layer"] == "codes"


def test_augmented_views_and_the_target_network(run, sets):
    quick = dataclasses.replace(QUICK, epochs=2, lrs=(0.1,), l1=(0.0,))
    plain, augmented, target = (
        probe(run, *sets, "encoder", quick),
        probe(run, *sets, "encoder", dataclasses.replace(quick, augment=True)),
        probe(run, *sets, "encoder", quick, network="target"),
    )
    assert augmented["views"] == "crop and flip" and plain["views"] == "none"
    assert target["network"] == "target"
    assert len({plain["accuracy"], augmented["accuracy"], target["accuracy"]}) > 1


def test_probe_learns_what_is_there_to_learn(run):
    """Images whose brightness is their class can be told apart by any encoder."""
    labels = torch.arange(120) % 3
    images = (labels * 100)[:, None, None, None].expand(-1, 3, 32, 32).to(torch.uint8).contiguous()
    bright = ImageSet("bright", images, labels, classes=("dark", "grey", "light"))
    settings = ProbeSettings(lrs=(0.1,), l1=(0.0,), epochs=30, batch_size=32)
    assert probe(run, bright, bright, "encoder", settings)["accuracy"] == 100
    assert knn(run, bright, bright, "encoder")["accuracy"] == 100


@pytest.mark.parametrize("layer", ["encoder", "embedder", "sem", "codes"])
def test_knn_on_every_layer(run, sets, layer):
    found = knn(run, *sets, layer, k=5)
    assert found["layer"] == layer and 0 <= found["accuracy"] <= 100
    assert found["temperature"] == {"sem": 1.0, "codes": 0.0}.get(layer)


def test_knn_against_scikit_learn():
    from sklearn.neighbors import KNeighborsClassifier

    rng = np.random.default_rng(0)
    bank, queries, labels = rng.normal(size=(300, 8)), rng.normal(size=(50, 8)), rng.integers(0, 4, 300)
    theirs = KNeighborsClassifier(7, metric="cosine", weights=lambda d: np.exp(-d / 0.07)).fit(bank, labels)
    scores = vote(torch.tensor(bank), torch.tensor(labels), torch.tensor(queries), 4, k=7, chunk=16)
    shares = (scores / scores.sum(1, keepdim=True)).numpy()
    np.testing.assert_allclose(shares, theirs.predict_proba(queries), atol=1e-4)


def test_overlap_counts_equal_codes():
    a, b = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, 3, 4], [1, 0, 3, 0], [0, 0, 0, 0]])
    assert overlap(a, b).tolist() == [[1.0, 0.5, 0.0]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lrs": ()}, "lrs"),
        ({"l1": (-1.0,)}, "l1"),
        ({"temperatures": (float("nan"),)}, "temperatures"),
        ({"epochs": 0}, "epochs is 0"),
        ({"validation": 1.5}, "validation"),
    ],
)
def test_bad_settings_are_one_sentence(run, sets, change, words):
    with pytest.raises(UserError, match=words):
        probe(run, *sets, "sem", dataclasses.replace(QUICK, **change))


def test_one_image_per_class_cannot_be_chosen_on(run):
    lonely = ImageSet(
        "lonely", torch.zeros(3, 3, 32, 32, dtype=torch.uint8), torch.arange(3), classes=("a", "b", "c")
    )
    with pytest.raises(UserError, match="too few images"):
        probe(run, lonely, lonely, "encoder", QUICK)
