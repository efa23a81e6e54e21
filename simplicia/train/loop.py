"""Pre-training, from a recipe to a run's folder: ``pretrain("shapes-byol-sem", epochs=5)``."""

import math
import os
import secrets
import shutil
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from simplicia import devices
from simplicia.data import datasets
from simplicia.data.augmentation import Views
from simplicia.data.datasets import ImageSet
from simplicia.data.loaders import HostLoader, choose_loader
from simplicia.errors import Diverged, Interrupted, UserError
from simplicia.layers import synchronised
from simplicia.progress import Progress, duration
from simplicia.provenance import commit, versions
from simplicia.run import Run, check, load
from simplicia.settings import with_changes
from simplicia.train import checkpoint, health, recipes
from simplicia.train import run_dir as place
from simplicia.train.auto import check_parts, fitted
from simplicia.train.images import given, load_images
from simplicia.train.init_from import take_over
from simplicia.train.log import Log, check_loggers
from simplicia.train.online import OnlineProbe
from simplicia.train.recipe import Recipe
from simplicia.train.signals import Signals
from simplicia.train.step import create as create_step


def pretrain(
    recipe: Recipe | str,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    processes: int = 1,
    engine: str = "auto",
    download: bool = False,
    quiet: bool = False,
    dry_run: bool = False,
    keep: int = checkpoint.KEEP,
    until: float = math.inf,
    saving: float = 0.0,
    note: str | None = None,
    on_online: Callable[[int, dict[str, float]], None] | None = None,
    **changes: Any,
) -> Run | None:
    """Train a recipe (or the name of one, with changes) into the folder ``out``, and return the run.

    ``data`` may be the name of a set, a folder, or images: a uint8 tensor or array (N, 3, H, W), an ImageSet.
    ``resume`` goes on from the newest checkpoint of ``out``, or starts without one. ``dry_run`` says what
    would happen and returns None. Ctrl-C and SIGTERM save before they end the training,
    and so does the time ``until``, of ``time.monotonic``: at least ``saving`` seconds before it, and longer
    if checkpoints take longer. The newest ``keep`` checkpoints stay. ``note`` is kept with this stretch.
    ``on_online(epoch, accuracies)`` is called when online probes were measured; what it raises ends the run.
    """
    named = recipes.get(recipe) if isinstance(recipe, str) else recipe
    images: ImageSet | None = None
    if not isinstance(changes.get("data", ""), str | os.PathLike):
        images, changes = given(changes["data"]), {**changes, "data": datasets.MEMORY}
    folder = place.choose(named.name, out, resume)
    if resume and (folder / "recipe.yaml").exists():
        recipe = place.resumed(recipe, changes, folder)
    else:
        recipe = place.findable(with_changes(named, changes))
    recipe.validate()
    check_loggers(recipe.loggers)
    if recipe.data == "auto":
        raise UserError(f"recipe {recipe.name!r} is for your own images; give --data with a folder or a name")
    check_parts(recipe, processes)
    if recipe.init is not None and checkpoint.latest(folder / "checkpoint") is None:
        check(recipe.init)
    fabric = devices.fabric(device, processes, recipe.precision)
    quiet = quiet or fabric.global_rank > 0
    if images is None:
        images = load_images(recipe, "train", download, quiet)
    measured: ImageSet | None = None
    if recipe.holdout:
        images, measured = datasets.split(images, recipe.holdout)
        measured = measured.center_cropped()
    recipe, notes = fitted(recipe, images, fabric.device, processes)
    torch.manual_seed(recipe.seed)
    training = Training(recipe, folder, images, fabric, quiet, engine)
    if recipe.online_every:
        training.add_online_probe(lambda: measured or load_images(recipe, "test", False, quiet=True))
        training.on_online = on_online
    training.keep, training.until, training.saving, training.note = keep, until, saving, note
    training.resume = resume
    training.introduce(notes)
    if dry_run:
        training.rehearse()
        return None
    training.go()
    return load(folder, device=device) if fabric.global_rank == 0 else None


class Training:
    """A run while it trains."""

    def __init__(
        self, recipe: Recipe, folder: Path, images: ImageSet, fabric: Any, quiet: bool, engine: str = "auto"
    ):
        self.recipe, self.folder, self.images, self.fabric, self.quiet = recipe, folder, images, fabric, quiet
        world = fabric.world_size
        self.method = recipe.build()
        self.begun_with = (0, 0)  # tensors of another run, of how many
        if recipe.init is not None and checkpoint.latest(folder / "checkpoint") is None:
            self.begun_with = take_over(self.method, recipe.init)
        recipe.try_encoder(self.method.online.encoder)
        self.method.to(fabric.device)
        self.method.to(memory_format=torch.channels_last)
        if fabric.device.type == "cuda" and world > 1:
            self.method = synchronised(self.method)
        self.statistics = images.statistics()
        kind = choose_loader(images.images, fabric.device, recipe.images_on)
        here = fabric.device, fabric.global_rank, world
        data = kind(images.images, recipe.batch_size, recipe.seed, *here, aspect_ratios=images.aspect_ratios)
        views = Views(recipe.views, recipe.viewed, *self.statistics)
        self.step = create_step(engine, recipe, self.method, data, views, fabric)
        self.done, self.seconds = 0, 0.0
        self.resume = False  # whether a run may be there already
        self.keep, self.until, self.saving = checkpoint.KEEP, math.inf, 0.0
        self.id: str | None = secrets.token_hex(8)  # what was measured on a run says on which
        self.trained_by: list[dict[str, Any]] = []  # stretches of one code on one device
        self.note: str | None = None  # on this stretch
        self.writer: checkpoint.Writer
        self.on_online: Callable[[int, dict[str, float]], None] | None = None

    def add_online_probe(self, read_test: Callable[[], ImageSet]) -> None:
        test = None if self.images.labels is None else read_test()
        if test is None or test.labels is None:
            raise UserError(
                f"online_every is {self.recipe.online_every}, but {self.images.name} has no labels"
            )
        recipe = self.recipe
        arguments = self.images, test, self.statistics, self.fabric.device, recipe.stored, recipe.image_size
        self.step.probe = OnlineProbe(self.method, *arguments, recipe.online_temperatures)

    def introduce(self, notes: list[str]) -> None:
        """Say what is about to be trained."""
        recipe, data = self.recipe, self.images
        say = Progress("", 1, 0, self.quiet).say
        online = sum(p.numel() for p in self.method.parameters() if p.requires_grad)
        say(f"{recipe.name}: {len(data):,} images of {data.name}, {online:,} parameters")
        if self.begun_with[0]:
            taken, total = self.begun_with
            say(f"begins with the weights of {recipe.init}: {taken} of {total} tensors")
        if notes:
            say(f"chosen from the images: {', '.join(notes)}")
        if isinstance(self.step.data, HostLoader):
            held = f"{data.images.nbytes / 2**30:.1f} GiB of images"
            say(
                f"{held} stay in the host's memory; each batch goes to {self.fabric.device} ahead of its step"
            )
        if data.skipped:
            shown = "; ".join(f"{path} ({reason})" for path, reason in data.skipped[:3])
            more = "; …" if len(data.skipped) > 3 else ""
            say(f"skipped {len(data.skipped)} unreadable files: {shown}{more}")

    def rehearse(self) -> None:
        """Take three steps, keep nothing, and say what the whole would cost."""
        say = Progress("", 1, 0, self.quiet).say
        say("timing three steps")
        times = []
        for step in range(3):
            start = time.perf_counter()
            self.step(step).loss.item()
            times.append(time.perf_counter() - start)
        total = sum(p.numel() for p in self.method.parameters())
        trained = sum(p.numel() for p in self.method.parameters() if p.requires_grad)
        fixed = 4 * (total + 2 * trained) + self.step.data.images.nbytes
        say(f"parameters: {trained:,} trained, {total - trained:,} in the target network")
        held = f"{fixed / 2**30:.2f} GiB for weights, gradients, momentum and images"
        say(f"memory: {held}; {devices.peak(self.fabric.device)}")
        say(f"steps: {self.step.total:,} ({self.step.data.batches:,} per epoch)")
        say(f"time: about {duration(statistics.median(times[1:]) * self.step.total)} on {self.fabric.device}")
        say("dry run: nothing was written")

    def go(self) -> None:
        """Train to the end, or until told to stop."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.fabric.global_rank > 0:
            self._train()
            return
        self._check_disk()
        with place.lock(self.folder):
            place.claim(self.folder, self.recipe, self.resume)
            self._train()

    def _train(self) -> None:
        self.writer = checkpoint.Writer(self.folder / "checkpoint", self.keep)
        self._take_up()
        leader = self.fabric.global_rank == 0
        log = (
            Log(self.folder / "log.jsonl", self.done, self.recipe.loggers, self.recipe.name)
            if leader
            else None
        )
        progress = Progress(self.recipe.name, self.step.total, self.done, self.quiet)
        try:
            with Signals() as signals:
                self._loop(signals, log, progress)
        finally:
            progress.close()
            if log is not None:
                log.close()
            self.writer.wait()

    def _check_disk(self) -> None:
        """A UserError if not even one checkpoint fits: that is better known before training than after."""
        needed = sum(p.nbytes * (2 if p.requires_grad else 1) for p in self.method.parameters())
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise UserError(
                f"a checkpoint takes {needed / 1e9:.2f} GB, and {self.folder} has {free / 1e9:.2f} GB free; "
                "give another --out"
            )

    def _loop(self, signals: "Signals", log: Log | None, progress: Progress) -> None:
        began = time.monotonic() - self.seconds
        saved = before = time.monotonic()
        patience = least = 60 * self.recipe.checkpoint_minutes
        mark = (time.monotonic(), self.done)
        warned: set[str] = set()
        total, batches = self.step.total, self.step.data.batches
        while self.done < total:
            output = self.step(self.done)
            self.done += 1
            now = time.monotonic()
            # after one more step like this there would be too little time for the last checkpoint
            late = now + (now - before) > self.until - max(self.saving, 2 * self.writer.slowest)
            before, self.seconds = now, now - began
            last, ending = self.done == total, self._agreed(late or signals.received is not None)
            if self.done % self.recipe.log_every == 0 or last:
                figures = health.measure(self.method, output)
                now = time.monotonic()
                speed = (self.done - mark[1]) * self.recipe.batch_size / (now - mark[0])
                mark = (now, self.done)
                self._stop_if_diverged(figures["loss"])
                if log is not None:
                    lr = self.step.lr.item()
                    log.write(
                        self.done, epoch=(self.done - 1) // batches, lr=lr, images_per_s=speed, **figures
                    )
                progress.update(self.done, f"loss {figures['loss']:.3f}, {speed:,.0f} images/s")
                wrong = health.warnings(self.method, figures, self.done, total, self.recipe.at_once)
                for kind, words in wrong.items():
                    if kind not in warned:
                        warned.add(kind)
                        progress.say(f"step {self.done}: {words}", style="yellow")
                        if log is not None:
                            log.write(self.done, warning=words)
            else:
                progress.update(self.done)
            if self.step.probe is not None and (
                last or self.done % (batches * self.recipe.online_every) == 0
            ):
                accuracies = self.step.probe.measure()
                if log is not None:
                    log.write(self.done, **accuracies)
                words = ", ".join(f"{k.replace('_', ' ')} {v:.1f} %" for k, v in accuracies.items())
                progress.say(f"epoch {self.done // batches}: {words}")
                if self.on_online is not None:
                    self.on_online(self.done // batches, accuracies)
            if last or ending or saved + patience < time.monotonic() < self.until - patience:
                began_saving = time.monotonic()
                self._save(output.loss.item())
                if last or ending:
                    self.writer.wait()
                saved = time.monotonic()
                # a checkpoint stops training while it is copied: at most 2 % of the time goes there
                patience = max(least, 50 * (saved - began_saving))
            if ending and not last:
                raise Interrupted(
                    f"stopped at step {self.done} of {total}; go on with: "
                    f"{place.how_to_resume(self.folder, self.recipe)}",
                    signals.received or (0 if late else signal.SIGTERM),
                )

    def _agreed(self, stop: bool) -> bool:
        """Whether any process was told to stop: all must leave at the same step."""
        if self.fabric.world_size == 1:
            return stop
        return bool(self.fabric.all_reduce(torch.tensor(float(stop)), reduce_op="sum").item())

    def _stop_if_diverged(self, loss: float) -> None:
        if math.isfinite(loss) and self.step.finite().item():
            return
        self.writer.wait()
        newest = checkpoint.latest(self.folder / "checkpoint")
        kept = f"the last good checkpoint is {newest.name}" if newest else "no checkpoint came before it"
        raise Diverged(
            f"the loss became {loss} at step {self.done}; {kept}; a lower --optim.lr, into another --out, "
            "usually helps"
        )

    def _save(self, loss: float) -> None:
        self._stop_if_diverged(loss)
        if self.fabric.global_rank == 0:
            state = {
                "total_steps": self.step.total,
                "epoch": self.done // self.step.data.batches,
                "seconds": self.seconds,
                "loss": loss,
                "mean": self.statistics[0],
                "std": self.statistics[1],
                "classes": list(self.images.classes),
                "images": len(self.images),
                "id": self.id,
                "trained_by": self.trained_by,
                **versions(self.fabric.device),
            }
            self.writer.save(self.done, self.step.tensors(), state)

    def _take_up(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        newest = checkpoint.latest(self.folder / "checkpoint")
        here: dict[str, Any] = {"commit": commit(), "device": versions(self.fabric.device)["device"]}
        if self.note is not None:
            here["note"] = self.note
        if newest is None:
            self.trained_by = [{**here, "from_step": 0}]
            return
        tensors, state = checkpoint.read(newest)
        if state.get("total_steps") != self.step.total or state.get("images") != len(self.images):
            raise UserError(
                f"{self.folder} was trained on {state.get('images')} images for {state.get('total_steps')} "
                f"steps, not {len(self.images)} and {self.step.total}; resume with the same data"
            )
        place.check_colours(self.folder, state, self.statistics)
        own = {k.removeprefix("method."): v for k, v in tensors.items() if k.startswith("method.")}
        checkpoint.load_into(self.method, own, newest)
        try:
            self.step.load(tensors)
        except (KeyError, RuntimeError) as error:
            raise UserError(f"checkpoint {newest} does not fit this recipe ({error})") from error
        self.done, self.seconds = state["step"], state["seconds"]
        self.id, self.trained_by = state.get("id"), state.get("trained_by", [])
        last = {k: v for k, v in self.trained_by[-1].items() if k != "from_step"} if self.trained_by else None
        if last != here:
            self.trained_by.append({**here, "from_step": self.done})
