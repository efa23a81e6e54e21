"""The paper's tables and figures on CIFAR-100: accuracies, then model internals and cost."""

from collections.abc import Iterator
from typing import Any

from simplicia.analyze.model_cost import PAPER
from simplicia.experiments.experiment import LAYER, TEMPERATURE, Cell, Figure, experiment

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
ENCODER, EMBEDDER = {"layer": "encoder"}, {"layer": "embedder"}
NUMBER, SIZE = r"([\d.e+-]+)", r"RN-\d+( x\d+)? "  # in the names of cells
FLOPS = ("FLOPs per image", "flops", ".2e")


def resnet50(encoder: str = "resnet50") -> dict[str, Any]:
    """A ResNet-50 of any width, with the optimiser of the paper's appendix."""
    return {"encoder": encoder, "optim.lr": 0.5, "optim.eta": 0.001, "optim.weight_decay": 1e-4}


def simplices(count: int) -> dict[str, Any]:
    return {"sem.simplices": count}


def at(temperature: float) -> dict[str, Any]:
    """SEM at a downstream temperature."""
    return {"layer": "sem", "temperature": temperature}


@experiment("table1", "Seven methods without and with SEM")
def table1() -> Iterator[Cell]:
    for recipe, (name, base, sem) in METHODS.items():
        yield Cell(name, recipe, paper=base)
        yield Cell(f"{name} + SEM", f"{recipe}-sem", paper=sem, baseline=name)


@experiment(
    "emb-scale",
    "The number of simplices, with the softmax (SEM) and without it (Embed)",
    figure=Figure("simplices, L", r", L=(\d+)"),
)
def emb_scale() -> Iterator[Cell]:
    for n in SIMPLICES:
        yield Cell(f"SEM, L={n}", "byol-sem", simplices(n), resnet50())
        yield Cell(f"Embed, L={n}", "byol-embed", simplices(n), resnet50())


@experiment("hard-discretisation", "SEM and hard codes", (LAYER, TEMPERATURE))
def hard_discretisation() -> Iterator[Cell]:
    yield Cell("BYOL", "byol", paper=70.7)
    yield Cell("BYOL + Gumbel", "byol-gumbel", paper=48.6)
    yield Cell("BYOL + VQ", "byol-vq-shared", paper=65.6)
    yield Cell("BYOL + VQ, a codebook for each position", "byol-vq", in_paper=False)
    yield Cell("BYOL + SEM, tau_d=0", options={"layer": "codes"}, paper=73.2)
    yield Cell("BYOL + SEM, tau_d=0.0001", options=at(1e-4), in_paper=False)
    yield Cell("BYOL + SEM, tau_d=0.1", options=at(0.1), paper=73.9)


@experiment(
    "tau-pretrain",
    "The temperature of pre-training and the number of vertices",
    figure=Figure("temperature of pre-training", rf", tau_p={NUMBER}"),
)
def tau_pretrain() -> Iterator[Cell]:
    for count, vertices in SIZES:
        for tau in TEMPERATURES:
            changes = {**simplices(count), "sem.vertices": vertices, "sem.temperature": tau}
            yield Cell(f"L={count} V={vertices}, tau_p={tau:g}", "byol-sem", changes, resnet50())


@experiment(
    "tau-downstream",
    "The temperature downstream at each number of simplices",
    figure=Figure("temperature downstream", rf", tau_d={NUMBER}"),
)
def tau_downstream() -> Iterator[Cell]:
    yield Cell("RN-18 L=5000", measure="probe_each", in_paper=False)
    for n in SIMPLICES:
        yield Cell(f"RN-50 L={n}", "byol-sem", simplices(n), resnet50(), "probe_each")


def size_sweep(letter: str, words: str, counts: tuple[int, ...]) -> None:
    """SEM of each size, probed after the softmax at temperature 1, before it, and at the encoder."""
    title = f"f_SEM and f_base as the number of {words} grows, temperature 1"
    figure = Figure(f"{words}, {letter}", rf"{letter}=(\d+), ")

    @experiment(f"{letter}-sweep", title, (LAYER,), figure=figure)
    def cells() -> Iterator[Cell]:
        for n in counts:
            for part, options in (("f_SEM", at(1.0)), ("f_base", EMBEDDER), ("encoder", ENCODER)):
                yield Cell(f"{letter}={n}, {part}", changes={f"sem.{words}": n}, options=options)


size_sweep("L", "simplices", SIMPLICES)
size_sweep("V", "vertices", VERTICES)


@experiment("embedder-bn", "BatchNorm in the embedder and weight decay, BYOL + SEM")
def embedder_bn() -> Iterator[Cell]:
    for words, norm, papers in (("no norm", "none", (67.2, 57.9)), ("BatchNorm", "batch", (68.3, 73.9))):
        for decay, paper in zip((0.0, 1e-5), papers, strict=True):
            changes = {"sem.norm": norm, "optim.weight_decay": decay}
            yield Cell(f"{words}, weight decay {decay:g}", changes=changes, paper=paper)


@experiment("embedder-type", "The map from the encoder's output to simplices, BYOL + SEM")
def embedder_type() -> Iterator[Cell]:
    # ResNet-18 has 512 features, the encoder of shapes 128
    identity = {"sem.embedder": "identity", "sem.vertices": 16, "sem.simplices": 8}
    yield Cell("identity", "byol-sem", identity, simplices(32), paper=63.0)
    yield Cell("linear", paper=73.9)
    yield Cell("MLP", changes={"sem.embedder": "mlp"}, paper=65.0)


@experiment("role-of-pretraining", "A softmax that comes only downstream", (LAYER, TEMPERATURE))
def role_of_pretraining() -> Iterator[Cell]:
    for name, recipe, options, paper in (
        ("BYOL + Embed, encoder", "byol-embed", ENCODER, 74.2),
        ("BYOL + Embed, embedder", "byol-embed", EMBEDDER, 69.8),
        ("BYOL + Embed, embedder, SEM downstream", "byol-embed", at(0.1), 72.3),
        ("BYOL + SEM, embedder, SEM downstream", "byol-sem", at(0.1), 77.3),
    ):
        yield Cell(name, recipe, {}, resnet50(), options=options, paper=paper)


@experiment("encoder-scaling", "Larger encoders", (FLOPS,), figure=Figure("FLOPs per image", SIZE, "flops"))
def encoder_scaling() -> Iterator[Cell]:
    for size, encoder, base, sem in (  # the widths are a figure; the others are in the cost table
        ("RN-18", "resnet18", 70.7, 73.9),
        ("RN-50", "resnet50", 74.3, 77.4),
        ("RN-50 x2", "resnet50x2", None, None),
        ("RN-50 x4", "resnet50x4", None, None),
    ):
        optimiser = resnet50(encoder) if encoder != "resnet18" else {}
        for name, recipe, paper in (("BYOL", "byol", base), ("BYOL + SEM", "byol-sem", sem)):
            changes = {"encoder": encoder}
            yield Cell(f"{size} {name}", recipe, changes, optimiser, "probe_and_cost", paper=paper)


@experiment(
    "cost",
    "Parameters, activations and FLOPs of BYOL's online network, and accuracies",
    tuple(
        (title, f"{prefix}{count.lower()}", ".2e" if count == "FLOPs" else ",")
        for count in ("parameters", "activations", "FLOPs")
        for title, prefix in ((count, ""), ("paper's", "paper_"))
    ),
)
def cost() -> Iterator[Cell]:
    for encoder, model in PAPER:
        yield Cell(f"{encoder} {model}, counted", None, measure="cost", options={"of": (encoder, model)})
    recipes = ("byol", "byol-sem", "byol-sem8")
    accuracies = (70.7, 73.9, 73.3, 74.3, 77.4, 76.6)  # the last column of the cost table
    for (encoder, model), recipe, paper in zip(PAPER, recipes * 2, accuracies, strict=True):
        optimiser = resnet50() if encoder == "resnet50" else {}
        yield Cell(f"{encoder} {model}, accuracy", recipe, {}, optimiser, paper=paper)


@experiment(
    "entropy",
    "Entropy of the simplices of training images, by the temperature of pre-training",
    (("mean entropy, nats", "mean_entropy", ".2f"), ("ln V", "ln_vertices", ".2f")),
    figure=Figure("entropy of a simplex, nats", field="edges", y_field="counts", y_label="simplices", log=""),
)
def entropy() -> Iterator[Cell]:
    for tau in (0.01, 0.1, 0.5, 1.0, 2.0):
        yield Cell(f"tau_p={tau:g}", changes={"sem.temperature": tau}, measure="entropy")


@experiment(
    "spectrum",
    "Spectrum of the covariance of a layer's output on test images",
    (LAYER, ("features", "features", ","), ("effective rank", "effective_rank", ".1f")),
    figure=Figure("index", field="index", y_field="values", y_label="singular value", log="xy", offset=1),
)
def spectrum() -> Iterator[Cell]:
    # a layer compares with the same layer of another run
    yield Cell("RN-18 BYOL, encoder", "byol", measure="spectrum", options=ENCODER, in_paper=False)
    yield Cell("RN-18 SEM, encoder", measure="spectrum", options=ENCODER, in_paper=False)
    yield Cell("RN-18 Embed, L=5000", "byol-embed", measure="spectrum", in_paper=False)
    yield Cell("RN-18 SEM, L=5000", measure="spectrum", in_paper=False)
    for n in (50, 500, 5000):
        for word, recipe in (("Embed", "byol-embed"), ("SEM", "byol-sem")):
            yield Cell(f"RN-50 {word}, L={n}", recipe, simplices(n), resnet50(), "spectrum")


@experiment(
    "coherence",
    "Semantic coherence of the features that predict a class, and the graph of the five first",
    (
        TEMPERATURE,
        ("over all classes, K=1", "coherence_at_1", ".3f"),
        ("K=5", "coherence_at_5", ".3f"),
        ("K=20", "coherence_at_20", ".3f"),
        ("over classes with neighbours, K=1", "connected_at_1", ".3f"),
        ("K=5", "connected_at_5", ".3f"),
        ("K=20", "connected_at_20", ".3f"),
        ("classes without neighbours, K=1", "isolated_at_1", ""),
        ("K=5", "isolated_at_5", ""),
        ("K=20", "isolated_at_20", ""),
        ("components, K=5", "components_at_5", ""),
    ),
    figure=Figure("K", field="k", y_field="coherence", y_label="coherence", log=""),
)
def coherence() -> Iterator[Cell]:
    for name, recipe, layer in (
        ("BYOL", "byol", "encoder"),
        ("BYOL, ICA", "byol", "ica"),
        ("BYOL + Embed", "byol-embed", "embedder"),
        ("BYOL + SEM", "byol-sem", "sem"),
    ):
        yield Cell(name, recipe, measure="coherence", options={"layer": layer})


@experiment(
    "bound",
    "The terms of Theorem 1: in theory, and measured on BYOL + SEM",
    (
        TEMPERATURE,
        ("R", "lipschitz", ".3g"),
        ("R sqrt(L phi)", "term", ".3g"),
        ("R sqrt(L phi) without softmax", "term_base", ".3g"),
        ("phi, measured", "measured", ".3g"),
        ("phi's supremum", "supremum", ".3g"),
        ("phi's bound", "bound", ".3g"),
        ("phi without softmax", "base", ".3g"),
        ("training loss", "train_loss", ".3g"),
        ("test loss", "test_loss", ".3g"),
    ),
    figure=Figure("temperature", rf", tau={NUMBER}", "", "supremum", "expressivity, the supremum"),
)
def bound() -> Iterator[Cell]:
    yield Cell("theory", None, measure="theory")
    yield Cell("BYOL + SEM", measure="tradeoff")
