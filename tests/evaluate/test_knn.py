"""Nearest neighbours: votes against scikit-learn, any chunk size, codes without one-hot vectors."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import simplicia
from simplicia import neighbours
from simplicia.cli import main
from simplicia.data.datasets import part
from simplicia.errors import UserError
from simplicia.evaluate import knn
from simplicia.evaluate.features import encoder_features
from simplicia.neighbours import cosine, nearest, overlap, vote


@pytest.mark.parametrize("layer", ["encoder", "embedder", "sem", "codes"])
def test_knn_on_every_layer(run, sets, layer):
    result = knn(run, *sets, layer, k=5)
    assert result["layer"] == layer and 5 < result["accuracy"] <= result["top5_accuracy"] <= 100
    assert result["temperature"] == {"sem": 1.0, "codes": 0.0}.get(layer)
    assert result["similarity"] == ("overlap" if layer == "codes" else "cosine")


def test_all_images_vote_if_there_are_fewer_than_k(run, sets):
    result, every = (knn(run, *sets, "encoder", k=k) for k in (10**6, len(sets[0])))
    assert result["k"] == len(sets[0]) and result["accuracy"] == every["accuracy"]


def test_vote_temperature_weights_the_votes(run, sets):
    bank, queries = (run.encode(s.images, "encoder") for s in sets)
    for temperature in (0.01, 10.0):
        scores = vote(bank, sets[0].labels, queries, len(sets[0].classes), 200, temperature)
        right = (scores.argmax(1) == sets[1].labels).double().mean().item()
        result = knn(run, *sets, "encoder", k=200, vote_temperature=temperature)
        assert result["accuracy"] == pytest.approx(100 * right, abs=0.6)
        assert result["vote_temperature"] == temperature
    nearest_only = knn(run, *sets, "encoder", k=1)["accuracy"]
    assert knn(run, *sets, "encoder", k=200, vote_temperature=1e-6)["accuracy"] == nearest_only
    assert knn(run, *sets, "encoder", k=200, vote_temperature=10.0)["accuracy"] != nearest_only


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"k": 0}, "k is 0"), ({"k": -1}, "k is -1"), ({"vote_temperature": 0.0}, "vote_temperature is 0.0")],
)
def test_wrong_vote_settings_raise(run, sets, wrong, words):
    with pytest.raises(UserError, match=words):
        knn(run, *sets, "encoder", **wrong)


def test_result_states_how_many_neighbours_voted(tmp_path, capsys):
    small = {"epochs": 1, "batch_size": 500, "image_size": 16, "sem.simplices": 8, "quiet": True}
    run = simplicia.pretrain("shapes-byol-sem", out=tmp_path / "run", **small)
    assert main(["knn", str(run.path), "--data", "digits", "--k", "100000", "--device", "cpu"]) == 0
    (file,) = (run.path / "results").glob("knn-*.json")
    voted = json.loads(file.read_text())["k"]
    assert voted < 100_000 and f"{voted:,} nearest neighbours" in capsys.readouterr().out


def test_overlap_of_codes_is_the_cosine_of_their_one_hots(run, sets):
    codes = [run.encode(s.images, "codes") for s in sets]
    dense = [F.one_hot(c, 13).flatten(1).float() for c in codes]
    torch.testing.assert_close(overlap(codes[1], codes[0]), cosine(dense[1], dense[0]))
    classes, labels = len(sets[0].classes), sets[0].labels
    by_codes = vote(codes[0], labels, codes[1], classes, k=10**6, similarity=overlap)
    torch.testing.assert_close(
        by_codes, vote(dense[0], labels, dense[1], classes, k=10**6)
    )  # all images vote: no ties
    similar, expected = overlap(codes[1], codes[0]), []
    for row in similar:
        last = row.sort(descending=True).values[19]
        share = (20 - (row > last).sum()) / (row == last).sum()  # ties share the remaining votes
        weights = ((row - row.max()) / 0.07).exp() * ((row > last) + share * (row == last))
        expected.append(torch.zeros(classes).scatter_add_(0, labels, weights))
    result = vote(codes[0], labels, codes[1], classes, similarity=overlap, chunk=64)
    torch.testing.assert_close(result, torch.stack(expected), rtol=1e-4, atol=1e-5)
    right = (result.argmax(1) == sets[1].labels).double().mean().item()
    assert knn(run, *sets, "codes")["accuracy"] == pytest.approx(100 * right)


def test_the_order_of_images_does_not_matter(run, sets):
    train, test = sets
    orders = [torch.arange(len(train)), train.labels.argsort(), train.labels.argsort(descending=True)]
    result = [knn(run, part(train, order), test, "codes", k=7)["accuracy"] for order in orders]
    assert len(set(result)) == 1
    bank = torch.tensor([[0, 0], [0, 1], [1, 0], [0, 2]])  # the first matches both simplices, the others one
    scores = vote(bank, torch.tensor([0, 1, 2, 2]), bank[:1], 3, k=2, temperature=1.0, similarity=overlap)
    weight = np.exp(-0.5)
    assert scores[0].tolist() == pytest.approx([1 + 0, weight * 1 / 3, weight * 2 / 3])
    every = vote(bank, torch.tensor([0, 1, 2, 2]), bank[:1], 3, k=4, temperature=1.0, similarity=overlap)
    assert every[0].tolist() == pytest.approx([1, weight, 2 * weight])


def test_classes_without_a_vote_are_not_among_the_five(run, sets):
    result = knn(run, *sets, "encoder", k=1)
    assert result["accuracy"] == result["top5_accuracy"]


def test_features_are_recomputed_after_an_edit_of_data(small_run, sets):
    run = simplicia.load(small_run, "cpu")
    before = encoder_features(run, sets[1].images)
    assert encoder_features(run, sets[1].images) is before
    weight = next(run.method.online.encoder.parameters())
    version = weight._version
    weight.data.mul_(1.5)
    assert weight._version == version and not torch.equal(encoder_features(run, sets[1].images), before)


def test_votes_against_scikit_learn():
    from sklearn.neighbors import KNeighborsClassifier

    rng = np.random.default_rng(0)
    bank, queries, labels = rng.normal(size=(300, 8)), rng.normal(size=(50, 8)), rng.integers(0, 4, 300)
    theirs = KNeighborsClassifier(7, metric="cosine", weights=lambda d: np.exp(-d / 0.07)).fit(bank, labels)
    scores = vote(torch.tensor(bank), torch.tensor(labels), torch.tensor(queries), 4, k=7, chunk=16)
    shares = (scores / scores.sum(1, keepdim=True)).numpy()
    np.testing.assert_allclose(shares, theirs.predict_proba(queries), atol=1e-4)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 9), st.integers(1, 50))
def test_chunks_give_the_same_neighbours(n, m, k, chunk):
    generator = torch.Generator().manual_seed(n)
    bank, queries = torch.randn(n, 5, generator=generator), torch.randn(m, 5, generator=generator)
    similarity, indices = nearest(bank, queries, k, chunk=chunk)
    expected = cosine(queries, bank).topk(min(k, n))
    torch.testing.assert_close(similarity, expected.values)
    assert torch.equal(indices, expected.indices)


def test_a_layer_is_computed_for_a_chunk_at_a_time():
    sizes = []
    widen = lambda x: sizes.append(len(x)) or x.repeat(1, 3)  # noqa: E731
    nearest(torch.randn(50, 4), torch.randn(20, 4), 3, represent=widen, chunk=8)
    assert max(sizes) == 8


@pytest.mark.parametrize("few", [0, 128])  # codes compared, or one-hots multiplied
def test_overlap_counts_equal_codes(few, monkeypatch):
    a, b = torch.tensor([[1, 2, 3, 4]] * 3), torch.tensor([[1, 2, 3, 4], [1, 0, 3, 0], [0, 0, 0, 0]])
    for name, value in (("COMPARISONS", 1), ("EXACT", 3), ("ONE_HOT_VERTICES", few)):
        monkeypatch.setattr(neighbours, name, value)
    assert overlap(a, b).tolist() == [[1.0, 0.5, 0.0]] * 3
    assert overlap(a.byte(), b.byte()).tolist() == [[1.0, 0.5, 0.0]] * 3
