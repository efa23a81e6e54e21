"""``analyze``: all analyses of a run, from images to the folder that pages and figures are made of."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simplicia.analyze import coherence_baselines, report_data, run_facts, thumbnails
from simplicia.analyze.atlas import Atlas, largest
from simplicia.analyze.covariance_spectrum import effective_rank, spaced, spectrum
from simplicia.analyze.entropy import EntropyHistogram
from simplicia.analyze.report_data import Analysis
from simplicia.analyze.retrieval import chance, nearest, precision
from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.data.folder import fingerprint
from simplicia.errors import UserError
from simplicia.evaluate.make_result import data_suffix
from simplicia.neighbours import cosine
from simplicia.progress import Progress
from simplicia.provenance import versions
from simplicia.representation import represent
from simplicia.run import Run
from simplicia.sem import simplicial

FIT_ON_CPU = 5000  # training images: minutes instead of an hour for 65,000 features
BATCH = 256
TEMPERATURES = (0.01, 0.1, 1.0)  # of the entropies, besides the run's own
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
) -> tuple[Analysis, Path]:
    """Analyse a run on its test images (on its training images if those have no labels), and write a folder.

    ``images`` is the most images to look at, ``fit_images`` the most training images for the linear
    classifiers (default: all; on a CPU 5,000). Returns the content of ``analysis.json``, and the folder. An
    existing analysis is repeated only if the checkpoint, the files or the options changed.
    """
    run = run.in_64_bits()
    name = datasets.identity(data or run.recipe.data)
    folder = Path(out) if out is not None else folder_of(run, data)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; --out takes a folder")
    fit_images = fit_images or (FIT_ON_CPU if run.device.type == "cpu" else 10**9)
    asked = report_data.Request(run.step, run.state["seconds"], name, images, fit_images, temperature)
    analysis = None
    with suppress(UserError):  # an incomplete one is measured again
        analysis = report_data.read(folder)
    before = analysis.asked if analysis else None
    if datasets.has_files(name):
        source = datasets.root(name, data_dir or run.recipe.data_dir)
        if source is not None:
            asked.files = fingerprint(source)
        elif before is not None:  # deleted files cannot have changed
            asked.files = before.files
    if again or analysis is None or before != asked:
        analysis = Study(run, folder, asked, data_dir, quiet).measure()
    # cheap to read, and results may have been added since
    analysis = dataclasses.replace(analysis, asked=asked, **run_facts.read(run))
    analysis.write(folder / "analysis.json")
    return analysis, folder


def folder_of(run: Run, data: str | None) -> Path:
    """The folder of a run's analysis: "analysis", and of other images than its own "analysis-NAME"."""
    name = datasets.identity(data or run.recipe.data)
    suffix = data_suffix(run, name, name if name in datasets.names() else Path(name).name)
    return run.path / "-".join(["analysis", *suffix])


class Study:
    """The images that are looked at, and each analysis of their features."""

    def __init__(self, run: Run, folder: Path, asked: report_data.Request, data_dir: str | None, quiet: bool):
        self.run, self.folder = run, folder
        self.net = run.network()
        self.sem = "sem" in run.layers()
        bottleneck: Any = self.net.bottleneck
        if self.sem:
            self.simplices, self.vertices = bottleneck.simplices, bottleneck.vertices
            # `embed` trains without the softmax, so it has no temperature of its own
            self.own = float(bottleneck.temperature) if run.recipe.bottleneck == "sem" else None
            self.temperature = next(t for t in (asked.temperature, self.own, 1.0) if t is not None)
        self.train, self.set, self.split = _image_sets(run, asked.data, data_dir)
        self.notes: list[str] = []
        skipped = len(self.set.skipped) + (0 if self.train is None else len(self.train.skipped))
        if skipped:
            self.notes.append(f"{skipped} files could not be read and were skipped")
        if self.train is None:
            self.notes.append(f"{self.set.name} has no labels: analyses that need classes are left out")
        self.indices = _sample(len(self.set), asked.images)  # in the split
        self.images = self.set.images[self.indices]
        self.labels = None if self.set.labels is None else self.set.labels[self.indices].to(run.device)
        self.superclass = None if self.set.superclass is None else self.set.superclass.to(run.device)
        self.fit = _sample(0 if self.train is None else len(self.train), asked.fit_images)
        self.shown: set[int] = set()  # images that need a thumbnail, as positions in the sample
        self.seconds: dict[str, float] = {}
        stages = 4 + 2 * self.sem + (self.train is not None)
        self.progress = Progress(f"analyze {run.path.name}", stages, 0, quiet)

    def measure(self) -> Analysis:
        """Every analysis that applies, and the files of the folder but ``analysis.json``."""
        start = time.monotonic()
        self._clear_folder()
        try:
            features, fit_features = self._timed("images", self._encode)
            atlas, entropy, codes = None, None, None
            if self.sem:
                atlas, histogram, codes = self._timed("atlas", self._atlas, features)
                entropy = self._timed("entropy", self._entropy, features, histogram)
            spectra = self._timed("spectrum", self._spectrum, features)
            retrieval = self._timed("retrieval", self._retrieval, features, codes)
            coherence = None
            if self.train is not None:
                coherence = self._timed("coherence", self._coherence, features, fit_features)
            tiles = self._timed("thumbnails", self._thumbnails)
            self.progress.update(self.progress.total, "done")
        finally:
            self.progress.close()
        return Analysis(
            run_facts.run_facts(self.run),
            report_data.Provenance.make(
                **versions(self.run.device), seconds=self.seconds, seconds_total=time.monotonic() - start
            ),
            self._data_facts(),
            spectra,
            tiles,
            entropy=entropy,
            coherence=coherence,
            atlas=atlas,
            retrieval=retrieval,
            notes=self.notes,
        )

    def _clear_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # first the file that makes an analysis complete
            (self.folder / "analysis.json").unlink(missing_ok=True)
            for old in [*self.folder.glob("thumbnails-*.jpg"), *self.folder.glob("graph-*.graphml")]:
                old.unlink()
        except OSError as error:
            raise UserError(f"the analysis cannot be written to {self.folder}: {error.strerror}") from error

    def _data_facts(self) -> report_data.DataFacts:
        counts = None
        if self.labels is not None:
            counts = torch.bincount(self.labels, minlength=len(self.set.classes)).tolist()
        return report_data.DataFacts(
            self.set.name,
            self.split,
            len(self.images),
            len(self.fit),
            list(self.set.classes),
            counts,
            None if self.superclass is None else self.superclass.tolist(),
            list(self.set.superclasses),
        )

    def _timed(self, stage: str, measure: Callable[..., Any], *arguments: Any) -> Any:
        start = time.monotonic()
        self._say(stage)
        result = measure(*arguments)
        self.seconds[stage] = time.monotonic() - start
        return result

    def _say(self, text: str, done: int = 0, total: int = 0) -> None:
        self.progress.update(len(self.seconds), f"{text} {done:,} of {total:,}" if total else text)

    @torch.no_grad()
    def _encode(self) -> tuple[Tensor, Tensor | None]:
        features = self._encoder(self.images, "encoding images")
        if self.train is None:
            return features, None
        return features, self._encoder(self.train.images[self.fit], "encoding training images")

    def _encoder(self, images: Tensor, text: str) -> Tensor:
        parts = []
        for i, part in enumerate(images.split(BATCH)):
            self._say(text, i * BATCH, len(images))
            parts.append(self.net.encoder(self.run.view(part)).float())
        features = torch.cat(parts)
        if not features.isfinite().all():
            raise UserError(f"{self.run.path} gives features that are not finite; its training diverged")
        return features

    def _logits(self, text: str, features: Tensor) -> Iterator[Tensor]:
        """The embedder's output, batch by batch."""
        for i, part in enumerate(features.split(BATCH)):
            self._say(text, i * BATCH, len(features))
            yield represent(self.net, part, "embedder").float()

    @torch.no_grad()
    def _atlas(self, encoded: Tensor) -> tuple[report_data.AtlasSummary, EntropyHistogram, Tensor]:
        """The atlas; the entropies at its temperature and the codes come from the same pass."""
        device, vertices = encoded.device, self.vertices
        classes = 1 if self.labels is None else len(self.set.classes)
        atlas = Atlas(self.simplices, vertices, classes, device)
        histogram = EntropyHistogram(vertices, device=device)
        small = torch.uint8 if vertices <= 256 else torch.int16
        codes, start = [], 0
        for logits in self._logits("codes", encoded):
            p = simplicial(logits, vertices, self.temperature)
            code = logits.unflatten(1, (self.simplices, vertices)).argmax(-1)
            atlas.add(code, p, None if self.labels is None else self.labels[start : start + len(p)])
            histogram.add(p)
            codes.append(code.to(small))
            start += len(p)
        features, score = atlas.ranked(FEATURES)
        index = torch.tensor(features, device=device)
        parts = []
        for logits in self._logits("images of the atlas", encoded):
            groups = logits.unflatten(1, (self.simplices, vertices))[:, index // vertices]  # (N, features, V)
            p = simplicial(groups.flatten(1), vertices, self.temperature).view_as(groups)
            parts.append(p[:, torch.arange(len(index), device=device), index % vertices])
        best = torch.cat(parts).topk(min(TOP_IMAGES, len(encoded)), dim=0)
        table, fired = atlas.table.view(-1, classes), atlas.fired.flatten()
        rows = []
        for feature, feature_score, top, probabilities in zip(
            features,
            score.flatten()[index].tolist(),
            best.indices.T.tolist(),
            best.values.T.tolist(),
            strict=True,
        ):
            row = {
                "feature": feature,
                "simplex": feature // vertices,
                "vertex": feature % vertices,
                "score": feature_score,
                "fired": int(fired[feature]),
                "classes": [] if self.labels is None else largest(table[feature], 8),
                "superclasses": [],
                "images": self._show(top),
                "probabilities": probabilities,
            }
            if self.superclass is not None and self.labels is not None:
                groups = torch.zeros(len(self.set.superclasses), dtype=table.dtype, device=device)
                row["superclasses"] = largest(groups.scatter_add_(0, self.superclass, table[feature]), 5)
            rows.append(row)
        ranked_by = "information" if atlas.knows_classes else "contrast"
        summary = dataclasses.replace(
            atlas.summary(), temperature=self.temperature, ranked_by=ranked_by, features=rows
        )
        return summary, histogram, torch.cat(codes)

    def _show(self, positions: list[int]) -> list[int]:
        """The images' indices in the split; they get thumbnails."""
        self.shown.update(positions)
        return self.indices[positions].tolist()

    @torch.no_grad()
    def _entropy(self, features: Tensor, histogram: EntropyHistogram) -> report_data.EntropyCurves:
        temperatures = {*TEMPERATURES, *([] if self.own is None else [self.own])} - {self.temperature}
        others = {t: EntropyHistogram(self.vertices, device=features.device) for t in sorted(temperatures)}
        some = features[_sample(len(features), 2000)]  # images may be sorted by class
        for logits in self._logits("entropies", some):
            for tau, other in others.items():
                other.add(simplicial(logits, self.vertices, tau))
        curves = []
        for tau, each in sorted({self.temperature: histogram, **others}.items()):
            result = each.result()
            count = len(features) if tau == self.temperature else len(some)
            curves.append(
                report_data.EntropyCurve(
                    tau, tau == self.own, count, result["count"], result["mean"], result["counts"]
                )
            )
        edges = histogram.result()["edges"]
        return report_data.EntropyCurves(self.vertices, math.log(2), math.log(self.vertices), edges, curves)

    @torch.no_grad()
    def _spectrum(self, features: Tensor) -> report_data.Spectrum:
        # the Gram matrix of 10,000 images takes seconds on a GPU and minutes on a CPU
        most = 2048 if features.device.type == "cpu" else len(features)
        some = features[_sample(len(features), most)]
        layers = []
        for layer in ("encoder", "embedder", "sem") if self.sem else ("encoder",):
            self._say(f"spectrum of {layer}")
            temperature = self.temperature if layer == "sem" else None
            output = torch.empty(0)
            for i, part in enumerate(some.split(BATCH)):
                batch = represent(self.net, part, layer, temperature)
                if i == 0:  # filled in place: torch.cat would hold everything twice
                    output = batch.new_empty(len(some), batch.shape[1])
                output[i * BATCH : i * BATCH + len(part)] = batch
            values = spectrum(output)
            index = spaced(len(values), 300)
            rank, listed = effective_rank(values), values.cpu()[index].tolist()
            layers.append(report_data.LayerSpectrum(layer, output.shape[1], rank, len(values), index, listed))
        return report_data.Spectrum(len(some), layers)

    @torch.no_grad()
    def _retrieval(self, features: Tensor, codes: Tensor | None) -> report_data.Retrieval | None:
        n = len(features)
        if n < 2:
            return None
        queries = _sample(n, 1000).to(features.device)
        ks = [k for k in PRECISION_AT if k < n]
        neighbours = {} if codes is None else {"codes": nearest(codes, queries, ks[-1])}
        neighbours["encoder"] = nearest(features, queries, ks[-1], cosine)
        labels = {} if self.labels is None else {"by_class": self.labels}
        if self.labels is not None and self.superclass is not None:
            labels["by_superclass"] = self.superclass[self.labels]
        layers = [
            report_data.LayerPrecision.make(
                layer=layer, **{by: precision(indices, queries, of, ks) for by, of in labels.items()}
            )
            for layer, (indices, _) in neighbours.items()
        ]
        by_chance: dict[str, float | None] | None = None
        if labels:
            by_chance = {"by_superclass": None, **{by: chance(of) for by, of in labels.items()}}
        examples = [
            {
                "query": self._show([int(queries[i])])[0],
                "layer": layer,
                "neighbours": self._show(indices[i, :10].tolist()),
                "similarity": similarity[i, :10].tolist(),
            }
            for i in range(0, len(queries), math.ceil(len(queries) / EXAMPLES))
            for layer, (indices, similarity) in neighbours.items()
        ]
        return report_data.Retrieval(len(queries), ks, layers, by_chance, examples)

    def _coherence(self, features: Tensor, fit_features: Tensor) -> report_data.Coherence:
        assert self.train is not None and self.train.labels is not None and self.labels is not None
        coherence, notes = coherence_baselines.compare(
            self.net,
            (fit_features, self.train.labels[self.fit]),
            (features, self.labels),
            self.set.classes,
            self.superclass,
            self.temperature if self.sem else None,
            self.folder,
            self._say,
        )
        self.notes += notes
        return coherence

    def _thumbnails(self) -> report_data.Thumbnails:
        positions = sorted(self.shown)
        tile, sheets, tiles = thumbnails.write(self.images[positions], self.folder)
        images = {}
        for place, index in zip(tiles, self.indices[positions].tolist(), strict=True):
            label = None if self.set.labels is None else int(self.set.labels[index])
            file = self.set.files[index] if self.set.files else None
            images[str(index)] = dataclasses.replace(place, label=label, file=file)
        return report_data.Thumbnails(tile, sheets, images)


def _image_sets(run: Run, name: str, data_dir: str | None) -> tuple[ImageSet | None, ImageSet, str]:
    """The labelled training images, if there are any, the images to look at, and their split."""
    size = datasets.decoded_size(name, run.recipe.actual_decode_size)
    root = data_dir or run.recipe.data_dir
    train = datasets.load(name, "train", root, size=size)
    if train.labels is None:
        return None, train, "train"
    test = datasets.load(name, "test", root, size=size)
    return (None if test.labels is None else train), test, "test"


def _sample(total: int, count: int) -> Tensor:
    """The same ``count`` of ``total`` indices every time, in order; all if there are no more."""
    if count >= total:
        return torch.arange(total)
    return torch.randperm(total, generator=torch.Generator().manual_seed(0))[:count].sort().values
