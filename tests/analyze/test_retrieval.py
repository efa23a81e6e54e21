"""Retrieval by code: against counting equal codes one by one."""

import pytest
import torch
import torch.nn.functional as F

from simplicia.analyze import nearest
from simplicia.analyze.retrieval import chance, nearest_by_cosine, precision


def test_nearest_is_brute_force_with_the_lower_index_first():
    codes = torch.randint(0, 3, (40, 9), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    queries = torch.tensor([0, 7, 39])
    found, share = nearest(codes, queries, 12, 3)
    for row, query in enumerate(queries.tolist()):
        common = {i: int((codes[i] == codes[query]).sum()) for i in range(40) if i != query}
        order = sorted(common, key=lambda i: (-common[i], i))[:12]
        assert found[row].tolist() == order
        assert share[row].tolist() == pytest.approx([common[i] / 9 for i in order])


def test_there_are_no_more_neighbours_than_other_images():
    found, share = nearest(torch.zeros(3, 2, dtype=torch.uint8), torch.tensor([1]), 10, 4)
    assert found.tolist() == [[0, 2]] and share.tolist() == [[1.0, 1.0]]


def test_by_cosine():
    x = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    found, value = nearest_by_cosine(x, torch.tensor([4]), 3)
    cosine = F.cosine_similarity(x[4][None], x)
    cosine[4] = -2
    assert found[0].tolist() == cosine.argsort(descending=True)[:3].tolist()
    torch.testing.assert_close(value[0], cosine.sort(descending=True).values[:3])


def test_precision_on_paper():
    labels = torch.tensor([0, 0, 1, 1, 2])
    queries = torch.tensor([0, 2])
    found = torch.tensor([[1, 2], [4, 3]])
    # query 0 (label 0): 0 yes, 1 no; query 2 (label 1): 2 no, 1 yes
    assert precision(found, queries, labels, [1, 2]) == [0.5, 0.5]
    superclass = torch.tensor([0, 1, 1])
    assert precision(found, queries, superclass[labels], [1, 2]) == [1.0, 0.75]
    # of 5 * 4 ordered pairs, 2 + 2 have equal labels
    assert chance(labels) == pytest.approx(4 / 20)
