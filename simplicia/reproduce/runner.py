"""Runs an experiment: trains what is not trained, measures what is not measured, writes each cell at once."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simplicia.data.datasets import ImageSet
from simplicia.demo import PROBES
from simplicia.errors import Diverged, Interrupted, Unfinished, UserError
from simplicia.evaluate.features import labelled
from simplicia.evaluate.probe import ProbeSettings, preset, preset_for
from simplicia.provenance import commit, versions
from simplicia.reproduce import store
from simplicia.reproduce.experiment import Cell, Experiment, Plan, plan
from simplicia.reproduce.measures import MEASURES, Row
from simplicia.run import Run, load
from simplicia.train import checkpoint, place
from simplicia.train.devices import choose
from simplicia.train.log import Progress
from simplicia.train.loop import pretrain
from simplicia.train.recipe import Recipe, read_yaml


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
    minutes: float | None = None  # after which it stops by itself
    probe_minutes: float = 3.0  # that a measurement may take; none is begun with less left
    quiet: bool = False


class Clock:
    """The time that was given."""

    def __init__(self, minutes: float | None):
        self.end = float("inf") if minutes is None else time.monotonic() + 60 * minutes
        # the last checkpoint takes a while to write, and the first step a while to compile
        self.saving, self.starting = (0.0, 0.0) if minutes is None else (min(45, 6 * minutes), 9 * minutes)

    @property
    def until(self) -> float:
        """When training has to stop, so that its checkpoint is written in time."""
        return self.end - self.saving

    def need(self, seconds: float, what: str) -> None:
        if self.end - time.monotonic() < seconds:
            raise Unfinished(f"too little time is left for {what}")

    def need_training(self) -> None:
        self.need(self.saving + min(self.starting, 90), "training")


def reproduce(experiment: Experiment, options: Options) -> Path:
    """Train and measure the cells that are asked for; returns the file with all results of the experiment."""
    data = options.data or experiment.data
    if data == experiment.data and experiment.needs:
        raise UserError(f"{experiment.name} needs {experiment.needs}")
    cells = experiment.chosen(options.only)
    if options.minutes is not None and options.minutes <= options.probe_minutes:
        raise UserError(
            f"minutes is {options.minutes:g}, and no measurement is begun with less than "
            f"{options.probe_minutes:g} left: give more --minutes or fewer --probe-minutes"
        )
    session = Session(experiment, options, data)
    choose(options.device)  # a device that is not there is told before anything begins
    store.read(session.path)  # and so is a file that cannot be added to
    say = Progress("", 1, 0, options.quiet).say
    with _stoppable():
        for seed in options.seeds:
            for number, cell in enumerate(cells, 1):
                say(f"{experiment.name}, cell {number} of {len(cells)}: {cell.name}, seed {seed}")
                session.measure(cell, seed)
    return session.path


class Session:
    """One call: what its cells have in common."""

    def __init__(self, experiment: Experiment, options: Options, data: str):
        self.experiment, self.options, self.data = experiment, options, data
        self.clock = Clock(options.minutes)
        self.probe, self.probe_settings = probes(data, options.probe_epochs)
        faithful = data == experiment.data and options.probe_epochs is None
        self.path = options.results / ("paper" if faithful else "other") / f"{experiment.name}.json"
        self.loaded: tuple[Path, Run] | None = None
        self.images: tuple[ImageSet, ImageSet] | None = None

    def measure(self, cell: Cell, seed: int) -> None:
        """Train the cell's run if need be, measure it, and write its rows."""
        job = Job(self)
        try:
            if cell.recipe is not None:
                options = self.options
                job.plan = plan(cell, self.data, seed, options.epochs, options.batch_size)
                self.train(job.plan)
            rows = MEASURES[cell.measure](job, **cell.options)
        except Diverged as error:
            rows = [{"protocol": "diverged", "failed": str(error)}]
        store.put(self.path, [self.row(cell, job, found) for found in rows])

    def train(self, wanted: Plan) -> None:
        """The run of a plan, trained to its end: as it is there, taken up again, or from the start."""
        folder = self.options.runs / wanted.folder
        if (folder / "recipe.yaml").exists():
            place.resumed(wanted.recipe, wanted.changes, folder)  # refuses one of another kind
            if finished(folder) is not None:
                return
        self.clock.need_training()
        self.loaded = None  # two models may not fit the device
        changes = dict(wanted.changes)
        if self.options.data_dir is not None:
            changes["data_dir"] = self.options.data_dir
        run = pretrain(
            wanted.recipe,
            out=folder,
            resume=True,
            device=self.options.device,
            quiet=self.options.quiet,
            keep=self.options.keep,
            until=self.clock.until,
            **changes,
        )
        assert run is not None
        self.loaded = folder, run

    def run(self, folder: Path) -> Run:
        if self.loaded is None or self.loaded[0] != folder:
            self.loaded = folder, load(folder, self.options.device)
        return self.loaded[1]

    def row(self, cell: Cell, job: "Job", found: Row) -> Row:
        """What was found, with the fields every cell has."""
        part = found.pop("part", None)
        name = cell.name if part is None else f"{cell.name}, {part}"
        paper = cell.paper.get(part or "") if isinstance(cell.paper, dict) else cell.paper
        row: Row = {
            "experiment": self.experiment.name,
            "cell": name,
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
            "paper": paper if self.data == self.experiment.data else None,
            "protocol": None,
            "probe": None,
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
            recipe, state = job.recipe, job.state
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
                "run": job.plan.folder,
            }
        else:
            row |= versions(choose("cpu"))
        return row | found


class Job:
    """One cell under way, as measures see it: its run, loaded when it is needed, and what is stored there."""

    def __init__(self, session: Session):
        self.session = session
        self.plan: Plan | None = None
        self.probe, self.probe_settings = session.probe, session.probe_settings
        options = session.options
        self.probe_epochs, self.data_dir = options.probe_epochs, options.data_dir
        self.quiet = options.quiet

    @property
    def folder(self) -> Path:
        assert self.plan is not None
        return self.session.options.runs / self.plan.folder

    @property
    def recipe(self) -> Recipe:
        """The run's, complete."""
        return read_yaml(self.folder / "recipe.yaml")

    @property
    def state(self) -> dict[str, Any]:
        """Of the run's last checkpoint; nothing of one that has none."""
        return _state(self.folder) or {}

    @property
    def run(self) -> Run:
        return self.session.run(self.folder)

    @property
    def sets(self) -> tuple[ImageSet, ImageSet]:
        """Training and test images, loaded once."""
        if self.session.images is None:
            self.session.images = labelled(self.run, None, self.data_dir)
        return self.session.images

    def once(self, name: str, same: Callable[[Row], bool], measure: Callable[[], Row]) -> Row:
        """What was measured on the run as it is now by the same rules; measured if it was not."""
        path = self.folder / "results" / f"{name}.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["pretrain_step"] == self.state["step"] and same(found):
                return found
        except (OSError, ValueError, KeyError, TypeError):  # not there, or of another form
            pass
        self.session.clock.need(60 * self.session.options.probe_minutes, "a measurement")
        found = measure()
        self.run.write_result(name, found)
        return found

    def analysed(self, name: str, measure: Callable[[], Row]) -> Row:
        """``once`` for what is no evaluation: with its seconds and where it was measured."""

        def timed() -> Row:
            start = time.monotonic()
            found = measure()
            found |= {"probe_seconds": time.monotonic() - start, "pretrain_step": self.run.step}
            about = versions(self.run.device)
            return found | {"probe_device": about.pop("device"), "commit": commit(), **about}

        return self.once(f"reproduce-{name}", lambda found: True, timed)


def probes(data: str, epochs: int | None = None) -> tuple[str, ProbeSettings]:
    """The probe for a data set and its name: the paper's where there is one, else that of the demo."""
    name = preset_for(data)
    settings = preset(name)
    if name == "quick":
        name, settings = "demo", ProbeSettings(**vars(PROBES))
    if epochs is None:
        return name, settings
    settings.epochs = epochs
    return f"{name}-{epochs}-epochs", settings


def finished(folder: Path) -> dict[str, Any] | None:
    """The state of a run that was trained to its end; None of any other."""
    state = _state(folder)
    return state if state is not None and state.get("step") == state.get("total_steps") else None


def _state(folder: Path) -> dict[str, Any] | None:
    newest = checkpoint.latest(folder / "checkpoint")
    if newest is None:
        return None
    try:
        found = json.loads((newest / checkpoint.STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None  # training reads it again, and says what is wrong with it
    return found if isinstance(found, dict) else None


@contextmanager
def _stoppable() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the work with what is done kept, also between and after trainings."""
    before: dict[int, Any] = {}

    def stop(number: int, _: object) -> None:
        raise Interrupted("stopped", number)

    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
