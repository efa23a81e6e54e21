"""Questions that the paper's tables leave open, on its data and by its protocol."""

from collections.abc import Iterator

from simplicia.experiments.experiment import TEMPERATURE, Cell, experiment

SHORT = {"epochs": 200}


@experiment("dino-short", "DINO over 200 epochs, with a teacher that follows faster")
def dino_short() -> Iterator[Cell]:
    for name, teacher in (("as in Table 1", {}), ("teacher 0.99", {"options.momentum": 0.99})):  # BYOL's
        base, changes = f"DINO, {name}", {**SHORT, **teacher}
        yield Cell(base, "dino", changes, in_paper=False)
        yield Cell(f"DINO + SEM, {name}", "dino-sem", changes, in_paper=False, baseline=base)


@experiment("centred", "The projector receives p - 1/V, or p, where no BatchNorm makes them the same")
def centred() -> Iterator[Cell]:
    for name, recipe in (("SimCLR", "simclr-sem"), ("MoCo", "moco-sem"), ("DINO", "dino-sem")):
        for projected, changes in (("p - 1/V", SHORT), ("p", {**SHORT, "sem.centred": False})):
            yield Cell(f"{name} + SEM, {projected}", recipe, changes, in_paper=False)


@experiment(
    "speedrun",
    "Few seconds of training to 60 % by the paper's probe",
    (("epochs", "epochs", ""), ("seconds of training", "seconds", ".0f"), TEMPERATURE),
)
def speedrun() -> Iterator[Cell]:
    for name, recipe in (("Barlow Twins", "barlow"), ("VICReg", "vicreg")):  # the best in 200 epochs
        sem, small = f"{name} + SEM, L=1000", {"sem.simplices": 1000}
        yield Cell(name, recipe, {"epochs": 100}, in_paper=False)
        yield Cell(sem, f"{recipe}-sem", {**small, "epochs": 80}, in_paper=False)
        views = {**small, "epochs": 100, "view_size": 24}
        yield Cell(f"{sem}, views of 24 pixels", f"{recipe}-sem", views, in_paper=False)
