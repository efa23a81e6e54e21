"""Simplices at several temperatures at once. Without a GPU test_kernels.py has the kernel interpreted."""

import pytest
import torch

from simplicia.evaluate.probe_inputs import simplices
from simplicia.sem import simplicial

GPU = torch.cuda.is_available()
TEMPERATURES = (1e-6, 1e-4, 0.1, 1.0, 10.0, 0.0)


@pytest.mark.kernels
@pytest.mark.filterwarnings("ignore:invalid value encountered")  # masked elements
@pytest.mark.parametrize("shape", [(9, 7, 13), (3, 700, 13), (5, 5, 2), (2, 3, 64), (4, 4, 1), (2, 1, 2100)])
@pytest.mark.parametrize("dtype", [torch.half, torch.float32])
def test_the_kernel_matches_softmax(shape, dtype):
    from simplicia.evaluate.multi_temperature_kernel import multi_temperature

    torch.manual_seed(0)
    images, count, vertices = shape
    logits = 3 * torch.randn(images, count * vertices)
    logits[0] = logits[0].round()  # some are equal
    result = multi_temperature(logits.cuda() if GPU else logits, vertices, TEMPERATURES, dtype).cpu()
    assert result.dtype == dtype
    for ours, tau in zip(result.float(), TEMPERATURES, strict=True):
        exact = simplicial(logits.double(), vertices, tau).float()
        torch.testing.assert_close(ours, exact, rtol=0, atol=5e-4 if dtype == torch.half else 1e-5)


def test_without_a_gpu_temperatures_stay_in_order():
    logits = torch.randn(4, 26)
    result = simplices(logits, 13, (0.0, 0.5, 5.0), torch.half)
    assert result.shape == (3, 4, 26) and result.dtype == torch.half
    torch.testing.assert_close(
        result.unflatten(-1, (2, 13)).sum(-1).float(), torch.ones(3, 4, 2), rtol=0, atol=5e-3
    )
    sharpest = result.unflatten(-1, (2, 13)).amax(-1)
    assert (sharpest[0] == 1).all() and (sharpest[1] > sharpest[2]).all()
