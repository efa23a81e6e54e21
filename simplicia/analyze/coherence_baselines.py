"""Coherence of SEM and of its baselines within the run: encoder, embedder, and ICA of the encoder.

The paper's baselines are other models (BYOL, BYOL with a large embedding, ICA of BYOL): separate runs.
"""

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from simplicia.analyze.class_coherence import (
    coherence_curve,
    coherence_graph,
    components,
    top_features,
    write_graphml,
)
from simplicia.analyze.linear_weights import Layers, accuracies, fit_weights
from simplicia.analyze.report_data import Coherence, CoherenceCurve, Graph
from simplicia.files import atomic_write
from simplicia.methods.base import Network
from simplicia.representation import represent

MOST_K = 50
GRAPHS = (1, 3, 5, 10)  # K of the graphs
LABELS = {"sem": "SEM", "embedder": "embedder", "ica": "ICA of the encoder", "encoder": "encoder"}
Say = Callable[[str, int, int], None]
EPOCHS, EPOCHS_ON_CPU = 20, 10  # of the linear classifiers


@torch.no_grad()
def compare(
    network: Network,
    fit: tuple[Tensor, Tensor],  # the encoder's features of training images, and their labels
    test: tuple[Tensor, Tensor],
    classes: tuple[str, ...],
    superclass: Tensor | None,
    temperature: float | None,  # of SEM; None: there is none
    folder: Path,  # weights and graphs go here
    say: Say,
) -> tuple[Coherence, list[str]]:
    """Fit a linear classifier to each layer: the coherence of their weights, their graphs, and notes."""
    features, labels = fit
    say("independent components", 0, 0)
    mix, notes = independent(features)

    layers: Layers = {"encoder": lambda batch: batch}
    if mix is not None:
        layers["ica"] = mix
    if temperature is not None:
        layers["embedder"] = lambda batch: represent(network, batch, "embedder").float()
        layers["sem"] = lambda batch: represent(network, batch, "sem", temperature).float()

    epochs = EPOCHS_ON_CPU if features.device.type == "cpu" else EPOCHS
    linears = fit_weights(
        features,
        labels,
        len(classes),
        layers,
        epochs,
        progress=lambda done, total: say("linear classifiers, epoch", done, total),
    )
    say("accuracies of the linear classifiers", 0, 0)
    train_accuracy, test_accuracy = (accuracies(linears, *part, layers) for part in (fit, test))
    curves, graphs, tensors = [], [], {}
    for layer in (name for name in LABELS if name in linears):
        weight = linears[layer].weight.T
        most = min(MOST_K, weight.shape[1])
        curve, isolated = None, None
        if superclass is not None:
            curve, isolated = coherence_curve(weight, superclass, most)
        curves.append(
            CoherenceCurve(
                layer,
                LABELS[layer],
                temperature if layer == "sem" else None,
                weight.shape[1],
                train_accuracy[layer],
                test_accuracy[layer],
                len(features),
                epochs,
                curve,
                isolated,
            )
        )
        graphs += [_graph(layer, weight, k, classes, folder) for k in GRAPHS if k <= most]
        indices, values = top_features(weight, most)
        tensors[f"{layer}.index"] = torch.from_numpy(indices).int().contiguous()
        tensors[f"{layer}.value"] = torch.from_numpy(values).float().contiguous()
    from safetensors.torch import save

    with atomic_write(folder / "weights.safetensors") as temporary:
        temporary.write_bytes(save(tensors))
    return Coherence(list(range(1, MOST_K + 1)), curves, graphs), notes


def independent(
    features: Tensor, rows: int = 5000, most: int = 128
) -> tuple[Callable[[Tensor], Tensor] | None, list[str]]:
    """A function from the encoder's features to at most ``most`` independent components, and notes.

    It is fitted to ``rows`` images; the time grows with the square of the number of components.
    """
    from simplicia.analyze.independent_components import ica

    some = features[:: math.ceil(len(features) / rows)].double().cpu()  # images may be sorted by class
    rank = int(torch.linalg.matrix_rank(some - some.mean(0)))
    count = min(rank, len(some) - 1, most)
    if count < 1:
        return None, ["no independent components: the encoder gives every image the same features"]
    _, fitted = ica(some, count, 0)
    notes = [] if fitted.converged else ["FastICA did not converge; its curve is of its last iteration"]
    return fitted, notes


def _graph(layer: str, weight: Tensor, k: int, classes: tuple[str, ...], folder: Path) -> Graph:
    graph = coherence_graph(weight, k, classes)
    file = f"graph-{layer}-{k}.graphml"
    write_graphml(graph, folder / file)
    index = {node: data["index"] for node, data in graph.nodes(data=True)}
    parts = components(graph)
    linked = {i for part in parts for i in part["classes"]}
    edges = [
        [*(index[node] for node in sorted(pair)), round(value, 6)]  # "class …" sorts before "feature …"
        for *pair, value in graph.edges(data="weight")
    ]
    return Graph(layer, k, file, edges, parts, [i for i in range(len(weight)) if i not in linked])
