"""``analyze``: all analyses of a run, from images to the folder that pages and figures are made of."""

import io
import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from simplicia.analyze import class_coherence, report_data
from simplicia.analyze.atlas import Atlas, largest
from simplicia.analyze.covariance_spectrum import layer_spectrum
from simplicia.analyze.entropy import entropy_histogram
from simplicia.analyze.report_data import Analysis
from simplicia.analyze.retrieval import chance, nearest, precision
from simplicia.data import datasets, inputs
from simplicia.data.datasets import ImageSet
from simplicia.data.folder import fingerprint
from simplicia.errors import UserError
from simplicia.evaluate.features import check_finite, load_split, smallest_integer
from simplicia.evaluate.make_result import data_suffix
from simplicia.files import write_errors, write_file
from simplicia.neighbours import cosine
from simplicia.progress import Progress, plural
from simplicia.provenance import versions
from simplicia.representation import represent
from simplicia.run import Run
from simplicia.sem import simplicial

FIT_ON_CPU = 5000  # training images: minutes instead of an hour for 65,000 features
FIT_ON_GPU = 100_000  # whose features fit into memory
BATCH = 256
TEMPERATURES = (0.01, 0.1, 1.0)  # of the entropies, in addition to the run's own
PRECISION_AT = (1, 2, 5, 10, 20, 50)
FEATURES = 200  # of the atlas
TOP_IMAGES = 12
SHOWN_SIMPLICES, SHOWN_VERTICES, SHOWN_IMAGES = 6, 4, 5  # on the first screen of the page
EXAMPLES = 12  # queries of the retrieval that are shown
LABELS = {"sem": "SEM", "embedder": "embedder", "ica": "ICA of the encoder", "encoder": "encoder"}
MOST_K = 50  # of the coherence
GRAPHS = (1, 3, 5, 10)  # K of the graphs
TILE = 64  # pixels of a thumbnail at most
COLUMNS, ROWS = 32, 32  # of a sheet of thumbnails


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
    classifiers (default: 100,000; on a CPU 5,000). Returns the content of ``analysis.json``, and the folder.
    An existing analysis is repeated only if the checkpoint, the files or the options changed.

    >>> analysis, folder = analyze(run, images=60, fit_images=100, quiet=True)
    >>> folder.name
    'analysis'
    """
    run = run.in_64_bits()
    name = datasets.identity(data or run.recipe.data)
    folder = Path(out) if out is not None else folder_of(run, data)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; --out takes a folder")
    fit_images = fit_images or (FIT_ON_CPU if run.device.type == "cpu" else FIT_ON_GPU)
    before = None
    with suppress(UserError):  # an incomplete one is measured again
        before = report_data.read(folder)
    files = None
    if datasets.has_files(name):
        source = datasets.root(name, data_dir or run.recipe.data_dir)
        if source is not None:
            files = fingerprint(source)
        elif before is not None and before.asked is not None:  # deleted files cannot have changed
            files = before.asked.files
    about = run.step, run.state["seconds"], name
    asked = report_data.Request(*about, images, fit_images, temperature, files)
    is_known = not again and before is not None and before.asked == asked
    parts = vars(before) if is_known else Study(run, folder, asked, data_dir, quiet).measure()
    # results may have been added since, and the parts of the run are cheap to read
    analysis = Analysis(**{**parts, **report_data.parts_of_run(run), "asked": asked})
    with suppress(UserError) if is_known else nullcontext():  # a run on a read-only disk keeps what it has
        analysis.write(folder / "analysis.json")
    return analysis, folder


def folder_of(run: Run, data: str | None) -> Path:
    """The folder of a run's analysis: "analysis", and of other images than its own "analysis-NAME"."""
    name = datasets.identity(data or run.recipe.data)
    suffix = data_suffix(run, name, name if name in datasets.names() else Path(name).name)
    return run.path / "-".join(["analysis", *suffix])


class Study:
    """The images of an analysis, and the stages that measure on them, each a part of the ``Analysis``."""

    def __init__(self, run: Run, folder: Path, asked: report_data.Request, data_dir: str | None, quiet: bool):
        self.run, self.folder, self.net = run, folder, run.network()
        self.sem = "sem" in run.layers()
        bottleneck: Any = self.net.bottleneck
        # `embed` trains without the softmax, so it has no temperature of its own
        self.own = float(bottleneck.temperature) if run.recipe.bottleneck == "sem" else None
        self.temperature: float = next(t for t in (asked.temperature, self.own, 1.0) if t is not None)
        if self.sem:
            self.shape = bottleneck.simplices, bottleneck.vertices
        self.layers: dict[str, Callable[[Tensor], Tensor]] = {
            name: partial(represent, self.net, layer=name, temperature=self.temperature)
            for name in (("encoder", "embedder", "sem") if self.sem else ("encoder",))
        }
        self.train, self.set, self.split = _image_sets(run, asked.data, data_dir)
        self.notes: list[str] = []
        skipped = sum(len(images.skipped) for images in (self.train, self.set) if images is not None)
        if skipped:
            self.notes.append(f"{plural(skipped, 'file')} could not be read, and left out")
        if self.train is None:
            self.notes.append(f"{self.set.name} has no labels: analyses that need classes are left out")
        self.indices = _sample(len(self.set), asked.images)  # in the split
        labels, groups = self.set.labels, self.set.superclass
        self.labels = None if labels is None else labels[self.indices].to(run.device)
        self.superclass = None if labels is None or groups is None else groups.to(run.device)
        self.fit = _sample(0 if self.train is None else len(self.train), asked.fit_images)
        self.shown: set[int] = set()  # images that need a thumbnail
        self.seconds: dict[str, float] = {}  # of each stage
        self.codes: Tensor | None = None
        self.histogram: dict[str, Any] = {}  # of the entropies at ``temperature``
        self.stages: dict[str, Callable[[], Any]] = {"images": self._images}
        if self.sem:
            self.stages |= {"atlas": self._atlas, "entropy": self._entropy}
        self.stages |= {"spectrum": self._spectrum, "retrieval": self._retrieval}
        if self.train is not None:
            self.stages["coherence"] = self._coherence
        self.stages["thumbnails"] = lambda: write_thumbnails(self.set, sorted(self.shown), self.folder)
        self.progress = Progress(f"analyze {run.path.name}", len(self.stages), 0, quiet)

    @cached_property
    def features(self) -> Tensor:
        """The encoder's output for the analysed images."""
        return self._encode("encoding images", self.set.images[self.indices])

    @torch.no_grad()
    def measure(self) -> dict[str, Any]:
        """Run every stage that applies; write the files of the folder but ``analysis.json``."""
        parts: dict[str, Any] = {"notes": self.notes}
        with closing(self.progress):
            with write_errors("the analysis", self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                # first the file that makes an analysis complete
                (self.folder / "analysis.json").unlink(missing_ok=True)
                for old in [*self.folder.glob("thumbnails-*.jpg"), *self.folder.glob("graph-*.graphml")]:
                    old.unlink()
            for name, stage in self.stages.items():
                start = time.monotonic()
                self._say(name)
                parts[name] = stage()
                self.seconds[name] = time.monotonic() - start
            self._say("done")
        seconds = {"seconds": self.seconds, "seconds_total": sum(self.seconds.values())}
        parts["provenance"] = report_data.Provenance.make(**versions(self.run.device), **seconds)
        parts["data"] = parts.pop("images")
        return parts

    def _say(self, text: str, done: int = 0, total: int = 0) -> None:
        self.progress.update(len(self.seconds), f"{text} {done:,} of {total:,}" if total else text)

    def _batches(self, text: str, rows: Tensor) -> Iterator[Tensor]:
        for i, part in enumerate(rows.split(BATCH)):
            self._say(text, i * BATCH, len(rows))
            yield part

    def _encode(self, text: str, images: Tensor) -> Tensor:
        parts = [self.net.encoder(self.run.view(part)).float() for part in self._batches(text, images)]
        return check_finite(self.run, torch.cat(parts))

    def _show(self, rows: list[int]) -> list[int]:
        """The indices in the split of analysed images, which get thumbnails."""
        indices = self.indices[rows].tolist()
        self.shown.update(indices)
        return indices

    def _images(self) -> report_data.DataFacts:
        data, about = self.set, (self.set.name, self.split, len(self.features), len(self.fit))
        counts = None if self.labels is None else self.labels.bincount(minlength=len(data.classes)).tolist()
        groups = None if self.superclass is None else self.superclass.tolist()
        return report_data.DataFacts(*about, list(data.classes), counts, groups, list(data.superclasses))

    def _atlas(self) -> report_data.AtlasSummary:
        """The atlas; the entropies at its temperature and the codes come from the same pass."""
        device, (simplices, vertices) = self.features.device, self.shape
        classes = 1 if self.labels is None else len(self.set.classes)
        labels = torch.zeros(len(self.features), dtype=torch.int64) if self.labels is None else self.labels
        atlas, codes = Atlas(simplices, vertices, classes, device), []

        def count() -> Iterator[Tensor]:
            for part, label in zip(self._batches("codes", self.features), labels.split(BATCH), strict=True):
                logits = self.layers["embedder"](part)
                p = simplicial(logits, vertices, self.temperature)
                codes.append(logits.unflatten(1, self.shape).argmax(-1).to(smallest_integer(vertices)))
                atlas.add(codes[-1], p, label)
                yield p

        self.histogram = entropy_histogram(count(), vertices)
        self.codes = torch.cat(codes)
        features, score = atlas.ranked(FEATURES)
        shown, simplex_score = atlas.best_simplices(SHOWN_SIMPLICES)
        frequent = {s: largest(atlas.fired[s], SHOWN_VERTICES) for s in shown}  # [vertex, count]
        of_simplices = [s * vertices + vertex for s in shown for vertex, _ in frequent[s]]
        index = torch.tensor(features + of_simplices, device=device)
        batches = self._batches("images of the atlas", self.features)
        probabilities = torch.cat([self.layers["sem"](part)[:, index] for part in batches])
        best = probabilities.topk(min(TOP_IMAGES, len(self.features)), dim=0)
        counts = atlas.table.view(-1, classes)[index]  # (features, classes)
        groups = counts.new_zeros(len(index), len(self.set.superclasses))
        if self.superclass is not None:
            groups.index_add_(1, self.superclass, counts)
        rows = [
            {
                "feature": feature,
                "simplex": feature // vertices,
                "vertex": feature % vertices,
                "score": score.flatten()[feature].item(),
                "fired": int(counts[i].sum()),
                "classes": [] if self.labels is None else largest(counts[i], 8),
                "superclasses": largest(groups[i], 5),
                "images": self._show(best.indices[:, i].tolist()),
                "probabilities": best.values[:, i].tolist(),
            }
            for i, feature in enumerate(features)
        ]
        columns = iter(range(len(features), len(index)))
        showcase = [
            report_data.ShownSimplex(
                s,
                simplex_score[s].item(),
                [
                    report_data.ShownVertex(
                        vertex,
                        fired,
                        [] if self.labels is None else largest(counts[i], 3),
                        self._show(best.indices[:SHOWN_IMAGES, i].tolist()),
                    )
                    for (vertex, fired), i in zip(frequent[s], columns, strict=False)
                ],
            )
            for s in shown
        ]
        return atlas.summary().replace(temperature=self.temperature, features=rows, showcase=showcase)

    def _entropy(self) -> report_data.EntropyCurves:
        (simplices, vertices), curves = self.shape, []
        some = self.features[_sample(len(self.features), 2000)]  # images may be sorted by class
        for tau in sorted({*TEMPERATURES, self.temperature, *([] if self.own is None else [self.own])}):
            batches = (represent(self.net, part, "sem", tau) for part in self._batches("entropies", some))
            histogram = self.histogram if tau == self.temperature else entropy_histogram(batches, vertices)
            edges, images = histogram.pop("edges"), histogram["count"] // simplices
            curves.append(report_data.EntropyCurve(tau, tau == self.own, images, **histogram))
        return report_data.EntropyCurves(vertices, math.log(2), math.log(vertices), edges, curves)

    def _spectrum(self) -> report_data.Spectrum:
        # the Gram matrix of 10,000 images takes seconds on a GPU and minutes on a CPU
        most = 2048 if self.features.device.type == "cpu" else len(self.features)
        some = self.features[_sample(len(self.features), most)]
        layers = []
        for name, layer in self.layers.items():
            self._say(f"spectrum of {name}")
            output = layer(some[:1]).repeat(len(some), 1)
            for rows, part in zip(output.split(BATCH), some.split(BATCH), strict=True):
                rows.copy_(layer(part))  # torch.cat would hold everything twice
            layers.append(layer_spectrum(name, output))
        return report_data.Spectrum(len(some), layers)

    def _retrieval(self) -> report_data.Retrieval | None:
        n = len(self.features)
        if n < 2:
            return None
        queries = _sample(n, 1000).to(self.features.device)
        ks = [k for k in PRECISION_AT if k < n]
        neighbours = {} if self.codes is None else {"codes": nearest(self.codes, queries, ks[-1])}
        neighbours["encoder"] = nearest(self.features, queries, ks[-1], cosine)
        labels = {} if self.labels is None else {"by_class": self.labels}
        if self.labels is not None and self.superclass is not None:
            labels["by_superclass"] = self.superclass[self.labels]
        layers = []
        for layer, (indices, _) in neighbours.items():
            curves = {by: precision(indices, queries, of, ks) for by, of in labels.items()}
            layers.append(report_data.LayerPrecision.make(layer=layer, **curves))
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
        return report_data.Retrieval(len(queries), ks, layers, by_chance if labels else None, examples)

    def _coherence(self) -> report_data.Coherence:
        """Coherence of SEM and its baselines in this run: encoder, embedder, and ICA of the encoder.

        The paper's baselines are separate runs: BYOL, BYOL with a large embedding, and ICA of BYOL.
        """
        from safetensors.numpy import save

        assert self.train is not None and self.train.labels is not None and self.labels is not None
        features = self._encode("encoding training images", self.train.images[self.fit])
        fit, test = (features, self.train.labels[self.fit]), (self.features, self.labels)
        layers, classes = dict(self.layers), self.set.classes
        self._say("independent components")
        if independent := class_coherence.encoder_ica(features):
            layers["ica"] = independent
            if not independent.converged:
                self.notes.append("FastICA did not converge; its curve is of its last iteration")
        else:
            self.notes.append("no independent components: the encoder gives every image the same features")
        epochs = class_coherence.EPOCHS_ON_CPU if features.device.type == "cpu" else class_coherence.EPOCHS
        done, total = itertools.count(1), epochs * len(layers)

        def after_epoch() -> None:
            self._say("linear classifiers, epoch", next(done), total)

        curves, graphs = [], []
        tensors: dict[str, Any] = {}
        for name in (name for name in LABELS if name in layers):
            linear = class_coherence.fit_linear(layers[name], *fit, len(classes), epochs, after_epoch)
            weight = linear.weight.T
            width, most = weight.shape[1], min(MOST_K, weight.shape[1])
            indices, values = class_coherence.top_features(weight, most)
            tensors |= {f"{name}.index": indices.astype("int32"), f"{name}.value": values.astype("float32")}
            about = name, LABELS[name], self.temperature if name == "sem" else None, width
            accuracies = linear.accuracy(*fit), linear.accuracy(*test)
            curve: tuple[Any, Any] = None, None
            if self.superclass is not None:
                curve = class_coherence.coherence_curve(weight, self.superclass, most)
            curves.append(report_data.CoherenceCurve(*about, *accuracies, len(features), epochs, *curve))
            for k in (k for k in GRAPHS if k <= most):
                graph, file = class_coherence.coherence_graph(weight, k, classes), f"graph-{name}-{k}.graphml"
                class_coherence.write_graphml(graph, self.folder / file)
                graphs.append(report_data.Graph(name, k, file, *class_coherence.describe_graph(graph)))
        write_file(self.folder / "weights.safetensors", save(tensors), "the analysis")
        return report_data.Coherence(list(range(1, MOST_K + 1)), curves, graphs)


def write_thumbnails(data: ImageSet, indices: list[int], folder: Path) -> report_data.Thumbnails:
    """Write sheets with some images of a set to ``thumbnails-I.jpg``."""
    from torchvision.transforms.functional import to_pil_image
    from torchvision.utils import make_grid

    images, per_sheet = _originals(data, indices), COLUMNS * ROWS
    side = min(TILE, max(images.shape[2:]))
    if tuple(images.shape[2:]) != (side, side):
        small = F.interpolate(images.float(), (side, side), mode="bilinear", antialias=True)
        images = small.round().clamp(0, 255).byte()
    sheets, tiles = [], {}
    for i, part in enumerate(images.split(per_sheet)):
        sheet = to_pil_image(make_grid(part, COLUMNS, padding=0, pad_value=255))
        jpeg = io.BytesIO()
        sheet.save(jpeg, "JPEG", quality=88)
        write_file(folder / f"thumbnails-{i}.jpg", jpeg.getvalue(), "the thumbnails")
        sheets.append(report_data.Sheet(f"thumbnails-{i}.jpg", *sheet.size))
    for i, index in enumerate(indices):
        row, column = divmod(i % per_sheet, COLUMNS)
        label = None if data.labels is None else int(data.labels[index])
        file = data.files[index] if data.files else None
        tiles[str(index)] = report_data.Tile(i // per_sheet, column * side, row * side, label, file)
    return report_data.Thumbnails(side, sheets, tiles)


def _originals(data: ImageSet, indices: list[int]) -> Tensor:
    """The images that thumbnails show: decoded from their files again if the run sees smaller ones."""
    images = data.images[indices].to("cpu")  # streamed ones are decoded
    if not (data.files and data.source) or min(images.shape[2:]) >= TILE:
        return images
    try:
        paths = [Path(data.source, data.files[index]) for index in indices]
        return torch.cat(list(inputs.batches(paths, TILE, BATCH)))
    except UserError:  # files that are gone, or have changed
        return images


def _image_sets(run: Run, name: str, data_dir: str | None) -> tuple[ImageSet | None, ImageSet, str]:
    """The labelled training images, if there are any, the images to look at, and their split."""
    train = load_split(run.recipe, "train", name, data_dir)
    if train.labels is None:
        return None, train, "train"
    test = load_split(run.recipe, "test", name, data_dir)
    return (None if test.labels is None else train), test, "test"


def _sample(total: int, count: int) -> Tensor:
    """The same ``count`` of ``total`` indices every time, in order; all if there are no more."""
    if count >= total:
        return torch.arange(total)
    return torch.randperm(total, generator=torch.Generator().manual_seed(0))[:count].sort().values
