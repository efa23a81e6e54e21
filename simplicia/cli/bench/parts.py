"""Time the softmax of SEM, the augmentation, and the paper's linear probe."""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simplicia import devices
from simplicia.cli.bench.timing import provenance, time_in_turns
from simplicia.data.augmentation import Views, ViewSettings
from simplicia.data.datasets import ImageSet
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
# sizes of the probe for a CPU, which would need days for the paper's
SMALL = {"images": 60, "test_images": 20, "simplices": 8, "classes": 4, "epochs": 3, "encoder": "tiny"}


def bench_sem(device: str = "auto", rounds: int = 21) -> list[dict[str, Any]]:
    """Milliseconds of a softmax over each group, forward and backward, and ``simplicial`` relative to it."""
    chosen = devices.choose(device)
    rows = []
    for batch, simplices, vertices in SEM_SHAPES:
        x = torch.randn(batch, simplices * vertices, device=chosen, requires_grad=True)
        grad = torch.randn_like(x)
        functions: dict[str, Callable[[Tensor], Tensor]] = {
            "softmax": lambda x, v=vertices: x.unflatten(-1, (-1, v)).softmax(-1).flatten(-2),  # type: ignore[misc]
            "temperature 1": partial(simplicial, vertices=vertices),
            "temperature 0.5": partial(simplicial, vertices=vertices, temperature=0.5),
        }
        work = {name: partial(_backward, function, x, grad) for name, function in functions.items()}
        times = time_in_turns(work, rounds, chosen, warm_up=1)
        ms = {name: 1e3 * statistics.median(seconds) for name, seconds in times.items()}
        row = {"batch": batch, "simplices": simplices, "vertices": vertices, "softmax_ms": ms.pop("softmax")}
        row |= {f"ratio at {name}": value / row["softmax_ms"] for name, value in ms.items()}
        rows.append(row | provenance(chosen))
    return rows


def _backward(function: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> None:
    x.grad = None
    function(x).backward(grad)


def bench_views(
    device: str = "auto", rounds: int = 20, shapes: tuple[tuple[int, int], ...] = ((256, 32), (128, 224))
) -> list[dict[str, Any]]:
    """Milliseconds per view for each (batch, size): eager and, on a GPU, captured as in a training step."""
    chosen = devices.choose(device)
    rows = []
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


def bench_probe(
    device: str = "auto",
    images: int = 50_000,
    test_images: int = 10_000,
    simplices: int = 5000,
    vertices: int = 13,
    classes: int = 100,
    epochs: int = 4,
    layer: str = "sem",
    encoder: str = "resnet18",
) -> dict[str, Any]:
    """Seconds per epoch of the paper's CIFAR grid and of its retraining, and of the full protocol.

    The images are random. The first epoch of each part compiles; ``seconds_per_epoch`` leaves it out.
    """
    chosen = devices.choose(device)
    changes = {"encoder": encoder, "sem.simplices": simplices, "sem.vertices": vertices}
    recipe = with_changes(recipes.get("cifar100-byol-sem"), changes | {"options.hidden": 2, "options.out": 2})
    torch.manual_seed(recipe.seed)
    state = {"step": 0, "mean": MEAN, "std": STD}
    run = Run(Path("random"), recipe, recipe.build().to(chosen), state)
    names = tuple(map(str, range(classes)))

    def random_set(n: int) -> ImageSet:
        pixels = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8)
        return ImageSet("random", pixels, torch.arange(n) % classes, names)

    train, test = random_set(images), random_set(test_images)
    settings, on_gpu = preset("cifar"), chosen.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(chosen)
    times = [time.perf_counter()]

    def after_epoch(done: int, total: int) -> None:
        if on_gpu:
            torch.cuda.synchronize(chosen)
        times.append(time.perf_counter())

    short = dataclasses.replace(settings, epochs=epochs)
    result = probe(run, train, test, layer, short, progress=after_epoch)
    seconds = time.perf_counter() - times[0]
    each = [after - before for before, after in itertools.pairwise(times)]
    choosing, retraining = statistics.median(each[1:epochs]), statistics.median(each[epochs + 1 :])
    left = settings.epochs - epochs
    width: Any = run.method.online.encoder.out_features
    views = left * images * width * (2 if on_gpu else 4)  # bytes of the features that the other epochs add
    cached = min(views, VIEWS_CACHE.get(chosen.type, VIEWS_CACHE["cpu"])) if settings.augment else 0
    peak = torch.cuda.max_memory_allocated(chosen) if on_gpu else None
    return {
        "preset": "cifar",
        "layer": layer,
        "encoder": encoder,
        "images": images,
        "test_images": test_images,
        "simplices": simplices,
        "vertices": vertices,
        "classes": classes,
        "probes": len(settings.lrs)
        * len(settings.l1)
        * len(settings.l2)
        * len(result["grid"]["temperatures"]),
        "epochs": epochs,
        "seconds": seconds,
        "seconds_per_epoch": {"choosing": choosing, "retraining": retraining},
        "whole_epochs": settings.epochs,
        "whole_seconds": seconds + left * (choosing + retraining),
        "peak_gib": None if peak is None else peak / 2**30,
        "whole_peak_gib": None if peak is None else (peak + cached) / 2**30,
        "precision": result["precision"],
        "seed": recipe.seed,
        **provenance(chosen),
    }
