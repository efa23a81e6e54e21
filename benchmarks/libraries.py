"""BYOL's step compared with that of other libraries: ``python benchmarks/libraries.py [--steps N]``.

Each library runs as its documentation shows, loader and augmentation included, one after the other in one
process. Ours is ``simplicia bench step``. A library that is not installed is skipped with a message.

lightly's side follows its documented BYOL training: CIFAR-sized PIL images, its BYOLTransform in the
workers of a DataLoader, ResNet-18, its heads and loss, SGD, in 16 bits on a GPU.

solo-learn's side is its BYOL with the settings of its CIFAR script: its own parsing of them, views,
loader, method and LARS, under a Lightning Trainer, in 16 bits on a GPU, without logger and progress bar,
which would only cost it time. As there, two linear classifiers are also trained, and its stem pads by
two, so that its maps are 34 wide. Release 1.0.2 was made for Lightning 1.4; what Lightning 2 needs is in
``solo_learn_step``. Where nothing can be installed, a folder on PYTHONPATH made by
``pip install --target FOLDER --no-deps solo-learn==1.0.2 einops timm`` is enough in addition to torch,
torchvision, pytorch-lightning, scipy and setuptools; lightning-bolts and wandb are not needed.
"""

import argparse
import copy
import json
import os
import statistics
import sys
import time
import types
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from simplicia.cli.bench.step import bench_step
from simplicia.devices import choose
from simplicia.encoders import create
from simplicia.provenance import commit, versions

WARM_UP = 5  # steps

# What solo-learn's script for BYOL on CIFAR gives, but for batch size and workers.
SOLO_LEARN = """
    --dataset cifar100 --data_dir . --encoder resnet18 --max_epochs 1000 --gpus 0
    --optimizer sgd --lars --grad_clip_lars --eta_lars 0.02 --exclude_bias_n_norm
    --scheduler warmup_cosine --lr 1.0 --classifier_lr 0.1 --weight_decay 1e-5
    --brightness 0.4 --contrast 0.4 --saturation 0.2 --hue 0.1 --gaussian_prob 0.0 0.0
    --solarization_prob 0.0 0.2 --crop_size 32 --num_crops_per_aug 1 1
    --proj_output_dim 256 --proj_hidden_dim 4096 --pred_hidden_dim 4096
    --base_tau_momentum 0.99 --final_tau_momentum 1.0 --momentum_classifier
"""


class Pictures(torch.utils.data.Dataset):
    """Random images and labels of CIFAR's shape, in memory, as PIL images through a transform."""

    def __init__(self, transform, count: int = 20_000):
        self.transform = transform
        self.pixels = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, i: int):
        return self.transform(Image.fromarray(self.pixels[i])), i % 100


def per_step(ends: list[float]) -> float:
    """Median seconds from the end of a step to that of the next, the loader's wait included."""
    return statistics.median(after - before for before, after in pairwise(ends[WARM_UP - 1 :]))


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
    ends: list[float] = []
    while len(ends) < WARM_UP + steps:
        for views, _ in loader:
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
            ends.append(time.perf_counter())
            if len(ends) == WARM_UP + steps:
                break
    return per_step(ends)


def solo_learn_step(batch_size: int, steps: int, device: torch.device, workers: int) -> float:
    """Median seconds of a step of solo-learn's BYOL."""
    import pytorch_lightning as lightning
    import setuptools  # noqa: F401  # brings distutils, which solo-learn imports, to Python 3.12

    # solo-learn takes one schedule from lightning-bolts, which cannot be imported under Lightning 2. The
    # schedule moves once an epoch and begins as a linear warm-up, which torch has.
    for name in ("pl_bolts", "pl_bolts.optimizers", "pl_bolts.optimizers.lr_scheduler"):
        sys.modules[name] = module = types.ModuleType(name)
    module.LinearWarmupCosineAnnealingLR = warm_up  # type: ignore[attr-defined]

    from solo.args.dataset import augmentations_args, custom_dataset_args, dataset_args
    from solo.args.utils import additional_setup_pretrain
    from solo.methods import BYOL
    from solo.utils.pretrain_dataloader import (
        dataset_with_index,
        prepare_dataloader,
        prepare_n_crop_transform,
        prepare_transform,
    )

    class Lightning2BYOL(BYOL):
        """BYOL with the hooks that Lightning 2 calls."""

        validation_epoch_end = None  # refused where it exists, and there is no validation here

        def on_train_batch_end(self, outputs, batch, batch_idx):  # called without the loader's index
            super().on_train_batch_end(outputs, batch, batch_idx, 0)

    class Clock(lightning.Callback):
        """When each step ended: its LARS asks for norms, so that the host never runs far ahead."""

        def __init__(self):
            self.ends: list[float] = []

        def on_train_batch_end(self, *_):
            self.ends.append(time.perf_counter())

    parser = argparse.ArgumentParser()
    for add in (dataset_args, augmentations_args, custom_dataset_args, BYOL.add_model_specific_args):
        add(parser)
    # the arguments of Trainer that solo-learn reads, since Lightning 2 adds none to a parser
    parser.add_argument("--max_epochs", type=int)
    parser.add_argument("--gpus")
    parser.add_argument("--accumulate_grad_batches", type=int, default=1)
    words = ["--batch_size", str(batch_size), "--num_workers", str(workers)]
    options = parser.parse_args(SOLO_LEARN.split() + words)
    additional_setup_pretrain(options)
    transform = prepare_n_crop_transform(
        [prepare_transform(options.dataset, **settings) for settings in options.transform_kwargs],
        num_crops_per_aug=options.num_crops_per_aug,
    )
    loader = prepare_dataloader(
        dataset_with_index(Pictures)(transform),
        batch_size=options.batch_size,
        num_workers=options.num_workers,
    )
    clock = Clock()
    trainer = lightning.Trainer(
        accelerator=device.type,
        devices=[device.index or 0] if device.type == "cuda" else 1,
        precision="16-mixed" if device.type == "cuda" else 32,
        max_epochs=options.max_epochs,
        max_steps=WARM_UP + steps,
        callbacks=[clock],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Lightning2BYOL(**vars(options)), loader)
    return per_step(clock.ends)


def warm_up(optimizer, warmup_epochs: int, max_epochs: int, warmup_start_lr: float, eta_min: float):
    """The first epochs of solo-learn's schedule."""
    start = warmup_start_lr / optimizer.defaults["lr"]
    return torch.optim.lr_scheduler.LinearLR(optimizer, start, total_iters=warmup_epochs)


OTHERS: dict[str, Callable[[int, int, torch.device, int], float]] = {
    "lightly": lightly_step,
    "solo-learn": solo_learn_step,
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=min(14, os.cpu_count() or 1))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", default="results/bench/libraries.json")
    given = parser.parse_args(arguments)
    device = choose(given.device)
    about = {"batch_size": given.batch_size, "steps": given.steps, "commit": commit(), **versions(device)}
    step = bench_step(
        "cifar100-byol", steps=max(5, given.steps), device=given.device, batch_size=given.batch_size
    )
    ours = step["ms_per_step"]
    rows = [
        {
            "library": "simplicia",
            "version": about["simplicia"],
            "ms_per_step": ours,
            "times_ours": 1.0,
            "workers": 0,
            "engine": step["engine"],
            **about,
        }
    ]
    show(rows, given.out)
    for name, measure in OTHERS.items():
        try:
            library = {"library": name, "version": version(name)}
            theirs = 1e3 * measure(given.batch_size, given.steps, device, given.workers)
        except ModuleNotFoundError as missing:
            print(f"{name} is skipped, since it or what it needs is not installed: {missing}")
            continue
        measured = {"ms_per_step": theirs, "times_ours": theirs / ours, "workers": given.workers}
        rows.append({**library, **measured, **about})
        show(rows, given.out)


def show(rows: list[dict], path: str) -> None:
    """Print the last row and write all, so that a library that breaks loses none of the others."""
    row = rows[-1]
    print(
        f"{row['library']:10} {row['version']:8} {row['ms_per_step']:10.2f} ms per step,"
        f" {row['times_ours']:.2f} x ours, {row['workers']} workers, batch {row['batch_size']},"
        f" {row['device']}"
    )
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
