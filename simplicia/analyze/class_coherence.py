"""Semantic coherence: do classes that share their most predictive features belong together?

The graph W_K of the paper links each class to the K features of largest weight in magnitude, and keeps the
features that two classes or more are linked to. Classes that share a feature are 2-neighbours.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    import networkx

Array = Any  # a tensor, an array or nested lists


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
    """
    return coherence_curve(weight, superclass, k)[0][-1]


def coherence_curve(weight: Array, superclass: Array, most: int) -> tuple[list[float], list[int]]:
    """Coherence for each k from 1 to ``most``, and how many classes have no neighbour then."""
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


def coherence_graph(weight: Array, k: int, classes: Sequence[str] = ()) -> "networkx.Graph":
    """W_k as a bipartite graph: every class, and the features at least two of them have in common.

    Nodes are "class i" (``bipartite`` 0, ``index`` and, if given, ``name``) and "feature j" (``bipartite``
    1); edges carry the ``weight``.
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


def write_graphml(graph: "networkx.Graph", path: Any) -> None:
    """The graph as GraphML. Characters XML cannot hold are left out of names."""
    import networkx

    clean = graph.copy()
    for _, data in clean.nodes(data=True):
        data["name"] = "".join(c for c in data["name"] if c.isprintable() and not "\ud800" <= c <= "\udfff")
    networkx.write_graphml(clean, path)
