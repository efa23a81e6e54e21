"""Results of several runs side by side: one row for what was measured alike, one column for each run."""

import math
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from simplicia.errors import UserError
from simplicia.evaluate import results
from simplicia.run import LAYERS
from simplicia.train import checkpoint
from simplicia.train.log import lines_of
from simplicia.train.recipe import Recipe, read_yaml


class Row(NamedTuple):
    """What was measured and how. Cells of one row compare; those of two rows do not."""

    dataset: str
    test_images: str
    when: str  # "online" or "offline"
    protocol: str
    variant: str  # what else tells apart measurements of one protocol
    network: str
    layer: str
    temperature: str


CELL = (
    "accuracy",
    "standard_error",
    "standard_deviation",
    "top5_accuracy",
    "temperature",
    "selected",
    "seeds",
)
Cell = dict[str, Any]


def compare(runs: list[str | Path]) -> dict[str, Any]:
    """All results of runs: ``{"runs": [...], "rows": [{dataset, online, …, "cells": [cell or None, …]}]}``.

    Online and offline accuracies, data sets, layers, temperatures and protocols never share a row.
    """
    columns, recipes, states = [], [], []
    for folder in map(Path, runs):
        if not (folder / "recipe.yaml").is_file():
            raise UserError(f"{folder} is not a run: it has no recipe.yaml; give folders that pretrain wrote")
        recipes.append(read_yaml(folder / "recipe.yaml"))
        states.append(checkpoint.state_of(folder))
        columns.append(_measured(folder, recipes[-1], states[-1]))
    columns = _named(columns)
    rows = sorted({row for column in columns for row in column}, key=_order)
    if not rows:
        raise UserError(f"no results in {', '.join(map(str, runs))} yet; simplicia probe or knn makes some")
    return {
        "runs": [
            {
                "path": str(path),
                "recipe": recipe.name,
                "epochs": recipe.epochs,
                "seed": recipe.seed,
                "step": state.get("step"),
                "total_steps": state.get("total_steps"),
            }
            for path, recipe, state in zip(runs, recipes, states, strict=True)
        ],
        "rows": [
            {**row._asdict(), "online": row.when == "online", "cells": [c.get(row) for c in columns]}
            for row in rows
        ],
    }


def _named(columns: list[dict[Row, Cell]]) -> list[dict[Row, Cell]]:
    """The same, with folders of images called by their names where these tell them apart."""
    paths = {row.dataset for column in columns for row in column}
    names = {path: Path(path).name or path for path in paths}
    shared = Counter(names.values())
    shown = {path: name if shared[name] == 1 else path for path, name in names.items()}
    return [
        {row._replace(dataset=shown[row.dataset]): cell for row, cell in column.items()} for column in columns
    ]


def _measured(folder: Path, recipe: Recipe, state: dict[str, Any]) -> dict[Row, Cell]:
    found: dict[Row, Cell] = {}
    for result in results.read(folder):
        if result.get("accuracy") is None:
            continue
        if "data" not in result and result.get("dataset") == Path(recipe.data).name:
            result = {**result, "data": recipe.data}  # of before results said where their images are
        if _is_older(result, state):
            result = {**result, "checkpoint": f"of an earlier checkpoint, step {result.get('pretrain_step')}"}
        row = _row(result)
        if several := result.get("per_temperature"):
            rows = [{**result, **part} for part in several]
            found |= {_row(part): _cell(part) for part in rows}
        if several or len((result.get("grid") or {}).get("temperatures", [])) > 1:
            row = row._replace(temperature="chosen")  # on validation images, and so each run its own
        found[row] = _cell(result)
    return found | _online(folder, recipe)


def _is_older(result: Cell, state: dict[str, Any]) -> bool:
    """Whether a measurement is of another checkpoint of a run than the one with this state."""
    pairs = ((result.get("pretrain_step"), state.get("step")), (result.get("run_id"), state.get("id")))
    return any(mine != its for mine, its in pairs if mine is not None and its is not None)


def _row(result: Cell) -> Row:
    words = {
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
    temperature = result.get("temperature")
    shown = f"{temperature:g}" if isinstance(temperature, int | float) else "-"
    if trials := result.get("trials"):
        epochs, temperatures = (
            sorted({row[key] for row in trials if row.get(key) is not None})
            for key in ("epochs", "temperature")
        )
        if epochs:  # those tried, which are a setting; each run may have chosen its own, and so its steps
            result = {**result, "epochs": " or ".join(map(str, epochs)), "steps": None}
        if len(temperatures) > 1:
            shown = "chosen"
    told = [text.format(result[key]) for key, text in words.items() if result.get(key) is not None]
    if trials:
        told.append(f"{len(trials)} trials")
    if path := result.get("path"):
        ends = " to ".join(f"{row['regulariser']:.3g}" for row in (path[-1], path[0]))
        told.append(f"{len(path)} regularisers from {ends}")
    if grid := result.get("grid"):
        tried = math.prod(len(values) for key, values in grid.items() if key != "temperatures")
        told.append(f"best of {tried}" if tried > 1 else "nothing to choose")
    if len(result.get("seeds") or []) > 1:
        told.append(f"{len(result['seeds'])} seeds")
    told += [f"{key} {results.listed(value)}" for key, value in (result.get("changed") or {}).items()]
    return Row(
        str(result.get("data", result.get("dataset"))),
        str(result.get("test_images", "-")),
        "online" if result.get("online") else "offline",
        str(result["protocol"]).removeprefix("offline "),
        ", ".join(told),
        str(result.get("network", "-")),
        str(result.get("layer") or "-"),
        shown,
    )


def _cell(result: Cell) -> Cell:
    return {key: result[key] for key in CELL if result.get(key) is not None}


def _online(folder: Path, recipe: Recipe) -> dict[Row, Cell]:
    """The last accuracies that probes of the training itself wrote to the log."""
    last: dict[str, float] = {}
    for line in lines_of(folder / "log.jsonl"):
        online = {k: v for k, v in line.items() if k.startswith("online_") and "_accuracy" in k}
        last |= {k: v for k, v in online.items() if results.is_number(v)}
    found = {}
    for key, accuracy in last.items():
        layer, _, temperature = key.removeprefix("online_").replace("_accuracy", "").partition("@")
        protocol = "weighted kNN" if layer == "knn" else "linear probe"
        layer = "encoder" if layer == "knn" else layer
        if layer == "sem" and not temperature:
            temperature = f"{recipe.sem.temperature:g} (own)"
        row = Row(recipe.data, "-", "online", protocol, "", "online", layer, temperature or "-")
        found[row] = {"accuracy": accuracy}
    return found


def _order(row: Row) -> tuple:
    layers = [*LAYERS, row.layer]
    try:
        heat = float(row.temperature.split(" ")[0])
    except ValueError:
        heat = -1.0
    return (*row[:6], layers.index(row.layer), heat, row.temperature)
