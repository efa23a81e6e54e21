"""One training step: views, forward, backward, optimiser, averages and queues.

A batch that is larger than what the networks take at once goes through them in parts: BatchNorm and loss see
one part at a time, queues and centres take up each, and the optimiser moves by the mean of their gradients.
Everything random in it is a function of (seed, step, process), whatever ran before.
"""

import importlib.util
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from simplicia.data.augmentation import Views
from simplicia.data.loaders import DeviceLoader, mix_seed
from simplicia.devices import allow_variants
from simplicia.errors import UserError, unknown
from simplicia.layers import mixes_views
from simplicia.methods import Method, Output
from simplicia.methods.base import TargetMethod
from simplicia.train import optim
from simplicia.train.online import OnlineProbe
from simplicia.train.recipe import Recipe

ENGINES = ("auto", "eager", "compiled", "captured")
BACKEND = "inductor"  # of compiled steps


class Step:
    """The eager step, the reference for faster ones."""

    def __init__(
        self,
        recipe: Recipe,
        method: Method,
        data: DeviceLoader,
        views: Views,
        fabric: Any,
        probe: OnlineProbe | None = None,
    ):
        self.recipe, self.method, self.data, self.views, self.fabric = recipe, method, data, views, fabric
        self.total = recipe.epochs * data.batches
        self.lr = torch.zeros((), device=fabric.device)
        self.optimizer = optim.create(method, recipe.optim, method.rates(), self.lr)
        self.probe = probe
        self.setup()

    def setup(self) -> None:
        self.module, self.stepper = self.fabric.setup(self.method, self.optimizer)

    def __call__(self, step: int) -> Output:
        indices = self.prepare(step)
        parts = self.recipe.accumulation_steps
        places = self.data.fetch(step, indices).chunk(parts)
        *before, last = zip(indices.chunk(parts), places, strict=True)
        losses = []
        for own, where in before:
            with self._unsynchronised():
                output = self._gradients(where)
            self.method.after_part()
            self._learn(output, own)
            losses.append(output.loss)
        output = self._gradients(last[1])
        if self.recipe.optim.clip:
            self.fabric.clip_gradients(self.module, self.stepper, max_norm=self.recipe.optim.clip)
        self.stepper.step()
        self.stepper.zero_grad()
        self.method.after_step()
        self._learn(output, last[0])
        return output._replace(loss=torch.stack([*losses, output.loss]).mean())

    def _gradients(self, places: Tensor) -> Output:
        """Add the gradients of a part, at its share; its loss is only a number from then on."""
        output = self.module(self.views(*self.data.gather(places)))
        self.fabric.backward(output.loss / self.recipe.accumulation_steps)
        return output._replace(loss=output.loss.detach())

    def _learn(self, output: Output, indices: Tensor) -> None:
        if self.probe is not None:
            self.probe.learn(output, indices)

    def _unsynchronised(self) -> Any:
        """Gradients of several processes are averaged once, with those of the last part."""
        return nullcontext() if self.fabric.world_size == 1 else self.fabric.no_backward_sync(self.module)

    def prepare(self, step: int) -> Tensor:
        """Set all that depends on the step's number; returns which images it takes."""
        epoch = step // self.data.batches
        torch.manual_seed(mix_seed(self.recipe.seed, step, self.data.rank))
        settings = self.recipe.optim
        position = epoch if settings.lr_per_epoch else step / self.data.batches
        self.lr.fill_(optim.learning_rate(settings, self.recipe.batch_size, position, self.recipe.epochs))
        self.method.schedule(step, self.total, epoch)
        return self.data.indices(step)

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint must hold to go on from here."""
        velocities = {
            f"velocity.{name}": self.optimizer.velocity(p)
            for name, p in self.method.named_parameters()
            if p.requires_grad
        }
        own = {f"method.{name}": value for name, value in self.method.state_dict().items()}
        return own | velocities | ({} if self.probe is None else self.probe.tensors())

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over what ``tensors`` gave, except the method's own, which are loaded with its run."""
        with torch.no_grad():
            for name, p in self.method.named_parameters():
                if p.requires_grad:
                    self.optimizer.velocity(p).copy_(tensors[f"velocity.{name}"])
        if self.probe is not None:
            self.probe.load(tensors)
        self.refresh()

    def finite(self) -> Tensor:
        """Whether all weights are numbers; on the device."""
        return torch.stack([p.isfinite().all() for p in self.method.parameters() if p.requires_grad]).all()

    def refresh(self) -> None:
        """Bring what was derived from the weights up to date, after they were loaded."""


class CompiledStep(Step):
    """Views and method compiled, nothing captured: for several GPUs, or where a step cannot be captured."""

    def setup(self) -> None:
        allow_variants()
        compiled = torch.compile(self.views.__call__, dynamic=False, backend=BACKEND)
        self.views = compiled  # type: ignore[assignment]
        self.method.compile(dynamic=False, backend=BACKEND)  # in place: names of weights stay
        super().setup()


def create(
    engine: str,
    recipe: Recipe,
    method: Method,
    data: DeviceLoader,
    views: Views,
    fabric: Any,
    probe: OnlineProbe | None = None,
) -> Step:
    """The step of an engine: "eager", "compiled", "captured", or "auto" for the fastest that works here."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    obstacle = _obstacle(recipe, method, fabric)
    if engine == "captured" and obstacle:
        raise UserError(f"engine is 'captured', but {obstacle}; 'eager' works")
    if engine == "auto":
        compiles = fabric.device.type == "cuda" and importlib.util.find_spec("triton") is not None
        engine = "captured" if obstacle is None else "compiled" if compiles else "eager"
    if engine == "captured":
        from simplicia.engine.captured import CapturedStep

        return CapturedStep(recipe, method, data, views, fabric, probe)
    kind = CompiledStep if engine == "compiled" else Step
    return kind(recipe, method, data, views, fabric, probe)


def _obstacle(recipe: Recipe, method: Method, fabric: Any) -> str | None:
    """Why the step cannot be captured here."""
    if fabric.device.type != "cuda":
        return f"the device is {fabric.device.type}, not a GPU"
    if fabric.world_size > 1:
        return "there are several processes"
    if recipe.precision != "bf16":
        return f"the precision is {recipe.precision}, not bf16"
    if recipe.optim.clip:
        return "gradients are clipped"
    if recipe.accumulation_steps > 1:
        return f"a batch is {recipe.accumulation_steps} micro-batches"
    if kind := mixes_views(method):
        return f"the encoder's {kind} cannot tell the two views of a batch apart"
    if recipe.sem.second_temperature == 0 and not isinstance(method, TargetMethod):
        return "sem.second_temperature is 0, which a batch of both views cannot have for one of them"
    return None if importlib.util.find_spec("triton") else "triton is not installed"
