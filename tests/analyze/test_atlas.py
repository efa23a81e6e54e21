"""The atlas: counts one by one, mutual information against scikit-learn, dead and duplicate vertices."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import mutual_info_score

from simplicia import simplicial
from simplicia.analyze import Atlas

L, V, C = 6, 4, 3


def fill(codes, labels=None, classes=C, vertices=V, batch=7):
    atlas = Atlas(codes.shape[1], vertices, classes)
    p = F.one_hot(codes, vertices).float().flatten(1)
    for start in range(0, len(codes), batch):
        part = slice(start, start + batch)
        atlas.add(codes[part], p[part], None if labels is None else labels[part])
    return atlas


@pytest.fixture
def random():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, V, (50, L), generator=generator), torch.randint(0, C, (50,), generator=generator)


def test_counts_one_by_one(random):
    codes, labels = random
    expected = torch.zeros(L, V, C, dtype=torch.int32)
    for row, label in zip(codes.tolist(), labels.tolist(), strict=True):
        for simplex, vertex in enumerate(row):
            expected[simplex, vertex, label] += 1
    atlas = fill(codes, labels)
    assert torch.equal(atlas.table, expected) and torch.equal(atlas.fired, expected.sum(-1))


def test_mutual_information_matches_scikit_learn(random):
    codes, labels = random
    codes[:, 0] = labels  # one simplex encodes the class
    atlas = fill(codes, labels)
    simplex, vertex = atlas.simplex_information(), atlas.vertex_information()
    for i in range(L):
        assert simplex[i].item() == pytest.approx(mutual_info_score(codes[:, i], labels), abs=1e-9)
        for v in range(V):
            expected = mutual_info_score(codes[:, i] == v, labels)
            assert vertex[i, v].item() == pytest.approx(expected, abs=1e-9)
    summary = atlas.summary()
    assert summary["best_simplices"][0]["simplex"] == 0
    assert summary["best_simplices"][0]["information"] == pytest.approx(summary["class_entropy"])
    assert atlas.ranked(3)[0][0] in (0, 1, 2)  # a vertex of simplex 0


def test_dead_vertices_and_constant_or_duplicate_simplices():
    codes = torch.tensor(
        [  # 1 is a permuted copy of simplex 0, 2 differs in one image, 3 and 4 are constant
            [0, 2, 0, 1, 1],
            [1, 0, 1, 1, 1],
            [0, 2, 0, 1, 1],
            [1, 0, 0, 1, 1],
        ]
    )
    atlas = fill(codes, batch=3)
    summary = atlas.summary()
    # used: 0 {0, 1}, 1 {2, 0}, 2 {0, 1}, 3 {1}, 4 {1}: 8 of 20
    assert summary["dead_vertices"] == 12 and summary["used_vertices"] == [0, 2, 3, 0, 0]
    assert summary["constant_simplices"] == 2
    assert summary["duplicate_groups"] == [[0, 1]] and summary["duplicate_simplices"] == 1
    # both vertices of simplex 1, and the vertex of 4
    assert summary["duplicate_vertices"] == 3


def test_no_class_dominates_the_ranking():
    # twelve simplices whose vertex 1 fires on class 0 alone, and one for each of the five other classes
    labels = torch.arange(60) % 6
    columns = [labels == 0] * 12 + [labels == c for c in range(1, 6)]
    atlas = fill(torch.stack(columns, 1).long(), labels, classes=6, vertices=2)
    chosen, score = atlas.ranked(8)
    strongest = atlas.table.view(-1, 6).argmax(-1)
    about_0 = [feature for feature in chosen if strongest[feature] == 0]
    assert len(about_0) == 4 and len(chosen) == 8  # three times the share of one class in six: 3 * 8 / 6
    values = score.flatten()[chosen]
    assert (values.diff() <= 0).all() and values[0] == score.max()


def test_without_labels_contrast_ranks():
    logits = torch.randn(40, L * V, generator=torch.Generator().manual_seed(2))
    logits[:, 0] *= 30  # vertex 0 of simplex 0 is all or nothing
    p = simplicial(logits, V)
    atlas = Atlas(L, V)
    for part in p.split(9):
        atlas.add(part.unflatten(1, (L, V)).argmax(-1), part)
    torch.testing.assert_close(
        atlas.contrast().flatten(), p.double().std(0, correction=0), atol=1e-6, rtol=1e-4
    )
    chosen, _ = atlas.ranked(5)
    assert chosen[0] == 0 and atlas.summary()["simplex_information"] is None
