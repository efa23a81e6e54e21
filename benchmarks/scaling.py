"""Plan training on 1 to 1,024 GPUs by formula: python benchmarks/scaling.py --json results/scale/plan.json

Compute time is fitted to the steps measured on one GPU (results/bench/step.json); parameters, activations and
FLOPs are those of ``simplicia cost``. Links between GPUs are assumptions, stated in the output. Nothing here
was measured on several GPUs.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

from simplicia.analyze.model_cost import cost_of
from simplicia.distributed import LARGE
from simplicia.files import atomic_write
from simplicia.provenance import commit, versions
from simplicia.settings import with_changes
from simplicia.train import recipes

ROOT = Path(__file__).parents[1]
GPUS = 1, 8, 64, 256, 1024
ASSUMED = {
    "gpus_per_machine": 8,
    "gb_per_s_inside": 450.0,  # of each GPU, one direction
    "gb_per_s_between": 50.0,  # 400 Gbit/s for each GPU
    "us_per_collective_inside": 20.0,
    "us_per_collective_between": 40.0,
    "large": LARGE,
}
FITTED = "cifar100-byol", "cifar100-byol-sem", "cifar100-byol-sem8"


def work(recipe, images):
    """What the time of a step is made of: activations and FLOPs of its images, and weights."""
    cost = cost_of(recipe)
    return [images * cost.activations, images * cost.flops, cost.parameters + cost.target_parameters]


def fit():
    """Milliseconds per unit of work, least squares of the relative error over the measured steps."""
    rows = [r for r in json.loads((ROOT / "results/bench/step.json").read_text()) if r["recipe"] in FITTED]
    rows = [r for r in rows if r["engine"] == "CapturedStep"]
    made = [with_changes(recipes.get(r["recipe"]), r["changes"]) for r in rows]
    units = np.array([work(recipe, r["batch_size"]) for recipe, r in zip(made, rows, strict=True)])
    times = np.array([r["ms_per_step"] for r in rows])
    scale = units.max(0)
    from scipy.optimize import nnls

    found, _ = nnls(units / scale / times[:, None], np.ones(len(times)))
    found = found / scale
    checks = [
        {"recipe": r["recipe"], "changes": r["changes"], "measured_ms": t, "formula_ms": float(u @ found)}
        for r, u, t in zip(rows, units, times, strict=True)
    ]
    return found, checks


def weights_of(recipe):
    """Numbers in trained weights and in large matrices among them, and the BatchNorms of a step."""
    with torch.device("meta"):
        method = recipe.build()
    sizes = [p.numel() for p in method.parameters() if p.requires_grad]
    norms = sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in method.modules())
    return sum(sizes), sum(size for size in sizes if size >= ASSUMED["large"]), norms


def plan(recipe, gpus, batch, found, half_large=False):
    """The time, in milliseconds, and the memory of a step of ``batch`` images on some GPUs."""
    trained, large, norms = weights_of(recipe)
    images = batch // gpus
    parts = recipe.accumulation_steps(gpus) if batch == recipe.batch_size else 1
    inside = gpus <= ASSUMED["gpus_per_machine"]
    link = ASSUMED["gb_per_s_inside" if inside else "gb_per_s_between"]
    latency = ASSUMED["us_per_collective_inside" if inside else "us_per_collective_between"] / 1e3
    units = np.array(work(recipe, images))
    compute, update = float(units[:2] @ found[:2]), float(units[2] * found[2])
    sent = 4 * trained - (2 * large if half_large else 0)
    reduce = 0.0 if gpus == 1 else 2 * (gpus - 1) / gpus * sent / link / 1e6
    # two views: each norm gathers statistics forward; those with gradients also reduce backward
    with_gradient = norms if recipe.method == "simclr" else norms / 2
    collectives = 0.0 if gpus == 1 else parts * 2 * (norms + with_gradient) * latency
    backward = compute / 2 / parts  # of four passes, two are backward; only the last micro-batch's overlaps
    exposed = max(0.0, reduce - backward)
    total = compute + update + exposed + collectives
    memory = cost_of(recipe).memory(images // parts) / 2**30
    return {
        "gpus": gpus,
        "batch_size": batch,
        "images_per_gpu": images,
        "micro_batches": parts,
        "half_large": half_large,
        "compute_ms": compute,
        "update_ms": update,
        "reduce_ms": reduce,
        "exposed_ms": exposed,
        "norms_ms": collectives,
        "step_ms": total,
        "images_per_s": 1e3 * batch / total,
        "busy_percent": 100 * (compute + update) / total,
        "gradient_gb": sent / 1e9,
        "memory_gib": memory,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    found, checks = fit()
    out = {
        "assumed": ASSUMED,
        "fitted": dict(zip(("activation", "flop", "weight"), map(float, found), strict=True)),
    }
    out |= {"checks": checks, "recipes": {}, "commit": commit(), **versions(torch.device("cpu"))}
    for name in ("imagenet-byol", "imagenet-byol-sem"):
        recipe = recipes.get(name)
        rows = [plan(recipe, n, recipe.batch_size, found) for n in GPUS]
        halves = [plan(recipe, n, recipe.batch_size, found, half_large=True) for n in GPUS[1:]]
        sizes = [plan(recipe, 64, 64 * images, found) for images in (8, 16, 32, 64, 128, 256)]
        trained, large, norms = weights_of(recipe)
        about = {"trained": trained, "in_large_matrices": large, "batch_norms": norms}
        out["recipes"][name] = {**about, "gpus": rows, "half_large": halves, "images_per_gpu_at_64": sizes}
    given.json.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(given.json) as temporary:
        temporary.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
