"""What ``simplicial`` costs beside a bare softmax, forward and backward."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from simplicia.provenance import commit, versions
from simplicia.sem import simplicial

SHAPES = ((64, 5000, 13), (256, 5000, 13), (256, 512, 8), (32, 64, 1024))  # batch, simplices, vertices


def bench_sem(device: str = "auto", rounds: int = 21) -> list[dict[str, Any]]:
    """Milliseconds of a softmax over each group, and how many times that ``simplicial`` takes."""
    from simplicia.devices import choose

    place = choose(device)
    rows = []
    for batch, simplices, vertices in SHAPES:
        x = torch.randn(batch, simplices * vertices, device=place, requires_grad=True)
        grad = torch.randn_like(x)
        variants: dict[str, Callable[[Tensor], Tensor]] = {
            "softmax": partial(_softmax, vertices=vertices),
            "temperature 1": partial(simplicial, vertices=vertices),
            "temperature 0.5": partial(simplicial, vertices=vertices, temperature=0.5),
        }
        times: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(rounds):  # taking turns, so that all meet the same machine
            for name, function in variants.items():
                times[name].append(_seconds(function, x, grad))
        median = {name: statistics.median(t) for name, t in times.items()}
        rows.append(
            {
                "batch": batch,
                "simplices": simplices,
                "vertices": vertices,
                "softmax_ms": 1e3 * median["softmax"],
            }
            | {f"ratio at {name}": t / median["softmax"] for name, t in median.items() if name != "softmax"}
            | {"threads": torch.get_num_threads(), "commit": commit(), **versions(place)}
        )
    return rows


def _softmax(x: Tensor, vertices: int) -> Tensor:
    return torch.softmax(x.unflatten(-1, (-1, vertices)), -1).flatten(-2)


def _seconds(function: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> float:
    x.grad = None
    start = time.perf_counter()
    function(x).backward(grad)
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start
