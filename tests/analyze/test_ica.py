"""ICA: mixed sources are recovered, up to order and sign; impossible requests are errors."""

import pytest
import torch

from simplicia.analyze import ica
from simplicia.errors import UserError


def mixed(samples=4000):
    generator = torch.Generator().manual_seed(0)
    time = torch.linspace(0, 60, samples)
    uniform = torch.rand(samples, generator=generator) - 0.5
    sources = torch.stack([torch.sin(2 * time), torch.sign(torch.sin(3.1 * time)), uniform], 1)
    return sources, sources @ torch.randn(3, 8, generator=generator) + 5


def test_mixed_sources_are_recovered():
    sources, features = mixed()
    recovered, fitted = ica(features, 3, seed=0)
    assert fitted.converged and recovered.dtype == features.dtype
    both = torch.corrcoef(torch.cat([sources, recovered], 1).T)[:3, 3:].abs()
    assert both.max(1).values.min() > 0.98  # each source is one component …
    assert sorted(both.argmax(1).tolist()) == [0, 1, 2]  # … and no component is used twice
    torch.testing.assert_close(recovered.T.cov(correction=0), torch.eye(3), atol=1e-2, rtol=0)  # whitened


def test_the_transform_applies_to_new_features():
    _, features = mixed()
    recovered, fitted = ica(features[:3000], 3)
    torch.testing.assert_close(fitted(features[:3000]), recovered, rtol=1e-4, atol=1e-4)
    assert fitted(features[3000:]).shape == (1000, 3)
    again, _ = ica(features[:3000], 3)
    assert torch.equal(recovered, again)


def test_a_fit_that_did_not_converge_is_marked():
    generator = torch.Generator().manual_seed(1)
    _, fitted = ica(torch.randn(100, 20, generator=generator), 20, iterations=2)  # nothing to find
    assert not fitted.converged


@pytest.mark.parametrize(
    ("shape", "components", "message"),
    [((5, 8), 5, "from 1 to 4"), ((50, 8), 9, "from 1 to 8"), ((50, 8), 0, "1")],
)
def test_too_many_components_are_refused(shape, components, message):
    with pytest.raises(UserError, match=message):
        ica(torch.randn(shape), components)


def test_features_that_do_not_vary_enough_are_refused():
    with pytest.raises(UserError, match="vary in 3 dimensions"):
        ica(mixed(200)[1], 4)
