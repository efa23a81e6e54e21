"""Retrieval by code: against counting equal codes one by one."""

import pytest
import torch
import torch.nn.functional as F

from simplicia.analyze import nearest
from simplicia.analyze.retrieval import chance, precision
from simplicia.neighbours import cosine


def test_nearest_is_brute_force_with_the_lower_index_first():
    codes = torch.randint(0, 3, (40, 9), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    queries = torch.tensor([0, 7, 39])
    indices, share = nearest(codes, queries, 12)
    for row, query in enumerate(queries.tolist()):
        common = {i: int((codes[i] == codes[query]).sum()) for i in range(40) if i != query}
        order = sorted(common, key=lambda i: (-common[i], i))[:12]
        assert indices[row].tolist() == order
        assert share[row].tolist() == pytest.approx([common[i] / 9 for i in order])


def test_k_is_limited_to_the_other_images():
    indices, share = nearest(torch.zeros(3, 2, dtype=torch.uint8), torch.tensor([1]), 10)
    assert indices.tolist() == [[0, 2]] and share.tolist() == [[1.0, 1.0]]


def test_nearest_by_cosine():
    x = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    indices, value = nearest(x, torch.tensor([4]), 3, cosine)
    expected = F.cosine_similarity(x[4][None], x)
    expected[4] = -2
    assert indices[0].tolist() == expected.argsort(descending=True)[:3].tolist()
    torch.testing.assert_close(value[0], expected.sort(descending=True).values[:3])


def test_precision_equals_a_count_by_hand():
    labels = torch.tensor([0, 0, 1, 1, 2])
    queries = torch.tensor([0, 2])
    neighbours = torch.tensor([[1, 2], [4, 3]])
    # query 0 (label 0): 0 yes, 1 no; query 2 (label 1): 2 no, 1 yes
    assert precision(neighbours, queries, labels, [1, 2]) == [0.5, 0.5]
    superclass = torch.tensor([0, 1, 1])
    assert precision(neighbours, queries, superclass[labels], [1, 2]) == [1.0, 0.75]
    # of 5 * 4 ordered pairs, 2 + 2 have equal labels
    assert chance(labels) == pytest.approx(4 / 20)
