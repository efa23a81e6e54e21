"""Questions that the paper's tables leave open, on its data and by its rules of measuring."""

from simplicia.reproduce.cifar import CHOSEN, ENCODER, SEM, simplices
from simplicia.reproduce.experiment import Cell, Experiment

SHORT = {"epochs": 200}

DINO_TEACHER = Experiment(
    "dino-teacher",
    "DINO over 200 epochs: how slowly its teacher follows",
    tuple(
        cell
        for name, changes in (
            ("0.9995", SHORT),  # the recipe's
            ("0.9975", {**SHORT, "options.momentum": 0.9975}),  # as far in 200 epochs as that in 1000
            ("0.99", {**SHORT, "options.momentum": 0.99}),  # BYOL's
        )
        for cell in (
            Cell(f"DINO, {name}", "dino", changes, options=ENCODER, ours=True),
            Cell(f"DINO + SEM, {name}", "dino-sem", changes, options=SEM, ours=True, beside=f"DINO, {name}"),
        )
    ),
    columns=CHOSEN,
)

CENTRED = Experiment(
    "centred",
    "The projector is handed p - 1/V, or p, where no BatchNorm makes them the same",
    tuple(
        cell
        for name, recipe in (("SimCLR", "simclr-sem"), ("MoCo", "moco-sem"), ("DINO", "dino-sem"))
        for cell in (
            Cell(f"{name} + SEM, p - 1/V", recipe, SHORT, options=SEM, ours=True),
            Cell(f"{name} + SEM, p", recipe, {**SHORT, "sem.centred": False}, options=SEM, ours=True),
        )
    ),
    columns=CHOSEN,
)

SPEEDRUN = Experiment(
    "speedrun",
    "Few seconds of training to 60 % by the paper's probe",
    (
        Cell("Barlow Twins", "barlow", {"epochs": 100}, options=ENCODER, ours=True),
        Cell("VICReg", "vicreg", {"epochs": 100}, options=ENCODER, ours=True),
        Cell(
            "Barlow Twins + SEM, L=1000",
            "barlow-sem",
            {"epochs": 80, **simplices(1000)},
            options=SEM,
            ours=True,
        ),
        Cell("VICReg + SEM, L=1000", "vicreg-sem", {"epochs": 80, **simplices(1000)}, options=SEM, ours=True),
    ),
    columns=(("epochs", "epochs", ""), ("seconds of training", "seconds", ".0f"), *CHOSEN),
)

EXPERIMENTS = (DINO_TEACHER, CENTRED, SPEEDRUN)
