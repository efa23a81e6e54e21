"""Time a training step: ms per step, images per second, peak memory, the floor and, on a GPU, its kernels."""

import gc
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from simplicia import devices
from simplicia.analyze.model_cost import cost_of
from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError, unknown
from simplicia.provenance import commit, versions
from simplicia.result import write_json
from simplicia.settings import with_changes
from simplicia.train import recipes
from simplicia.train.auto import resolve
from simplicia.train.recipe import Recipe
from simplicia.train.step import ENGINES, step_times
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
# FLOP/s of large bf16 products and bytes/s of large copies, as measured on the device
REACHED = {"NVIDIA H200": (790e12, 4.3e12)}
# passes over the output of a convolution or linear layer. Forward: write it, read it for the sums of
# BatchNorm, read and write it to apply them. Backward: write its gradient, read both for the sums, read both
# again, and write
FORWARD, BACKWARD = 4, 6
HALF = 2  # bytes


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
    """Threads, commit, versions and device."""
    return {"threads": torch.get_num_threads(), "commit": commit(), **versions(device)}


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
    ms = step_times(step, steps // ROUNDS, ROUNDS)
    median, about = statistics.median(ms), provenance(fabric.device)
    least = floor_ms(recipe, about["device"])
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
        "ms_of": kernel_times(lambda: step(steps)) if on_gpu else {},
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
    names: Sequence[str], engines: Sequence[str], steps: int, device: str, path: Path | None, **changes: Any
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
            torch.cuda.empty_cache()
            if path is not None:
                write_json(path, rows)
    return rows


def kernel_times(work: Callable[[], Any], repeats: int = 10) -> dict[str, float]:
    """Milliseconds of each kind of kernel in a call."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
    total = dict.fromkeys([*KERNELS, "other"], 0.0)
    for event in profiler.key_averages():
        total[kind_of(event.key)] += event.self_device_time_total / 1e3 / repeats
    return total


def kind_of(kernel: str) -> str:
    """The kind of work that a kernel does."""
    return next((kind for kind, pattern in KERNELS.items() if re.search(pattern, kernel)), "other")


def floor_ms(recipe: Recipe, device: str) -> float | None:
    """The least milliseconds of a step: its computing, then its memory traffic; None on an unknown device.

    Both views go forward and backward, and forward through the target. One pass over the weights reads
    weight, gradient, momentum and target, and writes all but the gradient, with 16-bit copies of weight and
    target; LARS reads the gradient once more, for its norm.
    """
    if device not in REACHED:
        return None
    cost, samples = cost_of(recipe), 2 * recipe.batch_size
    shared = [cost.parts[name] for name in ("encoder", "bottleneck", "projector") if name in cost.parts]
    target = shared if cost.target_parameters else []
    flops = 2 * samples * (3 * cost.flops + sum(part.flops for part in target))  # a multiply-add is two
    passes = cost.activations * (FORWARD + BACKWARD) + sum(part.activations for part in target) * FORWARD
    momentum = HALF if recipe.optim.momentum_bits == "16" else 4
    per_weight = 2 * 4 + 2 * momentum + HALF + HALF * (1 + (recipe.optim.name == "lars"))
    weights = per_weight * cost.parameters + (2 * 4 + HALF) * cost.target_parameters
    speed, bandwidth = REACHED[device]
    return 1e3 * (flops / speed + (HALF * samples * passes + weights) / bandwidth)
