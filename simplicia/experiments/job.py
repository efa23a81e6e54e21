"""A cell to be measured, as measures see it: its run, its images, and the rows it gives."""

import json
import shutil
import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from simplicia.analyze.model_cost import Cost, cost_of
from simplicia.data import datasets
from simplicia.devices import choose, launch
from simplicia.errors import UserError
from simplicia.evaluate.features import load_labelled
from simplicia.evaluate.probe import preset, preset_for
from simplicia.evaluate.transfer import load_splits
from simplicia.experiments.experiment import Cell, Experiment, Plan, plan
from simplicia.experiments.runner import Measure, Measurement, Options, Runner, is_trained
from simplicia.experiments.store import CellResult
from simplicia.provenance import commit, versions
from simplicia.result import Result, write_json
from simplicia.run import Run
from simplicia.train import checkpoint
from simplicia.train.auto import load_images, resolve
from simplicia.train.recipe import Recipe, read_yaml
from simplicia.train.step import step_times
from simplicia.train.trainer import Trainer

TIMED_STEPS, TIMED_ROUNDS, TIMED_EPOCHS = 20, 5, 1000
REPORTED = (  # fields of an evaluation that its cells state
    *("accuracy", "standard_error", "top5_accuracy", "validation_accuracy", "correct_images"),
    *("temperature", "selected", "protocol", "online", "network", "layer"),
    *("commit", "torch", "simplicia", "date"),
)


class Session(Runner):
    """Runs the cells of an experiment for one command."""

    def __init__(self, experiment: Experiment, options: Options):
        super().__init__(options)
        self.experiment = experiment
        data = options.data or experiment.data
        folder = Path(data).expanduser()
        self.data = str(folder.resolve()) if data not in datasets.names() and folder.is_dir() else data
        self.probe = "demo" if preset_for(data) == "quick" else preset_for(data)
        self.probe_settings = preset(self.probe)
        if options.probe_epochs is not None:
            self.probe_settings = replace(self.probe_settings, epochs=options.probe_epochs)
            self.probe += f"-{options.probe_epochs}-epochs"
        self.images: dict[str | None, Any] = {}  # by the set transferred to; None: the run's own
        self.timed: dict[str, float] = {}  # milliseconds of a step, by recipe
        # the paper's data and protocol are apart from all others
        is_paper = options.data in (None, experiment.data) and options.probe_epochs is None
        self.path = options.results / ("paper" if is_paper else "other") / f"{experiment.name}.json"

    def step_ms(self, recipe: Recipe) -> float:
        """Milliseconds of a training step, the median of several rounds; equal recipes are timed once."""
        key = repr(recipe)
        if key not in self.timed:
            self.release()
            self.say(f"timing a step of {recipe.name}")
            images = load_images(recipe, "train", False, self.options.quiet)
            fabric = launch(self.options.device, 1, recipe.precision)
            recipe, _ = resolve(recipe, images, fabric.device)
            step = Trainer(recipe, images, fabric, self.options.engine).step
            _, *rounds = step_times(step, TIMED_STEPS, TIMED_ROUNDS + 1)  # the first compiles and warms up
            self.timed[key] = statistics.median(rounds)
            del step
            torch.compiler.reset()
            self.release()
        return self.timed[key]


class Job:
    """A cell with a seed."""

    def __init__(self, session: Session, cell: Cell, seed: int):
        self.session, self.options, self.cell, self.seed = session, session.options, cell, seed
        self.has_run = cell.recipe is not None

    @cached_property
    def plan(self) -> Plan:
        given: dict[str, Any] = {n: getattr(self.options, n) for n in ("epochs", "batch_size", "data_dir")}
        if self.cell.as_long_as is not None:
            given["share"] = self.times["base_ms_per_step"] / self.times["ms_per_step"]
        return plan(self.cell, self.session.data, self.seed, **given)

    @cached_property
    def times(self) -> dict[str, Any]:
        """Milliseconds of a step of the cell's run and of its base's, timed in turn, or as stored.

        A stored time decides about the epochs of a run that may have begun, so it is not measured again.
        """
        given = {name: getattr(self.options, name) for name in ("batch_size", "data_dir")}
        own, other = (
            plan(cell, self.session.data, epochs=TIMED_EPOCHS, **given)
            for cell in (self.cell, self.cell.clock)
        )
        path = self.options.runs / "step-times" / f"{own.folder}.json"
        with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged file is measured again
            stored = json.loads(path.read_text(encoding="utf-8"))
            if min(stored["ms_per_step"], stored["base_ms_per_step"]) > 0:
                return stored
        times: dict[str, Any] = {"recipe": own.name, "changes": own.changes, "base": other.name}
        for name, recipe in (("base_ms_per_step", other.recipe), ("ms_per_step", own.recipe)):
            times[name] = self.session.step_ms(recipe)
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"commit": commit(), **versions(choose(self.options.device))}
        write_json(path, times | about | {"note": self.options.note})
        return times

    @property
    def is_planned(self) -> bool:
        """Whether the epochs are known without timing a step."""
        return self.cell.as_long_as is None

    @property
    def folder(self) -> Path:
        return self.options.runs / self.plan.folder

    @property
    def recipe(self) -> Recipe:
        """The run's complete recipe; before it is trained, the planned one."""
        path = self.folder / "recipe.yaml"
        return read_yaml(path) if path.exists() else self.plan.recipe

    @property
    def images(self) -> tuple[Any, ...]:
        """During a measurement: training and test images, or the splits of the set transferred to."""
        return self.session.images[self.cell.options.get("to")]

    def once(self, name: str, asked: dict[str, Any], measure: Measure) -> Measurement:
        """The measurement of that name on the cell's run, which is trained and measured if it was not."""
        return self.session.once(self.folder, self.plan.recipe, name, asked, measure, self._prepare)

    def evaluate(
        self, name: str, function: Callable[..., Result], settings: Any, asked: dict[str, Any], **more: Any
    ) -> Measurement:
        """``once`` for a function of ``simplicia.evaluate`` with settings."""

        def measure(run: Run) -> Result:
            return function(run, *self.images, settings=settings, quiet=self.options.quiet, **more)

        return self.once(name, {**asked, **vars(settings)}, measure)

    def _prepare(self) -> None:
        """Raise a UserError for images without labels or a full disk, before anything is trained."""
        recipe, to, directory = self.recipe, self.cell.options.get("to"), self.options.data_dir
        if not (self.folder / "recipe.yaml").exists():
            images = load_images(recipe, "train", False, self.options.quiet)
            recipe, _ = resolve(recipe, images, choose(self.options.device))
        if to not in self.session.images:
            self.session.images.clear()  # one set at a time: they may be gigabytes
            own = to is None
            loaded = load_labelled(recipe, None, directory) if own else (load_splits(recipe, to, directory),)
            self.session.images[to] = loaded
        if not is_trained(self.folder):
            self._check_disk(recipe)

    def _check_disk(self, recipe: Recipe) -> None:
        """One checkpoint more than are kept must fit: an old one goes after a new one is complete."""
        runs = self.options.runs
        parent = next(path for path in (runs, *runs.absolute().parents) if path.is_dir())
        free = shutil.disk_usage(parent).free
        written = len(list(self.folder.glob("checkpoint/step-*/*.safetensors")))
        needed = (self.options.keep + 1 - written) * checkpoint_bytes(cost_of(recipe))
        if needed > free:
            raise UserError(
                f"a run of {recipe.name} takes {needed / 1e9:.1f} GB while it trains, and {runs} has "
                f"{free / 1e9:.1f} GB free; give other --runs, or --drop to keep no weights of measured runs"
            )

    def row(
        self, measured: Measurement | None = None, part: str | None = None, /, **values: Any
    ) -> CellResult:
        """A result of the cell, or of a part of it; ``values`` replace what was measured."""
        cell, session, state = self.cell, self.session, {}
        paper = cell.paper.get(part or "") if isinstance(cell.paper, dict) else cell.paper
        row: dict[str, Any] = {
            "experiment": session.experiment.name,
            "cell": cell.name if part is None else f"{cell.name}, {part}",
            "part": part,
            "sem": "SEM" in cell.name,
            "paper": paper if session.data == session.experiment.data else None,
            "commit": commit(),
        }
        if not self.has_run:
            row |= versions(choose("cpu"))
        else:
            recipe, state = self.recipe, checkpoint.state_of(self.folder)
            names = ("encoder", "method", "bottleneck", "epochs", "batch_size", "seed")
            row |= {name: getattr(recipe, name) for name in names}
            row |= {name: state.get(name) for name in ("seconds", "device", "trained_by")}
            row |= {"dataset": session.data, "pretrained_on": session.data}
            row |= {"sem": recipe.bottleneck == "sem", "run": self.plan.folder}
            row |= {"recipe": self.plan.name, "changes": self.plan.changes}
        notes = [part.get("note") for part in (*(state.get("trained_by") or []), measured or {})]
        row["note"] = "; ".join(dict.fromkeys(note for note in notes if note)) or None
        try:
            return CellResult.from_json(row | _facts(measured) | values)
        except ValueError as error:
            raise UserError(f"{cell.name} was measured, but {error}") from error


def reported(values: dict[str, Any]) -> dict[str, Any]:
    """The fields of an evaluation that a cell states."""
    return {key: values[key] for key in REPORTED if key in values}


def checkpoint_bytes(cost: Cost) -> int:
    """The size of one checkpoint: weights, their momentum and the target network, in 4 bytes each."""
    return 4 * (2 * cost.parameters + cost.target_parameters)


def _facts(measured: Measurement | None) -> dict[str, Any]:
    """The fields of a measurement that a cell states: all of an analysis, the main ones of an evaluation."""
    if measured is None:
        return {}
    if "probe_seconds" in measured.details:  # an analysis
        return {**measured.details, "pretrain_step": measured.pretrain_step, "run_id": measured.run_id}
    about = {"probe_seconds": measured["seconds"], "probe_device": measured["device"]}
    return {**reported(measured.details), **about}
