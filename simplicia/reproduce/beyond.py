"""Questions that the paper's tables leave open, on its data and by its rules of measuring."""

from simplicia.reproduce.cifar import CHOSEN, ENCODER, SEM, simplices
from simplicia.reproduce.experiment import Cell, Experiment

SHORT = {"epochs": 200}

DINO_SHORT = Experiment(
    "dino-short",
    "DINO over 200 epochs, with a teacher that follows faster",
    tuple(
        cell
        for name, changes in (
            ("as in Table 1", {}),
            ("teacher 0.99", {"options.momentum": 0.99}),  # BYOL's
        )
        for cell in (
            Cell(f"DINO, {name}", "dino", {**SHORT, **changes}, options=ENCODER, ours=True),
            Cell(
                f"DINO + SEM, {name}",
                "dino-sem",
                {**SHORT, **changes},
                options=SEM,
                ours=True,
                beside=f"DINO, {name}",
            ),
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

EXPERIMENTS = (DINO_SHORT, CENTRED, SPEEDRUN)
