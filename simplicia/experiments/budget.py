"""The cost of an experiment: runs, GPU hours, memory and disk."""

import json
import math
from dataclasses import dataclass
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
    """What one seed takes on one GPU; None: unknown, as on ImageNet or without timed steps."""

    runs: int
    hours: float | None = None
    timed: bool = False  # hours are of timed steps alone
    gib: float | None = None
    disk: float | None = None  # GB of a checkpoint of each run


class Budgets:
    """Budgets of experiments on CIFAR-100, from the step times that ``simplicia bench`` wrote to a file."""

    def __init__(self, path: Path):
        self.path = path
        self._costs: dict[tuple[object, ...], Cost] = {}

    def of(self, experiment: Experiment, epochs: int | None = None) -> Budget:
        if experiment.data != "cifar100":
            return Budget(len({(c.recipe, str(c.changes)) for c in experiment.cells}))
        plans = [
            plan(c, experiment.data, epochs=epochs or c.changes.get("epochs", experiment.epochs))
            for c in experiment.cells
            if c.recipe is not None
        ]
        runs = list({plan.folder: plan for plan in plans}.values())
        gib = [self._cost(run.recipe).memory(run.recipe.actual_micro_batch_size) / 2**30 for run in runs]
        disk = sum(checkpoint_bytes(self._cost(run.recipe)) for run in runs) / 1e9
        steps = [run.recipe.epochs * (IMAGES // run.recipe.batch_size) for run in runs]
        milliseconds = [self.step_ms(run) for run in runs]
        hours = sum(n * ms for n, ms in zip(steps, milliseconds, strict=True) if ms is not None) / 3.6e6
        timed = all(map(self.is_timed, runs))
        return Budget(len(runs), None if None in milliseconds else hours, timed, max(gib, default=0.0), disk)

    def is_timed(self, run: Plan) -> bool:
        """Whether steps of exactly this run were timed."""
        return run.name in self.step_times and not run.changes

    def step_ms(self, run: Plan) -> float | None:
        """A step's milliseconds, timed or estimated; None without timed steps."""
        if self.is_timed(run):
            return self.step_times[run.name]
        if len(self.step_times) < 2:
            return None
        cost = self._cost(run.recipe)
        return float(np.dot(self._fit, (cost.flops, cost.parameters)))

    @cached_property
    def step_times(self) -> dict[str, float]:
        """Milliseconds of a step by recipe, with the fastest engine."""
        times: dict[str, float] = {}
        try:
            for row in json.loads(self.path.read_text(encoding="utf-8")):
                if not row["changes"]:
                    times[row["recipe"]] = min(row["ms_per_step"], times.get(row["recipe"], math.inf))
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return times

    @cached_property
    def _fit(self) -> np.ndarray:
        """Milliseconds per FLOP and per parameter, by least squares over the timed recipes."""
        costs = [self._cost(recipes.get(name)) for name in self.step_times]
        counts = np.array([(cost.flops, cost.parameters) for cost in costs], float)
        return np.linalg.lstsq(counts, np.array(list(self.step_times.values())), rcond=None)[0]

    def _cost(self, recipe: Recipe) -> Cost:
        """The cost of a recipe's model; many recipes share one."""
        sem = recipe.sem
        model = recipe.method, recipe.bottleneck, recipe.encoder, recipe.actual_view_size
        key = (*model, sem.simplices, sem.vertices, sem.embedder, sem.norm, sem.blocks)
        if key not in self._costs:
            self._costs[key] = cost_of(recipe)
        return self._costs[key]
