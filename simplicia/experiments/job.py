"""A cell to be measured, as measures see it: its run, its images, and the rows it gives."""

import dataclasses
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simplicia.analyze.model_cost import Cost, cost_of
from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.devices import choose
from simplicia.errors import UserError
from simplicia.evaluate.features import load_labelled
from simplicia.evaluate.probe import preset, preset_for
from simplicia.evaluate.transfer import Splits, load_splits
from simplicia.experiments.experiment import Cell, Experiment, plan
from simplicia.experiments.runner import Measurement, Runner, finished, is_trained
from simplicia.experiments.store import CellResult
from simplicia.provenance import commit, versions
from simplicia.result import Record
from simplicia.run import Run
from simplicia.train import checkpoint
from simplicia.train.auto import load_images, resolve
from simplicia.train.recipe import Recipe, read_yaml


@dataclass
class Options:
    """How much of an experiment is run, on which data, and where results go."""

    data: str | None = None  # None: the paper's
    data_dir: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    only: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=lambda: [0])
    probe_epochs: int | None = None
    device: str = "auto"
    runs: Path = Path("runs")
    results: Path = Path("results")
    keep: int = 1  # checkpoints of each run
    drop: bool = False  # drop the weights of a run when all its cells are measured
    retry: bool = False  # also cells that failed before
    no_training: bool = False  # only cells whose runs are trained
    minutes: float | None = None  # stop by itself after so many
    probe_minutes: float = 3.0  # start no measurement with less left
    note: str | None = None  # stored with everything trained and measured now
    quiet: bool = False


class Session:
    """What the cells of one command have in common."""

    def __init__(self, experiment: Experiment, options: Options):
        self.experiment, self.options = experiment, options
        data = options.data or experiment.data
        folder = Path(data).expanduser()
        self.data = str(folder.resolve()) if data not in datasets.names() and folder.is_dir() else data
        self.probe = "demo" if preset_for(data) == "quick" else preset_for(data)
        self.probe_settings = preset(self.probe)
        if options.probe_epochs is not None:
            self.probe_settings.epochs = options.probe_epochs
            self.probe += f"-{options.probe_epochs}-epochs"
        self.runner = Runner(
            device=options.device,
            minutes=options.minutes,
            probe_minutes=options.probe_minutes,
            keep=options.keep,
            note=options.note,
            quiet=options.quiet,
        )
        self.images: dict[str | None, Any] = {}  # by the set transferred to; None: the run's own

    @property
    def path(self) -> Path:
        """The file of results: the paper's data and protocol are apart from all others."""
        options = self.options
        faithful = options.data in (None, self.experiment.data) and options.probe_epochs is None
        return options.results / ("paper" if faithful else "other") / f"{self.experiment.name}.json"


class Job:
    """A cell with a seed."""

    def __init__(self, session: Session, cell: Cell, seed: int):
        options = session.options
        self.session, self.options, self.cell, self.seed = session, options, cell, seed
        self.plan = None
        if cell.recipe is not None:
            self.plan = plan(cell, session.data, seed, options.epochs, options.batch_size)

    @property
    def folder(self) -> Path:
        assert self.plan is not None
        return self.options.runs / self.plan.folder

    @property
    def is_trained(self) -> bool:
        """Whether nothing has to be trained."""
        return self.plan is None or is_trained(self.folder)

    @property
    def recipe(self) -> Recipe:
        """The run's complete recipe; before it is trained, the planned one."""
        assert self.plan is not None
        path = self.folder / "recipe.yaml"
        if path.exists():
            return read_yaml(path)
        return dataclasses.replace(self.plan.recipe, data_dir=self.options.data_dir)

    @property
    def sets(self) -> tuple[ImageSet, ImageSet]:
        """Training and test images with labels, during a measurement."""
        return self.session.images[None]

    @property
    def splits(self) -> Splits:
        """The set that the cell transfers to, during a measurement."""
        return self.session.images[self.cell.options["to"]]

    def once(
        self, name: str, asked: dict[str, Any], measure: Callable[[Run], Record | dict[str, Any]]
    ) -> Measurement:
        """The measurement of that name on the cell's run, which is trained and measured if it was not."""
        assert self.plan is not None
        recipe = dataclasses.replace(self.plan.recipe, data_dir=self.options.data_dir)
        return self.session.runner.once(self.folder, recipe, name, asked, measure, self.prepare)

    def analysis(self, name: str, measure: Callable[[Run], dict[str, Any]], **asked: Any) -> Measurement:
        """``once`` for what is no evaluation: adds its seconds, device and versions."""

        def timed(run: Run) -> dict[str, Any]:
            start = time.monotonic()
            values = measure(run)
            about = versions(run.device)
            about["probe_device"] = about.pop("device")
            weights = {"pretrain_step": run.step, "run_id": run.state.get("id")}
            return {
                **values,
                "probe_seconds": time.monotonic() - start,
                **weights,
                "commit": commit(),
                **about,
            }

        return self.once(f"reproduce-{name}", asked, timed)

    def prepare(self) -> None:
        """Raise a UserError for images without labels or a full disk, before anything is trained."""
        recipe = self.recipe
        if not (self.folder / "recipe.yaml").exists():
            images = load_images(recipe, "train", False, self.options.quiet)
            recipe, _ = resolve(recipe, images, choose(self.options.device))
        to = self.cell.options.get("to")
        if to not in self.session.images:
            self.session.images.clear()  # one set at a time: they may be gigabytes
            read = load_labelled if to is None else load_splits
            self.session.images[to] = read(recipe, to, self.options.data_dir)
        if not self.is_trained:
            self._check_disk(recipe)

    def _check_disk(self, recipe: Recipe) -> None:
        """One checkpoint more than are kept must fit: an old one goes after a new one is complete."""
        runs = self.options.runs
        parent = next(path for path in (runs, *runs.absolute().parents) if path.is_dir())
        free = shutil.disk_usage(parent).free + _size(self.folder)
        needed = (self.options.keep + 1) * checkpoint_bytes(cost_of(recipe))
        if needed > free:
            raise UserError(
                f"a run of {recipe.name} takes {needed / 1e9:.1f} GB while it trains, and {runs} has "
                f"{free / 1e9:.1f} GB free; give other --runs, or --drop to keep no weights of measured runs"
            )

    def row(
        self, measurement: Measurement | None = None, part: str | None = None, **values: Any
    ) -> CellResult:
        """A result of the cell, or of a part of it: ``values`` and what is known of its run."""
        cell, session, state = self.cell, self.session, {}
        own = session.data == session.experiment.data
        paper = cell.paper.get(part or "") if isinstance(cell.paper, dict) else cell.paper
        row: dict[str, Any] = {
            "experiment": session.experiment.name,
            "cell": cell.name if part is None else f"{cell.name}, {part}",
            "part": part,
            "sem": "SEM" in cell.name,
            "paper": paper if own else None,
            "commit": commit(),
        }
        if self.plan is None:
            row |= versions(choose("cpu"))
        else:
            recipe, state = self.recipe, checkpoint.state_of(self.folder)
            row |= {name: getattr(recipe, name) for name in ("encoder", "method", "bottleneck")}
            row |= {name: getattr(recipe, name) for name in ("epochs", "batch_size", "seed")}
            row |= {name: state.get(name) for name in ("seconds", "device", "trained_by")}
            row |= {"dataset": session.data, "pretrained_on": session.data}
            row |= {"sem": recipe.bottleneck == "sem", "run": self.plan.folder}
            row |= {"recipe": self.plan.name, "changes": self.plan.changes}
        notes = [part.get("note") for part in (*(state.get("trained_by") or []), measurement or {})]
        row["note"] = "; ".join(dict.fromkeys(note for note in notes if note)) or None
        try:
            return CellResult.from_json(row | values)
        except ValueError as error:
            raise UserError(f"{cell.name} was measured, but {error}") from error

    def drop_weights(self) -> None:
        """Keep everything of a finished run except its weights."""
        if finished(self.folder) is not None:
            self.session.runner.release()
            with self.session.runner.lock(self.folder):
                checkpoint.drop(self.folder / "checkpoint")


def checkpoint_bytes(cost: Cost) -> int:
    """The size of one checkpoint: weights, their momentum and the target network, in 4 bytes each."""
    return 4 * (2 * cost.parameters + cost.target_parameters)


def _size(folder: Path) -> int:
    """The bytes of all files in a folder, which another process may be writing and removing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total
