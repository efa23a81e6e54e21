"""The trainer: one recipe, one method, one loop that takes steps and calls hooks."""

import secrets
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from simplicia.data import workers
from simplicia.data.augmentation import Views
from simplicia.data.cached_features import FeatureViews, Frozen
from simplicia.data.datasets import MEMORY, ImageSet
from simplicia.data.loaders import HostLoader, choose_loader
from simplicia.data.streaming import StreamLoader
from simplicia.devices import peak_memory
from simplicia.distributed import agreed, from_leader, is_of_peers, largest
from simplicia.errors import Failed, Interrupted, UserError
from simplicia.layers import synchronise_norms
from simplicia.methods import Output
from simplicia.progress import duration, plural
from simplicia.provenance import commit, versions
from simplicia.train import checkpoint, run_dir
from simplicia.train.monitor import OnlineProbe
from simplicia.train.recipe import Recipe
from simplicia.train.step import CompiledStep, create_step


@dataclass(frozen=True)
class Plan:
    """A recipe with every open setting decided, and what its training would take by three measured steps."""

    recipe: Recipe
    parameters: int  # trained
    target_parameters: int
    memory_bytes: int  # of weights, gradients, momentum and images
    peak: str  # memory in use, in words
    steps: int
    steps_per_epoch: int
    seconds: float
    device: str

    def __str__(self) -> str:
        return "\n".join(
            (
                f"parameters: {self.parameters:,} trained, {self.target_parameters:,} in the target network",
                f"memory: {self.memory_bytes / 2**30:.2f} GiB for weights, gradients, momentum and images; "
                f"{self.peak}",
                f"steps: {self.steps:,} ({self.steps_per_epoch:,} per epoch)",
                f"time: about {duration(self.seconds)} on {self.device}",
                "dry run: nothing was written",
            )
        )


class Hook:
    """Something to do after each step."""

    def after_step(self, trainer: "Trainer", output: Output) -> None:
        """Called with the trainer and the output of the step it took."""

    def close(self) -> None:
        """Called when training ends, however it ends."""


class Trainer:
    """Takes steps and calls hooks after each one.

    ``test_images`` provides the images that online probes are tested on. ``init_from`` is a run whose weights
    training starts with, ``encoder`` a module that Python gave, ``frozen`` an encoder that does not learn.
    """

    def __init__(
        self,
        recipe: Recipe,
        images: ImageSet,
        fabric: Any,
        engine: str = "auto",
        test_images: Callable[[], ImageSet] | None = None,
        init_from: str | None = None,
        encoder: torch.nn.Module | None = None,
        frozen: Frozen | None = None,
    ):
        self.recipe, self.images, self.fabric, self.frozen = recipe, images, fabric, frozen
        torch.manual_seed(recipe.seed)
        method = recipe.build(encoder)
        self.initialised = (0, 0)
        if init_from is not None:  # ``resume_from`` hands the weights to the other processes
            self.initialised = from_leader(lambda: checkpoint.initialise_from(method, init_from))
        if frozen is None:
            recipe.try_encoder(method.online.encoder)
        else:
            frozen.attach(method)
        method.to(fabric.device).to(memory_format=torch.channels_last)
        if fabric.world_size > 1:
            synchronise_norms(method)
        self.method = method
        self.statistics = images.statistics() if frozen is None else frozen.statistics
        inputs = images.images if frozen is None else frozen.features
        loader: Any = choose_loader(inputs, fabric.device, recipe.data_device)
        how: dict[str, Any] = {"aspect_ratios": images.aspect_ratios if frozen is None else None}
        if images.streamed and frozen is None:
            loader, how = StreamLoader, {"views": recipe.views, "size": recipe.actual_view_size}
        data = loader(
            inputs,
            recipe.batch_size,
            recipe.seed,
            fabric.device,
            fabric.global_rank,
            fabric.world_size,
            micro_batches=recipe.accumulation_steps(fabric.world_size),
            **how,
        )
        views: Any = FeatureViews()
        if frozen is None:
            views = Views(recipe.views, recipe.actual_view_size, *self.statistics)
        self.probe = self._online_probe(test_images) if recipe.online_every else None
        self.step = create_step(engine, recipe, method, data, views, fabric, self.probe)
        self.total, self.steps_per_epoch = self.step.total, data.batches
        self.done, self.seconds = 0, 0.0
        self.id: str | None = secrets.token_hex(8)  # results name the run they measured
        self.trained_by: list[dict[str, Any]] = []  # commits and devices, and the steps they began at
        self.stop: Interrupted | None = None  # set by ``request_stop``
        self.frozen_state: dict[str, Any] = {}  # what a checkpoint says about a frozen encoder
        self.path: Path | None = None  # the run directory, once ``resume_from`` has looked there

    @property
    def is_last(self) -> bool:
        """Whether the last step has been taken."""
        return self.done == self.total

    @property
    def is_ending(self) -> bool:
        """Whether no step follows: training is complete, or was asked to stop."""
        return self.is_last or self.stop is not None

    @property
    def is_leader(self) -> bool:
        """Whether this process writes files."""
        return self.fabric.global_rank == 0

    def fit(self, hooks: Sequence[Hook]) -> None:
        """The training loop: take a step, call the hooks, until the last step or a request to stop."""
        started = time.monotonic() - self.seconds
        try:
            while not self.is_ending:
                output = self.step(self.done)
                self.done += 1
                self.seconds = time.monotonic() - started
                for hook in hooks:
                    hook.after_step(self, output)
        except RuntimeError as error:
            if self.fabric.world_size == 1 or not is_of_peers(error):
                raise
            newest = self.last_checkpoint()
            kept = f"{newest.name} is kept" if newest else "there is no checkpoint yet"
            raise Failed(f"another process of this training ended at step {self.done}; {kept}") from error
        finally:
            self.step.data.close()
            for hook in hooks:
                hook.close()
        if self.stop is not None and not self.is_last:
            raise self.stop

    def request_stop(self, signal: int | None, resume: str) -> None:
        """Stop after this step if any process asks for it: all must leave at the same step.

        ``signal`` is the reason; 0 is a deadline, None no request.
        """
        agreed_signal = largest(-1 if signal is None else signal)
        if agreed_signal >= 0 and not self.is_last:
            message = f"stopped at step {self.done} of {self.total}; continue with: {resume}"
            self.stop = Interrupted(message, agreed_signal)

    def state(self, loss: float) -> dict[str, Any]:
        """The content of a checkpoint's ``state.json``."""
        mean, std = self.statistics
        return {
            "total_steps": self.total,
            "epoch": self.done // self.steps_per_epoch,
            "seconds": self.seconds,
            "loss": loss,
            "mean": mean,
            "std": std,
            "classes": list(self.images.classes),
            "images": len(self.images),
            "fingerprint": self.fingerprint,
            "streamed": self.images.streamed,
            "processes": self.fabric.world_size,
            "id": self.id,
            "trained_by": self.trained_by,
            **self.frozen_state,
            **versions(self.fabric.device),
        }

    @cached_property
    def fingerprint(self) -> str:
        """A digest that tells whether a run is resumed on the same images."""
        return run_dir.fingerprint(self.images)

    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint of the run that is being trained."""
        return None if self.path is None else checkpoint.latest(self.path / "checkpoint")

    def resume_from(self, path: Path, note: str | None = None) -> None:
        """Go on from the newest checkpoint of a run directory; without one, start at step 0.

        Process 0 reads it and sends it to the others.
        """
        here: dict[str, Any] = {"commit": commit(), "device": versions(self.fabric.device)["device"]}
        processes = self.fabric.world_size
        here |= {} if processes == 1 else {"processes": processes}
        here |= {} if note is None else {"note": note}
        self.path = path
        if self.frozen is not None:
            stored = {"frozen_encoder": checkpoint.store_frozen_encoder(path, self.frozen.encoder)}
            self.frozen_state = {**stored, "extraction": self.frozen.extraction}
        state = from_leader(self._load_newest)
        if processes > 1:
            for tensor in self.step.tensors().values():
                tensor.copy_(agreed(tensor))
        if state is None:
            self.trained_by = [{**here, "from_step": 0}]
            return
        history = state.get("trained_by", [])
        last = {k: v for k, v in history[-1].items() if k != "from_step"} if history else None
        if last != here:
            history = [*history, {**here, "from_step": state["step"]}]
        self.done, self.seconds, self.id = state["step"], state.get("seconds", 0.0), state.get("id")
        self.trained_by = history

    def _load_newest(self) -> dict[str, Any] | None:
        """Load the newest checkpoint; returns its state, or None without one."""
        newest = self.last_checkpoint()
        if newest is None or self.path is None:
            return None
        tensors, state = checkpoint.read(newest)
        run_dir.check_images(self.path, state, self.state(0.0))
        checkpoint.load_into(self.method, checkpoint.method_tensors(tensors), newest)
        try:
            self.step.load(tensors)
        except (KeyError, RuntimeError) as error:
            raise UserError(f"checkpoint {newest} does not fit this recipe ({error})") from error
        return state

    def describe(self, chosen: list[str]) -> list[str]:
        """Describe the training in a few lines; ``chosen``: settings resolved from "auto"."""
        trained = sum(p.numel() for p in self.method.parameters() if p.requires_grad)
        name, images = self.recipe.name, self.images
        source = "" if images.name == MEMORY else f" of {images.name}"
        lines = [f"{name}: {plural(len(images), 'image')}{source}, {trained:,} parameters"]
        if self.initialised[0]:
            loaded, total = self.initialised
            lines.append(f"begins with the weights of {self.recipe.init}: {loaded} of {total} tensors")
        if self.step.obstacle is not None:
            kind = "compiled" if isinstance(self.step, CompiledStep) else "eager"
            lines.append(f"steps are {kind}, not captured as a graph: {self.step.obstacle}")
        if chosen:
            lines.append(f"chosen from the images: {', '.join(chosen)}")
        if isinstance(self.step.data, HostLoader):
            size = self.step.data.host_images.nbytes / 2**30
            what = "images" if self.frozen is None else "features"
            lines.append(
                f"{size:.1f} GiB of {what} stay in host memory; each batch goes to {self.fabric.device} "
                "ahead of its step"
            )
        if images.streamed and self.frozen is None:
            lines.append(
                f"images are decoded by {workers.describe(images.images.threads)}, ahead of each step"
            )
        if images.skipped:
            first = "; ".join(f"{path} ({reason})" for path, reason in images.skipped[:3])
            more = "; …" if len(images.skipped) > 3 else ""
            lines.append(f"skipped {plural(len(images.skipped), 'unreadable file')}: {first}{more}")
        return lines

    def dry_run(self) -> Plan:
        """Take three steps, keep nothing, and report what the run would take."""
        times = []
        for step in range(3):
            start = time.perf_counter()
            self.step(step).loss.item()
            times.append(time.perf_counter() - start)
        total = sum(p.numel() for p in self.method.parameters())
        trained = sum(p.numel() for p in self.method.parameters() if p.requires_grad)
        device = self.fabric.device
        return Plan(
            self.recipe,
            parameters=trained,
            target_parameters=total - trained,
            memory_bytes=4 * (total + 2 * trained) + self.step.data.images.nbytes,
            peak=peak_memory(device),
            steps=self.total,
            steps_per_epoch=self.steps_per_epoch,
            seconds=statistics.median(times[1:]) * self.total,
            device=str(device),
        )

    def check_disk(self, path: Path) -> None:
        """Make a run's folder; a UserError if not even one checkpoint fits, before hours are lost."""
        path.mkdir(parents=True, exist_ok=True)
        needed = sum(p.nbytes * (2 if p.requires_grad else 1) for p in self.method.parameters())
        free = shutil.disk_usage(path).free
        if needed > free:
            raise UserError(
                f"a checkpoint takes {needed / 1e6:,.1f} MB, and {path} has {free / 1e6:,.1f} MB free; "
                "give another --out"
            )

    def _online_probe(self, test_images: Callable[[], ImageSet] | None) -> OnlineProbe:
        recipe, train = self.recipe, self.images
        test = None if train.labels is None or test_images is None else test_images()
        if test is None or test.labels is None:
            raise UserError(f"online_every is {recipe.online_every}, but {train.name} has no labels")
        return OnlineProbe(
            self.method,
            train,
            test,
            self.statistics,
            self.fabric.device,
            recipe.actual_decode_size,
            recipe.image_size,
            recipe.online_temperatures,
        )
