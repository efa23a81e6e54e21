"""Train every method for ten steps in the processes of torchrun: ten_steps.py OUT.json gets the losses."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from simplicia import devices, distributed, encoders, methods
from simplicia.data import datasets
from simplicia.settings import with_changes
from simplicia.train import recipes
from simplicia.train.trainer import Trainer

SETTINGS = {
    "batch_size": 32,
    "sem.simplices": 8,
    "sem.vertices": 4,
    "view_size": 8,
    "optim.warmup_epochs": 0.0,
    "views.blur": (0.5, 0.5),
    "views.solarise": (0.2, 0.2),
}
HEADS = {
    "barlow": {"hidden": 16, "out": 16},
    "byol": {"hidden": 16, "out": 8},
    "dino": {"hidden": 16, "out": 8, "prototypes": 12, "frozen_epochs": 0},
    "moco": {"hidden": 16, "out": 8, "queue": 40},
    "simclr": {"hidden": 16, "out": 8},
    "swav": {"hidden": 16, "out": 8, "prototypes": 12, "queue": 40, "queue_start": 0, "frozen_epochs": 0},
    "vicreg": {"hidden": 16, "out": 16},
}
ALL = {f"{method}-sem": {"options": heads} for method, heads in HEADS.items()}
# in 32 bits only, in which both compute
OTHERS = {f"byol-{name}": {"options": HEADS["byol"], "vq.dimensions": 2} for name in ("vq", "gumbel")}


def ten_steps(name, changes, lr, fabric):
    """The losses of ten steps, and sums over what else training changes."""
    shapes = datasets.load("shapes", "test")  # fewer to draw
    images = datasets.part(shapes, torch.arange(128))
    recipe = with_changes(recipes.get(f"shapes-{name}"), {**SETTINGS, **changes, "optim.lr": lr})
    trainer = Trainer(recipe, images, fabric, "eager", lambda: datasets.part(shapes, torch.arange(128, 139)))
    trainer.step.optimizer.dtype = torch.get_default_dtype()  # of momentum
    losses = []
    for step in range(10):
        losses.append(trainer.step(step).loss.item())
    state = {k: v.double().abs().sum().item() for k, v in trainer.step.tensors().items() if "num_b" not in k}
    if trainer.probe is not None:
        state |= trainer.probe.measure()
    return {"losses": losses, "state": state}


def lower_priority_of_communication():
    """Gloo's thread polls while its process is busy, which delays the others if there are more than cores."""
    for thread in Path("/proc/self/task").glob("*"):
        if (thread / "comm").read_text().startswith("gloo"):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)


def main():
    torch.set_num_threads(1)
    encoders._RESNETS["tiny"]["depths"] = (1,)  # most of the time goes to BatchNorms that communicate
    processes = devices.process_count(None)
    fabric = devices.launch("cpu", processes, "32")
    assert fabric.world_size == processes and set(HEADS) == set(methods.names())
    lower_priority_of_communication()
    out = {"32": {}, "64": {}}
    for name, changes in (ALL | OTHERS).items():
        out["32"][name] = ten_steps(name, {**changes, "online_every": 1}, 0.001, fabric)
    distributed.LARGE = 256
    half = {**ALL["byol-sem"], "online_every": 1, "optim.reduce_bits": "16"}
    out["32"]["reduced in 16 bits"] = ten_steps("byol-sem", half, 0.001, fabric)
    torch.set_default_dtype(torch.float64)
    for name, changes in ALL.items():
        out["64"][name] = ten_steps(name, changes, 0.05, fabric)
    micro = {"process_batch_size": 16 // processes}  # two micro-batches of sixteen images
    out["64"]["micro-batches"] = ten_steps("moco-sem", {**ALL["moco-sem"], **micro}, 0.05, fabric)
    if processes > 1:
        every = [None] * processes
        dist.all_gather_object(every, out)
        assert all(other == out for other in every), "the processes do not agree"
    if fabric.global_rank == 0:
        with open(sys.argv[1], "w") as file:
            json.dump(out, file)


if __name__ == "__main__":
    main()
