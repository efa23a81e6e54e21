"""The results of a sweep: as JSON, as CSV and as a figure."""

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from simplicia.experiments.sweep_plan import Plan
from simplicia.files import atomic_write
from simplicia.report.plots import Axis, Chart, Series, save
from simplicia.result import Record
from simplicia.settings import as_dict

STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}
RETRY_OF = "retry_of"  # attribute of a trial that tries a failed one again: the place of both
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

    NUMBERS: ClassVar = ("validation_accuracy", "standard_error", "downstream_temperature", "seconds")
    NULLABLE: ClassVar = (*NUMBERS, "reason")


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
        with (
            atomic_write(path.with_suffix(".csv")) as temporary,
            temporary.open("w", encoding="utf-8", newline="") as file,
        ):
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["trial", "state", *self.settings, *TrialResult.NUMBERS])
            for trial in self.trials:
                settings = [trial.settings.get(name) for name in self.settings]
                numbers = [trial[name] for name in TrialResult.NUMBERS]
                writer.writerow([trial.trial, trial.state, *settings, *numbers])
        return super().write(path)


def by_place(study: Any) -> dict[int, Any]:
    """The trials of a sweep by their place in it: one that is tried again has the place of the failed one."""
    places: dict[int, Any] = {}
    retries = 0
    for trial in study.get_trials(deepcopy=False):
        is_retry = RETRY_OF in trial.user_attrs
        retries += is_retry
        places[trial.user_attrs[RETRY_OF] if is_retry else trial.number - retries] = trial
    return places


def collect(study: Any, plan: Plan, about: dict[str, Any]) -> SweepResult:
    """The results that Optuna's study holds."""
    trials = []
    names = ("standard_error", "downstream_temperature", "per_temperature", "seconds", "reason")
    for place, trial in by_place(study).items():
        if state := STATES.get(trial.state.name):
            stored = {name: trial.user_attrs[name] for name in names if name in trial.user_attrs}
            online = {str(epoch): value for epoch, value in sorted(trial.intermediate_values.items())}
            accuracy = trial.value if state == "complete" else None
            trials.append(TrialResult(place, state, trial.params, accuracy, online=online, **stored))
    finished = [trial for trial in trials if trial.validation_accuracy is not None]
    best = max(finished, key=lambda trial: trial.validation_accuracy or 0, default=None)
    settings = list(plan.settings)
    return SweepResult.make(plan=as_dict(plan), settings=settings, trials=trials, best=best, **about)


def draw(result: SweepResult, path: Path) -> None:
    """Accuracy over a grid's one setting (or downstream temperature) as lines, over two as a heat map.

    A search is a panel of points for each of its settings.
    """
    trials = [trial for trial in result.trials if trial.validation_accuracy is not None]
    names, accuracies = result.settings, [trial.validation_accuracy for trial in trials]
    if not names:  # the recipe alone
        temperatures, values, errors = (
            [row[key] for row in trials[0].per_temperature]
            for key in ("temperature", "accuracy", "standard_error")
        )
        axis, x = _axis("downstream temperature", temperatures)
        charts = [Chart("", axis, Axis(ACCURACY), [Series("", x, values, error=errors, markers=True)])]
    elif len(names) > 2 or result.plan["search"]:
        charts = []
        for name in names:
            axis, x = _axis(name, [trial.settings[name] for trial in trials])
            points = [Series("", x, accuracies, kind="points")]
            charts.append(Chart("", axis, Axis(ACCURACY), points, size=(4.0, 4.0)))
    else:
        charts = [_line_chart(trials, names[0]) if len(names) == 1 else _heat_map(trials, *names)]
    save(charts, path, result.plan["recipe"]["name"])


def _line_chart(trials: list[TrialResult], name: str) -> Chart:
    """One line for the temperature chosen at each point, a faint one for each temperature."""
    trials = sorted(trials, key=lambda trial: _order(trial.settings[name]))
    axis, x = _axis(name, [trial.settings[name] for trial in trials])
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


def _heat_map(trials: list[TrialResult], *names: str) -> Chart:
    points = {tuple(t.settings[name] for name in names): t.validation_accuracy for t in trials}
    ys, xs = (sorted(set(values), key=_order) for values in zip(*points, strict=True))
    y, x = (Axis(name, names=_words(values)) for name, values in zip(names, (ys, xs), strict=True))
    cells = [[points.get((row, column)) for column in xs] for row in ys]
    return Chart("", x, y, [], cells=cells, cells_label=ACCURACY)


def _axis(name: str, values: list[Any]) -> tuple[Axis, list[float]]:
    """The horizontal axis for values, and their positions: numbers, or words in order."""
    if any(type(value) not in (int, float) for value in values):
        names = sorted(dict.fromkeys(values), key=_order)
        return Axis(name, names=_words(names)), [names.index(v) for v in values]
    low, high = min(values), max(values)
    return Axis(name, log=high >= 8 * low > 0 or low == 0 < high), values


def _order(value: Any) -> tuple[bool, Any]:
    """Numbers by size, then words by letters."""
    return (False, value) if type(value) in (int, float) else (True, str(value))


def _words(values: list[Any]) -> list[str]:
    return [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
