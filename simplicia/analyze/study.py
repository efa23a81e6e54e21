"""One study of a run: its images, their features computed once, and each analysis of them in turn."""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simplicia.analyze import thumbnails
from simplicia.analyze.atlas import Atlas, largest
from simplicia.analyze.coherence_baselines import compare
from simplicia.analyze.covariance_spectrum import effective_rank, spaced, spectrum
from simplicia.analyze.entropy import EntropyHistogram
from simplicia.analyze.retrieval import chance, curves, nearest, nearest_by_cosine
from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.progress import Progress
from simplicia.provenance import versions
from simplicia.representation import represent
from simplicia.run import Run
from simplicia.sem import simplicial

BATCH = 256
TEMPERATURES = (0.01, 0.1, 1.0)  # at which entropies are looked at besides the run's own
PRECISION_AT = (1, 2, 5, 10, 20, 50)
FEATURES = 200  # of the atlas
TOP_IMAGES = 12
EXAMPLES = 12  # queries of the retrieval that are shown


class Study:
    """One analysis under way: the sample's features, computed once, and what was found so far."""

    def __init__(
        self,
        run: Run,
        folder: Path,
        data: str | None,
        data_dir: str | None,
        images: int,
        fit_images: int,
        temperature: float | None,
        quiet: bool,
    ):
        self.run, self.folder, self.quiet = run, folder, quiet
        self.net = run.network()
        self.sem = "sem" in run.layers()
        bottleneck: Any = self.net.bottleneck
        if self.sem:
            self.simplices, self.vertices = bottleneck.simplices, bottleneck.vertices
            # of training: without its softmax, as `embed` is trained, there was none
            self.own = float(bottleneck.temperature) if run.recipe.bottleneck == "sem" else None
            self.temperature = next(t for t in (temperature, self.own, 1.0) if t is not None)
        self.notes: list[str] = []
        self.wanted: set[int] = set()  # images to show, as positions in the sample
        self.train, whole, self.split = _sets(run, data, data_dir)
        skipped = len(whole.skipped) + (0 if self.train is None else len(self.train.skipped))
        if skipped:
            self.notes.append(f"{skipped} files could not be read, and are left out")
        if self.train is None:
            self.notes.append(f"{whole.name} has no labels: what needs classes is left out")
        self.chosen = _sample(len(whole), images)
        self.whole = whole
        self.images = whole.images[self.chosen]
        self.labels = None if whole.labels is None else whole.labels[self.chosen].to(run.device)
        self.superclass = None if whole.superclass is None else whole.superclass.to(run.device)
        self.fit = torch.empty(0, dtype=torch.int64)
        if self.train is not None:
            self.fit = _sample(len(self.train), fit_images)
        self.seconds: dict[str, float] = {}

    def all(self) -> dict[str, Any]:
        """Every analysis that applies."""
        start = time.monotonic()
        stages: list[tuple[str, Callable[[], Any]]] = [("images", self._encode)]
        if self.sem:
            stages += [("atlas", self._atlas), ("entropy", self._entropy)]
        stages += [("spectrum", self._spectrum), ("retrieval", self._retrieval)]
        if self.train is not None:
            stages.append(("coherence", self._coherence))
        stages.append(("thumbnails", self._thumbnails))
        found: dict[str, Any] = dict.fromkeys(("entropy", "coherence", "atlas", "retrieval", "spectrum"))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # what says that an analysis is whole goes first
            (self.folder / "analysis.json").unlink(missing_ok=True)
            for old in [*self.folder.glob("thumbnails-*.jpg"), *self.folder.glob("graph-*.graphml")]:
                old.unlink()
        except OSError as error:
            raise UserError(f"the analysis cannot be written to {self.folder}: {error.strerror}") from error
        self.progress = Progress(f"analyze {self.run.path.name}", len(stages), 0, self.quiet)
        try:
            for self.stage, (name, work) in enumerate(stages):
                before = time.monotonic()
                self._say(name)
                found[name] = work()
                self.seconds[name] = time.monotonic() - before
            self.progress.update(len(stages), "done")
        finally:
            self.progress.close()
        del found["images"]
        found["data"] = {
            "name": self.whole.name,
            "split": self.split,
            "images": len(self.images),
            "fit_images": len(self.fit),
            "classes": list(self.whole.classes),
            "class_counts": None
            if self.labels is None
            else torch.bincount(self.labels, minlength=len(self.whole.classes)).tolist(),
            "superclass": None if self.superclass is None else self.superclass.tolist(),
            "superclasses": list(self.whole.superclasses),
        }
        found["provenance"] = {
            **versions(self.run.device),
            "seconds": self.seconds,
            "seconds_total": time.monotonic() - start,
        }
        found["notes"] = self.notes
        return found

    def _say(self, words: str, done: int = 0, total: int = 0) -> None:
        self.progress.update(self.stage, f"{words} {done:,} of {total:,}" if total else words)

    @torch.no_grad()
    def _encode(self) -> None:
        self.features = self._encoder(self.images, "encoding images")
        if self.train is not None:
            self.fit_features = self._encoder(self.train.images[self.fit], "encoding training images")

    def _encoder(self, images: Tensor, words: str) -> Tensor:
        parts = []
        for i, part in enumerate(images.split(BATCH)):
            self._say(words, i * BATCH, len(images))
            parts.append(self.net.encoder(self.run.view(part)).float())
        features = torch.cat(parts)
        if not features.isfinite().all():
            raise UserError(f"{self.run.path} gives features that are not finite; its training diverged")
        return features

    def _logits(self, words: str, features: Tensor) -> Iterator[Tensor]:
        """The embedder's output, batch by batch."""
        for i, part in enumerate(features.split(BATCH)):
            self._say(words, i * BATCH, len(features))
            yield represent(self.net, part, "embedder").float()

    @torch.no_grad()
    def _atlas(self) -> dict[str, Any]:
        device, vertices = self.features.device, self.vertices
        classes = 1 if self.labels is None else len(self.whole.classes)
        atlas = Atlas(self.simplices, vertices, classes, device)
        # the histogram at the atlas's temperature comes from the same pass
        self.histogram = EntropyHistogram(vertices, device=device)
        small = torch.uint8 if vertices <= 256 else torch.int16
        codes, start = [], 0
        for logits in self._logits("what vertices fire on", self.features):
            p = simplicial(logits, vertices, self.temperature)
            code = logits.unflatten(1, (self.simplices, vertices)).argmax(-1)
            atlas.add(code, p, None if self.labels is None else self.labels[start : start + len(p)])
            self.histogram.add(p)
            codes.append(code.to(small))
            start += len(p)
        self.codes = torch.cat(codes)
        features, score = atlas.ranked(FEATURES)
        index = torch.tensor(features, device=device)
        parts = []
        for logits in self._logits("their images", self.features):
            groups = logits.unflatten(1, (self.simplices, vertices))[:, index // vertices]  # (N, features, V)
            p = simplicial(groups.flatten(1), vertices, self.temperature).view_as(groups)
            parts.append(p[:, torch.arange(len(index), device=device), index % vertices])
        shown = torch.cat(parts)
        best = shown.topk(min(TOP_IMAGES, len(shown)), dim=0)
        tops, values = best.indices.T.tolist(), best.values.T.tolist()
        table, fired = atlas.table.view(-1, classes), atlas.fired.flatten()
        scores = score.flatten()[index].tolist()
        rows = []
        for i, feature in enumerate(features):
            counts = table[feature]
            row = {
                "feature": feature,
                "simplex": feature // vertices,
                "vertex": feature % vertices,
                "score": scores[i],
                "fired": int(fired[feature]),
                "classes": [] if self.labels is None else largest(counts, 8),
                "superclasses": [],
                "images": self._name(tops[i]),
                "probabilities": values[i],
            }
            if self.superclass is not None and self.labels is not None:
                groups = torch.zeros(len(self.whole.superclasses), dtype=counts.dtype, device=device)
                row["superclasses"] = largest(groups.scatter_add_(0, self.superclass, counts), 5)
            rows.append(row)
        ranked_by = "information" if atlas.knows_classes else "contrast"
        return {
            **atlas.summary(),
            "temperature": self.temperature,
            "ranked_by": ranked_by,
            "features": rows,
        }

    def _name(self, positions: list[int]) -> list[int]:
        """Images by their index in the split; they will be shown."""
        self.wanted.update(positions)
        return self.chosen[positions].tolist()

    @torch.no_grad()
    def _entropy(self) -> dict[str, Any]:
        first = self.histogram.result()
        rows = [(self.temperature, len(self.features), first)]
        own = set() if self.own is None else {self.own}
        others = [t for t in sorted({*TEMPERATURES, *own}) if t != self.temperature]
        histograms = [EntropyHistogram(self.vertices, device=self.features.device) for _ in others]
        some = self.features[_sample(len(self.features), 2000)]  # images may lie sorted by class
        for logits in self._logits("entropies", some):
            for tau, histogram in zip(others, histograms, strict=True):
                histogram.add(simplicial(logits, self.vertices, tau))
        rows += [
            (tau, len(some), histogram.result()) for tau, histogram in zip(others, histograms, strict=True)
        ]
        edges = first["edges"]
        return {
            "vertices": self.vertices,
            "ln2": math.log(2),
            "ln_vertices": math.log(self.vertices),
            "edges": edges,
            "curves": [
                {
                    "temperature": tau,
                    "own": tau == self.own,
                    "images": count,
                    "count": found["count"],
                    "mean": found["mean"],
                    "counts": found["counts"],
                }
                for tau, count, found in sorted(rows, key=lambda row: row[0])
            ],
        }

    @torch.no_grad()
    def _spectrum(self) -> dict[str, Any]:
        # the Gram matrix of 10,000 images is seconds of a GPU's time and minutes of a CPU's
        most = 2048 if self.features.device.type == "cpu" else len(self.features)
        some = self.features[_sample(len(self.features), most)]
        layers = []
        for layer in ("encoder", "embedder", "sem") if self.sem else ("encoder",):
            self._say(f"spectrum of {layer}")
            temperature = self.temperature if layer == "sem" else None
            features = torch.empty(0)
            for i, part in enumerate(some.split(BATCH)):
                found = represent(self.net, part, layer, temperature)
                if i == 0:  # one tensor for all: parts and their whole would be held twice
                    features = found.new_empty(len(some), found.shape[1])
                features[i * BATCH : i * BATCH + len(part)] = found
            values = spectrum(features)
            index = spaced(len(values), 300)
            layers.append(
                {
                    "layer": layer,
                    "features": features.shape[1],
                    "effective_rank": effective_rank(values),
                    "count": len(values),
                    "index": index,
                    "values": values.cpu()[index].tolist(),
                }
            )
        return {"images": len(some), "layers": layers}

    @torch.no_grad()
    def _retrieval(self) -> dict[str, Any] | None:
        n = len(self.features)
        if n < 2:
            return None
        queries = _sample(n, 1000).to(self.features.device)
        ks = [k for k in PRECISION_AT if k < n]
        found = {"encoder": nearest_by_cosine(self.features, queries, ks[-1])}
        if self.sem:
            found = {"codes": nearest(self.codes, queries, ks[-1], self.vertices)} | found
        layers = []
        for layer, (indices, _) in found.items():
            row: dict[str, Any] = {"layer": layer, "by_class": None, "by_superclass": None}
            if self.labels is not None:
                row |= curves(indices, queries, self.labels, self.superclass, ks)
            layers.append(row)
        by_chance = None
        if self.labels is not None:
            groups = None if self.superclass is None else chance(self.superclass[self.labels])
            by_chance = {"by_class": chance(self.labels), "by_superclass": groups}
        examples = []
        for i in range(0, len(queries), math.ceil(len(queries) / EXAMPLES)):
            for layer, (indices, similarity) in found.items():
                examples.append(
                    {
                        "query": self._name([int(queries[i])])[0],
                        "layer": layer,
                        "neighbours": self._name(indices[i, :10].tolist()),
                        "similarity": similarity[i, :10].tolist(),
                    }
                )
        return {"queries": len(queries), "k": ks, "layers": layers, "chance": by_chance, "examples": examples}

    def _coherence(self) -> dict[str, Any]:
        assert self.train is not None and self.train.labels is not None and self.labels is not None
        found, notes = compare(
            self.net,
            (self.fit_features, self.train.labels[self.fit]),
            (self.features, self.labels),
            self.whole.classes,
            self.superclass,
            self.temperature if self.sem else None,
            self.folder,
            self._say,
        )
        self.notes += notes
        return found

    def _thumbnails(self) -> dict[str, Any]:
        positions = sorted(self.wanted)
        found = thumbnails.write(self.images[positions], self.folder)
        shown = {}
        for place, position in zip(found.pop("places"), positions, strict=True):
            index = int(self.chosen[position])
            shown[str(index)] = {
                **place,
                "label": None if self.whole.labels is None else int(self.whole.labels[index]),
                "file": self.whole.files[index] if self.whole.files else None,
            }
        return {**found, "images": shown}


def _sets(run: Run, data: str | None, data_dir: str | None) -> tuple[ImageSet | None, ImageSet, str]:
    """The labelled training images, if there are such, the images to look at, and their split."""
    name = data or run.recipe.data
    size = datasets.decoded_size(name, run.recipe.actual_decode_size)
    where = data_dir or run.recipe.data_dir
    train = datasets.load(name, "train", where, size=size)
    if train.labels is None:
        return None, train, "train"
    test = datasets.load(name, "test", where, size=size)
    return (None if test.labels is None else train), test, "test"


def _sample(total: int, count: int) -> Tensor:
    """The same ``count`` of ``total`` indices every time, in order; all if there are no more."""
    if count >= total:
        return torch.arange(total)
    return torch.randperm(total, generator=torch.Generator().manual_seed(0))[:count].sort().values
