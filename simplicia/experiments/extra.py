"""Questions that the paper's tables leave open, on its data and by its rules of measuring."""

from simplicia.experiments.cifar import CHOSEN, ENCODER, SEM, simplices
from simplicia.experiments.experiment import Cell, Experiment

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
    tuple(
        cell
        for name, recipe in (("Barlow Twins", "barlow"), ("VICReg", "vicreg"))  # the best in 200 epochs
        for cell in (
            Cell(name, recipe, {"epochs": 100}, options=ENCODER, ours=True),
            *(
                Cell(
                    f"{name} + SEM, L=1000{words}",
                    f"{recipe}-sem",
                    {**changes, **simplices(1000)},
                    options=SEM,
                    ours=True,
                )
                for words, changes in (
                    ("", {"epochs": 80}),
                    (", views of 24 pixels", {"epochs": 100, "view_size": 24}),
                )
            ),
        )
    ),
    columns=(("epochs", "epochs", ""), ("seconds of training", "seconds", ".0f"), *CHOSEN),
)

EXPERIMENTS = (DINO_SHORT, CENTRED, SPEEDRUN)
