"""Time the softmax of SEM, the augmentation, and the paper's linear probe."""

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simplicia import devices
from simplicia.cli.bench.step import provenance, time_in_turns
from simplicia.data.augmentation import Views, ViewSettings
from simplicia.data.datasets import ImageSet
from simplicia.engine.runner import CudaRunner
from simplicia.evaluate.probe import preset, probe
from simplicia.evaluate.probe_inputs import VIEWS_CACHE
from simplicia.run import Run
from simplicia.sem import simplicial
from simplicia.settings import with_changes
from simplicia.train import recipes

SEM_SHAPES = ((64, 5000, 13), (256, 5000, 13), (256, 512, 8), (32, 64, 1024))  # batch, simplices, vertices
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
# every augmentation, each as likely as in the recipes with the strongest views
STRONG = ViewSettings(
    brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2, blur=(0.5, 0.5), solarise=(0.2, 0.2)
)
# sizes of the probe: the paper's, and smaller ones for a CPU, which would need days
PAPER: dict[str, Any] = {"images": 50_000, "test_images": 10_000, "simplices": 5000, "vertices": 13}
PAPER |= {"classes": 100, "epochs": 4, "layer": "sem", "encoder": "resnet18"}
SMALL = {"images": 60, "test_images": 20, "simplices": 8, "classes": 4, "epochs": 3, "encoder": "tiny"}


def bench_sem(device: str = "auto", rounds: int = 21) -> list[dict[str, Any]]:
    """Milliseconds of a softmax over each group, forward and backward, and ``simplicial`` relative to it."""
    chosen, rows = devices.choose(device), []
    for batch, simplices, vertices in SEM_SHAPES:
        x = torch.randn(batch, simplices * vertices, device=chosen, requires_grad=True)
        grad = torch.randn_like(x)
        work = {
            "softmax": partial(_backward, _softmax, x, grad, vertices),
            "temperature 1": partial(_backward, simplicial, x, grad, vertices),
            "temperature 0.5": partial(_backward, simplicial, x, grad, vertices, temperature=0.5),
        }
        times = time_in_turns(work, rounds, chosen, warm_up=1)
        ms = {name: 1e3 * statistics.median(seconds) for name, seconds in times.items()}
        row = {"batch": batch, "simplices": simplices, "vertices": vertices, "softmax_ms": ms.pop("softmax")}
        row |= {f"ratio at {name}": value / row["softmax_ms"] for name, value in ms.items()}
        rows.append(row | provenance(chosen))
    return rows


def _softmax(x: Tensor, vertices: int) -> Tensor:
    return x.unflatten(-1, (-1, vertices)).softmax(-1).flatten(-2)


def _backward(function: Callable[..., Tensor], x: Tensor, grad: Tensor, *args: Any, **options: Any) -> None:
    x.grad = None
    function(x, *args, **options).backward(grad)


def bench_views(
    device: str = "auto", rounds: int = 20, shapes: tuple[tuple[int, int], ...] = ((256, 32), (128, 224))
) -> list[dict[str, Any]]:
    """Milliseconds per view for each (batch, size): eager and, on a GPU, captured as in a training step."""
    chosen, rows = devices.choose(device), []
    for batch, size in shapes:
        images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, device=chosen)
        views = Views(STRONG, size, MEAN, STD)
        work: dict[str, Callable[[], Any]] = {"eager": partial(views, images)}
        if chosen.type == "cuda":
            work["captured"] = _captured(views, images)
        times = {name: statistics.median(s) for name, s in time_in_turns(work, rounds, chosen).items()}
        for name, seconds in times.items():
            row = {"views": name, "batch": batch, "size": size, "ms_per_view": 1e3 * seconds / 2}
            row |= {"images_per_s": batch / seconds, "speedup_over_eager": times["eager"] / seconds}
            rows.append(row | provenance(chosen))
    return rows


def _captured(views: Views, images: Tensor) -> Callable[[], Any]:
    runner = CudaRunner()
    compiled: Any = runner.compile(lambda: torch.cat(views(images)))
    for _ in range(3):
        runner.warm_up(compiled)
    return runner.record(compiled)


def bench_probe(device: str = "auto") -> list[dict[str, Any]]:
    """Seconds per epoch of the paper's CIFAR grid and of its retraining, and of the full protocol.

    The images are random. The first epoch of each part compiles; ``seconds_per_epoch`` leaves it out.
    """
    chosen, settings = devices.choose(device), preset("cifar")
    on_gpu, size = chosen.type == "cuda", PAPER
    if chosen.type == "cpu":
        print("on a CPU the probe is timed at small sizes, not the paper's")
        size = PAPER | SMALL
    images, classes, epochs = size["images"], size["classes"], size["epochs"]
    changes = {"encoder": size["encoder"], "options.hidden": 2, "options.out": 2}
    changes |= {f"sem.{name}": size[name] for name in ("simplices", "vertices")}
    recipe = with_changes(recipes.get("cifar100-byol-sem"), changes)
    torch.manual_seed(recipe.seed)
    run = Run(Path("random"), recipe, recipe.build().to(chosen), {"step": 0, "mean": MEAN, "std": STD})

    def random_set(n: int) -> ImageSet:
        pixels = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8)
        return ImageSet("random", pixels, torch.arange(n) % classes, tuple(map(str, range(classes))))

    train, test = random_set(images), random_set(size["test_images"])
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(chosen)
    times = [time.perf_counter()]

    def after_epoch() -> None:
        if on_gpu:
            torch.cuda.synchronize(chosen)
        times.append(time.perf_counter())

    short = dataclasses.replace(settings, epochs=epochs)
    result = probe(run, train, test, size["layer"], short, after_epoch=after_epoch)
    seconds, left = time.perf_counter() - times[0], settings.epochs - epochs
    each = [after - before for before, after in itertools.pairwise(times)]
    choosing, retraining = statistics.median(each[1:epochs]), statistics.median(each[epochs + 1 :])
    peak = whole_peak = None
    if on_gpu:  # the other epochs cache 16-bit features of their views
        views = left * images * run.method.online.encoder.out_features * 2
        peak = torch.cuda.max_memory_allocated(chosen) / 2**30
        whole_peak = peak + min(views, VIEWS_CACHE["cuda"]) / 2**30
    grid = (settings.lrs, settings.l1, settings.l2, result["grid"]["temperatures"])
    row = {
        "preset": "cifar",
        **size,
        "probes": math.prod(map(len, grid)),
        "seconds": seconds,
        "seconds_per_epoch": {"choosing": choosing, "retraining": retraining},
        "whole_epochs": settings.epochs,
        "whole_seconds": seconds + left * (choosing + retraining),
        "peak_gib": peak,
        "whole_peak_gib": whole_peak,
        "precision": result["precision"],
        "seed": recipe.seed,
        **provenance(chosen),
    }
    return [row]
