"""Coherence of SEM and of its baselines within the run: encoder, embedder, and ICA of the encoder.

The paper's baselines are other models (BYOL, BYOL with a large embedding, ICA of BYOL): separate runs.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
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
from simplicia.analyze.covariance_spectrum import spectrum
from simplicia.analyze.independent_components import ica
from simplicia.analyze.report_data import Coherence, CoherenceCurve, Graph
from simplicia.evaluate import sgd
from simplicia.files import write_file
from simplicia.methods.base import Network
from simplicia.representation import represent

MOST_K = 50
GRAPHS = (1, 3, 5, 10)  # K of the graphs
LABELS = {"sem": "SEM", "embedder": "embedder", "ica": "ICA of the encoder", "encoder": "encoder"}
EPOCHS, EPOCHS_ON_CPU = 20, 10  # of the linear classifiers
RATE = 16
BATCH = 256
ICA_IMAGES, ICA_COMPONENTS = 5000, 128  # the time grows with the square of the number of components
Layer = Callable[[Tensor], Tensor]  # computes a layer from a batch of encoder features


@torch.no_grad()
def compare(
    network: Network,
    fit: tuple[Tensor, Tensor],  # the encoder's features of training images, and their labels
    test: tuple[Tensor, Tensor],
    classes: tuple[str, ...],
    superclass: Tensor | None,
    temperature: float | None,  # of SEM; None: there is none
    folder: Path,  # for weights and graphs
    say: Callable[[str, int, int], None],
) -> tuple[Coherence, list[str]]:
    """Fit a linear classifier to each layer: the coherence of their weights, their graphs, and notes."""
    from safetensors.torch import save

    features = fit[0]
    epochs = EPOCHS_ON_CPU if features.device.type == "cpu" else EPOCHS
    say("independent components", 0, 0)
    independent, notes = _independent(features)
    layers: dict[str, Layer] = {}
    if temperature is not None:
        layers["sem"] = lambda batch: represent(network, batch, "sem", temperature).float()
        layers["embedder"] = lambda batch: represent(network, batch, "embedder").float()
    if independent is not None:
        layers["ica"] = independent
    layers["encoder"] = lambda batch: batch
    curves, graphs, tensors = [], [], {}
    epoch, total = itertools.count(1), epochs * len(layers)

    def after_epoch() -> None:
        say("linear classifiers, epoch", next(epoch), total)

    for name, layer in layers.items():
        linear = fit_linear(layer, *fit, len(classes), epochs, after_epoch)
        weight = linear.weight.T
        most = min(MOST_K, weight.shape[1])
        indices, values = top_features(weight, most)
        tensors[f"{name}.index"] = torch.from_numpy(indices).int().contiguous()
        tensors[f"{name}.value"] = torch.from_numpy(values).float().contiguous()
        curve, isolated = (None, None) if superclass is None else coherence_curve(weight, superclass, most)
        curves.append(
            CoherenceCurve(
                layer=name,
                label=LABELS[name],
                temperature=temperature if name == "sem" else None,
                features=weight.shape[1],
                train_accuracy=linear.accuracy(*fit),
                test_accuracy=linear.accuracy(*test),
                fit_images=len(features),
                fit_epochs=epochs,
                coherence=curve,
                isolated=isolated,
            )
        )
        graphs += [_graph(name, weight, k, classes, folder) for k in GRAPHS if k <= most]
    write_file(folder / "weights.safetensors", save(tensors), "the analysis")
    return Coherence(list(range(1, MOST_K + 1)), curves, graphs), notes


@dataclass
class Linear:
    """A linear classifier on a layer."""

    layer: Layer
    weight: Tensor  # (features of the layer, classes)
    bias: Tensor  # (classes,)

    def accuracy(self, features: Tensor, labels: Tensor) -> float:
        """In percent."""
        scores = (torch.addmm(self.bias, self.layer(batch), self.weight) for batch in features.split(BATCH))
        correct = torch.cat([part.argmax(1) for part in scores]) == labels.to(features.device)
        return 100 * correct.double().mean().item()


@torch.no_grad()
def fit_linear(
    layer: Layer,
    features: Tensor,
    labels: Tensor,
    classes: int,
    epochs: int,
    after_epoch: Callable[[], None] = lambda: None,
) -> Linear:
    """Train the linear classifier whose weights the coherence is measured on.

    One plain protocol for all layers, without a grid: cross-entropy, SGD with momentum 0.9 from zero, a
    cosine decay to zero, on centred features (the bias absorbs the mean). The rate is in units of one over
    the layer's largest variance, so that no layer is favoured by its scale. ``simplicia probe`` reports
    accuracies.
    """
    sample = layer(features[:: math.ceil(len(features) / 1024)])  # strided: images may be sorted by class
    mean, width = sample.mean(0), sample.shape[1]
    # the curvature of the cross-entropy is at first the largest variance over the number of classes
    rate = min(RATE, 3 * classes) / spectrum(sample, top=1).float().clamp_min(1e-12)
    scale = rate.sqrt()  # scaling the inputs gives the weights this rate, and the bias a rate of 1
    weight, bias = sgd.train(
        lambda epoch, batch: ((layer(features[batch]) - mean) * scale)[None],
        width,
        torch.arange(len(features), device=features.device),
        labels.to(features.device),
        classes,
        [[sgd.Rates(1.0)]],
        epochs=epochs,
        batch_size=BATCH,
        cosine=True,
        after_epoch=after_epoch,
    )
    weight = weight[0] * scale[:, None]
    return Linear(layer, weight, bias[0, 0] - mean @ weight)


def _independent(features: Tensor) -> tuple[Layer | None, list[str]]:
    """A function from the encoder's features to independent components, and notes."""
    some = features[:: math.ceil(len(features) / ICA_IMAGES)].double().cpu()  # images may be sorted by class
    rank = int(torch.linalg.matrix_rank(some - some.mean(0)))
    count = min(rank, len(some) - 1, ICA_COMPONENTS)
    if count < 1:
        return None, ["no independent components: the encoder gives every image the same features"]
    _, fitted = ica(some, count)
    return fitted, [] if fitted.converged else [
        "FastICA did not converge; its curve is of its last iteration"
    ]


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
