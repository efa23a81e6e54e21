"""Trains and measures runs one at a time: what ``reproduce`` and ``sweep`` have in common.

A run is trained to its end when a measurement needs it, and each measurement is written to the run's folder
at once, so a command that was killed continues where it was. Other processes may work on other runs.
"""

import gc
import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from simplicia.api import pretrain
from simplicia.errors import Diverged, Interrupted, Unfinished, UserError, is_disk_error, is_out_of_memory
from simplicia.progress import say
from simplicia.provenance import commit, versions
from simplicia.result import Record
from simplicia.run import Run, load
from simplicia.signals import handled
from simplicia.train import checkpoint, run_dir
from simplicia.train.recipe import Recipe, read_yaml

T = TypeVar("T")
Measure = Callable[[Run], Record | dict[str, Any]]
OnOnline = Callable[[int, dict[str, float]], None]  # (epoch, accuracies of the online probes)
ALARM = getattr(signal, "SIGALRM", None)  # Windows has none


class Unprepared(UserError):
    """A job cannot be started, such as without its data: nothing was tried, so there is nothing to record."""


class TooLong(RuntimeError):
    """A measurement does not fit into the time of a command even if it has all of it."""


class Stop(KeyboardInterrupt):
    """A signal arrived. No ``except Exception`` on the way catches it."""

    def __init__(self, number: int | None):
        super().__init__()
        self.number = number


@dataclass
class Options:
    """How one command trains and measures runs; of an experiment, how much, on which data, and where."""

    device: str = "auto"
    engine: str = "auto"
    minutes: float | None = None  # stop by itself after so many
    probe_minutes: float = 3.0  # start no measurement with less left
    keep: int = 1  # checkpoints of each run
    note: str | None = None  # stored with everything trained and measured now
    quiet: bool = False
    data: str | None = None  # None: the paper's
    data_dir: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    only: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=lambda: [0])
    probe_epochs: int | None = None
    runs: Path = Path("runs")
    results: Path = Path("results")
    drop: bool = False  # drop the weights of a run when all its cells are measured
    retry: bool = False  # also cells that failed before
    no_training: bool = False  # only cells whose runs are trained


@dataclass
class Measurement(Record):
    """A measurement as stored with its run: the result (``details``), its weights, and what was asked."""

    pretrain_step: int | None = None
    run_id: str | None = None
    asked: dict[str, Any] = field(default_factory=dict)
    note: str | None = None


class Runner:
    """Trains and measures runs for one command, until its time is up."""

    def __init__(self, options: Options):
        self.options = options
        self._loaded: Run | None = None
        self._has_worked = False  # the next work has less than all the time
        seconds = math.inf if options.minutes is None else 60 * options.minutes
        self._end = time.monotonic() + seconds
        self._save_margin = min(45, seconds / 10)  # to write the last checkpoint
        self._startup = min(90, seconds / 7)  # to compile the first step
        self._exit_margin = min(10, seconds / 50)  # to leave after a measurement was cut off

    def say(self, words: str, style: str | None = None) -> None:
        """Print a line about the work, above the bar if there is one."""
        say([words], self.options.quiet, style)

    def attempt(
        self, work: Callable[[], T], failures: tuple[type[Exception], ...] = (UserError, Diverged, TooLong)
    ) -> T | Exception:
        """The result of a job, or the error that it failed with; other exceptions end the command.

        So do errors of the disk, after which the job can continue.
        """
        failure: Exception
        try:
            return work()
        except Exception as error:
            can_continue = isinstance(error, Interrupted | Unfinished) or (
                is_disk_error(error) and not isinstance(error, Unprepared)
            )
            if is_out_of_memory(error):
                failure = UserError("the device is out of memory")
            elif can_continue or not isinstance(error, failures):
                raise
            else:
                failure = error
                # tracebacks hold tensors
                failure.__traceback__ = failure.__cause__ = failure.__context__ = None
        self.release()
        return failure

    def once(
        self,
        folder: Path,
        recipe: Recipe,
        name: str,
        asked: dict[str, Any],
        measure: Measure,
        prepare: Callable[[], None] = lambda: None,
        on_online: OnOnline | None = None,
    ) -> Measurement:
        """The measurement ``name`` of the run in a folder: as stored if the same was asked, or made now.

        The run is trained first if it is not. ``prepare`` raises a UserError if that would be in vain.
        """
        asked = json.loads(json.dumps(asked))
        try:
            if (folder / "recipe.yaml").exists():
                run_dir.check_same_recipe(folder, recipe)
            if (stored := _stored(folder, name, asked)) is not None:
                return stored
            prepare()
        except UserError as error:
            raise Unprepared(str(error)) from error
        with lock(folder):
            if (stored := _stored(folder, name, asked)) is not None:  # by another process meanwhile
                return stored
            if not is_trained(folder):
                self._train(folder, recipe, on_online)
            with self._limited():
                values = _timed(measure, self._load(folder))
            if self.options.note is not None:
                values["note"] = self.options.note
            measurement = Measurement.from_json({**values, "asked": asked})
            measurement.write(folder / "results" / f"{name}.json")
        return measurement

    def _train(self, folder: Path, recipe: Recipe, on_online: OnOnline | None) -> None:
        """Train a run to its end, from its newest checkpoint if it has one."""
        if self._end - time.monotonic() < self._save_margin + self._startup:
            raise Unfinished("too little time is left for training")
        self._has_worked = True
        if checkpoint.state_of(folder).get("dropped"):
            self.say(f"the weights of {folder} were dropped: it is trained again")
            checkpoint.discard(folder / "checkpoint")
        self.release()  # two models may not fit the device
        path, options = folder / "recipe.yaml", self.options
        changes: dict[str, Any] = {} if recipe.data_dir is None else {"data_dir": recipe.data_dir}
        self._loaded = pretrain(
            read_yaml(path) if path.exists() else recipe,
            out=folder,
            resume=True,
            deadline=self._end,
            save_margin=self._save_margin,
            on_online=on_online,
            **{name: getattr(options, name) for name in ("device", "engine", "quiet", "keep", "note")},
            **changes,
        )

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Cut off the measurement inside when time is up; start none with less than ``probe_minutes`` left.

        A measurement that was the first work of its command would not fit the next time either: TooLong.
        """
        is_first, self._has_worked = not self._has_worked, True
        left = self._end - time.monotonic()
        reason = "too little time is left for a measurement"
        try:
            if left < 60 * self.options.probe_minutes:
                raise Stop(ALARM)
            reason = "the time was up before a measurement was done"
            with _raise_stop(ALARM, seconds=max(left - self._exit_margin, 1e-3)):
                yield
        except Stop as stop:
            if stop.number != ALARM:
                raise
            if is_first:
                limit = f"{self.options.minutes:g} minutes"
                raise TooLong(f"its measurement takes more than {limit}; give more --minutes") from None
            raise Unfinished(reason) from None

    def _load(self, folder: Path) -> Run:
        """The run in a folder; the last one stays in memory."""
        if self._loaded is None or self._loaded.path != folder:
            self.release()
            self._loaded = load(folder, self.options.device)
        return self._loaded

    def release(self) -> None:
        """Free the memory of the run that was loaded last."""
        self._loaded = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def lock(folder: Path) -> Any:
    """Keep other processes from training or measuring a run until this is closed; Busy if one does."""
    locks = folder.parent / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    return run_dir.lock(locks, folder.name)


def finished(folder: Path) -> dict[str, Any] | None:
    """The state of a run that was trained to its end; None of any other, also of a damaged one."""
    state = checkpoint.state_of(folder)
    return state if state.get("step") is not None and state["step"] == state.get("total_steps") else None


def is_trained(folder: Path) -> bool:
    """Whether a run was trained to its end and still has its weights."""
    state = finished(folder)
    return state is not None and not state.get("dropped")


def _timed(measure: Measure, run: Run) -> dict[str, Any]:
    """The values of a measurement; an analysis also gets its seconds, device, checkpoint and versions."""
    start = time.monotonic()
    result = measure(run)
    if isinstance(result, Record):
        return result.to_json()
    about: dict[str, Any] = versions(run.device)
    about |= {"probe_seconds": time.monotonic() - start, "probe_device": about.pop("device")}
    return {**result, **about, "pretrain_step": run.step, "run_id": run.state.get("id"), "commit": commit()}


def _stored(folder: Path, name: str, asked: dict[str, Any]) -> Measurement | None:
    """A stored measurement of the run as it is now, if the same was asked."""
    state = finished(folder)
    try:
        stored = Measurement.read(folder / "results" / f"{name}.json")
    except UserError:
        return None
    now = (state["step"], state.get("id"), asked) if state is not None else None
    return stored if (stored.pretrain_step, stored.run_id, stored.asked) == now else None


@contextmanager
def stoppable() -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into Interrupted, also between and after trainings."""
    try:
        with _raise_stop(signal.SIGINT, signal.SIGTERM):
            yield
    except Stop as stop:
        raise Interrupted("stopped", stop.number or 0) from None


@contextmanager
def _raise_stop(*numbers: int | None, seconds: float = math.inf) -> Iterator[None]:
    """Raise Stop inside on these signals, or after some seconds."""

    def stop(number: int, _: object) -> None:
        raise Stop(number)

    with handled([number for number in numbers if number is not None], stop) as are_handled:
        timed = are_handled and ALARM is not None and seconds < math.inf
        try:
            if timed:
                signal.setitimer(signal.ITIMER_REAL, seconds)
            yield
        finally:
            if timed:
                signal.setitimer(signal.ITIMER_REAL, 0)
