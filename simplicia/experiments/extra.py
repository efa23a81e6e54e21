"""Questions that the paper's tables leave open, on its data and by its protocol."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from simplicia.experiments.cifar import EMBEDDER, ENCODER, METHODS, simplices
from simplicia.experiments.experiment import LAYER, TEMPERATURE, Cell, Figure, experiment

extra = partial(experiment, in_paper=False)
SHORT = {"epochs": 200}
TEN_MINUTES = (  # epochs of about 530 seconds, which leave a minute to start and compile
    ("VICReg", "vicreg", 440),
    ("VICReg + SEM/8", "vicreg-sem8", 385),
    ("VICReg + SEM", "vicreg-sem", 325),
)
RANK = ("effective rank", "effective_rank", ".1f")
# SEM that is cheaper: the recipe's tail, its changes, and those on CIFAR alone
CHEAPER: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "SEM/16, L=4992": ("sem", {"sem.blocks": 16}, simplices(4992)),  # 16 and 32 divide 4992 * 13
    "SEM/32, L=4992": ("sem", {"sem.blocks": 32}, simplices(4992)),
    "SEM, L=1000": ("sem", {}, simplices(1000)),
}
BOTH: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "SEM": ("sem", {}, {}),
    "SEM/8": ("sem8", {}, {}),
}


@extra(
    "equal-time",
    "SEM trained for as long as the method without it",
    (
        ("epochs", "epochs", ""),
        ("ms a step", "ms_per_step", ".2f"),
        ("seconds of steps", "step_seconds", ".0f"),
        TEMPERATURE,
    ),
    figure=Figure("seconds of steps", r", time of \d+ epochs", "step_seconds"),
)
def equal_time() -> Iterator[Cell]:
    for recipe, (name, *_) in METHODS.items():
        has_curve = recipe in ("byol", "vicreg")
        for epochs in (200, 100) if has_curve else (200,):
            base = f"{name}, time of {epochs} epochs"
            yield Cell(base, recipe, {"epochs": epochs}, measure="probe_timed", as_long_as=recipe)
            for words, (tail, changes, cifar) in {**BOTH, **(CHEAPER if has_curve else {})}.items():
                label, changes = base.replace(name, f"{name} + {words}"), {**changes, "epochs": epochs}
                arm = f"{recipe}-{tail}", changes, cifar, "probe_timed"
                yield Cell(label, *arm, baseline=base, as_long_as=recipe)


@extra(
    "embed-control",
    "An embedding as wide as SEM's without the softmax, 200 epochs",
    (
        LAYER,
        TEMPERATURE,
        RANK,
        ("coherence, K=5", "coherence_at_5", ".3f"),
        ("K=20", "coherence_at_20", ".3f"),
    ),
)
def embed_control() -> Iterator[Cell]:
    for name, recipe in (("BYOL + Embed", "byol-embed"), ("BYOL + SEM", "byol-sem")):
        for words, measure, options in (
            ("encoder", "probe", ENCODER),
            ("embedder", "probe", EMBEDDER),
            ("softmax", "probe", {"layer": "sem"}),
            ("coherence", "coherence", EMBEDDER),
            ("coherence of the softmax", "coherence", {"layer": "sem"}),
            ("spectrum", "spectrum", EMBEDDER),
        ):
            yield Cell(f"{name}, {words}", recipe, SHORT, {}, measure, options)


@extra("gain", "Where the gain sits: probes of each layer of both runs, 200 epochs", (LAYER, TEMPERATURE))
def gain() -> Iterator[Cell]:
    for recipe, (name, *_) in METHODS.items():
        yield Cell(f"{name}, encoder", recipe, SHORT, options=ENCODER)
        for layer in ("encoder", "embedder", "sem", "codes"):
            label, options = f"{name} + SEM, {layer}", {"layer": layer}
            yield Cell(label, f"{recipe}-sem", SHORT, options=options, baseline=f"{name}, encoder")


@extra(
    "elsewhere",
    "BYOL of 200 epochs on CIFAR-100, on other images and with few labels",
    (LAYER, TEMPERATURE, ("labelled images", "labelled_images", "")),
)
def elsewhere() -> Iterator[Cell]:
    for words, measure, options in (
        ("Flowers-102", "transfer", {"to": "flowers102"}),
        ("Pets", "transfer", {"to": "pets"}),
        ("robustness", "robustness", {}),
        ("1 % of the labels", "semi", {"fraction": 0.01}),
        ("10 % of the labels", "semi", {"fraction": 0.1}),
    ):
        base = f"BYOL, {words}"
        yield Cell(base, "byol", SHORT, {}, measure, options)
        yield Cell(f"BYOL + SEM, {words}", "byol-sem", SHORT, {}, measure, options, baseline=base)


@experiment(
    "paper-budget", "The paper's 1000 epochs, and the longest of BYOL, MoCo and DINO + SEM in 24 minutes"
)
def paper_budget() -> Iterator[Cell]:
    fits = ("simclr", "barlow", "vicreg", "swav")
    for recipe in (*fits, "byol", "moco", "dino"):
        name, paper, _ = METHODS[recipe]
        yield Cell(name, recipe, paper=paper)
    for words, (tail, *_) in reversed(BOTH.items()):
        for recipe in fits:
            base, _, paper = METHODS[recipe]
            papers = {"paper": paper} if words == "SEM" else {"in_paper": False}
            yield Cell(f"{base} + {words}", f"{recipe}-{tail}", baseline=base, **papers)
    for recipe in ("byol", "moco", "dino"):
        yield Cell(
            f"{METHODS[recipe][0]} + SEM, 600 epochs", f"{recipe}-sem", {"epochs": 600}, in_paper=False
        )


@extra("dino-short", "DINO over 200 epochs, with a teacher that follows faster")
def dino_short() -> Iterator[Cell]:
    for name, momentum in (("as in Table 1", None), ("teacher 0.99", 0.99), ("teacher 0.996", 0.996)):
        teacher = {} if momentum is None else {"options.momentum": momentum}
        base, changes = f"DINO, {name}", {**SHORT, **teacher}
        yield Cell(base, "dino", changes)
        yield Cell(f"DINO + SEM, {name}", "dino-sem", changes, baseline=base)


@extra("dino-scout", "DINO's teacher over 50 epochs, chosen on held-out training images")
def dino_scout() -> Iterator[Cell]:
    for momentum in (0.9995, 0.998, 0.996, 0.99, 0.98):
        changes = {"epochs": 50, "holdout": 0.1, "options.momentum": momentum}
        for name, recipe in (("DINO", "dino"), ("DINO + SEM", "dino-sem")):
            yield Cell(f"{name}, teacher {momentum}", recipe, changes, measure="holdout")


@extra("centred", "The projector receives p - 1/V, or p, where no BatchNorm makes them the same")
def centred() -> Iterator[Cell]:
    for name, recipe in (("SimCLR", "simclr-sem"), ("MoCo", "moco-sem"), ("DINO", "dino-sem")):
        for projected, changes in (("p - 1/V", SHORT), ("p", {**SHORT, "sem.centred": False})):
            yield Cell(f"{name} + SEM, {projected}", recipe, changes)


@extra("learning-rate", "Without SEM, at the learning rate whose first step is as long as with it")
def learning_rate() -> Iterator[Cell]:
    for name, recipe, times, rate in (("SimCLR", "simclr", 3, 1.2), ("MoCo", "moco", 15, 4.5)):
        yield Cell(name, recipe, SHORT)
        yield Cell(f"{name}, rate x{times}", recipe, {**SHORT, "optim.lr": rate})


@extra(
    "speedrun",
    "Few seconds of training: to 60 % by the paper's probe, and record A, 70 % in ten minutes",
    (("epochs", "epochs", ""), ("seconds of training, compilation included", "seconds", ".0f"), TEMPERATURE),
)
def speedrun() -> Iterator[Cell]:
    for name, recipe in (("Barlow Twins", "barlow"), ("VICReg", "vicreg")):  # the best in 200 epochs
        sem, small = f"{name} + SEM, L=1000", {"sem.simplices": 1000}
        yield Cell(name, recipe, {"epochs": 100})
        yield Cell(sem, f"{recipe}-sem", {**small, "epochs": 80})
        views = {**small, "epochs": 100, "view_size": 24}
        yield Cell(f"{sem}, views of 24 pixels", f"{recipe}-sem", views)
    for name, recipe, epochs in TEN_MINUTES:
        yield Cell(f"record A: {name}", recipe, {"epochs": epochs})
        for record, measure, options in (("A", "holdout", {}), ("B", "knn", {"k": 10, "held_out": True})):
            label, changes = f"record {record}, held-out images: {name}", {"epochs": epochs, "holdout": 0.1}
            yield Cell(label, recipe, changes, {}, measure, options)


@extra(
    "speedrun-cifar10",
    "Record B: 90 % by kNN (k = 10, cosine) on CIFAR-10 in ten minutes of training",
    (("epochs", "epochs", ""), ("seconds of training, compilation included", "seconds", ".0f"), LAYER),
    data="cifar10",
)
def speedrun_cifar10() -> Iterator[Cell]:
    for name, recipe, epochs in TEN_MINUTES:
        yield Cell(f"record B: {name}", recipe, {"epochs": epochs}, {}, "knn", {"k": 10})
