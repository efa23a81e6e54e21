"""The cost of an experiment: runs, GPU hours, memory and disk."""

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from simplicia.analyze.model_cost import Cost, cost_of
from simplicia.experiments.experiment import Experiment, Plan, plan
from simplicia.experiments.job import checkpoint_bytes
from simplicia.train import recipes
from simplicia.train.recipe import Recipe

IMAGES = 50_000  # of CIFAR-100
SOURCE = (
    "GPU hours are the training of one seed at the paper's epochs or at --epochs, by the step times in\n"
    "{path}; an estimate fits other models to these by FLOPs and parameters. Runs that\n"
    "experiments share are trained once, and counted in each."
)


@dataclass(frozen=True)
class Budget:
    """The cost of one seed on one GPU; None: unknown, as on ImageNet or without timed steps."""

    runs: int
    hours: float | None = None
    timed: bool = False  # hours are of timed steps alone
    gib: float | None = None
    disk: float | None = None  # GB of a checkpoint of each run


class Budgets:
    """Budgets of experiments on CIFAR-100, from the step times that ``simplicia bench`` wrote to a file."""

    def __init__(self, path: Path):
        self._costs: dict[str, Cost] = {}  # by model; many recipes share one
        self.step_times: dict[str, float] = {}  # milliseconds by recipe, with the fastest engine
        with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged file leaves them unknown
            rows = [row for row in json.loads(path.read_text(encoding="utf-8")) if not row["changes"]]
            rows.sort(key=lambda row: -row["ms_per_step"])
            self.step_times = {row["recipe"]: row["ms_per_step"] for row in rows}

    def of(self, experiment: Experiment, epochs: int | None = None) -> Budget:
        if experiment.data != "cifar100":
            return Budget(len({(c.recipe, str(c.changes)) for c in experiment.cells}))
        cells = [cell for cell in experiment.cells if cell.recipe is not None]
        given = [epochs or cell.changes.get("epochs", experiment.epochs) for cell in cells]
        plans = [plan(cell, experiment.data, epochs=n) for cell, n in zip(cells, given, strict=True)]
        # a run that trains as long as another takes the time of that one
        clocks = [plan(cell.clock, experiment.data, epochs=n) for cell, n in zip(cells, given, strict=True)]
        unique = {run.folder: (run, clock) for run, clock in zip(plans, clocks, strict=True)}
        runs = [run for run, _ in unique.values()]
        timed_as = [clock for _, clock in unique.values()]
        gib = [self._cost(run.recipe).memory(run.recipe.micro_batch_size()) / 2**30 for run in runs]
        disk = sum(checkpoint_bytes(self._cost(run.recipe)) for run in runs) / 1e9
        hours, timed = None, all(map(self.is_timed, timed_as))
        if timed or len(self.step_times) > 1:
            steps = [run.recipe.epochs * (IMAGES // run.recipe.batch_size) for run in timed_as]
            hours = sum(n * self.step_ms(run) for n, run in zip(steps, timed_as, strict=True)) / 3.6e6
        return Budget(len(runs), hours, timed, max(gib, default=0.0), disk)

    def is_timed(self, run: Plan) -> bool:
        """Whether steps of exactly this run were timed."""
        return run.name in self.step_times and not run.changes

    def step_ms(self, run: Plan) -> float:
        """A step's milliseconds, timed or estimated."""
        if self.is_timed(run):
            return self.step_times[run.name]
        return float(np.dot(self._fit, self._counts(run.recipe)))

    @cached_property
    def _fit(self) -> np.ndarray:
        """Milliseconds per FLOP and per parameter, by least squares over the timed recipes."""
        counts = np.array([self._counts(recipes.get(name)) for name in self.step_times], float)
        return np.linalg.lstsq(counts, np.array(list(self.step_times.values())), rcond=None)[0]

    def _counts(self, recipe: Recipe) -> tuple[int, int]:
        return self._cost(recipe).flops, self._cost(recipe).parameters

    def _cost(self, recipe: Recipe) -> Cost:
        model = recipe.method, recipe.options, recipe.encoder, recipe.actual_view_size
        key = repr((*model, recipe.bottleneck, replace(recipe.sem, temperature=1.0)))
        if key not in self._costs:
            self._costs[key] = cost_of(recipe)
        return self._costs[key]
