"""One cell under way, as measures see it: its run, trained when it is needed, and what is stored there."""

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simplicia.data.datasets import ImageSet
from simplicia.devices import choose
from simplicia.errors import UserError
from simplicia.evaluate.features import load_labelled
from simplicia.evaluate.transfer import Splits, load_splits
from simplicia.experiments.budget import checkpoint_bytes
from simplicia.experiments.experiment import Cell, Plan, plan
from simplicia.provenance import commit, versions
from simplicia.run import Run
from simplicia.train import checkpoint
from simplicia.train import run_dir as place
from simplicia.train.auto import load_images, resolve
from simplicia.train.recipe import Recipe, read_yaml

if TYPE_CHECKING:
    from simplicia.experiments.runner import Session

Row = dict[str, Any]


class Unprepared(UserError):
    """A cell cannot be begun, such as without its data: nothing was tried, so there is nothing to record."""


class Job:
    """A cell with a seed."""

    def __init__(self, session: "Session", cell: Cell, seed: int):
        options = session.options
        self.session, self.cell = session, cell
        self.plan: Plan | None = None
        if cell.recipe is not None:
            self.plan = plan(cell, session.data, seed, options.epochs, options.batch_size)
        self.probe, self.probe_settings = session.probe, session.probe_settings
        self.probe_epochs, self.quiet = options.probe_epochs, options.quiet
        self.data_dir = options.data_dir
        self.note: str | None = None  # on what was measured, from when it was

    @property
    def folder(self) -> Path:
        assert self.plan is not None
        return self.session.options.runs / self.plan.folder

    @property
    def is_trained(self) -> bool:
        """Whether nothing has to be trained for it."""
        return self.plan is None or (finished(self.folder) is not None and has_weights(self.folder))

    @property
    def recipe(self) -> Recipe:
        """The run's, complete; as it is planned before it is trained."""
        assert self.plan is not None
        path = self.folder / "recipe.yaml"
        if path.exists():
            return read_yaml(path)
        return dataclasses.replace(self.plan.complete, data_dir=self.data_dir)

    @property
    def run(self) -> Run:
        return self.session.run(self.folder)

    @property
    def sets(self) -> tuple[ImageSet, ImageSet]:
        """Training and test images with labels, while it is measured."""
        return self.session.images[None]

    @property
    def splits(self) -> Splits:
        """Of the set that the cell transfers to, while it is measured."""
        return self.session.images[self.cell.options["to"]]

    def prepare(self) -> None:
        """What can be known before anything is trained: that the images are there, labelled, and the disk."""
        wanted = self.recipe
        if not (self.folder / "recipe.yaml").exists():
            images = load_images(wanted, "train", False, self.quiet)
            wanted, _ = resolve(wanted, images, choose(self.session.options.device))
        to = self.cell.options.get("to")
        if to not in self.session.images:  # those of one set only: they may be gigabytes
            read = load_labelled if to is None else load_splits
            self.session.images.clear()
            self.session.images[to] = read(wanted, to, self.data_dir)
        if not self.is_trained:
            self._check_disk(wanted)

    def _check_disk(self, recipe: Recipe) -> None:
        """One checkpoint more than are kept has to fit: an old one goes when a new one is there."""
        runs = self.session.options.runs
        there = next(path for path in (runs, *runs.absolute().parents) if path.is_dir())
        own = _bytes(self.folder)
        free = shutil.disk_usage(there).free + own
        needed = (self.session.options.keep + 1) * checkpoint_bytes(recipe)
        if needed > free:
            raise UserError(
                f"a run of {recipe.name} takes {needed / 1e9:.1f} GB while it trains, and {runs} has "
                f"{free / 1e9:.1f} GB free; give other --runs, or --drop to keep no weights of measured runs"
            )

    def once(self, name: str, asked: Row, measure: Callable[[], Row]) -> Row:
        """What was measured on the run as it is now, asked the same; trained and measured if it was not."""
        asked = json.loads(json.dumps(asked))
        found = self._once(name, asked, measure)
        self.note = found.get("note")
        return found

    def _once(self, name: str, asked: Row, measure: Callable[[], Row]) -> Row:
        assert self.plan is not None
        try:
            if (self.folder / "recipe.yaml").exists():
                place.check_same_recipe(self.folder, self.plan.complete)
            if (found := self._measured(name, asked)) is not None:
                return found
            self.prepare()
        except UserError as error:
            raise Unprepared(str(error)) from error
        with self.alone():
            if (found := self._measured(name, asked)) is not None:  # by another process in the meantime
                return found
            self.session.train(self)
            with self.session.clock.measuring(60 * self.session.options.probe_minutes):
                found = {**measure(), "asked": asked}
            if self.session.options.note is not None:
                found["note"] = self.session.options.note
            self.run.write_result(name, found)
        return found

    def _measured(self, name: str, asked: Row) -> Row | None:
        """What is stored of the run as it is now, asked the same."""
        state = finished(self.folder)
        if state is None:
            return None
        found = _stored(self.folder / "results" / f"{name}.json")
        keys = found.get("pretrain_step"), found.get("run_id"), found.get("asked")
        return found if keys == (state["step"], state.get("id"), asked) else None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other process trains or measures the run meanwhile; Busy if one does."""
        locks = self.session.options.runs / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        with place.lock(locks, self.folder.name):
            yield

    def analysed(self, name: str, measure: Callable[[], Row], **asked: Any) -> Row:
        """``once`` for what is no evaluation: with its seconds and where it was measured."""

        def timed() -> Row:
            start = time.monotonic()
            found, run = measure(), self.run
            found |= {"probe_seconds": time.monotonic() - start, "pretrain_step": run.step}
            about = versions(run.device)
            about["probe_device"] = about.pop("device")
            return found | {"run_id": run.state.get("id"), "commit": commit(), **about}

        return self.once(f"reproduce-{name}", asked, timed)


def finished(folder: Path) -> dict[str, Any] | None:
    """The state of a run that was trained to its end; None of any other."""
    state = checkpoint.state_of(folder)  # what is wrong with a damaged one is said by training
    return state if state.get("step") is not None and state["step"] == state.get("total_steps") else None


def has_weights(folder: Path) -> bool:
    """Whether the checkpoint of a run still has its tensors."""
    return not checkpoint.state_of(folder).get("dropped")


def _bytes(folder: Path) -> int:
    """Of all files in a folder, which another process may be writing and removing."""
    total = 0
    for there, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(there, name)).st_size
    return total


def _stored(path: Path) -> dict[str, Any]:
    """An object from a JSON file; nothing where there is none, or something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
