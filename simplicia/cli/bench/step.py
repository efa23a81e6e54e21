"""Time a training step: ms per step, images per second, peak memory and, on a GPU, the kinds of kernels."""

import gc
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from simplicia import devices
from simplicia.cli.bench.floor import floor
from simplicia.cli.bench.timing import provenance, time_in_turns
from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError, unknown
from simplicia.result import write_json
from simplicia.settings import with_changes
from simplicia.train import recipes
from simplicia.train.auto import resolve
from simplicia.train.recipe import Recipe
from simplicia.train.step import ENGINES
from simplicia.train.trainer import Trainer

ROUNDS = 5
KERNELS = {  # kind of work: pattern of its kernels' names; the first match counts
    "update": r"^(square|trust|move)$",
    "normalisation": r"^(sums|apply|gradient_\w+|column_\w+|simplicial)$",
    "convolutions": r"conv|wgrad|dgrad|fprop|cudnn|implicit",
    "matrix products": r"gemm|nvjet|cutlass|cublas|splitk|triton_tem",
    "reductions": r"triton_(red|per)",
    "elementwise": r"triton_|elementwise|copy|fill",
}


def bench_step(
    name: str, engine: str = "auto", steps: int = 100, device: str = "auto", **changes: Any
) -> dict[str, Any]:
    """Time the full step of a recipe, loading and augmentation included, on random images of its size."""
    if steps < ROUNDS:
        raise UserError(f"steps is {steps}; {ROUNDS} rounds need at least {ROUNDS}")
    recipe = with_changes(recipes.get(name), changes)
    fabric = devices.launch(device, 1, recipe.precision)
    images = random_images(recipe)
    recipe, _ = resolve(recipe, images, fabric.device)
    on_gpu = fabric.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    step = Trainer(recipe, images, fabric, engine).step
    step(0).loss.item()
    startup = time.perf_counter() - start
    for i in range(1, 6):
        step(i).loss.item()

    def take_steps() -> None:
        for i in range(steps // ROUNDS):
            output = step(i)
        output.loss.item()

    times = time_in_turns({"steps": take_steps}, ROUNDS, fabric.device, warm_up=0)["steps"]
    ms = [1e3 * seconds / (steps // ROUNDS) for seconds in times]
    median = statistics.median(ms)
    about = provenance(fabric.device)
    least = floor(recipe).ms(about["device"])
    return {
        "recipe": name,
        "engine": type(step).__name__,
        "ms_per_step": median,
        "ms_spread": [min(ms), max(ms)],
        "images_per_s": 1e3 * recipe.batch_size / median,
        "floor_ms": least,
        "over_floor": None if least is None else median / least,
        "peak_gib": torch.cuda.max_memory_reserved() / 2**30 if on_gpu else None,
        "peak_allocated_gib": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None,
        "batch_size": recipe.batch_size,
        "startup_s": startup,
        "ms_of": by_kind(kernels(lambda: step(steps))) if on_gpu else {},
        "changes": changes,
        "seed": recipe.seed,
        **about,
    }


def random_images(recipe: Recipe) -> ImageSet:
    """As many random images as CIFAR has, or larger ones in the same memory; at least two batches."""
    size = recipe.actual_decode_size or 32
    count = max(50_000 * 32**2 // size**2, 2 * recipe.batch_size)
    pixels = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)
    from_files = recipe.keep_aspect and datasets.has_files(recipe.data)
    ratios = torch.full((count,), 4 / 3) if from_files else None
    return ImageSet("random", pixels, torch.zeros(count, dtype=torch.long), ("none",), aspect_ratios=ratios)


def bench_steps(
    names: Sequence[str],
    engines: Sequence[str],
    steps: int = 100,
    device: str = "auto",
    path: Path | None = None,
    **changes: Any,
) -> list[dict[str, Any]]:
    """Time several recipes with several engines; ``path`` is rewritten after each, as some take long."""
    rows: list[dict[str, Any]] = []
    for engine in engines:
        if engine not in ENGINES:
            raise unknown("engine", engine, ENGINES)
    if devices.choose(device).type != "cuda":
        engines = ["eager"]  # which "auto" chooses there
    for name in names:
        eager = None
        for engine in sorted(engines, key=lambda engine: engine != "eager"):  # the others relate to it
            row = bench_step(name, engine, steps, device, **changes)
            eager = row["ms_per_step"] if row["engine"] == "Step" else eager
            rows.append(row | {"speedup_over_eager": None if eager is None else eager / row["ms_per_step"]})
            torch.compiler.reset()
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if path is not None:
                write_json(path, rows)
    return rows


def kernels(work: Callable[[], Any], repeats: int = 10) -> list[dict[str, Any]]:
    """Every kernel of a call: name, launches and milliseconds, longest first."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
    rows = [
        {"kernel": e.key, "launches": e.count / repeats, "ms": e.self_device_time_total / 1e3 / repeats}
        for e in profiler.key_averages()
        if e.self_device_time_total > 0
    ]
    return sorted(rows, key=lambda row: -row["ms"])


def by_kind(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Milliseconds of each kind of work, from the rows of ``kernels``."""
    total = dict.fromkeys([*KERNELS, "other"], 0.0)
    for row in rows:
        kind = next((k for k, pattern in KERNELS.items() if re.search(pattern, row["kernel"])), "other")
        total[kind] += row["ms"]
    return total
