"""Semantic coherence: do classes that share their most predictive features belong together?

The graph W_K of the paper links each class to the K features of largest weight in magnitude, and keeps the
features that two classes or more are linked to. Classes that share a feature are 2-neighbours. The weights
are those of linear classifiers on SEM and, as a baseline, on independent components (ICA).
"""

import io
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from simplicia.analyze.covariance_spectrum import spectrum
from simplicia.errors import UserError
from simplicia.evaluate import sgd
from simplicia.files import write_file

if TYPE_CHECKING:
    import networkx

EPOCHS, EPOCHS_ON_CPU = 20, 10  # of the linear classifiers
RATE = 16
BATCH = 256
IMAGES, COMPONENTS = 5000, 128  # of ICA; the time grows with the square of the number of components
Array = Any  # a tensor, an array or nested lists
Layer = Callable[[Tensor], Tensor]  # computes a layer from a batch of encoder features


def top_features(weight: Array, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k features of largest magnitude of each class, largest first: indices and weights, (classes, k).

    Of equal magnitudes the lower index comes first.
    """
    values = torch.as_tensor(weight).detach()
    if values.dim() != 2 or 0 in values.shape:
        raise ValueError(f"weight is {tuple(values.shape)}; it must be (classes, features)")
    if not 1 <= k <= values.shape[1]:
        raise ValueError(f"k is {k}; it must be from 1 to {values.shape[1]}, the number of features")
    if not values.isfinite().all():
        raise ValueError("weight holds numbers that are not finite")
    magnitude = values.abs()
    order = []
    for row, least in zip(magnitude, magnitude.topk(k).values[:, -1], strict=True):
        # topk is fast but picks any of equal ones; a stable sort of the few candidates picks the first
        candidates = (row >= least).nonzero()[:, 0]
        order.append(candidates[row[candidates].sort(descending=True, stable=True).indices[:k]])
    indices = torch.stack(order)
    return indices.cpu().numpy(), values.gather(1, indices).double().cpu().numpy()


def coherence(weight: Array, superclass: Array, k: int) -> float:
    """The paper's coherence of W_k, from 0 to 1: weight (classes, features), superclass (classes,).

        1/C sum_i |2-neighbours of i in i's superclass| / |2-neighbours of i|

    Two shared features make one neighbour. A class without neighbours counts as 0: it is one of the C that
    the mean divides by, and shares nothing with its superclass. A weight of exactly 0 links nothing.

    >>> weight = torch.tensor([[3.0, 2, 0, 0], [2, 3, 0, 0], [0, 0, 3, 2], [0, 0, 2, 3]])
    >>> coherence(weight, torch.tensor([0, 0, 1, 1]), k=2)
    1.0
    """
    return coherence_curve(weight, superclass, k)[0][-1]


def coherence_curve(weight: Array, superclass: Array, most: int) -> tuple[list[float], list[int]]:
    """Coherence for each k from 1 to ``most``, and how many classes have no neighbour then.

    >>> coherence_curve(torch.eye(2), torch.tensor([0, 1]), most=2)
    ([0.0, 0.0], [2, 2])
    """
    from scipy.sparse import csr_array

    groups = torch.as_tensor(superclass).cpu().numpy()
    indices, values = top_features(weight, most)
    classes = len(indices)
    if groups.shape != (classes,):
        raise ValueError(f"superclass is {groups.shape}; it must be ({classes},), one for each class")
    same = groups[:, None] == groups
    curve, isolated = [], []
    for k in range(1, most + 1):
        linked = (values[:, :k] != 0).astype(float).ravel()
        links = csr_array((linked, indices[:, :k].ravel(), np.arange(0, classes * k + 1, k)))
        near = (links @ links.T).toarray() > 0
        np.fill_diagonal(near, False)  # no class is its own neighbour
        count, agreeing = near.sum(1), (near & same).sum(1)
        curve.append(float((agreeing / np.maximum(count, 1)).mean()))
        isolated.append(int((count == 0).sum()))
    return curve, isolated


def over_connected(curve: Sequence[float], isolated: Sequence[int], classes: int) -> list[float | None]:
    """The coherence over classes with neighbours alone, for each K: isolated ones count as 0 in the mean.

    None where no class has a neighbour.
    """
    counts = [classes - n for n in isolated]
    return [value * classes / n if n else None for value, n in zip(curve, counts, strict=True)]


def coherence_graph(weight: Array, k: int, classes: Sequence[str] = ()) -> "networkx.Graph":
    """W_k as a bipartite graph: every class, and the features at least two of them have in common.

    Nodes are "class i" (``bipartite`` 0, ``index`` and, if given, ``name``) and "feature j" (``bipartite``
    1); edges carry the ``weight``.

    >>> graph = coherence_graph(torch.tensor([[3.0, 0], [2.0, 0]]), k=1, classes=["cat", "dog"])
    >>> sorted(graph.nodes)
    ['class 0', 'class 1', 'feature 0']
    """
    import networkx

    indices, values = top_features(weight, k)
    linked = values != 0
    shared = np.bincount(indices[linked], minlength=indices.max() + 1) > 1
    graph = networkx.Graph()
    for i in range(len(indices)):
        graph.add_node(f"class {i}", bipartite=0, index=i, name=classes[i] if classes else f"class {i}")
    for i, rank in np.argwhere(linked & shared[indices]).tolist():
        feature = int(indices[i, rank])
        graph.add_node(f"feature {feature}", bipartite=1, index=feature, name=f"feature {feature}")
        graph.add_edge(f"class {i}", f"feature {feature}", weight=float(values[i, rank]))
    return graph


def describe_graph(graph: "networkx.Graph") -> tuple[list[Any], list[Any], list[int]]:
    """Edges [class, feature, weight], components of several classes, largest first, and isolated classes."""
    import networkx

    index, side = graph.nodes(data="index"), graph.nodes(data="bipartite")
    edges = [
        [*(index[node] for node in sorted(pair, key=side.__getitem__)), round(weight, 6)]
        for *pair, weight in graph.edges(data="weight")
    ]
    components, isolated = [], []
    for nodes in networkx.connected_components(graph):
        classes, features = (sorted(index[node] for node in nodes if side[node] == i) for i in (0, 1))
        if features:
            components.append({"classes": classes, "features": features})
        else:
            isolated += classes
    components.sort(key=lambda part: (-len(part["classes"]), part["classes"]))
    return edges, components, sorted(isolated)


def write_graphml(graph: "networkx.Graph", path: Path) -> None:
    """Write the graph as GraphML. Characters XML cannot hold are left out of names."""
    import networkx

    clean = graph.copy()
    for _, data in clean.nodes(data=True):
        data["name"] = "".join(c for c in data["name"] if c.isprintable() and not "\ud800" <= c <= "\udfff")
    file = io.BytesIO()
    networkx.write_graphml(clean, file)
    write_file(path, file.getvalue(), "the graph")


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
    sample = layer(features[:: math.ceil(len(features) / 1024)])  # images may be sorted by class
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
        cosine=True,
        after_epoch=after_epoch,
    )
    weight = weight[0] * scale[:, None]
    return Linear(layer, weight, bias[0, 0] - mean @ weight)


@dataclass(frozen=True)
class Ica:
    """A fitted transform: ``ica(features)`` gives the components of other features."""

    mean: Tensor  # (features,)
    weight: Tensor  # (components, features), whitening included
    converged: bool  # False: the components are those of the last iteration

    def __call__(self, features: Tensor) -> Tensor:
        return (features - self.mean.to(features)) @ self.weight.to(features).T


def ica(features: Tensor, components: int, seed: int = 0, iterations: int = 500) -> tuple[Tensor, Ica]:
    """Components (N, components) of features (N, features), each of unit variance, and the fitted transform.

    scikit-learn's FastICA on whitened features. Components are known up to order and sign.

    >>> components, transform = ica(torch.rand(200, 5), components=2)
    >>> components.shape, transform(torch.rand(3, 5)).shape
    (torch.Size([200, 2]), torch.Size([3, 2]))
    """
    from sklearn.decomposition import FastICA
    from sklearn.exceptions import ConvergenceWarning

    given = f"{tuple(features.shape)} {features.dtype}"
    if features.dim() != 2 or not features.is_floating_point() or not features.isfinite().all():
        raise UserError(f"features are {given}; they must be (N, features), real and finite")
    rank = _dimensions(features)
    if not 1 <= components <= rank:
        raise UserError(
            f"components is {components}; features {given} vary in {rank} dimensions: give from 1 to {rank}"
        )
    solver = FastICA(components, whiten="unit-variance", random_state=seed, max_iter=iterations, tol=1e-4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        solver.fit(features.detach().double().cpu().numpy())
    mean, weight = torch.from_numpy(solver.mean_), torch.from_numpy(solver.components_.copy())
    fitted = Ica(mean, weight, not any(issubclass(w.category, ConvergenceWarning) for w in caught))
    return fitted(features.detach().double()).to(features.dtype), fitted


def encoder_ica(features: Tensor) -> Ica | None:
    """ICA of the encoder's features, or None if they are the same for every image."""
    some = features[:: math.ceil(len(features) / IMAGES)].double()  # images may be sorted by class
    count = min(_dimensions(some), COMPONENTS)
    return ica(some, count)[1] if count else None


def _dimensions(features: Tensor) -> int:
    """How many dimensions features vary in, up to rounding; N samples vary in N - 1 at most."""
    x, rounding = features.detach().double().cpu(), max(features.shape) * torch.finfo(features.dtype).eps
    return min(int(torch.linalg.matrix_rank(x - x.mean(0), rtol=rounding)), len(features) - 1)
