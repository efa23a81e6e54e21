"""Entropy histograms: streamed equals direct, and extreme values fall into the outer bins."""

import math

import numpy as np
import pytest
import torch

from simplicia import entropy, simplicial
from simplicia.analyze import entropy_histogram


def test_streamed_histogram_equals_the_direct_one():
    p = simplicial(torch.randn(70, 12 * 5, generator=torch.Generator().manual_seed(0)), 5, 0.5)
    histogram = entropy_histogram(p.split(16), 5, bins=20)
    nats = entropy(p, 5).numpy()
    counts, edges = np.histogram(nats, 20, (0, math.log(5)))
    assert histogram["counts"] == counts.tolist() and histogram["count"] == 70 * 12
    np.testing.assert_allclose(histogram["edges"], edges)
    assert histogram["mean"] == pytest.approx(nats.mean(), rel=1e-5)


def test_one_hot_is_in_the_first_bin_and_uniform_in_the_last():
    one_hot = torch.eye(4).repeat(1, 3)
    assert entropy_histogram([one_hot], 4, 10)["counts"] == [12] + [0] * 9
    uniform = torch.full((4, 12), 0.25)
    assert entropy_histogram([uniform], 4, 10)["counts"] == [0] * 9 + [12]
    assert entropy_histogram([torch.ones(2, 3)], 1, 10)["mean"] == 0  # V = 1 has one point


def test_no_simplices_is_an_error():
    with pytest.raises(ValueError, match="no simplices"):
        entropy_histogram([], 4)


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 0.01, 0.3, 1.0, 7.0])
def test_single_precision_matches_double(temperature):
    logits = 30 * torch.randn(9, 26, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        simplicial(logits, 13, temperature),
        simplicial(logits.double(), 13, temperature).float(),
        rtol=1e-4,
        atol=1e-7,
    )
