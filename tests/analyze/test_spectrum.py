"""The spectrum: every way of computing it gives the singular values of the covariance."""

import numpy as np
import pytest
import torch

from simplicia.analyze import effective_rank, spectrum
from simplicia.train import monitor


def dense(features):
    """The definition: the covariance with 1/N, and its singular values."""
    return np.linalg.svd(np.cov(features.numpy(), rowvar=False, bias=True), compute_uv=False)


def sample(n, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scale = 0.9 ** torch.arange(d)
    return torch.randn(n, d, generator=generator, dtype=torch.float64) * scale + 3


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (20, 20), (9, 9000), (9000, 3), (1, 4)])
def test_spectrum_matches_the_dense_svd(shape):
    features = sample(*shape)
    values = spectrum(features)
    assert values.shape == (min(shape),) and (values.diff() <= 0).all()
    if shape[1] < 100:
        np.testing.assert_allclose(values, dense(features)[: min(shape)], atol=1e-12)
    else:  # the covariance would fill memory: the squares of the centred features' singular values over N
        direct = torch.linalg.svdvals(features - features.mean(0)) ** 2 / shape[0]
        torch.testing.assert_close(values, direct)


def test_small_values_survive_32_bits():
    features = sample(200, 300).float()
    features[:, 10:] = 0  # rank 10
    values = spectrum(features)
    assert (values[:10] > 1e-3).all() and (values[10:] < 1e-12).all()


def test_the_randomised_method_is_close():
    features = sample(300, 400).float()
    torch.testing.assert_close(spectrum(features, top=20), spectrum(features)[:20], rtol=1e-3, atol=1e-6)


def test_effective_rank_matches_the_training_log():
    features = sample(60, 30).float()
    assert effective_rank(spectrum(features)) == pytest.approx(monitor.effective_rank(features), rel=1e-4)
    # four directions of equal variance have rank four
    square = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    assert effective_rank(spectrum(torch.block_diag(square, square))) == pytest.approx(4)


def test_wrong_input_raises():
    with pytest.raises(ValueError, match="must be"):
        spectrum(torch.zeros(3))
    with pytest.raises(ValueError, match="from 1 to 2"):
        spectrum(torch.zeros(2, 5), top=3)


def test_the_randomised_method_is_deterministic_and_keeps_the_callers_random_state():
    features = torch.randn(60, 90)
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    first = spectrum(features, top=5)
    assert torch.rand(2).equal(expected)
    torch.manual_seed(2)
    assert spectrum(features, top=5).equal(first)
