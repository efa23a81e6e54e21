"""Coherence: values worked out by hand, and an independent implementation with sets."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simplicia.analyze import coherence, coherence_graph
from simplicia.analyze.class_coherence import coherence_curve, describe_graph, top_features, write_graphml
from simplicia.analyze.study import write_thumbnails
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError

TWO_PAIRS = [0, 0, 1, 1]  # classes 0 and 1 belong together, and so do 2 and 3


def by_sets(weight, superclass, k):
    """The metric's definition with sets: graph, pruning, neighbours and mean."""
    linked = []
    for row in weight:
        order = sorted(range(len(row)), key=lambda j: (-abs(row[j]), j))[:k]
        linked.append({j for j in order if row[j] != 0})
    shared = {j for j in range(len(weight[0])) if sum(j in features for features in linked) >= 2}
    linked = [features & shared for features in linked]
    shares = []
    for i, mine in enumerate(linked):
        near = {j for j, theirs in enumerate(linked) if j != i and mine & theirs}
        agreeing = {j for j in near if superclass[j] == superclass[i]}
        shares.append(len(agreeing) / len(near) if near else 0.0)
    return sum(shares) / len(shares)


def test_perfect_coherence():
    # k = 1: classes 0 and 1 share feature 0, classes 2 and 3 share feature 1.
    # Each class has one neighbour, of its superclass: (1 + 1 + 1 + 1) / 4 = 1.
    assert coherence([[9, 1], [8, 2], [1, 7], [2, 9]], TWO_PAIRS, 1) == 1


def test_no_coherence():
    # k = 1: 0 and 2 share feature 0, 1 and 3 share feature 1; every neighbour is of the other superclass.
    assert coherence([[9, 1], [1, 8], [7, 1], [2, 9]], TWO_PAIRS, 1) == 0


def test_mixed_coherence():
    # k = 1: 0, 1 and 2 share feature 0; 3 has feature 1 alone, which is pruned.
    # 0: neighbours {1, 2}, 1/2. 1: {0, 2}, 1/2. 2: {0, 1}, 0. 3: none, 0. Mean: (1/2 + 1/2) / 4 = 1/4.
    weight = [[9, 1], [8, 2], [7, 1], [2, 9]]
    assert coherence(weight, TWO_PAIRS, 1) == 1 / 4
    # k = 2: all classes have both features, so each class has three neighbours, one of them its own: 1/3.
    assert coherence(weight, TWO_PAIRS, 2) == pytest.approx(1 / 3)


def test_two_shared_features_make_one_neighbour():
    # k = 2: 0 and 1 share features 0 and 1; 0 and 2 cannot share (2 has 2 and 3); 1 and 3 neither.
    # With a third class 2 that shares only feature 2 with class 0 at k = 3:
    # tops at k = 3: 0 {0, 1, 2}, 1 {0, 1, 3}, 2 {2, 4, 5}, 3 {6, 7, 8}.
    # 0: {1, 2}, only 1 agrees: 1/2, although two of its three shared features lead to 1.
    # 1: {0}: 1. 2: {0}: 0. 3: none: 0. Mean: (1/2 + 1) / 4 = 3/8.
    weight = np.zeros((4, 9))
    for i, features in enumerate([(0, 1, 2), (0, 1, 3), (2, 4, 5), (6, 7, 8)]):
        weight[i, list(features)] = 1
    assert coherence(weight, TWO_PAIRS, 3) == 3 / 8


def test_an_isolated_class_counts_as_zero():
    # k = 1: 0 and 1 share feature 0 and agree; 2 and 3 have features of their own: (1 + 1 + 0 + 0) / 4.
    weight = [[5, 0, 0], [5, 0, 0], [0, 5, 0], [0, 0, 5]]
    assert coherence(weight, TWO_PAIRS, 1) == 1 / 2
    # zeros link nothing: with k = 3 every weight is among the top, and the answer is the same
    assert coherence(weight, TWO_PAIRS, 3) == 1 / 2
    assert coherence_curve(weight, TWO_PAIRS, 3) == ([0.5] * 3, [2] * 3)


def test_magnitude_decides_not_the_sign():
    # by value class 1 would have feature 1; by magnitude it has feature 0, as class 0 has
    weight = [[9, 1], [-8, 2], [1, -7], [2, 9]]
    assert coherence(weight, TWO_PAIRS, 1) == 1
    assert coherence_graph(weight, 1).edges["class 1", "feature 0"]["weight"] == -8


def test_of_equal_magnitudes_the_lower_index_counts():
    # every class has its two weights equal in magnitude: all take feature 0, none feature 1
    weight = torch.tensor([[1.0, -1.0], [-1.0, 1.0], [1.0, 1.0], [-1.0, -1.0]])
    assert top_features(weight, 1)[0].tolist() == [[0]] * 4
    assert coherence(weight, TWO_PAIRS, 1) == pytest.approx(1 / 3)
    assert top_features(torch.ones(2, 1000), 50)[0].tolist() == [list(range(50))] * 2


@given(st.data())
def test_coherence_matches_the_implementation_with_sets(data):
    classes = data.draw(st.integers(2, 8))
    features = data.draw(st.integers(1, 12))
    few = st.integers(-3, 3)  # small integers: ties and zeros abound
    weight = data.draw(
        st.lists(st.lists(few, min_size=features, max_size=features), min_size=classes, max_size=classes)
    )
    superclass = data.draw(st.lists(st.integers(0, 2), min_size=classes, max_size=classes))
    curve, _ = coherence_curve(np.array(weight, dtype=float), superclass, features)
    for k in range(1, features + 1):
        expected = by_sets(weight, superclass, k)
        assert coherence(np.array(weight, dtype=float), superclass, k) == pytest.approx(expected)
        assert curve[k - 1] == pytest.approx(expected)
        assert 0 <= curve[k - 1] <= 1


def test_a_curve_over_many_values_of_k():
    weight = torch.randn(100, 3000, generator=torch.Generator().manual_seed(0))
    superclass = torch.arange(100) // 5
    curve, isolated = coherence_curve(weight, superclass, 50)
    assert curve[19] == pytest.approx(by_sets(weight.tolist(), superclass.tolist(), 20))
    assert isolated == sorted(isolated, reverse=True)  # more features never separate classes


def test_the_graph_keeps_all_classes_and_shared_features():
    weight = [[5, 0, 3], [5, 0, 0], [0, 5, 3], [0, 4, 0], [0, 0, 0.5]]
    graph = coherence_graph(weight, 1, ["a", "b", "c", "d", "e"])
    assert {n for n, d in graph.nodes(data=True) if d["bipartite"] == 1} == {"feature 0", "feature 1"}
    assert graph.nodes["class 4"]["name"] == "e" and graph.degree["class 4"] == 0
    edges, components, isolated = describe_graph(graph)
    assert edges == [[0, 0, 5.0], [1, 0, 5.0], [2, 1, 5.0], [3, 1, 4.0]] and isolated == [4]
    assert components == [{"classes": [0, 1], "features": [0]}, {"classes": [2, 3], "features": [1]}]
    both = [{"classes": [0, 1, 2, 3, 4], "features": [0, 1, 2]}]
    assert describe_graph(coherence_graph(weight, 2))[1:] == (both, [])


def test_graphml_takes_any_name(tmp_path):
    import networkx

    names = ["<script>alert('\"')</script>", "control \x01\x00", "\udc80 & $"]
    write_graphml(coherence_graph([[5, 1], [5, 1], [5, 1]], 1, names), tmp_path / "g.graphml")
    back = networkx.read_graphml(tmp_path / "g.graphml")
    assert back.nodes["class 0"]["name"] == names[0]
    assert back.nodes["class 1"]["name"] == "control " and back.number_of_edges() == 3


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
def test_files_of_an_analysis_that_cannot_be_completed_are_not_there(tmp_path):
    import resource

    images = ImageSet("x", torch.zeros(4, 3, 32, 32, dtype=torch.uint8))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(UserError, match=r"the graph cannot be written to .*g\.graphml: File too large"):
            write_graphml(coherence_graph([[5, 1], [5, 1]], 1), tmp_path / "g.graphml")
        with pytest.raises(UserError, match=r"the thumbnails cannot be written to .*-0\.jpg: File too large"):
            write_thumbnails(images, [0, 1], tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_wrong_input_raises():
    for k in (0, 3):
        with pytest.raises(ValueError, match="from 1 to 2"):
            coherence([[1.0, 2.0]], [0], k)
    with pytest.raises(ValueError, match="one for each class"):
        coherence([[1.0, 2.0]], [0, 1], 1)
    with pytest.raises(ValueError, match="not finite"):
        coherence([[float("nan"), 2.0]], [0], 1)


def test_the_names_are_functions_whatever_was_imported():
    import simplicia.analyze
    import simplicia.analyze.class_coherence
    import simplicia.analyze.covariance_spectrum

    assert callable(simplicia.analyze.coherence) and callable(simplicia.analyze.spectrum)
    with pytest.raises(AttributeError, match="coherent"):
        _ = simplicia.analyze.coherent
