"""Questions that the paper's tables leave open, on its data and by its protocol."""

from collections.abc import Iterator

from simplicia.experiments.cifar import ENCODER, SEM, TEMPERATURE, simplices
from simplicia.experiments.experiment import Cell, experiment

SHORT = {"epochs": 200}


@experiment("dino-short", "DINO over 200 epochs, with a teacher that follows faster", columns=TEMPERATURE)
def dino_short() -> Iterator[Cell]:
    for name, teacher in (("as in Table 1", {}), ("teacher 0.99", {"options.momentum": 0.99})):  # BYOL's
        base, changes = f"DINO, {name}", {**SHORT, **teacher}
        yield Cell(base, "dino", changes, options=ENCODER, in_paper=False)
        yield Cell(f"DINO + SEM, {name}", "dino-sem", changes, options=SEM, in_paper=False, baseline=base)


@experiment(
    "centred",
    "The projector receives p - 1/V, or p, where no BatchNorm makes them the same",
    columns=TEMPERATURE,
)
def centred() -> Iterator[Cell]:
    for name, recipe in (("SimCLR", "simclr-sem"), ("MoCo", "moco-sem"), ("DINO", "dino-sem")):
        for projected, changes in (("p - 1/V", SHORT), ("p", {**SHORT, "sem.centred": False})):
            yield Cell(f"{name} + SEM, {projected}", recipe, changes, options=SEM, in_paper=False)


@experiment(
    "speedrun",
    "Few seconds of training to 60 % by the paper's probe",
    columns=(("epochs", "epochs", ""), ("seconds of training", "seconds", ".0f"), *TEMPERATURE),
)
def speedrun() -> Iterator[Cell]:
    for name, recipe in (("Barlow Twins", "barlow"), ("VICReg", "vicreg")):  # the best in 200 epochs
        yield Cell(name, recipe, {"epochs": 100}, options=ENCODER, in_paper=False)
        for words, changes in (
            ("", {"epochs": 80}),
            (", views of 24 pixels", {"epochs": 100, "view_size": 24}),
        ):
            changes = {**changes, **simplices(1000)}
            sem = f"{name} + SEM, L=1000{words}"
            yield Cell(sem, f"{recipe}-sem", changes, options=SEM, in_paper=False)
