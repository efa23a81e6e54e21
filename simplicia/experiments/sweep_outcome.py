"""The results of a sweep: as JSON, as CSV and as a figure."""

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from simplicia.experiments.sweep_plan import Plan, is_number
from simplicia.files import atomic_write
from simplicia.report.plots import Axis, Chart, Series, save
from simplicia.result import Record

STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}
ACCURACY = "validation accuracy, %"


@dataclass
class TrialResult(Record):
    """One trial."""

    trial: int
    state: str
    settings: dict[str, Any]
    validation_accuracy: float | None = None  # percent, on held-out training images
    standard_error: float | None = None
    downstream_temperature: float | None = None  # the best one
    per_temperature: list[dict[str, Any]] = field(default_factory=list)
    online: dict[str, float] = field(default_factory=dict)  # accuracy of the online probe by epoch
    seconds: float | None = None
    reason: str | None = None  # why it failed

    NULLABLE: ClassVar = (
        *("validation_accuracy", "standard_error", "downstream_temperature", "seconds", "reason"),
    )


@dataclass
class SweepResult(Record):
    """All trials that were started, and the best that finished."""

    plan: dict[str, Any]
    settings: list[str]  # names of those that vary
    trials: list[TrialResult]
    best: TrialResult | None
    train_images: int
    validation_images: int
    protocol: str = "offline linear probe, on training images held out of pre-training and probe"

    def to_json(self) -> dict[str, Any]:
        best = self.best and self.best.to_json()
        return {**super().to_json(), "best": best, "trials": [trial.to_json() for trial in self.trials]}

    def write(self, path: Path) -> Path:
        """Write ``sweep.json``, and ``sweep.csv`` with the numbers of its table."""
        with atomic_write(path.with_suffix(".csv")) as temporary:
            temporary.write_text(self.to_csv(), encoding="utf-8")
        return super().write(path)

    def to_csv(self) -> str:
        text = io.StringIO()
        numbers = ["validation_accuracy", "standard_error", "downstream_temperature", "seconds"]
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["trial", "state", *self.settings, *numbers])
        for trial in self.trials:
            values = [trial.settings.get(name) for name in self.settings]
            writer.writerow([trial.trial, trial.state, *values, *(trial[name] for name in numbers)])
        return text.getvalue()


def collect(study: Any, plan: Plan, images: tuple[int, int], about: dict[str, Any]) -> SweepResult:
    """The results that Optuna's study holds."""
    trials = []
    for trial in study.get_trials(deepcopy=False):
        if trial.state.name in STATES:
            names = ("standard_error", "downstream_temperature", "per_temperature", "seconds", "reason")
            stored = {name: trial.user_attrs[name] for name in names if name in trial.user_attrs}
            online = {str(epoch): value for epoch, value in sorted(trial.intermediate_values.items())}
            accuracy = trial.value if trial.state.name == "COMPLETE" else None
            state = STATES[trial.state.name]
            trials.append(TrialResult(trial.number, state, trial.params, accuracy, online=online, **stored))
    finished = [trial for trial in trials if trial.validation_accuracy is not None]
    best = max(finished, key=lambda trial: trial.validation_accuracy or 0, default=None)
    return SweepResult(plan.as_dict(), list(plan.settings), trials, best, *images, details=about)


def draw(result: SweepResult, path: Path) -> None:
    """Accuracy over a grid's one setting (or downstream temperature) as lines, over two as a heat map.

    A search is a panel of points for each of its settings.
    """
    trials = [trial for trial in result.trials if trial.validation_accuracy is not None]
    names, title = result.settings, result.plan["recipe"]["name"]
    if not names:  # the recipe alone
        rows = trials[0].per_temperature
        errors = [row["standard_error"] for row in rows]
        accuracies = [row["accuracy"] for row in rows]
        temperatures = [row["temperature"] for row in rows]
        charts = [_chart("downstream temperature", temperatures, accuracies, error=errors, markers=True)]
    elif len(names) > 2 or result.plan["search"]:
        accuracies = [trial.validation_accuracy for trial in trials]
        charts = [_chart(n, [t.settings[n] for t in trials], accuracies, kind="points") for n in names]
        for chart in charts:
            chart.size = (4.0, 4.0)
    else:
        charts = [_line_chart(trials, names[0]) if len(names) == 1 else _heat_map(trials, *names)]
    save(charts, path, title)


def _chart(name: str, values: list[Any], accuracies: list[Any], **style: Any) -> Chart:
    axis, x = _axis(values, name)
    return Chart("", axis, Axis(ACCURACY), [Series("", x, accuracies, **style)])


def _line_chart(trials: list[TrialResult], name: str) -> Chart:
    """One line for the temperature chosen at each point, a faint one for each temperature."""
    trials = sorted(trials, key=lambda trial: _order(trial.settings[name]))
    axis, x = _axis([trial.settings[name] for trial in trials], name)
    # a trial without simplices has one accuracy, of no temperature
    rows = [{row["temperature"]: row["accuracy"] for row in trial.per_temperature} for trial in trials]
    temperatures = sorted({t for row in rows for t in row if t is not None})
    series = [
        Series(f"downstream temperature {t:g}", x, [row.get(t) for row in rows], i, markers=True, faint=True)
        for i, t in enumerate(temperatures, 1)
        if len(temperatures) > 1
    ]
    errors = [trial.standard_error or 0.0 for trial in trials]
    accuracies = [trial.validation_accuracy for trial in trials]
    series.append(Series("chosen", x, accuracies, error=errors, markers=True))
    return Chart("", axis, Axis(ACCURACY), series)


def _heat_map(trials: list[TrialResult], first: str, second: str) -> Chart:
    ys, xs = (sorted({trial.settings[name] for trial in trials}, key=_order) for name in (first, second))
    cells: list[list[float | None]] = [[None] * len(xs) for _ in ys]
    for trial in trials:
        cells[ys.index(trial.settings[first])][xs.index(trial.settings[second])] = trial.validation_accuracy
    y, x = (Axis(name, names=_words(values)) for name, values in ((first, ys), (second, xs)))
    return Chart("", x, y, [], cells=cells, cells_label=ACCURACY)


def _axis(values: list[Any], name: str) -> tuple[Axis, list[float]]:
    """The horizontal axis for values, and their positions: numbers, or words in order."""
    if not all(map(is_number, values)):
        names = sorted(dict.fromkeys(values), key=_order)
        return Axis(name, names=_words(names)), [names.index(v) for v in values]
    low, high = min(values), max(values)
    return Axis(name, log=high >= 8 * low > 0 or low == 0 < high), values


def _order(value: Any) -> tuple[bool, Any]:
    """Numbers by size, then words by letters."""
    return (False, value) if is_number(value) else (True, str(value))


def _words(values: list[Any]) -> list[str]:
    return [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
