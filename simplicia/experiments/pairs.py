"""Cells with SEM beside the same without it."""

from typing import Any

from simplicia.experiments.experiment import Experiment

Row = dict[str, Any]
Pair = tuple[Row, Row]  # without SEM, with it


def pairs(experiment: Experiment, rows: list[Row]) -> dict[str, list[Pair]]:
    """By the cell with SEM, a pair for each seed that both have; the rows are of one budget."""
    found = {}
    for cell in experiment.cells:
        without, with_sem = (
            {row.get("seed"): row for row in rows if row["cell"] == name} for name in (cell.beside, cell.name)
        )
        if both := [(without[seed], with_sem[seed]) for seed in without if seed in with_sem]:
            found[cell.name] = both
    return found


def longest(experiment: Experiment, rows: list[Row]) -> dict[str, list[Pair]]:
    """The pairs of the budget that has most of them, and of several such the one with most epochs."""
    budgets: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.get("accuracy") is not None:
            key = tuple(row.get(k) for k in ("pretrained_on", "batch_size", "protocol", "probe", "epochs"))
            budgets.setdefault(key, []).append(row)
    found = [pairs(experiment, alike) for _, alike in sorted(budgets.items(), key=lambda b: b[0][-1] or 0)]
    return max(reversed(found), key=len, default={})
