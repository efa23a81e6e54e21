"""The paper's tables and figures on ImageNet, whose settings their cells have on any data."""

from typing import Any

from simplicia.experiments.cifar import CHOSEN, ENCODER, SEM, SIZE
from simplicia.experiments.experiment import Cell, Experiment, Figure
from simplicia.train.recipes import IMAGENET

BOTH = (("BYOL", "byol"), ("BYOL + SEM", "byol-sem"))
SETTINGS: dict[str, dict[str, Any]] = {
    "byol": IMAGENET[""],
    "byol-sem": {**IMAGENET[""], **IMAGENET["-sem"], "sem.simplices": 5000},
}
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

SCALING = Experiment(
    "imagenet-scaling",
    "Wider encoders",
    tuple(
        Cell(
            f"{words} {name}",
            recipe,
            {**SETTINGS[recipe], "encoder": encoder},
            measure="probe_and_cost",
            options=SEM if recipe == "byol-sem" else ENCODER,
            paper=paper if encoder == "resnet50" else None,
        )
        for words, encoder in (("RN-50", "resnet50"), ("RN-50 x2", "resnet50x2"), ("RN-50 x4", "resnet50x4"))
        for (name, recipe), paper in zip(BOTH, ROBUSTNESS["clean"], strict=True)
    ),
    data="imagenet",
    epochs=200,
    columns=(("FLOPs per image", "flops", ".2e"),),
    figure=Figure("FLOPs per image", SIZE, "flops"),
)

ROBUST = Experiment(
    "robustness",
    "A linear probe on other test sets",
    tuple(
        Cell(
            name,
            recipe,
            SETTINGS[recipe],
            measure="robustness",
            paper={key: row[i] for key, row in ROBUSTNESS.items()},
        )
        for i, (name, recipe) in enumerate(BOTH)
    ),
    data="imagenet",
    epochs=200,
    columns=(("layer", "layer", ""),),
)

TO_OTHERS = Experiment(
    "transfer",
    "Transfer to other data sets: a linear probe on frozen features, and fine-tuned",
    tuple(
        Cell(
            f"{words}, {to}, {name}",
            recipe,
            SETTINGS[recipe],
            measure=measure,
            options={"to": to},
            paper=numbers[k][i],
        )
        for k, (words, measure) in enumerate((("linear", "transfer"), ("fine-tuned", "finetune")))
        for to, numbers in TRANSFER.items()
        for i, (name, recipe) in enumerate(BOTH)
    ),
    data="imagenet",
    epochs=200,
    columns=(("layer", "layer", ""),),
)

FEW_LABELS = Experiment(
    "semi-supervised",
    "Fine-tuned on a small share of the labels",
    tuple(
        Cell(
            f"{name}, {100 * share:g} %",
            recipe,
            SETTINGS[recipe],
            measure="semi",
            options={"fraction": share},
            paper=dict(zip(("top-1", "top-5"), numbers[i], strict=True)),
        )
        for share, numbers in SEMI.items()
        for i, (name, recipe) in enumerate(BOTH)
    ),
    data="imagenet",
    epochs=200,
    columns=(*CHOSEN, ("labelled images", "labelled_list", "")),
)

EXPERIMENTS = (SCALING, ROBUST, TO_OTHERS, FEW_LABELS)
