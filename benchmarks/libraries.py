"""BYOL's step beside lightly's, as its users run it: ``python benchmarks/libraries.py [--steps N]``.

lightly's side follows its documented BYOL training: CIFAR-sized PIL images, its BYOLTransform in the workers
of a DataLoader, ResNet-18, its heads and loss, SGD, in 16 bits on a GPU. Ours is ``simplicia bench step``:
everything included on both sides, one after the other in one process.
"""

import argparse
import copy
import json
import os
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from simplicia.bench import bench_step
from simplicia.encoders import create
from simplicia.provenance import commit, versions
from simplicia.train.devices import choose


class Pictures(torch.utils.data.Dataset):
    """Random images of CIFAR's shape, as PIL images, through a transform."""

    def __init__(self, transform, count: int = 20_000):
        self.transform = transform
        self.pixels = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, i: int):
        return self.transform(Image.fromarray(self.pixels[i]))


def lightly_step(batch_size: int, steps: int, device: torch.device, workers: int) -> float:
    """Median seconds of a step of lightly's BYOL."""
    from lightly.loss import NegativeCosineSimilarity
    from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead
    from lightly.models.utils import deactivate_requires_grad, update_momentum
    from lightly.transforms import BYOLTransform, BYOLView1Transform, BYOLView2Transform

    backbone = create("resnet18").to(device)  # the same small-image stem as ours
    head, predictor = (
        BYOLProjectionHead(512, 4096, 256).to(device),
        BYOLPredictionHead(256, 4096, 256).to(device),
    )
    target, target_head = copy.deepcopy(backbone), copy.deepcopy(head)
    deactivate_requires_grad(target)
    deactivate_requires_grad(target_head)
    transform = BYOLTransform(
        view_1_transform=BYOLView1Transform(input_size=32, gaussian_blur=0.0),
        view_2_transform=BYOLView2Transform(input_size=32, gaussian_blur=0.0),
    )
    loader = torch.utils.data.DataLoader(
        Pictures(transform), batch_size, shuffle=True, drop_last=True, num_workers=workers, pin_memory=True
    )
    online = nn.ModuleList([backbone, head, predictor])
    optimizer = torch.optim.SGD(online.parameters(), lr=0.06)
    criterion = NegativeCosineSimilarity()
    times, start = [], time.perf_counter()
    while len(times) < steps + 5:
        for views in loader:
            views = [view.to(device, non_blocking=True) for view in views]
            update_momentum(backbone, target, m=0.99)
            update_momentum(head, target_head, m=0.99)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                predictions = [predictor(head(backbone(view))) for view in views]
                with torch.no_grad():
                    targets = [target_head(target(view)) for view in views]
                loss = 0.5 * (criterion(predictions[0], targets[1]) + criterion(predictions[1], targets[0]))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
            times.append(time.perf_counter() - start)
            start = time.perf_counter()
            if len(times) == steps + 5:
                break
    return statistics.median(times[5:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=min(14, os.cpu_count() or 1))
    parser.add_argument("--out", default="results/bench/libraries.json")
    given = parser.parse_args()
    device = choose("auto")
    ours = bench_step("cifar100-byol", steps=max(5, given.steps), batch_size=given.batch_size)
    theirs = 1e3 * lightly_step(given.batch_size, given.steps, device, given.workers)
    told = {"batch_size": given.batch_size, "commit": commit(), **versions(device)}
    rows = [
        {"library": "simplicia", "ms_per_step": ours["ms_per_step"], "engine": ours["engine"], **told},
        {"library": "lightly", "ms_per_step": theirs, "workers": given.workers, **told},
    ]
    rows[0]["times_faster_than_lightly"] = theirs / ours["ms_per_step"]
    for row in rows:
        print(f"{row['library']:10} {row['ms_per_step']:.2f} ms per step")
    Path(given.out).parent.mkdir(parents=True, exist_ok=True)
    Path(given.out).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
