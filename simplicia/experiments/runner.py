"""Trains and measures runs one at a time: what ``reproduce`` and ``sweep`` have in common.

A run is trained to its end when a measurement needs it, and each measurement is written to the run's folder
at once, so a command that was killed continues where it was. Other processes may work on other runs.
"""

import gc
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from simplicia.api import pretrain
from simplicia.errors import Busy, Diverged, UserError
from simplicia.experiments.clock import Clock, TooLong
from simplicia.progress import Progress
from simplicia.provenance import commit, versions
from simplicia.result import Record
from simplicia.run import Run, load
from simplicia.train import checkpoint, run_dir
from simplicia.train.recipe import Recipe, read_yaml

T = TypeVar("T")
Kind = Literal["busy", "unprepared", "diverged", "too long", "failed"]
OnOnline = Callable[[int, dict[str, float]], None]  # (epoch, accuracies of the online probes)


class Unprepared(UserError):
    """A job cannot be started, such as without its data: nothing was tried, so there is nothing to record."""


@dataclass(frozen=True)
class Failure:
    """Why a job has no result."""

    kind: Kind
    reason: str


FAILURES: dict[type[Exception], Kind] = {  # the first that matches
    Busy: "busy",
    Unprepared: "unprepared",
    Diverged: "diverged",
    TooLong: "too long",
    UserError: "failed",
    torch.OutOfMemoryError: "failed",
    MemoryError: "failed",
}


@dataclass
class RunnerOptions:
    """How one command trains and measures runs."""

    device: str = "auto"
    engine: str = "auto"
    minutes: float | None = None  # stop by itself after so many
    probe_minutes: float = 3.0  # start no measurement with less left
    keep: int = 1  # checkpoints of each run
    note: str | None = None  # stored with everything trained and measured now
    quiet: bool = False


@dataclass
class Measurement(Record):
    """A measurement as stored with its run: the result (``details``), its weights, and what was asked."""

    pretrain_step: int | None = None
    run_id: str | None = None
    asked: dict[str, Any] = field(default_factory=dict)
    note: str | None = None


class Runner:
    """Trains and measures runs for one command."""

    def __init__(self, options: RunnerOptions):
        self.settings, self.clock = options, Clock(options.minutes)
        self.say = Progress("", 1, 0, options.quiet).say
        self._loaded: Run | None = None

    def attempt(self, work: Callable[[], T]) -> T | Failure:
        """The result of a job, or why there is none; other exceptions end the command."""
        try:
            return work()
        except tuple(FAILURES) as error:
            kind = next(kind for cls, kind in FAILURES.items() if isinstance(error, cls))
            no_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
            failure = Failure(kind, "the device is out of memory" if no_memory else str(error))
        self.release()  # after the traceback, which holds tensors
        return failure

    def once(
        self,
        folder: Path,
        recipe: Recipe,
        name: str,
        asked: dict[str, Any],
        measure: Callable[[Run], Record | dict[str, Any]],
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
        with self.lock(folder):
            if (stored := _stored(folder, name, asked)) is not None:  # by another process meanwhile
                return stored
            self.train(folder, recipe, on_online)
            with self.clock.measuring(60 * self.settings.probe_minutes):
                values = _timed(measure, self.load(folder))
            if self.settings.note is not None:
                values["note"] = self.settings.note
            measurement = Measurement.from_json({**values, "asked": asked})
            measurement.write(folder / "results" / f"{name}.json")
        return measurement

    def train(
        self,
        folder: Path,
        recipe: Recipe,
        on_online: OnOnline | None = None,
    ) -> None:
        """Train a run to its end, from its newest checkpoint if it has one."""
        if is_trained(folder):
            return
        self.clock.need_training()
        if checkpoint.state_of(folder).get("dropped"):
            self.say(f"the weights of {folder} were dropped: it is trained again")
            shutil.rmtree(folder / "checkpoint")
        self.release()  # two models may not fit the device
        path = folder / "recipe.yaml"
        changes: dict[str, Any] = {} if recipe.data_dir is None else {"data_dir": recipe.data_dir}
        self._loaded = pretrain(
            read_yaml(path) if path.exists() else recipe,
            out=folder,
            resume=True,
            device=self.settings.device,
            engine=self.settings.engine,
            quiet=self.settings.quiet,
            keep=self.settings.keep,
            deadline=self.clock.end,
            save_margin=self.clock.save_margin,
            note=self.settings.note,
            on_online=on_online,
            **changes,
        )

    def load(self, folder: Path) -> Run:
        """The run in a folder; the last one stays in memory."""
        if self._loaded is None or self._loaded.path != folder:
            self.release()
            self._loaded = load(folder, self.settings.device)
        return self._loaded

    def release(self) -> None:
        """Free the memory of the run that was loaded last."""
        self._loaded = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    @contextmanager
    def lock(self, folder: Path) -> Iterator[None]:
        """Keep other processes from training or measuring a run; Busy if one does."""
        locks = folder.parent / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        with run_dir.lock(locks, folder.name):
            yield


def finished(folder: Path) -> dict[str, Any] | None:
    """The state of a run that was trained to its end; None of any other, also of a damaged one."""
    state = checkpoint.state_of(folder)
    return state if state.get("step") is not None and state["step"] == state.get("total_steps") else None


def is_trained(folder: Path) -> bool:
    """Whether a run was trained to its end and still has its weights."""
    state = finished(folder)
    return state is not None and not state.get("dropped")


def _timed(measure: Callable[[Run], Record | dict[str, Any]], run: Run) -> dict[str, Any]:
    """The values of a measurement; those of an analysis get their seconds, device, weights and versions."""
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
