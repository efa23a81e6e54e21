"""Packed codes against the plain comparison of integers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simplicia.codes import bits, informative

SIZES = st.tuples(st.integers(0, 40), st.integers(1, 140), st.integers(1, 300), st.integers(0, 2**32 - 1))


def drawn(n, simplices, vertices, seed=0):
    return np.random.default_rng(seed).integers(0, vertices, (n, simplices)).astype(np.uint16)


@given(SIZES)
def test_packed_codes_unpack_and_compare_as_the_integers(size):
    n, simplices, vertices, seed = size
    codes = drawn(n, simplices, vertices, seed)
    planes = bits.pack(codes, vertices)
    assert bits.unpack(planes, simplices, vertices).shape == codes.shape
    assert (bits.unpack(planes, simplices, vertices) == codes).all()
    assert (bits.column(planes, simplices - 1, vertices) == codes[:, -1]).all()
    query = codes[:1] if n else drawn(1, simplices, vertices)
    differing = bits.differing(planes, bits.pack(query, vertices)[:, 0], bits.bits_of(vertices))
    assert (differing == (codes != query).sum(1)).all()


def test_256_simplices_of_13_vertices_take_128_bytes():
    planes = bits.pack(drawn(3, 256, 13), 13)
    assert planes.nbytes == 3 * 128


def test_many_images_are_compared_in_chunks():
    codes = drawn(bits.CHUNK + 5, 70, 13)
    planes = bits.pack(codes, 13)
    expected = (codes != codes[-1]).sum(1)
    assert (bits.differing(planes, planes[:, -1], 4) == expected).all()
    near, differ = bits.nearest(planes, planes[:, -1], 4, 10, len(planes), 0)
    order = np.argsort(expected, kind="stable")[:10]
    assert near.tolist() == order.tolist() and differ.tolist() == expected[order].tolist()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 40))
def test_smallest_takes_the_first_of_equal_values(values, k):
    values = np.array(values, dtype=np.uint16)
    assert bits.smallest(values, k).tolist() == np.argsort(values, kind="stable")[:k].tolist()


@pytest.mark.parametrize("k", [1, 7, 64])
@pytest.mark.parametrize("most", [1, 3, 200])
def test_smallest_of_many_values(k, most):
    """Also where a sample suggests too few: the values that it leaves out may be the smallest."""
    values = np.random.default_rng(k).integers(0, most + 1, 5000).astype(np.uint16)
    for start in (0, 1):
        values[start::16] += 7
        assert bits.smallest(values, k).tolist() == np.argsort(values, kind="stable")[:k].tolist()


def test_a_prefix_finds_what_is_near_in_all_simplices():
    codes = drawn(2000, 256, 13)
    codes[7] = codes[3]
    codes[7, ::9] = (codes[3, ::9] + 1) % 13
    planes = bits.pack(codes, 13)
    near, differ = bits.nearest(planes, planes[:, 3], 4, 2, 1, 50)
    assert near.tolist() == [3, 7] and differ.tolist() == [0, 29]


def test_chosen_simplices_are_informative_and_not_redundant():
    """Simplices 0 to 3 are independent; 4 to 7 repeat them under other names; 8 is constant, 9 nearly so."""
    rng = np.random.default_rng(0)
    independent = rng.integers(0, 5, (1500, 4))
    repeated = (independent + 2) % 5
    rare = np.where(rng.random((1500, 1)) < 0.01, 1, 0)
    codes = np.concatenate([independent, repeated, np.zeros((1500, 1), int), rare], 1)
    chosen = informative.choose(codes, 5, 4)
    assert sorted(i % 4 for i in chosen.tolist()) == [0, 1, 2, 3] and max(chosen) < 8
    fifth = informative.choose(codes, 5, 5)[4]
    assert fifth == 9  # 0.08 bits are more than a repetition adds
    assert sorted(informative.choose(codes, 5, 99).tolist()) == list(range(10))


def test_entropies_are_those_of_the_counts():
    codes = torch.tensor([[0, 0], [1, 0], [2, 0], [3, 1]])
    expected = [2.0, 0.25 * 2 + 0.75 * np.log2(4 / 3)]
    assert informative.entropies(codes, 4).tolist() == pytest.approx(expected)
