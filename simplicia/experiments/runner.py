"""Runs an experiment: trains what is not trained, measures what is not measured, writes each cell at once."""

import gc
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from simplicia.api import pretrain
from simplicia.data import datasets
from simplicia.devices import choose
from simplicia.errors import Busy, Diverged, Failed, Unfinished, UserError
from simplicia.evaluate.probe import SHAPES_PROBE, ProbeSettings, preset, preset_for
from simplicia.experiments import store
from simplicia.experiments.clock import Clock, TooLong, stoppable
from simplicia.experiments.experiment import Experiment
from simplicia.experiments.job import Job, Unprepared, finished, has_weights
from simplicia.experiments.measures import MEASURES, Row
from simplicia.progress import Progress
from simplicia.provenance import commit, versions
from simplicia.run import Run, load
from simplicia.train import checkpoint


@dataclass
class Options:
    """How much of an experiment is run, on what, and where it goes."""

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
    drop: bool = False  # the weights of a run when all its cells are measured
    retry: bool = False  # what failed before
    no_training: bool = False  # only cells whose runs are trained
    minutes: float | None = None  # after which it stops by itself
    probe_minutes: float = 3.0  # that a measurement may take; none is begun with less left
    note: str | None = None  # on what is trained and measured now
    quiet: bool = False


def reproduce(experiment: Experiment, options: Options) -> Path:
    """Train and measure the cells that are asked for; returns the file with all results of the experiment.

    Raises Failed at the end if some could not be measured, and Unfinished if there is more to do.
    """
    if options.data == "":
        raise UserError("data is empty; give a folder of images or a data set's name")
    cells = experiment.chosen(options.only)
    if options.minutes is not None and options.minutes <= options.probe_minutes:
        raise UserError(
            f"minutes is {options.minutes:g}, and no measurement is begun with less than "
            f"{options.probe_minutes:g} left: give more --minutes or fewer --probe-minutes"
        )
    session = Session(experiment, options)
    choose(options.device)  # a device that is not there is told before anything begins
    store.check(session.path)  # and so is a file that cannot be added to
    jobs = [(Job(session, cell, seed), seed) for seed in options.seeds for cell in cells]
    if options.no_training:
        jobs = [(job, seed) for job, seed in jobs if job.is_trained]
        if not jobs:
            raise UserError(f"no run that {experiment.name} needs is trained to its end in {options.runs}")
    needed = Counter(job.folder for job, _ in jobs if job.plan is not None)
    with stoppable():
        for number, (job, seed) in enumerate(jobs, 1):
            session.say(f"{experiment.name}, cell {number} of {len(jobs)}: {job.cell.name}, seed {seed}")
            if session.measure(job) and job.plan is not None:
                needed[job.folder] -= 1
                if options.drop and not needed[job.folder]:
                    session.drop(job)
    session.end(len(jobs))
    return session.path


def results_path(experiment: Experiment, options: Options) -> Path:
    """The paper's data with the paper's protocol are apart from all else."""
    faithful = options.data in (None, experiment.data) and options.probe_epochs is None
    return options.results / ("paper" if faithful else "other") / f"{experiment.name}.json"


class Session:
    """One call: what its cells have in common."""

    def __init__(self, experiment: Experiment, options: Options):
        self.experiment, self.options = experiment, options
        data = options.data or experiment.data
        self.own = data == experiment.data
        folder = Path(data).expanduser()
        self.data = str(folder.resolve()) if data not in datasets.names() and folder.is_dir() else data
        self.clock = Clock(options.minutes)
        self.probe, self.probe_settings = probes(data, options.probe_epochs)
        self.path = results_path(experiment, options)
        self.say = Progress("", 1, 0, options.quiet).say
        self.loaded: tuple[Path, Run] | None = None
        self.images: dict[str | None, Any] = {}  # by the set transferred to; None: the run's own
        self.unprepared: list[str] = []
        self.failed: list[str] = []
        self.busy: list[str] = []

    def measure(self, job: Job) -> bool:
        """Train the cell's run if need be, measure it, and write its rows; whether that could be done."""
        name = job.cell.name
        if job.plan is not None and not self.options.retry and (why := self._failed_before(job)):
            self.failed.append(f"{name}: {why}")
            self.say(f"{name} failed before and is left out, --retry tries it again: {why}", "yellow")
            return False
        try:
            rows = MEASURES[job.cell.measure](job, **job.cell.options)
        except Busy:
            self.busy.append(f"{job.folder} is being trained or measured by another process")
            self.say(f"{name} is left to the process that works on it")
            return False
        except Unprepared as error:
            told = bool(self.unprepared) and self.unprepared[-1].endswith(f": {error}")
            self.unprepared.append(f"{name}: {error}")
            self.say(f"{name} is left out{', for the same reason' if told else f': {error}'}", "yellow")
            return False
        except Diverged as error:
            rows = [{"protocol": "diverged", "failed": str(error)}]
        except TooLong as error:
            rows = [{"protocol": "failed", "failed": str(error), "minutes": self.options.minutes}]
        except UserError as error:
            rows = [{"protocol": "failed", "failed": str(error)}]
        except (torch.OutOfMemoryError, MemoryError):
            rows = [{"protocol": "failed", "failed": "the device is out of memory"}]
        store.put(self.path, [self.row(job, found) for found in rows])
        if "failed" not in rows[0]:
            return True
        self.failed.append(f"{name}: {rows[0]['failed']}")
        self.say(f"{name} failed: {rows[0]['failed']}", "yellow")
        self.loaded = None
        self._free()
        return False

    def _failed_before(self, job: Job) -> str | None:
        """Why the run, or this measurement of it, failed; None if it may be otherwise now."""
        assert job.plan is not None
        for row in store.read(self.path):
            if "failed" not in row or row.get("run") != job.plan.folder:
                continue
            if row.get("protocol") == "diverged" and finished(job.folder) is None:
                return row["failed"]
            had = row.get("minutes")
            more = had is not None and (self.options.minutes is None or self.options.minutes > had)
            if row["cell"] == job.cell.name and row.get("probe") == self.probe and not more:
                return row["failed"]
        return None

    def train(self, job: Job) -> None:
        """The run of a job, trained to its end: as it is there, taken up again, or from the start."""
        folder = job.folder
        if finished(folder) is not None:
            if has_weights(folder):
                return
            self.say(f"the weights of {folder} were dropped: it is trained again")
        self.clock.need_training()
        if not has_weights(folder):
            shutil.rmtree(folder / "checkpoint")
        self.loaded = None  # two models may not fit the device
        self._free()
        assert job.plan is not None
        changes = dict(job.plan.changes)
        if self.options.data_dir is not None:
            changes["data_dir"] = self.options.data_dir
        run = pretrain(
            job.plan.recipe,
            out=folder,
            resume=True,
            device=self.options.device,
            quiet=self.options.quiet,
            keep=self.options.keep,
            until=self.clock.end,
            saving=self.clock.saving,
            note=self.options.note,
            **changes,
        )
        assert run is not None
        self.loaded = folder, run

    def run(self, folder: Path) -> Run:
        if self.loaded is None or self.loaded[0] != folder:
            self.loaded = folder, load(folder, self.options.device)
        return self.loaded[1]

    def drop(self, job: Job) -> None:
        """Keep of a finished run all but its weights; all of one that another process works on."""
        if finished(job.folder) is not None:
            self.loaded = None
            with suppress(Busy), job.alone():
                checkpoint.drop(job.folder / "checkpoint")

    def _free(self) -> None:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def end(self, count: int) -> None:
        """Raise what the call ends with, if it could not do all."""
        if self.busy:
            raise Unfinished(self.busy[0])
        if len(self.unprepared) == count:
            raise UserError(self.unprepared[0].partition(": ")[2])
        left = self.failed + self.unprepared
        if left:
            raise Failed(f"{len(left)} of {count} cells could not be measured: {'; '.join(left)}")

    def row(self, job: Job, found: Row) -> Row:
        """What was found, with the fields every cell has."""
        cell, part = job.cell, found.pop("part", None)
        name = cell.name if part is None else f"{cell.name}, {part}"
        paper = cell.paper.get(part or "") if isinstance(cell.paper, dict) else cell.paper
        row: Row = {
            "experiment": self.experiment.name,
            "cell": name,
            **({} if part is None else {"part": part}),
            "dataset": None,
            "pretrained_on": None,
            "encoder": None,
            "method": None,
            "sem": "SEM" in cell.name,
            "epochs": None,
            "batch_size": None,
            "seed": None,
            "accuracy": None,
            "standard_error": None,
            "paper": paper if self.own else None,
            "protocol": None,
            "probe": self.probe if "failed" in found else None,
            "online": False,
            "layer": None,
            "temperature": None,
            "selected": {},
            "seconds": None,
            "probe_seconds": None,
            "device": None,
            "commit": commit(),
        }
        if job.plan is not None:
            recipe, state = job.recipe, checkpoint.state_of(job.folder)
            row |= {
                "dataset": self.data,
                "pretrained_on": self.data,
                "encoder": recipe.encoder,
                "method": recipe.method,
                "bottleneck": recipe.bottleneck,
                "sem": recipe.bottleneck == "sem",
                "recipe": job.plan.recipe,
                "changes": job.plan.differs,
                "epochs": recipe.epochs,
                "batch_size": recipe.batch_size,
                "seed": recipe.seed,
                "seconds": state.get("seconds"),
                "device": state.get("device"),
                "trained_by": state.get("trained_by"),
                "run": job.plan.folder,
            }
        else:
            row |= versions(choose("cpu"))
        found.pop("asked", None)
        stretches = row.get("trained_by") or []
        notes = dict.fromkeys(note for s in (*stretches, {"note": job.note}) if (note := s.get("note")))
        return row | found | ({"note": "; ".join(notes)} if notes else {})


def probes(data: str, epochs: int | None = None) -> tuple[str, ProbeSettings]:
    """The probe for a data set and its name: the paper's where there is one, else that of the demo."""
    name = preset_for(data)
    settings = preset(name)
    if name == "quick":
        name, settings = "demo", ProbeSettings(**vars(SHAPES_PROBE))
    if epochs is None:
        return name, settings
    settings.epochs = epochs
    return f"{name}-{epochs}-epochs", settings
