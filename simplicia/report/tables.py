"""The page's tables: a column for each run. Cells show rounded numbers and keep the exact ones."""

import json
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from simplicia.progress import duration
from simplicia.report.figures import Found, Runs, join, online_curves, per_temperature

LONGEST = 20_000  # characters of a stored result that are shown


@dataclass
class Cell:
    """What is shown, the exact number behind it, and what is said beside it in small print."""

    words: str = "–"
    value: float | None = None
    note: str = ""


@dataclass
class Table:
    id: str
    title: str
    columns: list[str]
    rows: list[tuple[str, list[Cell]]]


def settings(runs: Runs) -> Table:
    """What was run."""
    rows = []
    for words, cell in (
        ("method", lambda r: Cell(r["recipe"]["method"])),
        ("encoder", lambda r: Cell(r["recipe"]["encoder"])),
        ("bottleneck", lambda r: Cell(r["recipe"]["bottleneck"])),
        ("simplices × vertices", _shape),
        ("temperature of training", lambda r: number(r["temperature"], "{:g}")),
        ("data", lambda r: Cell(r["recipe"]["data"])),
        ("image size", lambda r: number(r["recipe"]["image_size"], "{:d} px")),
        ("epochs", lambda r: number(r["recipe"]["epochs"], "{:,d}")),
        ("batch size", lambda r: number(r["recipe"]["batch_size"], "{:,d}")),
        ("optimiser", lambda r: Cell(r["recipe"]["optim"]["name"])),
        ("learning rate", lambda r: number(r["recipe"]["optim"]["lr"], "{:g}")),
        ("precision", lambda r: Cell(str(r["recipe"]["precision"]))),
        ("seed", lambda r: number(r["recipe"]["seed"], "{:d}")),
        ("steps", _steps),
        ("last loss", lambda r: number(r["loss"], "{:.4f}")),
    ):
        rows.append((words, [cell(found["run"]) for _, found in runs]))
    looked = []
    for _, found in runs:
        data, by = found["data"], found["provenance"]
        count = number(data["images"], "{:,d}", note=f"{data['split']} images of {data['name']}")
        looked.append((count, Cell(f"Simplicia {by['simplicia']}, PyTorch {by['torch']}", note=by["date"])))
    rows.append(("looked at", [count for count, _ in looked]))
    rows.append(("analysed with", [words for _, words in looked]))
    return Table("settings", "What was run", [name for name, _ in runs], rows)


def offline(runs: Runs) -> Table:
    """Accuracies measured after training: a row for each result file."""
    files = dict.fromkeys(
        file
        for _, found in runs
        for file, result in found["results"].items()
        if isinstance(result, dict) and result.get("accuracy") is not None and not result.get("online")
    )
    rows: list[tuple[str, list[Cell]]] = []
    for file in files:
        results = [found["results"].get(file) for _, found in runs]
        some = next(result for result in results if isinstance(result, dict))
        parts = [some.get("protocol"), some.get("layer"), some.get("dataset")]
        if some.get("network") not in (None, "online"):
            parts.append(f"{some['network']} network")
        words = ", ".join(str(part) for part in parts if part) or file
        words = words if words.startswith("offline") else f"offline, {words}"
        cells = [
            _accuracy(result, found["run"]["step"]) if isinstance(result, dict) else Cell()
            for result, (_, found) in zip(results, runs, strict=True)
        ]
        rows.append((words if words not in dict(rows) else f"{words} ({file})", cells))
    return Table("offline", "Offline accuracy, %", [name for name, _ in runs], rows)


def online(runs: Runs) -> Table:
    """The last accuracies of the log: a row for each online classifier."""
    rows: dict[str, list[Cell]] = {}
    for i, (_, found) in enumerate(runs):
        for words, steps, values in online_curves(found):
            last = [(v, step) for v, step in zip(values, steps, strict=True) if v is not None][-1:]
            cells = rows.setdefault(f"online, {words}", [Cell() for _ in runs])
            for value, step in last:
                cells[i] = number(value, "{:.1f}", note=f"step {step:,}")
    return Table(
        "online-last",
        "Online accuracy at the end of the log, %",
        [name for name, _ in runs],
        list(rows.items()),
    )


def temperatures(runs: Runs) -> Table:
    """Accuracy of offline probes: a row for each temperature, a column for each result."""
    columns = {
        join(runs, name, file): rows for name, found in runs for file, rows in per_temperature(found).items()
    }
    by = [{row["temperature"]: row for row in rows} for rows in columns.values()]
    rows = [
        (f"{tau:g}", [_accuracy(column[tau]) if tau in column else Cell() for column in by])
        for tau in sorted({tau for column in by for tau in column})
    ]
    return Table("temperatures", "Offline accuracy at each temperature, %", list(columns), rows)


def coherence(runs: Runs) -> Table:
    """The linear classifiers behind the coherence: a row for each layer."""
    rows: dict[str, list[Cell]] = {}
    for i, (_, found) in enumerate(runs):
        for curve in (found["coherence"] or {"curves": []})["curves"]:
            trained = f"{curve['fit_images']:,} images, {curve['fit_epochs']} epochs"
            cells = rows.setdefault(f"offline, {curve['label']}", [Cell() for _ in runs])
            cells[i] = number(
                curve["test_accuracy"], "{:.1f}", note=f"{curve['features']:,} features, {trained}"
            )
    return Table(
        "classifiers",
        "Offline test accuracy of the linear classifiers whose weights are looked at, %",
        [name for name, _ in runs],
        list(rows.items()),
    )


def inside(runs: Runs) -> Table:
    """Numbers of the simplices: how many vertices are dead, how much a simplex says of the class."""
    kinds = (
        ("dead vertices", "dead_vertices"),
        ("vertices that fire as another does", "duplicate_vertices"),
        ("simplices that never change", "constant_simplices"),
        ("simplices like another", "duplicate_simplices"),
    )
    rows = []
    atlases = [found["atlas"] for _, found in runs]
    for words, key in kinds:
        cells = []
        for atlas in atlases:
            if atlas is None:
                cells.append(Cell())
                continue
            of = atlas["simplices"] * (atlas["vertices"] if "vertices" in key else 1)
            cells.append(number(atlas[key], "{:,d}", note=f"of {of:,}"))
        rows.append((words, cells))
    cells = []
    for atlas in atlases:
        said = atlas and atlas["simplex_information"]
        cells.append(
            number(said["mean"], "{:.3f}", note=f"nats of {atlas['class_entropy']:.3f}") if said else Cell()
        )
    rows.append(("what a simplex says of the class, mean", cells))
    return Table("inside", "The simplices", [name for name, _ in runs], rows)


def ranks(runs: Runs) -> Table:
    rows: dict[str, list[Cell]] = {}
    for i, (_, found) in enumerate(runs):
        for layer in found["spectrum"]["layers"]:
            cells = rows.setdefault(layer["layer"], [Cell() for _ in runs])
            cells[i] = number(layer["effective_rank"], "{:.1f}", note=f"of {layer['features']:,}")
    return Table("ranks", "Effective rank", [name for name, _ in runs], list(rows.items()))


def cost(runs: Runs) -> Table:
    rows = []
    kinds = (("parameters", "parameters"), ("activations", "activations"), ("multiply-adds", "flops"))
    if any(found["cost"] for _, found in runs):
        for words, key in kinds:
            rows.append(
                (
                    f"{words}, {'the network' if key == 'parameters' else 'one image'}",
                    [number((found["cost"] or {}).get(key), "{:,.0f}") for _, found in runs],
                )
            )
    rows.append(("training", [_seconds(found["run"]["seconds"]) for _, found in runs]))
    rows.append(("analysis", [_seconds(found["provenance"]["seconds_total"]) for _, found in runs]))
    rows.append(("analysed on", [Cell(str(found["provenance"]["device"])) for _, found in runs]))
    return Table("cost", "Cost", [name for name, _ in runs], rows)


def stored(found: Found) -> list[tuple[str, str]]:
    """The results as they lie beside the run, but for where their images are: only by name."""
    shown = []
    for file, result in found["results"].items():
        if isinstance(result, dict) and isinstance(result.get("data"), str):
            result = {**result, "data": PurePath(result["data"]).name}
        text = json.dumps(result, indent=1, ensure_ascii=False)
        shown.append((file, text if len(text) <= LONGEST else text[:LONGEST] + "\n… and more in the file"))
    return shown


def number(value: Any, pattern: str, note: str = "") -> Cell:
    """A number as the pattern has it; a dash where there is none."""
    return Cell() if value is None else Cell(pattern.format(value), value, note)


def _accuracy(result: Found, step: int | None = None) -> Cell:
    """An accuracy; beside one that was measured at another step than a run's last it says so."""
    if not isinstance(result.get("accuracy"), int | float):
        return Cell()
    error, tau = result.get("standard_error"), result.get("temperature")
    words = f"{result['accuracy']:.1f}" + ("" if error is None else f" ± {error:.1f}")
    chosen = result.get("per_temperature") and tau is not None
    notes = [f"temperature {tau:g}, chosen"] if chosen else []
    measured = result.get("pretrain_step")
    if None not in (step, measured) and measured != step:
        notes.append(f"of an earlier checkpoint, step {measured}")
    return Cell(words, result["accuracy"], "; ".join(notes))


def _shape(run: Found) -> Cell:
    return Cell(f"{run['simplices']:,} × {run['vertices']}" if run["simplices"] else "no SEM")


def _steps(run: Found) -> Cell:
    note = "" if run["finished"] else f"of {run['total_steps']:,}: unfinished"
    return number(run["step"], "{:,d}", note)


def _seconds(seconds: float | None) -> Cell:
    return Cell() if seconds is None else Cell(duration(seconds), seconds)
