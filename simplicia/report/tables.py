"""The page's tables: a column for each run. Cells show rounded numbers and hold the exact ones."""

import json
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from simplicia.progress import duration
from simplicia.report.figures import Runs, join, online_curves, per_temperature
from simplicia.result import Result

LONGEST = 20_000  # characters of a stored result that are shown
SETTINGS = {  # label: name in the recipe, format of a number
    "data": ("data", "{}"),
    "image size": ("image_size", "{:,} px"),
    "epochs": ("epochs", "{:,}"),
    "batch size": ("batch_size", "{:,}"),
    "optimiser": ("optim.name", "{}"),
    "learning rate": ("optim.lr", "{:g}"),
    "precision": ("precision", "{}"),
    "seed": ("seed", "{}"),
}


@dataclass
class Cell:
    """The text that is shown, the exact number behind it, and a note in small print."""

    text: str = "–"
    value: float | None = None
    note: str = ""


@dataclass
class Table:
    id: str
    title: str
    columns: list[str]
    rows: list[tuple[str, list[Cell]]]


def settings(runs: Runs) -> Table:
    facts = [analysis.run for _, analysis in runs]
    rows = [
        (name, [_setting(run.recipe, name) for run in facts]) for name in ("method", "encoder", "bottleneck")
    ]
    shapes = [f"{run.simplices:,} × {run.vertices}" if run.simplices else "no SEM" for run in facts]
    rows.append(("simplices × vertices", [Cell(shape) for shape in shapes]))
    rows.append(("temperature of training", [number(run.temperature, "{:g}") for run in facts]))
    for label, (name, pattern) in SETTINGS.items():
        rows.append((label, [_setting(run.recipe, name, pattern) for run in facts]))
    unfinished = ["" if run.finished else f"of {run.total_steps:,}: unfinished" for run in facts]
    rows.append(("steps", [number(r.step, "{:,}", note) for r, note in zip(facts, unfinished, strict=True)]))
    rows.append(("last loss", [number(run.loss, "{:.4f}") for run in facts]))
    images, versions = [], []
    for _, analysis in runs:
        data, by = analysis.data, analysis.provenance
        images.append(number(data.images, "{:,}", f"{data.split} images of {data.name}"))
        versions.append(Cell(f"Simplicia {by.simplicia}, PyTorch {by.torch}", note=by.date))
    rows += [("analysed images", images), ("analysed with", versions)]
    return Table("settings", "Settings", [name for name, _ in runs], rows)


def offline(runs: Runs) -> Table:
    """Accuracies measured after training: a row for each result file."""
    files = dict.fromkeys(
        file
        for _, analysis in runs
        for file, result in analysis.results.items()
        if result.accuracy is not None and not result.online
    )
    rows: list[tuple[str, list[Cell]]] = []
    for file in files:
        results = [analysis.results.get(file) for _, analysis in runs]
        first = next(result for result in results if result is not None)
        network = "" if first.network == "online" else f"{first.network} network"
        name = ", ".join(part for part in (first.protocol, first.layer, first.dataset, network) if part)
        name = name if name.startswith("offline") else f"offline, {name}"
        cells = [
            Cell() if result is None else _accuracy(result, analysis.run.step)
            for result, (_, analysis) in zip(results, runs, strict=True)
        ]
        rows.append((name if name not in dict(rows) else f"{name} ({file})", cells))
    return Table("offline", "Offline accuracy, %", [name for name, _ in runs], rows)


def online(runs: Runs) -> Table:
    """The last accuracies of the log: a row for each online classifier."""
    rows: dict[str, list[Cell]] = {}
    for i, (_, analysis) in enumerate(runs):
        for name, steps, values in online_curves(analysis):
            measured = [(v, step) for v, step in zip(values, steps, strict=True) if v is not None]
            cells = rows.setdefault(f"online, {name}", [Cell() for _ in runs])
            for value, step in measured[-1:]:
                cells[i] = number(value, "{:.1f}", f"step {step:,}")
    title = "Online accuracy at the end of the log, %"
    return Table("online-last", title, [name for name, _ in runs], list(rows.items()))


def temperatures(runs: Runs) -> Table:
    """Accuracy of offline probes: a row for each temperature, a column for each result."""
    columns = {
        join(runs, name, file): {
            tau: number(accuracy, f"{{:.1f}} ± {error:.1f}") for tau, accuracy, error in rows
        }
        for name, analysis in runs
        for file, rows in per_temperature(analysis).items()
    }
    taus = sorted({tau for cells in columns.values() for tau in cells})
    rows = [(f"{tau:g}", [cells.get(tau, Cell()) for cells in columns.values()]) for tau in taus]
    return Table("temperatures", "Offline accuracy at each temperature, %", list(columns), rows)


def classifiers(runs: Runs) -> Table:
    """The linear classifiers behind the coherence: a row for each layer."""
    rows: dict[str, list[Cell]] = {}
    for i, (_, analysis) in enumerate(runs):
        for curve in analysis.coherence.curves if analysis.coherence else []:
            note = f"{curve.features:,} features, {curve.fit_images:,} images, {curve.fit_epochs} epochs"
            cells = rows.setdefault(f"offline, {curve.label}", [Cell() for _ in runs])
            cells[i] = number(curve.test_accuracy, "{:.1f}", note)
    title = "Offline test accuracy of the linear classifiers, %"
    return Table("classifiers", title, [name for name, _ in runs], list(rows.items()))


def simplices(runs: Runs) -> Table:
    """How many vertices and simplices are of use, and their information about the class."""
    rows = []
    atlases = [analysis.atlas for _, analysis in runs]
    for label, key in (
        ("dead vertices", "dead_vertices"),
        ("duplicate vertices", "duplicate_vertices"),
        ("simplices with one code only", "constant_simplices"),
        ("duplicate simplices", "duplicate_simplices"),
    ):
        cells = []
        for atlas in atlases:
            total = 0 if atlas is None else atlas.simplices * (atlas.vertices if "vertices" in key else 1)
            cells.append(number(atlas and atlas[key], "{:,}", f"of {total:,}"))
        rows.append((label, cells))
    cells = []
    for atlas in atlases:
        mean = ((atlas and atlas.simplex_information) or {}).get("mean")
        entropy = None if atlas is None else atlas.class_entropy
        cells.append(number(mean, "{:.3f}", "nats" if entropy is None else f"nats of {entropy:.3f}"))
    rows.append(("mean information of a simplex about the class", cells))
    return Table("simplices", "The simplices", [name for name, _ in runs], rows)


def ranks(runs: Runs) -> Table:
    rows: dict[str, list[Cell]] = {}
    for i, (_, analysis) in enumerate(runs):
        for layer in analysis.spectrum.layers:
            cells = rows.setdefault(layer.layer, [Cell() for _ in runs])
            cells[i] = number(layer.effective_rank, "{:.1f}", f"of {layer.features:,}")
    return Table("ranks", "Effective rank", [name for name, _ in runs], list(rows.items()))


def cost(runs: Runs) -> Table:
    rows = []
    kinds = {"parameters": "parameters", "activations": "activations, one image"}
    kinds["flops"] = "multiply-adds, one image"
    if any(analysis.cost for _, analysis in runs):
        for key, label in kinds.items():
            rows.append((label, [number((analysis.cost or {}).get(key), "{:,.0f}") for _, analysis in runs]))
    times = {"training": [a.run.seconds for _, a in runs]}
    times["analysis"] = [a.provenance.seconds_total for _, a in runs]
    rows += [(label, [Cell(duration(s), s) for s in seconds]) for label, seconds in times.items()]
    rows.append(("analysed on", [Cell(analysis.provenance.device) for _, analysis in runs]))
    return Table("cost", "Cost", [name for name, _ in runs], rows)


def stored(results: dict[str, Result]) -> list[tuple[str, str]]:
    """The results as JSON by file, with the last part of the path of their images: the page may be mailed."""
    texts = []
    for file, result in results.items():
        if result.data:
            result = result.replace(data=PurePath(result.data).name)
        text = json.dumps(result.to_json(), indent=1, ensure_ascii=False)
        texts.append((file, text if len(text) <= LONGEST else text[:LONGEST] + "\n… and more in the file"))
    return texts


def number(value: Any, pattern: str, note: str = "") -> Cell:
    """A formatted number; a dash if it is None."""
    return Cell() if value is None else Cell(pattern.format(value), value, note)


def _setting(recipe: dict[str, Any], name: str, pattern: str = "{}") -> Cell:
    """A setting by its dotted name; a dash if the recipe lacks it."""
    value: Any = recipe
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return number(value, pattern) if is_number else Cell(value if isinstance(value, str) else "–")


def _accuracy(result: Result, step: int) -> Cell:
    """An accuracy, with a note if its temperature was chosen or if a later checkpoint exists."""
    error = "" if result.standard_error is None else f" ± {result.standard_error:.1f}"
    notes = []
    if result.get("per_temperature") and result.temperature is not None:
        notes.append(f"temperature {result.temperature:g}, chosen")
    if result.pretrain_step not in (None, step):
        notes.append(f"of an earlier checkpoint, step {result.pretrain_step}")
    return number(result.accuracy, f"{{:.1f}}{error}", "; ".join(notes))
