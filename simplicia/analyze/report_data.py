"""The content of an analysis, and its folder.

``RUN/analysis/`` holds

* ``analysis.json``: an ``Analysis``. Numbers are finite or null; null also stands for parts that do not
  apply, such as those that need SEM, labels or superclasses. Names (of classes, files, runs) are not escaped.
* ``thumbnails-I.jpg``: sheets of square tiles, the images that ``analysis.json`` refers to.
* ``weights.safetensors``: for each linear classifier ``LAYER.index`` (classes, up to 50) int32 and
  ``LAYER.value``, its weights of largest magnitude, largest first.
* ``graph-LAYER-K.graphml``: the graphs of ``coherence.graphs``.

An image is named by its index in the split. A feature is simplex * vertices + vertex.
"""

import json
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self, dataclass_transform

from simplicia.analyze.model_cost import COUNTS, cost
from simplicia.errors import UserError
from simplicia.files import write_file
from simplicia.result import Record, Result, is_number
from simplicia.run import Run
from simplicia.settings import as_dict
from simplicia.train.run_dir import read_log

FORMAT = 1
POINTS = 400  # of a curve of the log
Column = list[float | None]


@dataclass_transform(field_specifiers=(field,))
class Part(Record):
    """A part of an analysis. Subclasses are dataclasses; fields that are None are written as null."""

    def __init_subclass__(cls) -> None:
        dataclass(cls)

    def to_json(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "details"}


class Request(Part):
    """The inputs of an analysis: an equal request needs no new analysis."""

    step: int
    trained_seconds: float
    data: str
    images: int
    fit_images: int
    temperature: float | None = None
    files: Any = None  # fingerprint of the images' files


class RunFacts(Part):
    name: str
    folder: str
    recipe: dict[str, Any]
    step: int
    total_steps: int
    finished: bool
    seconds: float
    loss: float | None = None
    layers: list[str] = field(default_factory=list)
    simplices: int | None = None
    vertices: int | None = None
    temperature: float | None = None

    @classmethod
    def of(cls, run: Run) -> Self:
        recipe, layers = run.recipe, list(run.layers())
        state = {name: run.state[name] for name in ("step", "total_steps", "seconds", "loss")}
        about = recipe.name, run.path.resolve().name, as_dict(recipe)
        return cls(
            *about,
            **state,
            finished=run.finished,
            layers=layers,
            simplices=recipe.sem.simplices if "sem" in layers else None,
            vertices=recipe.sem.vertices if "sem" in layers else None,
            temperature=recipe.sem.temperature if recipe.bottleneck == "sem" else None,
        )


class Provenance(Part):
    simplicia: str
    torch: str
    python: str
    device: str
    date: str
    seconds: dict[str, float]  # of each stage
    seconds_total: float


class DataFacts(Part):
    name: str
    split: str
    images: int
    fit_images: int
    classes: list[str]
    class_counts: list[int] | None  # images of each class
    superclass: list[int] | None  # of each class
    superclasses: list[str]


class LogWarning(Part):
    step: int
    words: str  # its text


class Log(Part):
    """Curves of ``log.jsonl``, at most 400 points: a column per name, all as long as the column "step"."""

    train: dict[str, Column] = field(default_factory=dict)
    online: dict[str, Column] = field(default_factory=dict)
    warnings: list[LogWarning] = field(default_factory=list)  # the first 50

    def __post_init__(self) -> None:
        for columns in (self.train, self.online):
            steps = columns.get("step", [])
            if None in steps or any(len(column) != len(steps) for column in columns.values()):
                raise ValueError("the columns of the log differ in length")

    @classmethod
    def of(cls, path: Path) -> Self:
        lines = read_log(path)
        warnings = [LogWarning(line["step"], str(line["warning"])) for line in lines if "warning" in line]
        train = [line for line in lines if "loss" in line]
        online = [line for line in lines if any(key.startswith("online_") for key in line)]
        return cls(_columns(train), _columns(online), warnings[:50])


class EntropyCurve(Part):
    temperature: float
    own: bool  # the temperature of training
    images: int
    count: int  # of simplices
    mean: float
    counts: list[int]  # of each bin


class EntropyCurves(Part):
    vertices: int
    ln2: float
    ln_vertices: float
    edges: list[float]  # of the bins
    curves: list[EntropyCurve]

    def __post_init__(self) -> None:
        if any(len(self.edges) != len(curve.counts) + 1 or curve.count < 1 for curve in self.curves):
            raise ValueError("the entropies have other bins than edges")


class CoherenceCurve(Part):
    """A layer's linear classifier and the coherence of its weights."""

    layer: str
    label: str
    temperature: float | None
    features: int
    train_accuracy: float
    test_accuracy: float
    fit_images: int
    fit_epochs: int
    coherence: list[float] | None  # for each K
    isolated: list[int] | None  # classes without neighbours, for each K


class Graph(Part):
    layer: str
    k: int
    file: str
    edges: list[list[float]]  # class, feature, weight
    components: list[dict[str, list[int]]]  # their classes and features
    isolated: list[int]  # classes


class Coherence(Part):
    k: list[int]
    curves: list[CoherenceCurve]
    graphs: list[Graph]


class LayerSpectrum(Part):
    """Singular values of a layer's covariance, high to low: at most 300 of ``count``, those at ``index``."""

    layer: str
    features: int
    effective_rank: float
    count: int
    index: list[int]
    values: Column

    def __post_init__(self) -> None:
        if len(self.index) != len(self.values):
            raise ValueError("a spectrum has as many values as indices")


class Spectrum(Part):
    images: int
    layers: list[LayerSpectrum]


class ShownVertex(Part):
    vertex: int
    fired: int  # on how many images
    classes: list[list[int]]  # [class, count], most first
    images: list[int]  # of largest probability


class ShownSimplex(Part):
    """A simplex with the images that its most frequent vertices fire on."""

    simplex: int
    score: float  # information about the class, or without labels contrast
    vertices: list[ShownVertex]


class AtlasSummary(Part):
    simplices: int
    vertices: int
    images: int
    dead_vertices: int
    duplicate_vertices: int
    constant_simplices: int
    duplicate_simplices: int
    duplicate_groups: list[list[int]] = field(default_factory=list)
    used_vertices: list[int] = field(default_factory=list)  # simplices with 0, 1, … V used vertices
    class_entropy: float | None = None
    simplex_information: dict[str, float] | None = None  # about the class, nats: mean, largest, smallest
    best_simplices: list[dict[str, Any]] = field(default_factory=list)  # simplex, information, fired
    temperature: float | None = None
    ranked_by: str = "contrast"  # or "information"
    # feature, simplex, vertex, score, fired, classes [[class, count]], superclasses, images, probabilities
    features: list[dict[str, Any]] = field(default_factory=list)
    showcase: list[ShownSimplex] = field(default_factory=list)  # the best simplices; 0.1 had none


class LayerPrecision(Part):
    layer: str
    by_class: list[float] | None = None  # for each k
    by_superclass: list[float] | None = None


class Retrieval(Part):
    queries: int
    k: list[int]
    layers: list[LayerPrecision]
    chance: dict[str, float | None] | None  # by_class, by_superclass
    examples: list[dict[str, Any]]  # query, layer, neighbours, similarity

    def __post_init__(self) -> None:
        curves = [c for layer in self.layers for c in (layer.by_class, layer.by_superclass) if c is not None]
        if any(len(curve) != len(self.k) for curve in curves):
            raise ValueError("a curve of the retrieval has as many values as k")


class Sheet(Part):
    file: str
    width: int
    height: int


class Tile(Part):
    """An image on a sheet."""

    sheet: int
    x: int
    y: int
    label: int | None = None
    file: str | None = None


class Thumbnails(Part):
    tile: int  # pixels
    sheets: list[Sheet]
    images: dict[str, Tile]


class Analysis(Part):
    run: RunFacts
    provenance: Provenance
    data: DataFacts
    spectrum: Spectrum
    thumbnails: Thumbnails
    log: Log = field(default_factory=Log)
    results: dict[str, Result] = field(default_factory=dict)  # by file name
    entropy: EntropyCurves | None = None
    coherence: Coherence | None = None
    atlas: AtlasSummary | None = None
    retrieval: Retrieval | None = None
    cost: dict[str, float] | None = None  # of one image: parameters, activations, flops
    notes: list[str] = field(default_factory=list)
    asked: Request | None = None
    format: int = FORMAT

    def write(self, path: Path) -> Path:
        """Write JSON that browsers read: a number that is not finite becomes null."""
        value = json.loads(
            json.dumps(self, default=lambda part: part.to_json()), parse_constant=lambda _: None
        )
        return write_file(path, (json.dumps(value, separators=(",", ":")) + "\n").encode(), "the analysis")


def read(folder: Path) -> Analysis | None:
    """The analysis in a folder, or None; a UserError if parts of it are missing or of the wrong type."""
    try:
        value = json.loads((folder / "analysis.json").read_text())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        return None
    try:
        return Analysis.from_json(value)
    except ValueError as error:
        raise UserError(
            f"the analysis in {folder} is incomplete: {error}; simplicia analyze RUN --again repeats it"
        ) from error


def parts_of_run(run: Run) -> dict[str, Any]:
    """The parts of an analysis that need no images: ``run``, ``log``, ``results`` and ``cost``."""
    counts = None
    with suppress(RuntimeError):  # an encoder whose operations cannot be counted
        total = cost(run.method, run.recipe.image_size)
        counts = {name: getattr(total, name) for name in COUNTS}
    log, results = Log.of(run.path / "log.jsonl"), read_results(run.path / "results")
    return {"run": RunFacts.of(run), "log": log, "results": results, "cost": counts}


def read_results(folder: Path) -> dict[str, Result]:
    """The results in a folder by file name; files that are no results are left out."""
    results = {}
    for path in sorted(folder.glob("*.json")):
        with suppress(UserError):
            results[path.stem] = Result.read(path)
    return results


def _columns(lines: list[dict[str, Any]]) -> dict[str, Column]:
    """A list for each number, of at most POINTS lines evenly spread, including the first and the last."""
    if len(lines) > POINTS:
        lines = [lines[round(i * (len(lines) - 1) / (POINTS - 1))] for i in range(POINTS)]
    lines = [{key: value for key, value in line.items() if is_number(value)} for line in lines]
    lines = [line for line in lines if "step" in line]
    return {
        key: [line.get(key) for line in lines] for key in dict.fromkeys(key for line in lines for key in line)
    }
