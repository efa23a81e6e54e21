"""Simplices of the same logits at several temperatures, as probes at all of them need them."""

import functools
import importlib.util

import torch
from torch import Tensor

from simplicia.sem import simplicial

TILE = 2048  # values of a program


def simplices(
    logits: Tensor, vertices: int, temperatures: tuple[float, ...], dtype: torch.dtype = torch.float32
) -> Tensor:
    """(N, L * V) to (temperatures, N, L * V). On a GPU the logits are read once for all temperatures."""
    if not logits.is_cuda or importlib.util.find_spec("triton") is None:
        return torch.stack([simplicial(logits, vertices, tau).to(dtype) for tau in temperatures])
    return at_once(logits, vertices, temperatures, dtype)


def at_once(logits: Tensor, vertices: int, temperatures: tuple[float, ...], dtype: torch.dtype) -> Tensor:
    """``simplices`` by its kernel."""
    import triton

    from simplicia.evaluate.multi_temperature_kernel import softmaxes

    logits = logits.contiguous()
    out = torch.empty(len(temperatures), *logits.shape, dtype=dtype, device=logits.device)
    count, pad = logits.numel() // vertices, triton.next_power_of_2(vertices)
    block = max(1, TILE // pad)
    scales = _inverse(temperatures, logits.device)
    with torch.cuda.device_of(logits):  # a kernel runs on the current one
        softmaxes[(triton.cdiv(count, block),)](
            logits, out, scales, count, len(temperatures), vertices, pad, block
        )
    return out


@functools.cache
def _inverse(temperatures: tuple[float, ...], device: torch.device) -> Tensor:
    """1 / temperature, infinite for 0."""
    return 1 / torch.tensor(temperatures, device=device)
