"""All analyses of a run, as a small folder from which pages and figures are made.

``RUN/analysis/`` holds

* ``analysis.json``, described below. Numbers are finite or null. Names (of classes, files, runs) are as the
  data has them: whoever shows them must escape them.
* ``thumbnails-I.jpg``: sheets of square tiles, the images that ``analysis.json`` refers to.
* ``weights.safetensors``: for each linear classifier ``LAYER.index`` (classes, up to 50) int32 and
  ``LAYER.value``, its weights of largest magnitude, largest first.
* ``graph-LAYER-K.graphml``: the graphs of ``coherence.graphs``.

analysis.json (a "?" says: null where it does not apply, such as without SEM, labels or superclasses; an image
is named by its index in the split, as a string where it is a key; a feature is simplex * vertices + vertex)::

    format        1
    asked         what the analysis depends on: equal means nothing is to be done again
    run           name, folder, recipe {…}, step, total_steps, finished, seconds, loss, layers [name],
                  simplices?, vertices?, temperature?
    provenance    simplicia, torch, python, device, date; seconds {stage: seconds}; seconds_total
    data          name, split, images, fit_images, classes [name], class_counts? [images per class],
                  superclass? [index per class], superclasses [name]
    log           train {step [..], loss [..], effective_rank [..], …: one list per figure of log.jsonl, null
                  where a line lacks it}, online {step [..], online_encoder_accuracy [..], …},
                  warnings [{step, words}]; at most 400 points
    results       {file name without .json: its content}
    entropy?      vertices, ln2, ln_vertices, edges [bins + 1],
                  curves [{temperature, own, images, count, mean, counts [bins]}]
    coherence?    k [1..], curves [{layer, label, temperature?, features, train_accuracy, test_accuracy,
                  fit_images, coherence? [per k], isolated? [per k: classes without neighbours]}],
                  graphs [{layer, k, file, edges [[class, feature, weight]],
                  components [{classes [..], features [..]}], isolated [class]}]
                  (coherence and isolated are null for data without superclasses)
    spectrum      images, layers [{layer, features, effective_rank, count, index [..], values [..]}]
                  values: singular values of the covariance, high to low: at most 300 of count, at index
    atlas?        simplices, vertices, images, temperature, dead_vertices, duplicate_vertices,
                  constant_simplices, duplicate_simplices, duplicate_groups [[simplex]], used_vertices
                  [simplices with 0..V used vertices], class_entropy?, simplex_information? {mean, largest,
                  smallest}, best_simplices [{simplex, information, fired [V]}], ranked_by ("information" |
                  "contrast"), features [{feature, simplex, vertex, score, fired, classes [[class, count]],
                  superclasses [[superclass, count]], images [index], probabilities [..]}]
    retrieval?    queries, k [..], layers [{layer, by_class [..], by_superclass? [..]}], chance {by_class,
                  by_superclass?}, examples [{query, layer, neighbours [index], similarity [..]}]
                  (by_class, by_superclass and chance are null without labels)
    thumbnails    tile (pixels), sheets [{file, width, height}], images {index: {sheet, x, y, label?, file?}}
    cost?         parameters, activations, flops
    notes         [sentence]
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simplicia.analyze import summary, thumbnails
from simplicia.analyze.atlas import Atlas
from simplicia.analyze.coherence import (
    coherence_curve,
    coherence_graph,
    components,
    top_features,
    write_graphml,
)
from simplicia.analyze.entropy import EntropyHistogram
from simplicia.analyze.retrieval import chance, curves, nearest, nearest_by_cosine
from simplicia.analyze.spectrum import effective_rank, spectrum
from simplicia.analyze.weights import accuracies, fit_weights
from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.provenance import versions
from simplicia.run import Run, represent
from simplicia.sem import simplicial
from simplicia.train.log import Progress

FORMAT = 1
BATCH = 256
TEMPERATURES = (0.01, 0.1, 1.0)  # at which entropies are looked at besides the run's own
MOST_K = 50
GRAPHS = (1, 3, 5, 10)  # K of the graphs that are kept
PRECISION_AT = (1, 2, 5, 10, 20, 50)
FEATURES = 200  # of the atlas
TOP_IMAGES = 12
EXAMPLES = 12  # queries of the retrieval that are shown


def analyze(
    run: Run,
    data: str | None = None,
    data_dir: str | None = None,
    images: int = 10_000,
    fit_images: int | None = None,
    temperature: float | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    again: bool = False,
) -> tuple[dict[str, Any], Path]:
    """All analyses of a run's test images (of its training images where there are no others).

    ``images`` bounds how many are looked at, ``fit_images`` how many training images the linear classifiers
    see (by default all; on a CPU as many as ``images``). Returns what ``analysis.json`` holds, and the
    folder. An analysis that is there is done again only if the checkpoint or what is asked for is another.
    """
    folder = Path(out) if out is not None else run.path / "analysis"
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; --out takes a folder")
    fit_images = fit_images or (images if run.device.type == "cpu" else 10**9)
    asked = {
        "step": run.step,
        "trained_seconds": run.state["seconds"],
        "data": data or run.recipe.data,
        "images": images,
        "fit_images": fit_images,
        "temperature": temperature,
    }
    found = None if again else read(folder, asked)
    if found is None:
        found = _Analysis(run, folder, data, data_dir, images, fit_images, temperature, quiet).all()
    # what is cheap, and may have been measured since, is always as it is now
    found |= {"format": FORMAT, "asked": asked, **summary.of_run(run)}
    write(found, folder / "analysis.json")
    return found, folder


def read(folder: Path, asked: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """The analysis in a folder; None if there is none, or one of something else than ``asked``."""
    try:
        found = json.loads((folder / "analysis.json").read_text())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        return None
    return found if asked is None or found.get("asked") == asked else None


def write(found: dict[str, Any], path: Path) -> None:
    """JSON in which a number that is not finite is null: browsers read nothing else."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.writing")
        temporary.write_text(json.dumps(summary.finite(found), allow_nan=False, separators=(",", ":")) + "\n")
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"the analysis cannot be written to {path}: {error.strerror}") from error


class _Analysis:
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
            self.own = float(bottleneck.temperature)
            self.temperature = self.own if temperature is None else temperature
        self.notes: list[str] = []
        self.wanted: set[int] = set()  # images to show, as positions in the sample
        self.train, whole, self.split = _sets(run, data, data_dir)
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
        shown = torch.cat(
            [
                simplicial(logits, vertices, self.temperature)[:, index]
                for logits in self._logits("their images", self.features)
            ]
        )
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
                "classes": [] if self.labels is None else _largest(counts, 8),
                "superclasses": [],
                "images": self._name(tops[i]),
                "probabilities": values[i],
            }
            if self.superclass is not None and self.labels is not None:
                groups = torch.zeros(len(self.whole.superclasses), dtype=counts.dtype, device=device)
                row["superclasses"] = _largest(groups.scatter_add_(0, self.superclass, counts), 5)
            rows.append(row)
        ranked_by = "contrast" if self.labels is None else "information"
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
        others = [t for t in sorted({*TEMPERATURES, self.own}) if t != self.temperature]
        histograms = [EntropyHistogram(self.vertices, device=self.features.device) for _ in others]
        some = self.features[:2000]
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
        some = self.features[:2048] if self.features.device.type == "cpu" else self.features
        layers = []
        for layer in ("encoder", "embedder", "sem") if self.sem else ("encoder",):
            self._say(f"spectrum of {layer}")
            temperature = self.temperature if layer == "sem" else None
            parts = [represent(self.net, part, layer, temperature) for part in some.split(BATCH)]
            features = torch.cat(parts)
            values = spectrum(features)
            index = _spaced(len(values), 300)
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
        for i in _spaced(len(queries), EXAMPLES):
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

    @torch.no_grad()
    def _coherence(self) -> dict[str, Any]:
        assert self.train is not None and self.train.labels is not None and self.labels is not None
        labels, classes = self.train.labels[self.fit], len(self.train.classes)
        mixing = self._ica()

        def layers(features: Tensor) -> dict[str, Tensor]:
            found = {"encoder": features}
            if mixing is not None:
                found["ica"] = mixing(features)
            if self.sem:
                found["embedder"] = represent(self.net, features, "embedder")
                found["sem"] = simplicial(found["embedder"], self.vertices, self.temperature)
            return found

        def progress(done: int, total: int) -> None:
            self._say("linear classifiers, step", done, total)

        epochs = 20 if self.features.device.type != "cpu" else 10
        linears = fit_weights(self.fit_features, labels, classes, layers, epochs, BATCH, progress=progress)
        self._say("accuracies of the linear classifiers")
        right = [
            accuracies(linears, features, wanted, layers)
            for features, wanted in ((self.fit_features, labels), (self.features, self.labels))
        ]
        found: dict[str, Any] = {"k": list(range(1, MOST_K + 1)), "curves": [], "graphs": []}
        tensors = {}
        names = {"sem": "SEM", "embedder": "embedder", "ica": "ICA of the encoder", "encoder": "encoder"}
        for layer, label in names.items():
            if layer not in linears:
                continue
            weight = linears[layer].weight.T
            most = min(MOST_K, weight.shape[1])
            row: dict[str, Any] = {
                "layer": layer,
                "label": label,
                "temperature": self.temperature if layer == "sem" else None,
                "features": weight.shape[1],
                "train_accuracy": right[0][layer],
                "test_accuracy": right[1][layer],
                "fit_images": len(self.fit),
                "coherence": None,
                "isolated": None,
            }
            if self.superclass is not None:
                row["coherence"], row["isolated"] = coherence_curve(weight, self.superclass, most)
            found["curves"].append(row)
            found["graphs"] += [self._graph(layer, weight, k) for k in GRAPHS if k <= most]
            indices, values = top_features(weight, most)
            tensors[f"{layer}.index"] = torch.from_numpy(indices).int().contiguous()
            tensors[f"{layer}.value"] = torch.from_numpy(values).contiguous()
        from safetensors.torch import save_file

        save_file(tensors, self.folder / "weights.safetensors")
        return found

    def _ica(self) -> Callable[[Tensor], Tensor] | None:
        """The encoder's independent components as a function of its features, where that can be had."""
        return None

    def _graph(self, layer: str, weight: Tensor, k: int) -> dict[str, Any]:
        graph = coherence_graph(weight, k, self.whole.classes)
        file = f"graph-{layer}-{k}.graphml"
        write_graphml(graph, self.folder / file)
        at = {node: data["index"] for node, data in graph.nodes(data=True)}
        parts = components(graph)
        linked = {i for part in parts for i in part["classes"]}
        edges = [
            [*(at[node] for node in sorted(pair)), round(weight, 6)]  # "class …" sorts before "feature …"
            for *pair, weight in graph.edges(data="weight")
        ]
        return {
            "layer": layer,
            "k": k,
            "file": file,
            "edges": edges,
            "components": parts,
            "isolated": [i for i in range(len(weight)) if i not in linked],
        }

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
    size = None if name in datasets.names() else run.recipe.image_size
    where = data_dir or run.recipe.data_dir
    train = datasets.load(name, "train", where, size=size)
    if train.labels is None:
        return None, train, "train"
    return train, datasets.load(name, "test", where, size=size), "test"


def _sample(total: int, count: int) -> Tensor:
    """The same ``count`` of ``total`` indices every time, in order; all if there are no more."""
    if count >= total:
        return torch.arange(total)
    return torch.randperm(total, generator=torch.Generator().manual_seed(0))[:count].sort().values


def _spaced(total: int, count: int) -> list[int]:
    """At most ``count`` indices below ``total``: all of the first third, then further and further apart."""
    if total <= count:
        return list(range(total))
    near = count // 3
    ratio = (total - 1) / near
    far = [round(near * ratio ** (i / (count - near))) for i in range(1, count - near + 1)]
    return sorted({*range(near), *far})


def _largest(counts: Tensor, most: int) -> list[list[int]]:
    """[index, count] of the largest counts that are not 0."""
    best = counts.argsort(descending=True, stable=True)[:most].tolist()
    values = counts.tolist()
    return [[i, values[i]] for i in best if values[i]]
