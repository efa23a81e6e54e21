"""What a view costs: milliseconds per view of a batch, eager and, on a GPU, compiled and captured."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from simplicia.data.augmentation import Views, ViewSettings
from simplicia.provenance import commit, versions

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
# every kind of change, each as likely as in the recipes with the strongest views
STRONG = ViewSettings(
    brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2, blur=(0.5, 0.5), solarise=(0.2, 0.2)
)


def bench_views(
    device: str = "auto", rounds: int = 20, shapes: tuple[tuple[int, int], ...] = ((256, 32), (128, 224))
) -> list[dict[str, Any]]:
    """For each (batch, size): eager, and on a GPU also compiled and captured as the training step does."""
    from simplicia.devices import choose

    place = choose(device)
    rows = []
    for batch, size in shapes:
        images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, device=place)
        views = Views(STRONG, size, MEAN, STD)
        ways: dict[str, Callable[[], Any]] = {"eager": partial(views, images)}
        if place.type == "cuda":
            ways["captured"] = _captured(views, images)
        times = {name: time_of(way, rounds, place) for name, way in ways.items()}
        for name, seconds in times.items():
            rows.append(
                {
                    "views": name,
                    "batch": batch,
                    "size": size,
                    "ms_per_view": 1e3 * seconds / 2,
                    "images_per_s": batch / seconds,
                    "speedup_over_eager": times["eager"] / seconds,
                    "threads": torch.get_num_threads(),
                    "commit": commit(),
                    **versions(place),
                }
            )
    return rows


def time_of(way: Callable[[], Any], rounds: int, device: torch.device) -> float:
    """The median of a call's seconds, after three calls to warm up."""
    taken = []
    for i in range(rounds + 3):
        start = time.perf_counter()
        way()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if i >= 3:
            taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def _captured(views: Views, images: torch.Tensor) -> Callable[[], Any]:
    compiled = torch.compile(lambda x: torch.cat(views(x)), fullgraph=True, dynamic=False)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            compiled(images)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compiled(images)
    return graph.replay
