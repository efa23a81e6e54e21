"""The paper's tables and figures on ImageNet; their cells keep ImageNet's settings on any data."""

from collections.abc import Iterator
from typing import Any

from simplicia.experiments.cifar import FLOPS, SIZE
from simplicia.experiments.experiment import LAYER, TEMPERATURE, Cell, Figure, experiment
from simplicia.train.recipes import IMAGENET

SEM_SETTINGS = {**IMAGENET[""], **IMAGENET["-sem"], "sem.simplices": 5000}
BOTH = (("BYOL", "byol", IMAGENET[""]), ("BYOL + SEM", "byol-sem", SEM_SETTINGS))
PAPER: dict[str, Any] = {"data": "imagenet", "epochs": 200}
# fmt: off
TRANSFER = {  # data set: linear probe of BYOL and BYOL + SEM, the same fine-tuned
    "food101":    ((74.2, 74.7), (83.1, 84.7)),
    "cifar10":    ((91.8, 93.5), (97.2, 97.2)),
    "cifar100":   ((74.9, 78.6), (83.6, 85.6)),
    "sun397":     ((60.9, 62.1), (59.1, 63.3)),
    "dtd":        ((72.2, 71.9), (69.2, 71.3)),
    "flowers102": ((88.9, 91.5), (85.4, 91.7)),
}
ROBUSTNESS = {  # test set: BYOL and BYOL + SEM
    "clean":       (71.9, 74.1),
    "V2":          (59.2, 61.2),
    "R":           (18.8, 22.1),
    "corruptions": (39.5, 43.4),
    "A":           (1.65, 2.53),
}
SEMI = {  # share of the labels: top-1 and top-5 of BYOL, and of BYOL + SEM
    0.01: ((51.6, 78.0), (56.7, 81.0)),
    0.1:  ((67.5, 88.9), (69.9, 90.0)),
}
# fmt: on


@experiment(
    "imagenet-scaling", "Wider encoders", (FLOPS,), figure=Figure("FLOPs per image", SIZE, "flops"), **PAPER
)
def imagenet_scaling() -> Iterator[Cell]:
    for size, encoder, papers in (
        ("RN-50", "resnet50", ROBUSTNESS["clean"]),
        ("RN-50 x2", "resnet50x2", (None, None)),
        ("RN-50 x4", "resnet50x4", (None, None)),
    ):
        for (name, recipe, settings), paper in zip(BOTH, papers, strict=True):
            changes = {**settings, "encoder": encoder}
            yield Cell(f"{size} {name}", recipe, changes, measure="probe_and_cost", paper=paper)


@experiment("robustness", "A linear probe on other test sets", (LAYER,), **PAPER)
def robustness() -> Iterator[Cell]:
    for i, (name, recipe, settings) in enumerate(BOTH):
        papers = {test_set: accuracies[i] for test_set, accuracies in ROBUSTNESS.items()}
        yield Cell(name, recipe, settings, measure="robustness", paper=papers)


@experiment(
    "transfer",
    "Transfer to other data sets: a linear probe on frozen features, and fine-tuned",
    (LAYER,),
    **PAPER,
)
def transfer() -> Iterator[Cell]:
    for k, (words, measure) in enumerate((("linear", "transfer"), ("fine-tuned", "finetune"))):
        for to, numbers in TRANSFER.items():
            for (name, recipe, settings), paper in zip(BOTH, numbers[k], strict=True):
                yield Cell(f"{words}, {to}, {name}", recipe, settings, {}, measure, {"to": to}, paper)


@experiment(
    "semi-supervised",
    "Fine-tuned on a small share of the labels",
    (TEMPERATURE, ("labelled images", "labelled_list", "")),
    **PAPER,
)
def semi_supervised() -> Iterator[Cell]:
    for fraction, numbers in SEMI.items():
        for (name, recipe, settings), (top1, top5) in zip(BOTH, numbers, strict=True):
            label, papers = f"{name}, {100 * fraction:g} %", {"top-1": top1, "top-5": top5}
            yield Cell(label, recipe, settings, {}, "semi", {"fraction": fraction}, papers)
