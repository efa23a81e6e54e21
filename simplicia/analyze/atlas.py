"""The simplex atlas: the images that each vertex fires on, and how informative vertices are.

A vertex fires on an image if it is the largest of its simplex. Images are streamed: the atlas keeps only
counts of (simplex, vertex, class).
"""

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from simplicia.analyze.report_data import AtlasSummary

MOST = 50  # simplices and groups that a summary lists


class Atlas:
    """Counts the classes that vertices fire on, batch by batch. Without labels all images are one class.

    >>> atlas = Atlas(simplices=8, vertices=13)
    >>> atlas.add(run.encode(images, "codes"), run.encode(images))
    >>> atlas.images
    4
    """

    def __init__(self, simplices: int, vertices: int, classes: int = 1, device: torch.device | str = "cpu"):
        self.shape = simplices, vertices, classes
        self.counts = torch.zeros(simplices * vertices * classes, dtype=torch.int32, device=device)
        # the sum of a random number per image: equal for vertices that fire on the same images, and by
        # chance for one pair in 2^64
        self.signature = torch.zeros(simplices * vertices, dtype=torch.int64, device=device)
        self.generator = torch.Generator().manual_seed(0)
        self.mean = torch.zeros(simplices * vertices, dtype=torch.float64, device=device)
        self.square = torch.zeros_like(self.mean)
        self.images = 0

    def add(self, codes: Tensor, probabilities: Tensor, labels: Tensor | None = None) -> None:
        """Codes (N, L), probabilities (N, L*V) and labels (N,) of a batch."""
        simplices, vertices, classes = self.shape
        device, limit = self.counts.device, torch.iinfo(torch.int64)
        units = codes.long() + torch.arange(simplices, device=device) * vertices  # (N, L)
        cells = (units * classes + (0 if labels is None else labels.to(device)[:, None])).flatten()
        self.counts.scatter_add_(0, cells, torch.ones_like(cells, dtype=torch.int32))
        key = torch.randint(limit.min, limit.max, (len(codes),), generator=self.generator, dtype=torch.int64)
        self.signature.scatter_add_(0, units.flatten(), key.to(device).repeat_interleave(simplices))
        self.mean += probabilities.sum(0)
        self.square += probabilities.square().sum(0)
        self.images += len(codes)

    @property
    def table(self) -> Tensor:
        """How often each vertex fired on each class: (L, V, C)."""
        return self.counts.view(self.shape)

    @property
    def fired(self) -> Tensor:
        """How often each vertex fired: (L, V)."""
        return self.table.sum(-1)

    def simplex_information(self) -> Tensor:
        """Mutual information of each simplex's code with the class, in nats: (L,)."""
        return torch.cat([_information(part) for part in self.table.split(256)])

    def vertex_information(self) -> Tensor:
        """Mutual information of "this vertex fires" with the class, in nats: (L, V)."""
        images = self.table[0].sum(0)  # of each class: every simplex fires once on every image
        parts = self.table.split(256)
        return torch.cat([_information(torch.stack([part, images - part], -2)) for part in parts])

    def contrast(self) -> Tensor:
        """Standard deviation over images of each vertex's probability: (L, V). It needs no labels."""
        mean = self.mean / self.images
        return (self.square / self.images - mean**2).clamp_min(0).sqrt().view(self.shape[:2])

    def ranked(self, count: int) -> tuple[list[int], Tensor]:
        """The features (simplex * V + vertex) of largest score, and the score (L, V).

        With classes the score is the information about the class, and no class is the strongest of more than
        three times its share of the features, so that the easiest class does not fill the list. Without
        classes the score is the contrast.
        """
        classes = self.shape[2]
        score = self.vertex_information() if classes > 1 else self.contrast()
        strongest = self.table.argmax(-1).flatten().tolist()
        left = [math.ceil(3 * count / classes)] * classes
        chosen: list[int] = []
        alive = (self.fired.flatten() > 0).tolist()
        for feature in score.flatten().argsort(descending=True, stable=True).tolist():
            if alive[feature] and left[strongest[feature]] and len(chosen) < count:
                left[strongest[feature]] -= 1
                chosen.append(feature)
        return chosen, score

    def best_simplices(self, count: int) -> tuple[list[int], Tensor]:
        """The simplices of largest score, and the score (L,): information, or without classes contrast."""
        labelled = self.shape[2] > 1
        score = self.simplex_information() if labelled else self.contrast().square().sum(1).sqrt()
        return score.argsort(descending=True, stable=True)[:count].tolist(), score

    def summary(self) -> AtlasSummary:
        """Count useful vertices and simplices, and list the simplices most informative about the class.

        Dead vertices fire on no image. Duplicate vertices fire on the images of an earlier one. Duplicate
        simplices partition the images as an earlier one, whatever the order of their vertices.
        """
        fired, used = self.fired, (self.fired > 0).sum(1)
        alive = self.signature[fired.flatten() > 0]
        partitions = defaultdict(list)
        for simplex, keys in enumerate(self.signature.view(self.shape[:2]).sort(1).values.tolist()):
            partitions[tuple(keys)].append(simplex)
        groups = [group for group in partitions.values() if len(group) > 1 and used[group[0]] > 1]
        of_classes: dict[str, Any] = {}
        if self.shape[2] > 1:
            best, information = self.best_simplices(MOST)
            share = self.table[0].sum(0).double() / self.images
            parts = {"mean": information.mean(), "largest": information.max(), "smallest": information.min()}
            of_classes = {
                "ranked_by": "information",
                "class_entropy": -torch.special.xlogy(share, share).sum().item(),
                "simplex_information": {name: value.item() for name, value in parts.items()},
                "best_simplices": [
                    {"simplex": i, "information": information[i].item(), "fired": fired[i].tolist()}
                    for i in best
                ],
            }
        return AtlasSummary(
            simplices=self.shape[0],
            vertices=self.shape[1],
            images=self.images,
            dead_vertices=int((fired == 0).sum()),
            duplicate_vertices=len(alive) - len(alive.unique()),
            constant_simplices=int((used == 1).sum()),
            duplicate_simplices=sum(len(group) - 1 for group in groups),
            duplicate_groups=groups[:MOST],
            used_vertices=torch.bincount(used, minlength=self.shape[1] + 1).tolist(),
            **of_classes,
        )


def _information(table: Tensor) -> Tensor:
    """Mutual information of two variables from their counts (..., rows, columns), in nats."""
    joint = table.double() / table.sum((-2, -1), keepdim=True)
    independent = joint.sum(-1, keepdim=True) * joint.sum(-2, keepdim=True)
    ratio = torch.where(joint > 0, joint / independent, 1.0)
    return torch.special.xlogy(joint, ratio).sum((-2, -1)).clamp_min(0)


def largest(counts: Tensor, most: int) -> list[list[int]]:
    """[index, count] of the largest counts that are not 0."""
    values, indices = counts.sort(descending=True, stable=True)
    return [[i, n] for i, n in zip(indices[:most].tolist(), values[:most].tolist(), strict=True) if n]
