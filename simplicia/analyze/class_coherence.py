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
    least = magnitude.topk(k).values[:, -1:]
    # topk is fast but picks any of equal ones; a stable sort of the few candidates picks the first
    candidates = [row.nonzero()[:, 0] for row in magnitude >= least]
    order = torch.stack(
        [
            few[row[few].sort(descending=True, stable=True).indices[:k]]
            for row, few in zip(magnitude, candidates, strict=True)
        ]
    )
    return order.cpu().numpy(), values.gather(1, order).double().cpu().numpy()


def coherence(weight: Array, superclass: Array, k: int) -> float:
    """The paper's coherence of W_k, from 0 to 1: weight (classes, features), superclass (classes,).

        1/C sum_i |2-neighbours of i in i's superclass| / |2-neighbours of i|

    Two shared features make one neighbour. A class without neighbours counts as 0: it is one of the C that
    the mean divides by, and shares nothing with its superclass. A weight of exactly 0 links nothing.
    """
    return coherence_curve(weight, superclass, k)[0][-1]


def coherence_curve(weight: Array, superclass: Array, most: int) -> tuple[list[float], list[int]]:
    """Coherence for each k from 1 to ``most``, and how many classes have no neighbour then."""
    groups = torch.as_tensor(superclass).cpu().numpy()
    indices, values = top_features(weight, most)
    if groups.shape != (len(indices),):
        raise ValueError(f"superclass is {groups.shape}; it must be ({len(indices)},), one for each class")
    first = _first_shared(indices, values)
    same = groups[:, None] == groups
    curve, isolated = [], []
    for k in range(most):
        near = first <= k
        count = near.sum(1)
        agreeing = (near & same).sum(1)
        curve.append(float((agreeing / np.maximum(count, 1)).mean()))
        isolated.append(int((count == 0).sum()))
    return curve, isolated


def _first_shared(indices: np.ndarray, values: np.ndarray) -> np.ndarray:
    """For each pair of classes, the rank at which they first share a feature: (C, C), k if they never do."""
    classes, k = indices.shape
    first = np.full((classes, classes), k)
    for members, ranks in _by_feature(indices, values).values():
        if len(members) > 1:
            pair = np.ix_(members, members)
            first[pair] = np.minimum(first[pair], np.maximum(ranks[:, None], ranks))
    np.fill_diagonal(first, k)  # nobody is its own neighbour
    return first


def _by_feature(indices: np.ndarray, values: np.ndarray) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """The classes linked to each feature, and the feature's rank in each."""
    linked, ranks = np.nonzero(values)
    features = indices[linked, ranks]
    order = np.argsort(features, kind="stable")
    features, linked, ranks = features[order], linked[order], ranks[order]
    names, starts = np.unique(features, return_index=True)
    ends = [*starts[1:], len(features)]
    return {
        name: (linked[start:end], ranks[start:end])
        for name, start, end in zip(names.tolist(), starts, ends, strict=False)
    }


def coherence_graph(weight: Array, k: int, classes: Sequence[str] = ()) -> "networkx.Graph":
    """W_k as a bipartite graph: every class, and the features at least two of them have in common.

    Nodes are "class i" (``bipartite`` 0, ``index`` and, if given, ``name``) and "feature j" (``bipartite``
    1); edges carry the ``weight``.
    """
    import networkx

    indices, values = top_features(weight, k)
    graph = networkx.Graph()
    for i in range(len(indices)):
        name = classes[i] if classes else f"class {i}"
        graph.add_node(f"class {i}", bipartite=0, index=i, name=name)
    for feature, (members, ranks) in _by_feature(indices, values).items():
        if len(members) > 1:
            graph.add_node(f"feature {feature}", bipartite=1, index=feature, name=f"feature {feature}")
            for i, rank in zip(members.tolist(), ranks.tolist(), strict=True):
                graph.add_edge(f"class {i}", f"feature {feature}", weight=float(values[i, rank]))
    return graph


def components(graph: "networkx.Graph") -> list[dict[str, list[int]]]:
    """The connected components with several classes, largest first: their ``classes`` and ``features``."""
    import networkx

    parts = []
    for nodes in networkx.connected_components(graph):
        indices: tuple[list[int], list[int]] = [], []
        for node in nodes:
            indices[graph.nodes[node]["bipartite"]].append(graph.nodes[node]["index"])
        if len(indices[0]) > 1:
            parts.append({"classes": sorted(indices[0]), "features": sorted(indices[1])})
    return sorted(parts, key=lambda part: (-len(part["classes"]), part["classes"]))


def write_graphml(graph: "networkx.Graph", path: Any) -> None:
    """The graph as GraphML. Characters XML cannot hold are left out of names."""
    import networkx

    clean = graph.copy()
    for _, data in clean.nodes(data=True):
        data["name"] = "".join(c for c in data["name"] if c.isprintable() and not "\ud800" <= c <= "\udfff")
    networkx.write_graphml(clean, path)
