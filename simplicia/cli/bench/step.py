"""How fast a step is: ms per step, images per second, peak memory and the share of each part."""

import gc
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from simplicia import devices
from simplicia.cli.bench.floor import floor
from simplicia.cli.bench.kernels import kernels, parts
from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError, unknown
from simplicia.provenance import commit, versions
from simplicia.settings import with_changes
from simplicia.train import recipes
from simplicia.train.auto import resolve
from simplicia.train.step import ENGINES
from simplicia.train.trainer import Trainer


def bench_step(
    name: str,
    engine: str = "auto",
    steps: int = 100,
    device: str = "auto",
    images: int | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """The whole step of a recipe, data and augmentation included, on random images of its size.

    As many ``images`` as CIFAR has, or of larger ones as many as take the memory of those, and two batches.
    """
    if steps < 5:
        raise UserError(f"steps is {steps}; five rounds need at least 5")
    recipe = with_changes(recipes.get(name), changes)
    fabric = devices.launch(device, 1, recipe.precision)
    size = recipe.actual_decode_size or 32
    if images is None:
        images = max(50_000 * 32**2 // size**2, 2 * recipe.batch_size)
    pixels = torch.randint(0, 256, (images, 3, size, size), dtype=torch.uint8)
    of_files = recipe.keep_aspect and datasets.has_files(recipe.data)
    data = ImageSet(
        "random",
        pixels,
        torch.zeros(images, dtype=torch.long),
        classes=("none",),
        aspect_ratios=torch.full((images,), 4 / 3) if of_files else None,
    )
    recipe, _ = resolve(recipe, data, fabric.device)
    on_gpu = fabric.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    training = Trainer(recipe, data, fabric, engine)
    training.step(0).loss.item()
    startup = time.perf_counter() - start
    for step in range(1, 6):
        training.step(step).loss.item()
    rounds = []
    for _ in range(5):
        start = time.perf_counter()
        for step in range(steps // 5):
            output = training.step(step)
        output.loss.item()
        rounds.append((time.perf_counter() - start) / (steps // 5))
    seconds = statistics.median(rounds)
    shares = parts(kernels(lambda: training.step(steps))) if on_gpu else {}
    about = versions(fabric.device)
    least = floor(recipe).ms(about["device"])
    return {
        "recipe": name,
        "engine": type(training.step).__name__,
        "ms_per_step": 1e3 * seconds,
        "ms_spread": [1e3 * min(rounds), 1e3 * max(rounds)],
        "images_per_s": recipe.batch_size / seconds,
        "floor_ms": least,
        "over_floor": None if least is None else 1e3 * seconds / least,
        "peak_gib": torch.cuda.max_memory_reserved() / 2**30 if on_gpu else None,
        "peak_allocated_gib": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None,
        "batch_size": recipe.batch_size,
        "startup_s": startup,
        "ms_of": shares,
        "changes": changes,
        "seed": recipe.seed,
        "commit": commit(),
        **about,
    }


def bench_steps(
    names: list[str],
    engines: list[str],
    steps: int = 100,
    device: str = "auto",
    path: str | None = None,
    **changes: Any,
) -> list[dict[str, Any]]:
    """Several recipes with several engines, one after the other; written to ``path`` as they come."""
    found: list[dict[str, Any]] = []
    for engine in engines:
        if engine not in ENGINES:
            raise unknown("engine", engine, ENGINES)
    if devices.choose(device).type != "cuda":
        engines = ["eager"]  # which is what "auto" is there
    for name in names:
        eager = None
        for engine in sorted(engines, key=lambda engine: engine != "eager"):  # what others are compared with
            row = bench_step(name, engine, steps, device, **changes)
            eager = row["ms_per_step"] if row["engine"] == "Step" else eager
            row["speedup_over_eager"] = None if eager is None else eager / row["ms_per_step"]
            found.append(row)
            torch.compiler.reset()
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if path is not None:
                Path(path).write_text(json.dumps(found, indent=1) + "\n")
    return found
