"""The paper's tables and figures of accuracies on CIFAR-100."""

from collections.abc import Iterator
from typing import Any

from simplicia.experiments.experiment import Cell, Figure, experiment

# fmt: off
METHODS = {  # recipe: name, and the paper's accuracies without and with SEM
    "simclr": ("SimCLR",       65.8, 69.5),
    "moco":   ("MoCo",         69.3, 71.0),
    "byol":   ("BYOL",         70.7, 73.9),
    "barlow": ("Barlow Twins", 70.7, 73.0),
    "swav":   ("SwAV",         64.6, 67.7),
    "dino":   ("DINO",         66.8, 69.2),
    "vicreg": ("VICReg",       68.5, 71.4),
}
# fmt: on
SIMPLICES = (10, 50, 100, 500, 1000, 5000, 10_000)  # the paper names the ends and 50
VERTICES = (2, 3, 5, 8, 13, 21, 34)
TEMPERATURES = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0)
SIZES = ((5000, 13), (500, 130), (64, 1024))  # L and V of about 65,000 features
ENCODER, SEM, EMBEDDER = {"layer": "encoder"}, {"layer": "sem"}, {"layer": "embedder"}
TEMPERATURE = (("temperature", "temperature", "g"),)
LAYER = (("layer", "layer", ""),)
NUMBER, SIZE = r"([\d.e+-]+)", r"RN-\d+( x\d+)? "  # in the names of cells


def resnet50(encoder: str = "resnet50") -> dict[str, Any]:
    """A ResNet-50 of any width, with the optimiser of the paper's appendix."""
    return {"encoder": encoder, "optim.lr": 0.5, "optim.eta": 0.001, "optim.weight_decay": 1e-4}


def simplices(count: int) -> dict[str, Any]:
    return {"sem.simplices": count}


def at(temperature: float) -> dict[str, Any]:
    """SEM at a downstream temperature."""
    return {"layer": "sem", "temperature": temperature}


@experiment("table1", "Seven methods without and with SEM", columns=TEMPERATURE)
def table1() -> Iterator[Cell]:
    for recipe, (name, base, sem) in METHODS.items():
        yield Cell(name, recipe, options=ENCODER, paper=base)
        yield Cell(f"{name} + SEM", f"{recipe}-sem", options=SEM, paper=sem, baseline=name)


@experiment(
    "emb-scale",
    "The number of simplices, with the softmax (SEM) and without it (Embed)",
    columns=TEMPERATURE,
    figure=Figure("simplices, L", r", L=(\d+)"),
)
def emb_scale() -> Iterator[Cell]:
    for n in SIMPLICES:
        yield Cell(f"SEM, L={n}", "byol-sem", simplices(n), resnet50(), options=SEM)
        yield Cell(f"Embed, L={n}", "byol-embed", simplices(n), resnet50(), options=EMBEDDER)


@experiment("hard-discretisation", "SEM and hard codes", columns=LAYER + TEMPERATURE)
def hard_discretisation() -> Iterator[Cell]:
    yield Cell("BYOL", "byol", options=ENCODER, paper=70.7)
    yield Cell("BYOL + Gumbel", "byol-gumbel", options={"layer": "codes"}, paper=48.6)
    yield Cell("BYOL + VQ", "byol-vq", options={"layer": "quantised"}, paper=65.6)
    yield Cell("BYOL + SEM, tau_d=0", options={"layer": "codes"}, paper=73.2)
    yield Cell("BYOL + SEM, tau_d=0.0001", options=at(1e-4), in_paper=False)
    yield Cell("BYOL + SEM, tau_d=0.1", options=at(0.1), paper=73.9)


@experiment(
    "tau-pretrain",
    "The temperature of pre-training and the number of vertices",
    columns=TEMPERATURE,
    figure=Figure("temperature of pre-training", rf", tau_p={NUMBER}"),
)
def tau_pretrain() -> Iterator[Cell]:
    for count, vertices in SIZES:
        for tau in TEMPERATURES:
            changes = {**simplices(count), "sem.vertices": vertices, "sem.temperature": tau}
            name = f"L={count} V={vertices}, tau_p={tau:g}"
            yield Cell(name, "byol-sem", changes, resnet50(), options=SEM)


@experiment(
    "tau-downstream",
    "The temperature downstream at each number of simplices",
    columns=TEMPERATURE,
    figure=Figure("temperature downstream", rf", tau_d={NUMBER}"),
)
def tau_downstream() -> Iterator[Cell]:
    yield Cell("RN-18 L=5000", measure="probe_each", options=SEM, in_paper=False)
    for n in SIMPLICES:
        yield Cell(f"RN-50 L={n}", "byol-sem", simplices(n), resnet50(), "probe_each", SEM)


def size_sweep(letter: str, words: str, setting: str, counts: tuple[int, ...]) -> None:
    """SEM of each size, probed after the softmax at temperature 1, before it, and at the encoder."""
    title = f"f_SEM and f_base as the number of {words} grows, temperature 1"
    figure = Figure(f"{words}, {letter}", rf"{letter}=(\d+), ")

    @experiment(f"{letter}-sweep", title, columns=LAYER, figure=figure)
    def cells() -> Iterator[Cell]:
        for n in counts:
            for part, options in (("f_SEM", at(1.0)), ("f_base", EMBEDDER), ("encoder", ENCODER)):
                yield Cell(f"{letter}={n}, {part}", changes={setting: n}, options=options)


size_sweep("L", "simplices", "sem.simplices", SIMPLICES)
size_sweep("V", "vertices", "sem.vertices", VERTICES)


@experiment("embedder-bn", "BatchNorm in the embedder and weight decay, BYOL + SEM", columns=TEMPERATURE)
def embedder_bn() -> Iterator[Cell]:
    for words, norm, decay, paper in (
        ("no norm", "none", 0.0, 67.2),
        ("no norm", "none", 1e-5, 57.9),
        ("BatchNorm", "batch", 0.0, 68.3),
        ("BatchNorm", "batch", 1e-5, 73.9),
    ):
        changes = {"sem.norm": norm, "optim.weight_decay": decay}
        yield Cell(f"{words}, weight decay {decay:g}", changes=changes, options=SEM, paper=paper)


@experiment(
    "embedder-type", "The map from the encoder's output to simplices, BYOL + SEM", columns=TEMPERATURE
)
def embedder_type() -> Iterator[Cell]:
    # ResNet-18 has 512 features, the encoder of shapes 128
    identity = {"sem.embedder": "identity", "sem.vertices": 16, "sem.simplices": 8}
    yield Cell("identity", "byol-sem", identity, simplices(32), options=SEM, paper=63.0)
    yield Cell("linear", options=SEM, paper=73.9)
    yield Cell("MLP", changes={"sem.embedder": "mlp"}, options=SEM, paper=65.0)


@experiment("role-of-pretraining", "A softmax that comes only downstream", columns=LAYER + TEMPERATURE)
def role_of_pretraining() -> Iterator[Cell]:
    for name, recipe, options, paper in (
        ("BYOL + Embed, encoder", "byol-embed", ENCODER, 74.2),
        ("BYOL + Embed, embedder", "byol-embed", EMBEDDER, 69.8),
        ("BYOL + Embed, embedder, SEM downstream", "byol-embed", at(0.1), 72.3),
        ("BYOL + SEM, embedder, SEM downstream", "byol-sem", at(0.1), 77.3),
    ):
        yield Cell(name, recipe, {}, resnet50(), options=options, paper=paper)


@experiment(
    "encoder-scaling",
    "Larger encoders",
    columns=(("FLOPs per image", "flops", ".2e"),),
    figure=Figure("FLOPs per image", SIZE, "flops"),
)
def encoder_scaling() -> Iterator[Cell]:
    for size, encoder, papers in (  # the widths are a figure; the others are in the cost table
        ("RN-18", "resnet18", (70.7, 73.9)),
        ("RN-50", "resnet50", (74.3, 77.4)),
        ("RN-50 x2", "resnet50x2", (None, None)),
        ("RN-50 x4", "resnet50x4", (None, None)),
    ):
        optimiser = resnet50(encoder) if encoder != "resnet18" else {}
        for name, recipe, layer, paper in (
            ("BYOL", "byol", ENCODER, papers[0]),
            ("BYOL + SEM", "byol-sem", SEM, papers[1]),
        ):
            changes = {"encoder": encoder}
            yield Cell(f"{size} {name}", recipe, changes, optimiser, "probe_and_cost", layer, paper)
