"""Trains and measures runs one at a time: what ``reproduce`` and ``sweep`` have in common.

A run is trained to its end when a measurement needs it, and each measurement is written to the run's folder
at once, so a command that was killed continues where it was. Other processes may work on other runs.
"""

import gc
import json
import shutil
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
from simplicia.result import Record
from simplicia.run import Run, load
from simplicia.train import checkpoint, run_dir
from simplicia.train.recipe import Recipe, read_yaml

T = TypeVar("T")


class Unprepared(UserError):
    """A job cannot be started, such as without its data: nothing was tried, so there is nothing to record."""


@dataclass(frozen=True)
class Failure:
    """Why a job has no result."""

    kind: Literal["busy", "unprepared", "diverged", "too long", "failed"]
    reason: str


def classify(error: Exception) -> Failure | None:
    """The failure that an exception stands for; None if it ends the command: a bug, a stop, no time left."""
    if isinstance(error, Busy):
        return Failure("busy", str(error))
    if isinstance(error, Unprepared):
        return Failure("unprepared", str(error))
    if isinstance(error, Diverged):
        return Failure("diverged", str(error))
    if isinstance(error, TooLong):
        return Failure("too long", str(error))
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return Failure("failed", "the device is out of memory")
    return Failure("failed", str(error)) if isinstance(error, UserError) else None


@dataclass
class Measurement(Record):
    """A measurement as stored with its run: the result (``details``), its weights, and what was asked."""

    pretrain_step: int | None = None
    run_id: str | None = None
    asked: dict[str, Any] = field(default_factory=dict)
    note: str | None = None


class Runner:
    """Trains and measures runs for one command."""

    def __init__(
        self,
        device: str = "auto",
        engine: str = "auto",
        minutes: float | None = None,  # of the command
        probe_minutes: float = 0.0,  # start no measurement with less left
        keep: int = 1,  # checkpoints of each run
        note: str | None = None,  # stored with everything trained and measured
        quiet: bool = False,
    ):
        self.device, self.engine, self.quiet = device, engine, quiet
        self.clock, self.probe_minutes = Clock(minutes), probe_minutes
        self.keep, self.note = keep, note
        self.say = Progress("", 1, 0, quiet).say
        self._loaded: Run | None = None

    def attempt(self, work: Callable[[], T]) -> T | Failure:
        """The result of a job, or why there is none."""
        try:
            return work()
        except Exception as error:
            failure = classify(error)
            if failure is None:
                raise
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
        on_online: Callable[[int, dict[str, float]], None] | None = None,
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
            with self.clock.measuring(60 * self.probe_minutes):
                result = measure(self.load(folder))
            values = result.to_json() if isinstance(result, Record) else result
            if self.note is not None:
                values = {**values, "note": self.note}
            measurement = Measurement.from_json({**values, "asked": asked})
            measurement.write(folder / "results" / f"{name}.json")
        return measurement

    def train(
        self,
        folder: Path,
        recipe: Recipe,
        on_online: Callable[[int, dict[str, float]], None] | None = None,
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
            device=self.device,
            engine=self.engine,
            quiet=self.quiet,
            keep=self.keep,
            deadline=self.clock.end,
            save_margin=self.clock.save_margin,
            note=self.note,
            on_online=on_online,
            **changes,
        )

    def load(self, folder: Path) -> Run:
        """The run in a folder; the last one stays in memory."""
        if self._loaded is None or self._loaded.path != folder:
            self.release()
            self._loaded = load(folder, self.device)
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


def _stored(folder: Path, name: str, asked: dict[str, Any]) -> Measurement | None:
    """A stored measurement of the run as it is now, if the same was asked."""
    state = finished(folder)
    try:
        stored = Measurement.read(folder / "results" / f"{name}.json")
    except UserError:
        return None
    now = (state["step"], state.get("id"), asked) if state is not None else None
    return stored if (stored.pretrain_step, stored.run_id, stored.asked) == now else None
