"""Where a step's time goes on a GPU, by kind of work."""

import re
from collections.abc import Callable
from typing import Any

import torch

PARTS = {  # kind of work: what its kernels are called; the first that matches
    "update": r"^(square|trust|move)$",
    "normalisation": r"^(sums|apply|gradient_\w+|column_\w+|simplicial)$",
    "convolutions": r"conv|wgrad|dgrad|fprop|cudnn|implicit",
    "matrix products": r"gemm|nvjet|cutlass|cublas|splitk|triton_tem",
    "reductions": r"triton_(red|per)",
    "elementwise": r"triton_|elementwise|copy|fill",
}


def kernels(work: Callable[[], Any], repeats: int = 10) -> list[dict[str, Any]]:
    """Every kernel that ``work`` runs: name, launches and milliseconds in one call, longest first."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
    found = [
        {"kernel": e.key, "launches": e.count / repeats, "ms": e.self_device_time_total / 1e3 / repeats}
        for e in profiler.key_averages()
        if e.self_device_time_total > 0
    ]
    return sorted(found, key=lambda row: -row["ms"])


def parts(found: list[dict[str, Any]]) -> dict[str, float]:
    """Milliseconds of each kind of work, from what ``kernels`` found."""
    total = dict.fromkeys([*PARTS, "other"], 0.0)
    for row in found:
        kind = next((k for k, pattern in PARTS.items() if re.search(pattern, row["kernel"])), "other")
        total[kind] += row["ms"]
    return total
