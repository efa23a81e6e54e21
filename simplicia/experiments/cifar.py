"""The paper's tables and figures of accuracies on CIFAR-100."""

from typing import Any

from simplicia.experiments.experiment import Cell, Experiment, Figure

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
CHOSEN = (("temperature", "temperature", "g"),)
NUMBER, SIZE = r"([\d.e+-]+)", r"RN-\d+( x\d+)? "  # in the names of cells


def resnet50(encoder: str = "resnet50") -> dict[str, Any]:
    """A ResNet-50, of any width, with the optimiser that the paper's appendix gives for it."""
    return {"encoder": encoder, "optim.lr": 0.5, "optim.eta": 0.001, "optim.weight_decay": 1e-4}


def simplices(count: int) -> dict[str, Any]:
    return {"sem.simplices": count}


def temperature(tau: float) -> dict[str, Any]:
    """Of pre-training, for both networks."""
    return {"sem.temperature": tau}


TABLE1 = Experiment(
    "table1",
    "Seven methods without and with SEM",
    tuple(
        cell
        for recipe, (name, base, sem) in METHODS.items()
        for cell in (
            Cell(name, recipe, options=ENCODER, paper=base),
            Cell(f"{name} + SEM", f"{recipe}-sem", options=SEM, paper=sem, beside=name),
        )
    ),
    columns=CHOSEN,
)

EMB_SCALE = Experiment(
    "emb-scale",
    "The number of simplices, with the softmax (SEM) and without it (Embed)",
    tuple(
        cell
        for count in SIMPLICES
        for cell in (
            Cell(f"SEM, L={count}", "byol-sem", simplices(count), resnet50(), options=SEM),
            Cell(f"Embed, L={count}", "byol-embed", simplices(count), resnet50(), options=EMBEDDER),
        )
    ),
    columns=CHOSEN,
    figure=Figure("simplices, L", r", L=(\d+)"),
)

HARD = Experiment(
    "hard-discretisation",
    "SEM beside hard codes",
    (
        Cell("BYOL", "byol", options=ENCODER, paper=70.7),
        Cell("BYOL + Gumbel", "byol-gumbel", options={"layer": "codes"}, paper=48.6),
        Cell("BYOL + VQ", "byol-vq", options={"layer": "quantised"}, paper=65.6),
        Cell("BYOL + SEM, tau_d=0", options={"layer": "codes"}, paper=73.2),
        Cell("BYOL + SEM, tau_d=0.0001", options={"layer": "sem", "temperature": 1e-4}, ours=True),
        Cell("BYOL + SEM, tau_d=0.1", options={"layer": "sem", "temperature": 0.1}, paper=73.9),
    ),
    columns=(("layer", "layer", ""), *CHOSEN),
)

TAU_PRETRAIN = Experiment(
    "tau-pretrain",
    "The temperature of pre-training and the number of vertices",
    tuple(
        Cell(
            f"L={count} V={vertices}, tau_p={tau:g}",
            changes={**simplices(count), "sem.vertices": vertices, **temperature(tau)},
            setting=resnet50(),
            options=SEM,
        )
        for count, vertices in SIZES
        for tau in TEMPERATURES
    ),
    columns=CHOSEN,
    figure=Figure("temperature of pre-training", rf", tau_p={NUMBER}"),
)

TAU_DOWNSTREAM = Experiment(
    "tau-downstream",
    "The temperature downstream at each number of simplices",
    (
        Cell("RN-18 L=5000", measure="probe_each", options=SEM, ours=True),
        *(
            Cell(f"RN-50 L={count}", "byol-sem", simplices(count), resnet50(), "probe_each", SEM)
            for count in SIMPLICES
        ),
    ),
    columns=CHOSEN,
    figure=Figure("temperature downstream", rf", tau_d={NUMBER}"),
)


def _with_and_without(name: str, changes: dict[str, Any]) -> tuple[Cell, ...]:
    """A run trained with SEM, probed through the softmax at temperature 1, before it, and at the encoder."""
    return (
        Cell(f"{name}, f_SEM", changes=changes, options={"layer": "sem", "temperature": 1.0}),
        Cell(f"{name}, f_base", changes=changes, options=EMBEDDER),
        Cell(f"{name}, encoder", changes=changes, options=ENCODER),
    )


L_SWEEP = Experiment(
    "L-sweep",
    "f_SEM and f_base as the number of simplices grows, temperature 1",
    tuple(cell for n in SIMPLICES for cell in _with_and_without(f"L={n}", simplices(n))),
    columns=(("layer", "layer", ""),),
    figure=Figure("simplices, L", r"L=(\d+), "),
)

V_SWEEP = Experiment(
    "V-sweep",
    "f_SEM and f_base as the number of vertices grows, temperature 1",
    tuple(cell for n in VERTICES for cell in _with_and_without(f"V={n}", {"sem.vertices": n})),
    columns=(("layer", "layer", ""),),
    figure=Figure("vertices, V", r"V=(\d+), "),
)

EMBEDDER_BN = Experiment(
    "embedder-bn",
    "BatchNorm in the embedder and weight decay, BYOL + SEM",
    tuple(
        Cell(
            f"{words}, weight decay {decay:g}",
            changes={"sem.norm": norm, "optim.weight_decay": decay},
            options=SEM,
            paper=paper,
        )
        for words, norm, decay, paper in (
            ("no norm", "none", 0.0, 67.2),
            ("no norm", "none", 1e-5, 57.9),
            ("BatchNorm", "batch", 0.0, 68.3),
            ("BatchNorm", "batch", 1e-5, 73.9),
        )
    ),
    columns=CHOSEN,
)

EMBEDDER_TYPE = Experiment(
    "embedder-type",
    "What maps the encoder's output to simplices, BYOL + SEM",
    (
        Cell(
            "identity",
            changes={"sem.embedder": "identity", "sem.vertices": 16, "sem.simplices": 8},
            setting=simplices(32),  # ResNet-18 has 512 features; the encoder of shapes has 128
            options=SEM,
            paper=63.0,
        ),
        Cell("linear", options=SEM, paper=73.9),
        Cell("MLP", changes={"sem.embedder": "mlp"}, options=SEM, paper=65.0),
    ),
    columns=CHOSEN,
)

ROLE = Experiment(
    "role-of-pretraining",
    "A softmax that comes only downstream",
    (
        Cell("BYOL + Embed, encoder", "byol-embed", {}, resnet50(), options=ENCODER, paper=74.2),
        Cell("BYOL + Embed, embedder", "byol-embed", {}, resnet50(), options=EMBEDDER, paper=69.8),
        Cell(
            "BYOL + Embed, embedder, SEM downstream",
            "byol-embed",
            {},
            resnet50(),
            options={"layer": "sem", "temperature": 0.1},
            paper=72.3,
        ),
        Cell(
            "BYOL + SEM, embedder, SEM downstream",
            "byol-sem",
            {},
            resnet50(),
            options={"layer": "sem", "temperature": 0.1},
            paper=77.3,
        ),
    ),
    columns=(("layer", "layer", ""), *CHOSEN),
)

ENCODER_SCALING = Experiment(
    "encoder-scaling",
    "Larger encoders",
    tuple(
        Cell(
            f"{words} {name}",
            recipe,
            {"encoder": encoder},
            resnet50(encoder) if encoder != "resnet18" else {},
            "probe_and_cost",
            {"layer": layer},
            paper,
        )
        for words, encoder, numbers in (  # the widths are a figure; the others are in the cost table
            ("RN-18", "resnet18", (70.7, 73.9)),
            ("RN-50", "resnet50", (74.3, 77.4)),
            ("RN-50 x2", "resnet50x2", (None, None)),
            ("RN-50 x4", "resnet50x4", (None, None)),
        )
        for (name, recipe, layer), paper in zip(
            (("BYOL", "byol", "encoder"), ("BYOL + SEM", "byol-sem", "sem")), numbers, strict=True
        )
    ),
    columns=(("FLOPs per image", "flops", ".2e"),),
    figure=Figure("FLOPs per image", SIZE, "flops"),
)

EXPERIMENTS = (
    TABLE1,
    EMB_SCALE,
    HARD,
    TAU_PRETRAIN,
    TAU_DOWNSTREAM,
    L_SWEEP,
    V_SWEEP,
    EMBEDDER_BN,
    EMBEDDER_TYPE,
    ROLE,
    ENCODER_SCALING,
)
