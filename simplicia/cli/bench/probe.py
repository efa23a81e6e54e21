"""How long the paper's probe takes: its whole grid on random images, by epochs, and what 100 of them make."""

import dataclasses
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from simplicia import devices
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.evaluate.probe import preset, probe
from simplicia.evaluate.probe_inputs import VIEWS_CACHE
from simplicia.provenance import commit, versions
from simplicia.run import Run
from simplicia.settings import with_changes
from simplicia.train import recipes

# For a CPU, which the paper's sizes would keep busy for days.
SMALL = {"images": 60, "test_images": 20, "simplices": 8, "classes": 4, "epochs": 3, "encoder": "tiny"}


def bench_probe(
    device: str = "auto",
    images: int = 50_000,
    test_images: int = 10_000,
    simplices: int = 5000,
    vertices: int = 13,
    classes: int = 100,
    epochs: int = 4,
    layer: str = "sem",
    settings: str = "cifar",  # the preset
    encoder: str = "resnet18",
) -> dict[str, Any]:
    """Seconds per epoch of a preset's grid and of its retraining, seconds of the whole protocol, peak memory.

    The first epoch of each, which compiles, is left out of ``seconds_per_epoch``; the whole has it once.
    """
    if epochs < 2:
        raise UserError(f"epochs is {epochs}; the first is a warm-up, so at least 2 are needed")
    where = devices.choose(device)
    changes = {"encoder": encoder, "sem.simplices": simplices, "sem.vertices": vertices}
    recipe = with_changes(recipes.get("cifar100-byol-sem"), changes | {"options.hidden": 2, "options.out": 2})
    torch.manual_seed(recipe.seed)
    state = {"step": 0, "mean": (0.5,) * 3, "std": (0.25,) * 3}
    run = Run(Path("random"), recipe, recipe.build().to(where), state)
    names = tuple(map(str, range(classes)))
    train, test = (
        ImageSet(
            "random",
            torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8),
            torch.arange(n) % classes,
            names,
        )
        for n in (images, test_images)
    )
    whole = preset(settings)
    on_gpu = where.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(where)
    times = [time.perf_counter()]

    def after_epoch(done: int, total: int) -> None:
        if on_gpu:
            torch.cuda.synchronize(where)
        times.append(time.perf_counter())

    found = probe(run, train, test, layer, dataclasses.replace(whole, epochs=epochs), progress=after_epoch)
    seconds = time.perf_counter() - times[0]
    each = [b - a for a, b in itertools.pairwise(times)]
    choosing, retraining = statistics.median(each[1:epochs]), statistics.median(each[epochs + 1 :])
    width = 2 if on_gpu else 4
    views = (whole.epochs - epochs) * images * run.method.online.encoder.out_features * width  # type: ignore[operator]
    kept = min(views, VIEWS_CACHE.get(where.type, VIEWS_CACHE["cpu"])) if whole.augment else 0
    peak = torch.cuda.max_memory_allocated(where) if on_gpu else None
    return {
        "preset": settings,
        "layer": layer,
        "encoder": encoder,
        "images": images,
        "test_images": test_images,
        "simplices": simplices,
        "vertices": vertices,
        "classes": classes,
        "probes": len(whole.lrs) * len(whole.l1) * len(whole.l2) * len(found["grid"]["temperatures"]),
        "epochs": epochs,
        "seconds": seconds,
        "seconds_per_epoch": {"choosing": choosing, "retraining": retraining},
        "whole_epochs": whole.epochs,
        "whole_seconds": seconds + (whole.epochs - epochs) * (choosing + retraining),
        "peak_gib": None if peak is None else peak / 2**30,
        "whole_peak_gib": None if peak is None else (peak + kept) / 2**30,  # with all epochs' views kept
        "precision": found["precision"],
        "seed": recipe.seed,
        **versions(where),
        "commit": commit(),
    }
