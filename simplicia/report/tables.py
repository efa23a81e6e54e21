"""The page's tables: a column for each run. Cells show rounded numbers and hold the exact ones."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from simplicia.analyze.report_data import Analysis
from simplicia.progress import duration
from simplicia.report.figures import Runs, describe, join, layer_name, online_curves, per_temperature
from simplicia.result import Result, is_number

PRECISIONS = {"32": "32-bit", "bf16": "bfloat16"}
LONGEST = 20_000  # characters of a stored result that are shown
SETTINGS = {  # label: name in the recipe, format of a number
    "data": ("data", "{}"),
    "image size": ("image_size", "{:,} px"),
    "epochs": ("epochs", "{:,}"),
    "batch size": ("batch_size", "{:,}"),
    "optimiser": ("optim.name", "{}"),
    "learning rate": ("optim.lr", "{:g}"),
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
    title: str
    columns: list[str]
    rows: list[tuple[str, list[Cell]]]


Row = tuple[str, Cell]  # of one run


def page_tables(runs: Runs) -> dict[str, Table]:
    """Every table of the page by its id."""
    plain: dict[str, tuple[str, Callable[[Analysis], Iterator[Row]]]] = {
        "settings": ("Settings", _settings),
        "online-last": ("Online accuracy at the end of the log, %", _online),
        "classifiers": ("Offline test accuracy of the linear classifiers, %", _classifiers),
        "simplices": ("The simplices", _simplices),
        "ranks": ("Effective rank", _ranks),
        "cost": ("Cost", _cost),
    }
    tables = {"offline": _offline(runs), "temperatures": _temperatures(runs)}
    for id, (title, rows_of) in plain.items():
        rows: dict[str, list[Cell]] = {}
        for i, (_, analysis) in enumerate(runs):
            for label, cell in rows_of(analysis):
                rows.setdefault(label, [Cell()] * len(runs))[i] = cell
        tables[id] = Table(title, [name for name, _ in runs], list(rows.items()))
    return tables


def _settings(analysis: Analysis) -> Iterator[Row]:
    run, data, by = analysis.run, analysis.data, analysis.provenance
    for name in ("method", "encoder", "bottleneck"):
        yield name, _setting(run.recipe, name)
    yield "simplices × vertices", Cell(f"{run.simplices:,} × {run.vertices}" if run.simplices else "no SEM")
    yield "temperature of training", number(run.temperature, "{:g}")
    for label, (name, pattern) in SETTINGS.items():
        yield label, _setting(run.recipe, name, pattern)
    yield "steps", number(run.step, "{:,}", "" if run.finished else f"of {run.total_steps:,}: unfinished")
    precision = run.recipe.get("precision")
    yield "precision", Cell(PRECISIONS.get(str(precision), str(precision)))
    yield "last loss", number(run.loss, "{:.4f}")
    yield "analysed images", number(data.images, "{:,}", f"{data.split} images of {data.name}")
    yield "analysed with", Cell(f"Simplicia {by.simplicia}, PyTorch {by.torch}", note=readable(by.date))


def readable(date: str) -> str:
    """An ISO date as people write it, such as "18 November 2026, 21:18 UTC"."""
    try:
        at = datetime.fromisoformat(date).astimezone(UTC)
    except ValueError:
        return date
    return f"{at.day} {at:%B %Y, %H:%M} UTC"


def _offline(runs: Runs) -> Table:
    """Accuracies measured after training: a row for each result file."""
    rows: dict[str, list[Cell]] = {}
    for file in dict.fromkeys(file for _, analysis in runs for file in analysis.results):
        results = [analysis.results.get(file) for _, analysis in runs]
        first = next(result for result in results if result is not None)
        if first.accuracy is None or first.online:
            continue
        name = f"{describe(first)}, on {first.dataset}" if first.dataset else describe(first)
        rows[name if name not in rows else f"{name} ({file})"] = [
            Cell() if result is None else _accuracy(result, analysis.run.step)
            for result, (_, analysis) in zip(results, runs, strict=True)
        ]
    return Table("Offline accuracy, %", [name for name, _ in runs], list(rows.items()))


def _online(analysis: Analysis) -> Iterator[Row]:
    for name, steps, values in online_curves(analysis):
        measured = [(v, step) for v, step in zip(values, steps, strict=True) if v is not None]
        for value, step in measured[-1:]:
            yield f"online, {name}", number(value, "{:.1f}", f"step {step:,}")


def _temperatures(runs: Runs) -> Table:
    """Accuracy of offline probes: a row for each temperature, a column for each result."""
    columns = {
        join(runs, name, file): {tau: number(mean, f"{{:.1f}} ± {error:.1f}") for tau, mean, error in rows}
        for name, analysis in runs
        for file, rows in per_temperature(analysis).items()
    }
    taus = sorted({tau for cells in columns.values() for tau in cells})
    rows = [(f"{tau:g}", [cells.get(tau, Cell()) for cells in columns.values()]) for tau in taus]
    return Table("Offline accuracy at each temperature, %", list(columns), rows)


def _classifiers(analysis: Analysis) -> Iterator[Row]:
    """The linear classifiers behind the coherence."""
    for curve in analysis.coherence.curves if analysis.coherence else []:
        note = f"{curve.features:,} features, {curve.fit_images:,} images, {curve.fit_epochs} epochs"
        yield f"offline, {curve.label}", number(curve.test_accuracy, "{:.1f}", note)


def _simplices(analysis: Analysis) -> Iterator[Row]:
    """How many vertices and simplices are of use, and their information about the class."""
    if (atlas := analysis.atlas) is None:
        return
    simplices, vertices = f"of {atlas.simplices:,}", f"of {atlas.simplices * atlas.vertices:,}"
    yield "dead vertices", number(atlas.dead_vertices, "{:,}", vertices)
    yield "duplicate vertices", number(atlas.duplicate_vertices, "{:,}", vertices)
    yield "simplices with one code only", number(atlas.constant_simplices, "{:,}", simplices)
    yield "duplicate simplices", number(atlas.duplicate_simplices, "{:,}", simplices)
    if atlas.simplex_information is not None:
        note = "nats" if atlas.class_entropy is None else f"nats of {atlas.class_entropy:.3f}"
        information = atlas.simplex_information.get("mean")
        yield "mean information of a simplex about the class", number(information, "{:.3f}", note)


def _ranks(analysis: Analysis) -> Iterator[Row]:
    for layer in analysis.spectrum.layers:
        yield layer_name(layer.layer), number(layer.effective_rank, "{:.1f}", f"of {layer.features:,}")


def _cost(analysis: Analysis) -> Iterator[Row]:
    if cost := analysis.cost:
        yield "parameters", number(cost.get("parameters"), "{:,.0f}")
        yield "activations, one image", number(cost.get("activations"), "{:,.0f}")
        yield "multiply-adds, one image", number(cost.get("flops"), "{:,.0f}")
    spent = {"training": analysis.run.seconds, "analysis": analysis.provenance.seconds_total}
    for label, seconds in spent.items():
        yield label, Cell(duration(seconds), seconds)
    yield "analysed on", Cell(analysis.provenance.device)


def stored(results: dict[str, Result]) -> list[tuple[str, str]]:
    """The results as JSON by file, with the last part of the path of their images: the page may be mailed."""
    texts = []
    for file, result in results.items():
        shown = result.replace(data=result.data and PurePath(result.data).name)
        text = json.dumps(shown.to_json(), indent=1, ensure_ascii=False)
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
    return number(value, pattern) if is_number(value) else Cell(value if isinstance(value, str) else "–")


def _accuracy(result: Result, step: int) -> Cell:
    """An accuracy, with a note if its temperature was chosen or if a later checkpoint exists."""
    error = "" if result.standard_error is None else f" ± {result.standard_error:.1f}"
    notes = []
    if result.get("per_temperature") and result.temperature is not None:
        notes.append(f"temperature {result.temperature:g}, chosen")
    if result.pretrain_step not in (None, step):
        notes.append(f"of an earlier checkpoint, step {result.pretrain_step}")
    return number(result.accuracy, f"{{:.1f}}{error}", "; ".join(notes))
