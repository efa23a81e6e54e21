"""Compare the results of several runs: one row per way of measuring, one column per run."""

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from simplicia.errors import UserError
from simplicia.evaluate.make_result import join_values
from simplicia.progress import plural, say
from simplicia.representation import LAYERS
from simplicia.result import Result, is_number, read_results
from simplicia.train import checkpoint
from simplicia.train.recipe import Recipe, read_yaml
from simplicia.train.run_dir import read_log

Cell = dict[str, Any]
# details that distinguish measurements of one protocol, and their text
VARIANTS = {
    "checkpoint": "{}",
    "preset": "{}",
    "k": "k {}",
    "views": "views: {}",
    "epochs": "{} epochs",
    "steps": "{} steps",
    "fraction": "{:.3g} of the labels",
    "labelled_list": "{}",
    "list_digest": "list {}",
    "tune_batch_size": "batch {}",
    "weight_decay": "weight decay {}",
}
# fields of a result that a cell states
CELL = (
    *("accuracy", "standard_error", "standard_deviation", "top5_accuracy"),
    *("temperature", "selected", "seeds"),
)


class Measurement(NamedTuple):
    """The data and protocol of an accuracy. Only accuracies of equal measurements compare."""

    dataset: str
    test_images: str
    when: str  # "online" or "offline"
    protocol: str
    variant: str
    network: str
    layer: str
    temperature: str


def compare(runs: list[str | Path]) -> dict[str, Any]:
    """Collect all results of runs for JSON: ``rows``, one per measurement, with one cell per run.

    Online and offline accuracies, data sets, layers, temperatures and protocols never share a row. A cell has
    the fields in ``CELL``, or is None if the run lacks the measurement.

    >>> path = run.write_result("knn", knn(run, train, test))
    >>> "weighted kNN" in [row["protocol"] for row in compare([run.path])["rows"]]
    True
    """
    columns, cells = [], []
    for run_dir in map(Path, runs):
        if not (run_dir / "recipe.yaml").is_file():
            raise UserError(
                f"{run_dir} is not a run: it has no recipe.yaml; give folders that pretrain wrote"
            )
        recipe, state = read_yaml(run_dir / "recipe.yaml"), checkpoint.state_of(run_dir)
        column = {"path": str(run_dir), "recipe": recipe.name, "epochs": recipe.epochs, "seed": recipe.seed}
        columns.append(column | {name: state.get(name) for name in ("step", "total_steps")})
        cells.append(_offline(run_dir, recipe, state) | _online(run_dir, recipe))
    cells = _shorten_paths(cells)
    rows = sorted({measurement for column in cells for measurement in column}, key=_order)
    if not rows:
        raise UserError(f"no results in {', '.join(map(str, runs))} yet; simplicia probe or knn makes some")
    table = [
        {**row._asdict(), "online": row.when == "online", "cells": [column.get(row) for column in cells]}
        for row in rows
    ]
    return {"runs": columns, "rows": table}


def _offline(run_dir: Path, recipe: Recipe, state: dict[str, Any]) -> dict[Measurement, Cell]:
    """The accuracies in a run's ``results`` folder."""
    cells: dict[Measurement, Cell] = {}
    for result in read_results(run_dir, say):
        if result.accuracy is None:
            continue
        if result.data is None and result.dataset == Path(recipe.data).name:  # an early result of 0.1
            result = result.replace(data=recipe.data)
        checkpoints = ((result.pretrain_step, state.get("step")), (result.run_id, state.get("id")))
        if any(measured != now for measured, now in checkpoints if None not in (measured, now)):
            result = result.replace(checkpoint=f"of an earlier checkpoint, step {result.pretrain_step}")
        rows = [result.replace(**row) for row in result.get("per_temperature", [])]
        measurements = [*map(_measurement, rows), _measurement(result)]
        if rows or len(result.get("grid", {}).get("temperatures", [])) > 1:
            measurements[-1] = measurements[-1]._replace(temperature="chosen")  # on validation images
        for measurement, row in zip(measurements, [*rows, result], strict=True):
            cells[measurement] = {name: row[name] for name in CELL if name in row}
    return cells


def _online(run_dir: Path, recipe: Recipe) -> dict[Measurement, Cell]:
    """The last accuracies that the online probes wrote to the log."""
    cells: dict[Measurement, Cell] = {}
    lines = read_log(run_dir / "log.jsonl")
    for key, accuracy in (item for line in lines for item in line.items() if is_number(item[1])):
        match = re.fullmatch("online_(.+)_accuracy(?:@(.+))?", key)
        if match is None:
            continue
        layer, temperature = match.groups()
        protocol = "weighted kNN" if layer == "knn" else "linear probe"
        layer = "encoder" if layer == "knn" else layer
        if temperature is None:
            temperature = f"{recipe.sem.temperature:g} (own)" if layer == "sem" else "-"
        how = (recipe.data, "-", "online", protocol, "", "online", layer, temperature)
        cells[Measurement(*how)] = {"accuracy": accuracy}
    return cells


def _measurement(result: Result) -> Measurement:
    temperature = "-" if result.temperature is None else f"{result.temperature:g}"
    trials = result.get("trials", [])
    epochs, temperatures = (
        sorted({row[key] for row in trials if row.get(key) is not None}) for key in ("epochs", "temperature")
    )
    if epochs:  # name the candidates: each run may have chosen another number of epochs, and so of steps
        result = result.replace(epochs=" or ".join(map(str, epochs)), steps=None)
    if len(temperatures) > 1:
        temperature = "chosen"
    variant = [
        plural(result[key], "epoch")
        if key == "epochs" and isinstance(result[key], int)
        else text.format(result[key])
        for key, text in VARIANTS.items()
        if key in result
    ]
    if trials:
        variant.append(f"{len(trials)} trials")
    if path := result.get("path"):
        ends = " to ".join(f"{row['regulariser']:.3g}" for row in (path[-1], path[0]))
        variant.append(f"{len(path)} regularisers from {ends}")
    if grid := result.get("grid"):
        candidates = math.prod(len(values) for key, values in grid.items() if key != "temperatures")
        variant.append(f"best of {candidates}" if candidates > 1 else "nothing to choose")
    if len(result.seeds) > 1:
        variant.append(f"{len(result.seeds)} seeds")
    variant += [f"{key} {join_values(value)}" for key, value in result.get("changed", {}).items()]
    return Measurement(
        result.data or result.dataset,
        "-" if result.test_images is None else str(result.test_images),
        "online" if result.online else "offline",
        result.protocol.removeprefix("offline "),
        ", ".join(variant),
        result.network,
        result.layer or "-",
        temperature,
    )


def _shorten_paths(columns: list[dict[Measurement, Cell]]) -> list[dict[Measurement, Cell]]:
    """Name folders of images without their path where that is unambiguous."""
    paths = {measurement.dataset for column in columns for measurement in column}
    names = {path: Path(path).name or path for path in paths}
    count = Counter(names.values())
    short = {path: name if count[name] == 1 else path for path, name in names.items()}
    return [{m._replace(dataset=short[m.dataset]): cell for m, cell in column.items()} for column in columns]


def _order(row: Measurement) -> tuple:
    try:
        temperature = float(row.temperature.split(" ")[0])
    except ValueError:
        temperature = -1.0
    return (*row[:6], [*LAYERS, row.layer].index(row.layer), temperature, row.temperature)
