"""How far the encoder moves in a step at the recipe's highest rate, with the weights it begins with.

    python benchmarks/first_steps.py --data-dir ~/data --json results/cifar100/first-steps.json

For each recipe of Table 1, on one batch of CIFAR-100: the encoder's gradient, what LARS multiplies it by, and
the step relative to the weight, medians over its convolutions. DINO's centre is first settled on the batch.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch

from simplicia.data import datasets
from simplicia.data.augmentation import Views
from simplicia.provenance import commit, versions
from simplicia.train import recipes
from simplicia.train.recipes import TABLE

SEED = 0


def first_step(name: str, images: torch.Tensor, statistics_: tuple) -> dict:
    recipe = recipes.get(name)
    torch.manual_seed(SEED)
    method = recipe.build().train()
    views = Views(recipe.views, recipe.image_size, *statistics_)(images)
    method.schedule(0, 1, 10)  # past what is frozen at first
    for _ in range(20 if recipe.method == "dino" else 0):
        with torch.no_grad():
            method(views)
            method.after_micro_batch()
    loss = method(views).loss
    loss.backward()
    optim, found = recipe.optim, []
    for p in method.online.encoder.parameters():
        if p.ndim < 2 or p.grad is None:
            continue
        gradient, weight = p.grad.norm().item(), p.norm().item()
        ratio = optim.eta * weight / (gradient + optim.weight_decay * weight + 1e-8) / optim.lr
        trust = min(ratio, 1.0) if optim.name == "lars" else 1.0
        found.append((gradient, ratio, optim.lr * trust * gradient / weight))
    gradients, ratios, steps = zip(*found, strict=True)
    return {
        "recipe": name,
        "optimiser": optim.name,
        "lr": optim.lr,
        "loss": loss.item(),
        "gradient": statistics.median(gradients),
        "ratio": statistics.median(ratios) if optim.name == "lars" else None,
        "weights": len(found),
        "clipped": sum(ratio > 1 for ratio in ratios) if optim.name == "lars" else None,
        "relative_step": statistics.median(steps),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    data = datasets.load("cifar100", "train", given.data_dir)
    rows = []
    for method in TABLE:
        for tail in ("", "-sem"):
            row = first_step(f"cifar100-{method}{tail}", data.images[: given.batch_size], data.statistics())
            if tail:
                row["over_without_sem"] = row["relative_step"] / rows[-1]["relative_step"]
            rows.append(row)
            print({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    if given.json is not None:
        about = {
            "batch_size": given.batch_size,
            "seed": SEED,
            "commit": commit(),
            **versions(torch.device("cpu")),
        }
        given.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
