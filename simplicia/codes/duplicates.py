"""Groups of duplicates: the nearest images by code, checked by how they look.

Codes are trained to ignore crops, colours and blur, so two photographs of one place may have nearly equal
codes. They propose pairs: each image and its nearest ones. A pair is kept if the 16 x 16 grey images agree in
some alignment, one of them complete and the other cropped.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from simplicia.codes.bits import bits_of, nearest
from simplicia.codes.store import SIDE, Table
from simplicia.errors import UserError
from simplicia.progress import Progress

DISTANCE = 0.04  # chosen on images held out, see docs/find.md
NEAREST = 8  # images by code that are compared with each image
PROPOSED = 8 * NEAREST  # images that half of the simplices propose
MOST_CODES = 0.5  # share of simplices in which a pair may differ
BLOCK = 64  # images that a thread compares at a time
THREADS = 2
CROPS = {0.95: 3, 0.9: 5}  # sides of crops, and places along each side
UNALIGNED = 0.25  # correlation from which a better alignment is looked for
PAIRS = 1024  # compared at a time


@dataclass
class Group:
    """Images that are duplicates of each other, the largest file first."""

    rows: list[int]
    names: list[str]
    bytes: list[int]
    exact: list[bool]  # whether the file has the same bytes as the first
    distance: list[float]  # of how it looks, to the most similar other image of the group
    code_distance: list[float]  # the share of simplices that differ from that one


def look_distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """1 - the correlation of looks (n, 256) in the best alignment, from 0 to 1: (n,).

    Pairs that correlate too little without an alignment are not aligned.
    """
    a, b = (torch.from_numpy(x.reshape(-1, SIDE, SIDE).astype(np.float32)) for x in (first, second))
    x, y = _unit(a).flatten(1), _unit(b).flatten(1)
    best = (x * y).sum(1)
    some = best > UNALIGNED
    c, d = a[some], b[some]
    best[some] = torch.stack([best[some], _best_crop(c, d), _best_crop(d, c)]).amax(0)
    equal = (a - b).abs().amax((1, 2)) <= 2  # images without contrast have no correlation
    return torch.where(equal, 0.0, 1 - best).clamp(0, 1).numpy()


def _unit(looks: Tensor) -> Tensor:
    centred = looks - looks.mean((1, 2), keepdim=True)
    return centred / centred.norm(dim=(1, 2), keepdim=True).clamp_min(1e-3)


def _best_crop(looks: Tensor, others: Tensor) -> Tensor:
    """The largest correlation of a crop of each look (n, 16, 16) with the other: (n,)."""
    best, unit = torch.full((len(looks),), -1.0), _unit(others)
    for side, places in CROPS.items():
        resize = torch.stack([_resize(side, (1 - side) * i / (places - 1)) for i in range(places)])
        rows = torch.einsum("prh,nhw->nprw", resize, looks)
        crops = torch.einsum("nprw,qcw->nprqc", rows, resize)
        product = torch.einsum("nprqc,nrc->npq", crops, unit)
        variance = crops.square().sum((2, 4)) - crops.sum((2, 4)) ** 2 / SIDE**2
        correlation = product / variance.clamp_min(1e-6).sqrt()
        best = torch.maximum(best, correlation.flatten(1).amax(1))
    return best


def _resize(side: float, start: float) -> Tensor:
    """Linear interpolation of ``SIDE`` pixels from the part ``start`` to ``start + side`` of as many."""
    at = ((torch.arange(SIDE) + 0.5) * side + start * SIDE - 0.5).clamp(0, SIDE - 1)
    return (1 - (at[:, None] - torch.arange(SIDE)).abs()).clamp_min(0)


def find(table: Table, distance: float = DISTANCE, quiet: bool = True) -> list[Group]:
    """Groups of images whose looks differ by at most ``distance``, or whose files are equal."""
    if not 0 <= distance < 1:
        raise UserError(f"distance is {distance}; it must be from 0 (equal looks) to below 1")
    first, second, codes = _proposed(table, quiet)
    looks = np.concatenate(
        [
            look_distances(table.looks[first[i : i + PAIRS]], table.looks[second[i : i + PAIRS]])
            for i in range(0, len(first), PAIRS)
        ]
        or [np.empty(0)]
    )
    near = looks <= distance
    first, second, codes, looks = first[near], second[near], codes[near], looks[near]
    equal = _equal(table.content)
    first, second = np.concatenate([first, equal[0]]), np.concatenate([second, equal[1]])
    looks, codes = np.pad(looks, (0, equal.shape[1])), np.pad(codes, (0, equal.shape[1]))
    closest: dict[int, list[float]] = {}  # of each image, its link of smallest distance
    for i, j, *link in zip(first.tolist(), second.tolist(), looks.tolist(), codes.tolist(), strict=True):
        for row in (i, j):
            closest[row] = min(closest.get(row, link), link)
    groups = [_group(table, rows, closest) for rows in _components(len(table), first, second)]
    return sorted(groups, key=lambda group: (max(group.distance), max(group.code_distance), group.names))


def _proposed(table: Table, quiet: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs i < j of which one is among the other's nearest, and the share of simplices that differ."""
    n, bits, simplices = len(table), bits_of(table.about.vertices), len(table.about.simplices)
    planes = np.ascontiguousarray(table.codes)
    words = max(1, len(planes) // bits // 2)
    most = int(MOST_CODES * simplices)

    def scan(rows: range) -> np.ndarray:
        parts = [np.empty((3, 0), dtype=np.int64)]
        for i in rows:
            near, differ = nearest(planes, planes[:, i], bits, NEAREST + 1, words, PROPOSED)
            kept = (near != i) & (differ <= most)
            j = near[kept]
            parts.append(np.stack([np.minimum(i, j), np.maximum(i, j), differ[kept]]))
        return np.concatenate(parts, 1)

    blocks = [range(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK)]
    with closing(Progress("comparing", n, 0, quiet)) as bar, ThreadPoolExecutor(THREADS) as threads:
        found = [np.empty((3, 0), dtype=np.int64)]
        for block, part in zip(blocks, threads.map(scan, blocks), strict=True):  # numpy releases the lock
            found.append(part)
            bar.update(block.stop, "images")
    first, second, differ = np.unique(np.concatenate(found, 1), axis=1)
    return first, second, differ / simplices


def _equal(content: np.ndarray) -> np.ndarray:
    """Pairs (2, n) that link all files of equal bytes, each with the first."""
    _, first, group = np.unique(
        np.ascontiguousarray(content).view("V16"), return_index=True, return_inverse=True
    )
    firsts = first[group.ravel()]
    others = np.flatnonzero(firsts != np.arange(len(content)))
    return np.stack([firsts[others], others])


def _components(n: int, first: np.ndarray, second: np.ndarray) -> list[list[int]]:
    """The rows of each connected group of at least two images."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(first), dtype=np.int8), (first, second)), shape=(n, n))
    _, label = connected_components(links, directed=False)
    linked = np.unique(np.concatenate([first, second]))
    groups: dict[int, list[int]] = {}
    for row in linked.tolist():
        groups.setdefault(int(label[row]), []).append(row)
    return list(groups.values())


def _group(table: Table, rows: list[int], closest: dict[int, list[float]]) -> Group:
    names = dict(zip(rows, table.names(rows), strict=True))
    rows = sorted(rows, key=lambda row: (-int(table.stamps[row, 0]), names[row]))
    first = table.content[rows[0]]
    return Group(
        rows,
        [names[row] for row in rows],
        [int(table.stamps[row, 0]) for row in rows],
        [bool((table.content[row] == first).all()) for row in rows],
        [closest[row][0] for row in rows],
        [closest[row][1] for row in rows],
    )
