"""The paper's figures of what is inside: entropy, spectrum, coherence, the bound, and what models cost."""

from simplicia.analyze.model_cost import PAPER
from simplicia.experiments.cifar import CHOSEN, ENCODER, NUMBER, SEM, resnet50, simplices, temperature
from simplicia.experiments.experiment import Cell, Experiment, Figure

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

COST = Experiment(
    "cost",
    "Parameters, activations and FLOPs of BYOL's online network, and accuracies",
    (
        *(
            Cell(f"{encoder} {model}, counted", None, measure="cost", options={"of": (encoder, model)})
            for encoder, model in PAPER
        ),
        *(
            Cell(
                f"{encoder} {model}, accuracy",
                RECIPES[model],
                setting=resnet50() if encoder == "resnet50" else {},
                options=ENCODER if model == "BYOL" else SEM,
                paper=paper,
            )
            for (encoder, model), paper in ACCURACIES.items()
        ),
    ),
    columns=(
        ("parameters", "parameters", ","),
        ("paper's", "paper_parameters", ","),
        ("activations", "activations", ","),
        ("paper's", "paper_activations", ","),
        ("FLOPs", "flops", ".2e"),
        ("paper's", "paper_flops", ".2e"),
    ),
)

ENTROPY = Experiment(
    "entropy",
    "Entropy of the simplices of training images, by the temperature of pre-training",
    tuple(
        Cell(f"tau_p={tau:g}", changes=temperature(tau), measure="entropy")
        for tau in (0.01, 0.1, 0.5, 1.0, 2.0)
    ),
    columns=(("mean entropy, nats", "mean_entropy", ".2f"), ("ln V", "ln_vertices", ".2f")),
    figure=Figure("entropy of a simplex, nats", field="edges", up="counts", title="simplices", log=""),
)

SPECTRUM = Experiment(
    "spectrum",
    "Spectrum of the covariance of the embedder's output on test images",
    (
        Cell("RN-18 BYOL, encoder", "byol", measure="spectrum", options=ENCODER, ours=True),
        Cell("RN-18 SEM, L=5000", measure="spectrum", ours=True),
        *(
            Cell(f"RN-50 {word}, L={n}", recipe, simplices(n), resnet50(), measure="spectrum")
            for n in (50, 500, 5000)
            for word, recipe in (("Embed", "byol-embed"), ("SEM", "byol-sem"))
        ),
    ),
    columns=(
        ("layer", "layer", ""),
        ("features", "features", ","),
        ("effective rank", "effective_rank", ".1f"),
    ),
    figure=Figure("index", field="index", up="values", title="singular value", log="xy", start=1),
)

COHERENCE = Experiment(
    "coherence",
    "Semantic coherence of the features that predict a class, and the graph of the five first",
    (
        Cell("BYOL", "byol", measure="coherence", options=ENCODER),
        Cell("BYOL, ICA", "byol", measure="coherence", options={"layer": "ica"}),
        Cell("BYOL + Embed", "byol-embed", measure="coherence", options={"layer": "embedder"}),
        Cell("BYOL + SEM", measure="coherence", options=SEM),
    ),
    columns=(
        ("coherence, K=1", "coherence_at_1", ".3f"),
        ("K=5", "coherence_at_5", ".3f"),
        ("K=20", "coherence_at_20", ".3f"),
        ("classes without neighbours, K=5", "isolated_at_5", ""),
        ("K=20", "isolated_at_20", ""),
        ("components, K=5", "components_at_5", ""),
    ),
    figure=Figure("K", field="k", up="coherence", title="coherence", log=""),
)

BOUND = Experiment(
    "bound",
    "The terms of Theorem 1: in theory, and measured on BYOL + SEM",
    (
        Cell("theory", None, measure="theory"),
        Cell("BYOL + SEM", measure="tradeoff"),
    ),
    columns=(
        *CHOSEN,
        ("expressivity measured", "measured", ".3g"),
        ("supremum", "supremum", ".3g"),
        ("bound", "bound", ".3g"),
        ("without softmax", "base", ".3g"),
        ("training loss", "train_loss", ".3g"),
        ("test loss", "test_loss", ".3g"),
    ),
    figure=Figure("temperature", rf", tau={NUMBER}", up="supremum", title="expressivity, the supremum"),
)

EXPERIMENTS = (COST, ENTROPY, SPECTRUM, COHERENCE, BOUND)
