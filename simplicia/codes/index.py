"""An index of images by their codes: search it, find duplicates, and change it (see ``changes``)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from simplicia.codes import bits, changes, store
from simplicia.codes.duplicates import DISTANCE, Group, find
from simplicia.codes.store import About
from simplicia.errors import UserError
from simplicia.run import Run, load

SIMPLICES = 256
CANDIDATES = 100  # times k images that approximate search compares in all simplices
EXAMPLES = 6  # images that a vertex stands for


@dataclass
class Neighbours:
    """The k nearest images of each query, nearest first."""

    indices: np.ndarray  # (queries, k) rows of the index
    agree: np.ndarray  # (queries, k) simplices whose codes are equal
    simplices: int
    names: list[list[str]]
    codes: np.ndarray  # (queries, simplices) of the queries

    @property
    def distance(self) -> np.ndarray:
        """The share of simplices that differ, from 0 to 1: (queries, k)."""
        return 1 - self.agree / self.simplices


@dataclass
class Vertex:
    """A vertex that a query shares with some of its neighbours."""

    simplex: int
    vertex: int
    share: float  # of the index's images that have it
    neighbours: int  # that share it
    examples: list[str]  # images that have it and are most like all others that do


class Index:
    """Images and their codes in one file.

    >>> index = Index.build(run, "photos", "photos.index")
    >>> len(index), len(index.simplices)
    (8, 8)
    """

    def __init__(self, path: str | Path, run: Run | None = None):
        """Open an index; ``run`` is the run that made it, by default loaded from where it was."""
        self.path = Path(path)
        self._load()
        self._run = run if run is None else self._checked(run)
        self.skipped: list[tuple[str, str]] = []  # files that the last build could not read, and why

    @classmethod
    def open(cls, path: str | Path, run: Run | None = None) -> "Index":
        return cls(path, run)

    @classmethod
    def build(
        cls,
        run: Run | str | Path,
        images: str | Path,
        out: str | Path,
        simplices: int = SIMPLICES,
        quiet: bool = True,
    ) -> "Index":
        """Encode every image below a folder, and keep the codes of the most informative simplices.

        An index that is there is replaced once the new one is complete. A killed build goes on from where it
        was when it is started again.

        >>> Index.build(run, "photos", "small.index", simplices=4)
        Index('small.index', 8 images, 4 simplices)
        """
        run = run if isinstance(run, Run) else load(run)
        skipped = changes.build(run, Path(images), Path(out), simplices, quiet)
        index = cls(out, run)
        index.skipped = skipped
        return index

    def add(self, images: str | Path, quiet: bool = True) -> int:
        """Add the images of a folder, or one image; returns how many.

        An image that is there already is encoded again if its file has changed.

        >>> index.add("photos")  # nothing is new
        0
        """
        count, self.skipped = changes.add(self.run, Path(images), self.path, quiet)
        self._load()
        return count

    def remove(self, names: str | Path | Iterable[str | Path]) -> int:
        """Remove images by name, or all below a folder; returns how many. No file is deleted.

        >>> index.remove(["0.png"])
        1
        """
        names = [names] if isinstance(names, str | Path) else names
        count = changes.remove(map(str, names), self.path)
        self._load()
        return count

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}, {len(self)} images, {len(self.simplices)} simplices)"

    @property
    def about(self) -> About:
        return self._table.about

    @property
    def simplices(self) -> list[int]:
        """The run's simplices that the index keeps, most informative first."""
        return self.about.simplices

    @property
    def folder(self) -> Path:
        """The folder that names are relative to."""
        return changes.folder_of(self.about, self.path)

    @cached_property
    def names(self) -> list[str]:
        """The images by name: relative to ``folder``, or absolute outside of it."""
        return self._table.names()

    @property
    def words(self) -> int:
        """The 64-bit words of an image's codes."""
        return len(self._table.codes)

    @property
    def run(self) -> Run:
        """The run that made the index."""
        return self._run or self.use()

    def use(self, run: str | Path | None = None, device: str = "auto") -> Run:
        """Load the run that made the index, by default from where it was.

        >>> index.use(device="cpu").step == run.step
        True
        """
        folder = run or self.about.model.run
        if run is None and not Path(folder).exists():
            raise UserError(
                f"the run {folder} that made {str(self.path)!r} is gone; name where it is now as --run"
            )
        self._run = self._checked(load(folder, device))
        return self._run

    def codes(self, rows: Any = slice(None)) -> np.ndarray:
        """The codes (n, simplices) of some images, by default of all.

        >>> index.codes([0, 2]).shape
        (2, 8)
        """
        return self._table.unpacked(rows)

    def encode(self, images: Any) -> np.ndarray:
        """The codes (n, simplices) of new images, in the index's simplices.

        >>> index.encode(images).shape
        (4, 8)
        """
        codes = self.run.encode(images, "codes").numpy()
        return codes[:, self.simplices].astype(bits.dtype_of(self.about.vertices))

    def search(
        self,
        queries: Any,
        k: int = 20,
        exact: bool = True,
        vertices: Mapping[int, int] | None = None,
    ) -> Neighbours:
        """The k images that agree with each query in most simplices; of equal ones the first in the index.

        ``queries`` are images as ``Run.encode`` takes them, or codes (n, simplices): of the run, or of the
        index. ``exact=False`` compares all images in the 64 most informative simplices and only the best
        100 k in all. ``vertices`` maps simplices to the vertex that results must have.

        >>> found = index.search(images, k=2)
        >>> found.names[1][0], found.agree[1, 0]
        ('1.png', np.int64(8))
        """
        if k < 1:
            raise UserError(f"k is {k}; it must be at least 1")
        codes = self._queries(queries)
        if not len(codes):
            raise UserError("no queries are given; give at least one image, or the codes of one")
        planes, rows = self._table.codes, None
        if vertices:
            rows = self.having(vertices)
            planes = planes[:, rows]
        width = bits.bits_of(self.about.vertices)
        words = len(planes) if exact else 1
        found = [
            bits.nearest(planes, query, width, k, words, CANDIDATES * k)
            for query in bits.pack(codes, self.about.vertices).T
        ]
        indices = np.stack([near for near, _ in found])
        agree = len(self.simplices) - np.stack([differ for _, differ in found]).astype(np.int64)
        indices = indices if rows is None else rows[indices]
        return Neighbours(
            indices, agree, len(self.simplices), [self._table.names(row) for row in indices.tolist()], codes
        )

    def listed(self, vertices: Mapping[int, int], k: int = 20) -> Neighbours:
        """The first k images that have the given vertices, without a query.

        >>> simplex, vertex = index.simplices[0], int(index.codes([0])[0, 0])
        >>> index.listed({simplex: vertex}, k=1).names
        [['0.png']]
        """
        rows = self.having(vertices)[:k]
        kept = [simplex for simplex in self.simplices if simplex in vertices]
        codes = np.full((1, len(self.simplices)), self.about.vertices)  # which no image has
        for simplex, vertex in vertices.items():
            codes[0, self.simplices.index(simplex)] = vertex
        agree = np.full((1, len(rows)), len(kept))
        return Neighbours(rows[None], agree, len(self.simplices), [self._table.names(rows.tolist())], codes)

    def having(self, vertices: Mapping[int, int]) -> np.ndarray:
        """The rows of images that have all of the given vertices, by simplex.

        >>> simplex, vertex = index.simplices[0], int(index.codes([0])[0, 0])
        >>> int(index.having({simplex: vertex})[0])
        0
        """
        chosen = np.ones(len(self), dtype=bool)
        for simplex, vertex in vertices.items():
            if not 0 <= simplex < self.about.total or not 0 <= vertex < self.about.vertices:
                raise UserError(
                    f"there is no vertex {simplex}:{vertex}; simplices are 0 to {self.about.total - 1}, "
                    f"vertices 0 to {self.about.vertices - 1}"
                )
            if simplex not in self.simplices:
                raise UserError(
                    f"the index keeps {len(self.simplices)} of {self.about.total} simplices, and {simplex} "
                    f"is none of them; {self.simplices[0]} is one"
                )
            codes = bits.column(self._table.codes, self.simplices.index(simplex), self.about.vertices)
            chosen &= codes == vertex
        return np.flatnonzero(chosen)

    def agreeing(self, codes: np.ndarray, row: int) -> list[int]:
        """The run's simplices in which one query's codes (simplices,) equal those of an image.

        >>> index.agreeing(index.codes([3])[0], 3) == index.simplices
        True
        """
        equal = np.flatnonzero(self.codes([row])[0] == codes)
        return [self.simplices[i] for i in equal]

    def explain(self, codes: np.ndarray, rows: Sequence[int], count: int = 8) -> list[Vertex]:
        """The vertices of one query (simplices,) that say most about why these images are near.

        A vertex counts for each image that shares it, and more if few images of the index have it.

        >>> found = index.search(images, k=3)
        >>> index.explain(found.codes[0], found.indices[0])[0].simplex in index.simplices
        True
        """
        sample, known = self._sample
        equal = known == codes
        share = np.maximum(equal.mean(0), 1 / len(known))
        shared = (self.codes(list(rows)) == codes).sum(0)
        score = shared * -np.log2(share)
        found = []
        for i in np.argsort(-score, kind="stable")[:count].tolist():
            if not score[i] > 0:
                continue
            having = np.flatnonzero(equal[:, i])
            typical = [np.bincount(column, minlength=self.about.vertices) for column in known[having].T]
            like = np.stack(typical)[np.arange(known.shape[1]), known[having]].sum(1)
            best = sample[having[np.argsort(-like, kind="stable")[:EXAMPLES]]].tolist()
            found.append(
                Vertex(
                    self.simplices[i], int(codes[i]), float(share[i]), int(shared[i]), self._table.names(best)
                )
            )
        return found

    def duplicates(self, distance: float = DISTANCE, quiet: bool = True) -> list[Group]:
        """Groups of images that are equal or nearly so, the largest file of each group first.

        ``distance`` is of their looks, from 0 to 1. Time grows with the square of the number of images.

        >>> index.duplicates(distance=0.0)
        []
        """
        return find(self._table, distance, quiet)

    @cached_property
    def _sample(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of some images, and their codes."""
        rows = np.sort(np.random.default_rng(0).permutation(len(self))[: changes.SAMPLE])
        return rows, self.codes(rows)

    def _load(self) -> None:
        for name in ("names", "_sample"):
            self.__dict__.pop(name, None)
        self._table = store.read(self.path)

    def _checked(self, run: Run) -> Run:
        changes.check_model(self.about, run, self.path)
        return run

    def _queries(self, queries: Any) -> np.ndarray:
        """Codes (n, simplices) from images or codes."""
        is_codes = isinstance(queries, np.ndarray | torch.Tensor) and queries.ndim == 2
        if not is_codes or queries.dtype == object:
            return self.encode(queries)
        codes = np.asarray(queries)
        if codes.dtype.kind not in "iu" or codes.shape[1] not in (self.about.total, len(self.simplices)):
            raise UserError(
                f"the codes are {codes.dtype} {codes.shape}; they must be integers (n, {self.about.total}) "
                f"or, in the index's simplices, (n, {len(self.simplices)})"
            )
        if codes.size and not 0 <= codes.min() <= codes.max() < self.about.vertices:
            raise UserError(
                f"codes are from {codes.min()} to {codes.max()}; they are below {self.about.vertices}"
            )
        if codes.shape[1] == self.about.total:
            codes = codes[:, self.simplices]
        return codes.astype(bits.dtype_of(self.about.vertices))
