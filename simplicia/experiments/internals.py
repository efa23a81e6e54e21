"""The paper's figures of model internals (entropy, spectrum, coherence, the bound) and its cost table."""

from collections.abc import Iterator

from simplicia.analyze.model_cost import PAPER
from simplicia.experiments.cifar import ENCODER, LAYER, NUMBER, SEM, TEMPERATURE, resnet50, simplices
from simplicia.experiments.experiment import Cell, Figure, experiment

RECIPES = {"BYOL": "byol", "BYOL + SEM": "byol-sem", "BYOL + SEM/8": "byol-sem8"}
# the cost table's last column; its others are in simplicia.analyze.model_cost
ACCURACIES = {
    ("resnet18", "BYOL"): 70.7,
    ("resnet18", "BYOL + SEM"): 73.9,
    ("resnet18", "BYOL + SEM/8"): 73.3,
    ("resnet50", "BYOL"): 74.3,
    ("resnet50", "BYOL + SEM"): 77.4,
    ("resnet50", "BYOL + SEM/8"): 76.6,
}


@experiment(
    "cost",
    "Parameters, activations and FLOPs of BYOL's online network, and accuracies",
    columns=(
        ("parameters", "parameters", ","),
        ("paper's", "paper_parameters", ","),
        ("activations", "activations", ","),
        ("paper's", "paper_activations", ","),
        ("FLOPs", "flops", ".2e"),
        ("paper's", "paper_flops", ".2e"),
    ),
)
def cost() -> Iterator[Cell]:
    for encoder, model in PAPER:
        yield Cell(f"{encoder} {model}, counted", None, measure="cost", options={"of": (encoder, model)})
    for (encoder, model), paper in ACCURACIES.items():
        optimiser = resnet50() if encoder == "resnet50" else {}
        layer = ENCODER if model == "BYOL" else SEM
        name = f"{encoder} {model}, accuracy"
        yield Cell(name, RECIPES[model], {}, optimiser, options=layer, paper=paper)


@experiment(
    "entropy",
    "Entropy of the simplices of training images, by the temperature of pre-training",
    columns=(("mean entropy, nats", "mean_entropy", ".2f"), ("ln V", "ln_vertices", ".2f")),
    figure=Figure("entropy of a simplex, nats", field="edges", y_field="counts", y_label="simplices", log=""),
)
def entropy() -> Iterator[Cell]:
    for tau in (0.01, 0.1, 0.5, 1.0, 2.0):
        yield Cell(f"tau_p={tau:g}", changes={"sem.temperature": tau}, measure="entropy")


@experiment(
    "spectrum",
    "Spectrum of the covariance of the embedder's output on test images",
    columns=(
        *LAYER,
        ("features", "features", ","),
        ("effective rank", "effective_rank", ".1f"),
    ),
    figure=Figure("index", field="index", y_field="values", y_label="singular value", log="xy", offset=1),
)
def spectrum() -> Iterator[Cell]:
    yield Cell("RN-18 BYOL, encoder", "byol", measure="spectrum", options=ENCODER, in_paper=False)
    yield Cell("RN-18 SEM, L=5000", measure="spectrum", in_paper=False)
    for n in (50, 500, 5000):
        for word, recipe in (("Embed", "byol-embed"), ("SEM", "byol-sem")):
            yield Cell(f"RN-50 {word}, L={n}", recipe, simplices(n), resnet50(), "spectrum")


@experiment(
    "coherence",
    "Semantic coherence of the features that predict a class, and the graph of the five first",
    columns=(
        ("coherence, K=1", "coherence_at_1", ".3f"),
        ("K=5", "coherence_at_5", ".3f"),
        ("K=20", "coherence_at_20", ".3f"),
        ("classes without neighbours, K=5", "isolated_at_5", ""),
        ("K=20", "isolated_at_20", ""),
        ("components, K=5", "components_at_5", ""),
    ),
    figure=Figure("K", field="k", y_field="coherence", y_label="coherence", log=""),
)
def coherence() -> Iterator[Cell]:
    yield Cell("BYOL", "byol", measure="coherence", options=ENCODER)
    yield Cell("BYOL, ICA", "byol", measure="coherence", options={"layer": "ica"})
    yield Cell("BYOL + Embed", "byol-embed", measure="coherence", options={"layer": "embedder"})
    yield Cell("BYOL + SEM", measure="coherence", options=SEM)


@experiment(
    "bound",
    "The terms of Theorem 1: in theory, and measured on BYOL + SEM",
    columns=(
        *TEMPERATURE,
        ("expressivity measured", "measured", ".3g"),
        ("supremum", "supremum", ".3g"),
        ("bound", "bound", ".3g"),
        ("without softmax", "base", ".3g"),
        ("training loss", "train_loss", ".3g"),
        ("test loss", "test_loss", ".3g"),
    ),
    figure=Figure(
        "temperature", rf", tau={NUMBER}", y_field="supremum", y_label="expressivity, the supremum"
    ),
)
def bound() -> Iterator[Cell]:
    yield Cell("theory", None, measure="theory")
    yield Cell("BYOL + SEM", measure="tradeoff")
