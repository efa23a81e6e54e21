"""What a sweep gave: as JSON, as CSV, and as a figure."""

import csv
import io
import math
from pathlib import Path
from typing import Any

from simplicia.experiments.sweep_plan import Plan
from simplicia.files import atomic_write

STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}


def summary(study: Any, plan: Plan) -> dict[str, Any]:
    """All trials that were begun, and the best of those that came to their end."""
    rows = []
    for trial in study.get_trials(deepcopy=False):
        if trial.state.name not in STATES:
            continue
        rows.append(
            {
                "trial": trial.number,
                "state": STATES[trial.state.name],
                "settings": trial.params,
                "validation_accuracy": trial.value if trial.state.name == "COMPLETE" else None,
                "standard_error": trial.user_attrs.get("standard_error"),
                "downstream_temperature": trial.user_attrs.get("downstream_temperature"),
                "per_temperature": trial.user_attrs.get("per_temperature", []),
                "online": {str(k): v for k, v in sorted(trial.intermediate_values.items())},
                "seconds": trial.user_attrs.get("seconds"),
                "reason": trial.user_attrs.get("reason"),
            }
        )
    complete = [row for row in rows if row["validation_accuracy"] is not None]
    return {
        "protocol": "offline linear probe, on training images held out of pre-training and probe",
        "plan": plan.as_dict(),
        "settings": [*plan.grid, *plan.search],
        "best": max(complete, key=lambda row: row["validation_accuracy"], default=None),
        "trials": rows,
    }


def write(found: dict[str, Any], folder: Path) -> None:
    """``sweep.json`` and ``sweep.csv``."""
    import json

    for name, text in (("sweep.json", json.dumps(found, indent=1) + "\n"), ("sweep.csv", as_csv(found))):
        with atomic_write(folder / name) as temporary:
            temporary.write_text(text)


def as_csv(found: dict[str, Any]) -> str:
    text = io.StringIO()
    plain = ["validation_accuracy", "standard_error", "downstream_temperature", "seconds"]
    out = csv.writer(text, lineterminator="\n")
    out.writerow(["trial", "state", *found["settings"], *plain])
    for row in found["trials"]:
        out.writerow(
            [
                row["trial"],
                row["state"],
                *(row["settings"].get(name) for name in found["settings"]),
                *(row[name] for name in plain),
            ]
        )
    return text.getvalue()


def draw(found: dict[str, Any], path: Path) -> None:
    """Accuracy over a grid's one setting (or downstream temperature) as lines, over two as a heat map.

    A search is a panel of points for each of its settings.
    """
    from matplotlib.figure import Figure

    rows = [row for row in found["trials"] if row["validation_accuracy"] is not None]
    names = found["settings"]
    searched = bool(found["plan"]["search"])
    panels = len(names) if searched or len(names) > 2 else 1
    figure = Figure(figsize=(max(5.5, 4 * panels), 4), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    if not names:
        _temperature_line(axes[0], rows[0])
    elif panels == 1 and len(names) == 2:
        _heat_map(figure, axes[0], rows, names)
    elif panels == 1 and not searched:
        _lines(axes[0], rows, names[0])
    else:
        for axis, name in zip(axes, names, strict=True):
            positions = _axis(axis, [row["settings"][name] for row in rows], name)
            axis.plot(positions, [row["validation_accuracy"] for row in rows], "o")
    axes[0].set_title(found["plan"]["recipe"]["name"], loc="left")
    if not (panels == 1 and len(names) == 2):
        axes[0].set_ylabel("validation accuracy, %")
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:])


def _lines(axis: Any, rows: list[dict[str, Any]], name: str) -> None:
    """One line for the temperature chosen at each point, a faint one for each temperature."""
    rows = sorted(rows, key=lambda row: _order(row["settings"][name]))
    positions = _axis(axis, [row["settings"][name] for row in rows], name)
    # a row without simplices has one accuracy, of no temperature
    found = [{cell["temperature"]: cell["accuracy"] for cell in row["per_temperature"]} for row in rows]
    temperatures = sorted({t for cells in found for t in cells if t is not None})
    for t in temperatures if len(temperatures) > 1 else []:
        points = [(x, cells[t]) for x, cells in zip(positions, found, strict=True) if t in cells]
        axis.plot(*zip(*points, strict=True), ".-", alpha=0.4, label=f"downstream temperature {t:g}")
    heights = [row["validation_accuracy"] for row in rows]
    errors = [row["standard_error"] for row in rows]
    axis.errorbar(positions, heights, yerr=errors, fmt="o-", color="black", capsize=3, label="chosen")
    axis.legend(fontsize="small")


def _temperature_line(axis: Any, row: dict[str, Any]) -> None:
    """The recipe alone: its accuracy over the downstream temperature."""
    cells = row["per_temperature"]
    positions = _axis(axis, [cell["temperature"] for cell in cells], "downstream temperature")
    errors = [cell["standard_error"] for cell in cells]
    axis.errorbar(positions, [cell["accuracy"] for cell in cells], yerr=errors, fmt="o-", capsize=3)


def _heat_map(figure: Any, axis: Any, rows: list[dict[str, Any]], names: list[str]) -> None:
    values = [sorted({row["settings"][name] for row in rows}, key=_order) for name in names]
    cells = [[math.nan] * len(values[1]) for _ in values[0]]
    for row in rows:
        i, j = (values[k].index(row["settings"][name]) for k, name in enumerate(names))
        cells[i][j] = row["validation_accuracy"]
    image = axis.imshow(cells, aspect="auto")
    figure.colorbar(image, label="validation accuracy, %")
    axis.set_yticks(range(len(values[0])), [_word(v) for v in values[0]])
    axis.set_xticks(range(len(values[1])), [_word(v) for v in values[1]])
    axis.set_ylabel(names[0])
    axis.set_xlabel(names[1])
    for i, line in enumerate(cells):
        for j, value in enumerate(line):
            if not math.isnan(value):
                light = image.norm(value) < 0.5
                axis.text(j, i, f"{value:.1f}", ha="center", va="center", color="w" if light else "k")


def _axis(axis: Any, values: list[Any], name: str) -> list[float]:
    """Where values stand on the horizontal axis, which is made for them: numbers, or words in order."""
    axis.set_xlabel(name)
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values):
        words = sorted(dict.fromkeys(values), key=_order)
        axis.set_xticks(range(len(words)), [_word(w) for w in words])
        return [words.index(v) for v in values]
    if min(numbers) > 0 and max(numbers) >= 8 * min(numbers):
        axis.set_xscale("log")
    elif min(numbers) == 0 and max(numbers) > 0:
        least = min((v for v in numbers if v > 0), default=1.0)
        axis.set_xscale("symlog", linthresh=least)
    return numbers


def _order(value: Any) -> tuple[bool, Any]:
    """Numbers by size, then words by letters."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (not number, value if number else str(value))


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
