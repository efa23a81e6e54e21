"""The timing that all benchmarks share, and the provenance of their numbers."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from simplicia.provenance import commit, versions


def time_in_turns(
    functions: Mapping[str, Callable[[], Any]], rounds: int, device: torch.device, warm_up: int = 3
) -> dict[str, list[float]]:
    """Seconds of each call, after a warm-up; functions take turns, so that all see the same machine."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for i in range(warm_up + rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if i >= warm_up:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def provenance(device: torch.device) -> dict[str, Any]:
    """Commit, versions, device and threads."""
    return {"threads": torch.get_num_threads(), "commit": commit(), **versions(device)}
