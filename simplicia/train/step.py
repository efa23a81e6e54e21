"""One training step: views, forward, backward, optimiser, averages and queues.

Everything random in a step is a function of (seed, step, process), whatever ran before.
"""

import importlib.util
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from simplicia.data.augmentation import Views
from simplicia.data.loaders import DeviceLoader, mix_seed
from simplicia.devices import allow_variants
from simplicia.errors import UserError, unknown
from simplicia.methods import Method, Output
from simplicia.train import optim
from simplicia.train.online import OnlineProbe
from simplicia.train.recipe import Recipe

ENGINES = ("auto", "eager", "compiled", "captured")
BACKEND = "inductor"  # of compiled steps


class Step:
    """The eager step, the reference for the faster ones.

    A batch larger than a micro-batch is accumulated: BatchNorm and the loss see one micro-batch at a time,
    queues and centres take each, and the optimiser moves by the mean of their gradients.
    """

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
        rows = self.data.fetch(step, indices)
        accumulation_steps = self.recipe.accumulation_steps
        micro_batches = list(
            zip(indices.chunk(accumulation_steps), rows.chunk(accumulation_steps), strict=True)
        )
        losses = []
        for micro_indices, micro_rows in micro_batches[:-1]:
            with self._unsynchronised():
                output = self._backward(micro_rows)
            self.method.after_micro_batch()
            self._learn(output, micro_indices)
            losses.append(output.loss)
        last_indices, last_rows = micro_batches[-1]
        output = self._backward(last_rows)
        if self.recipe.optim.clip:
            self.fabric.clip_gradients(self.module, self.stepper, max_norm=self.recipe.optim.clip)
        self.stepper.step()
        self.stepper.zero_grad()
        self.method.after_step()
        self._learn(output, last_indices)
        return output._replace(loss=torch.stack([*losses, output.loss]).mean())

    def prepare(self, step: int) -> Tensor:
        """Set everything that depends on the step's number; returns the indices of its images."""
        epoch = step // self.data.batches
        torch.manual_seed(mix_seed(self.recipe.seed, step, self.data.rank))
        settings = self.recipe.optim
        position = epoch if settings.lr_per_epoch else step / self.data.batches
        self.lr.fill_(optim.learning_rate(settings, self.recipe.batch_size, position, self.recipe.epochs))
        self.method.schedule(step, self.total, epoch)
        return self.data.indices(step)

    def tensors(self) -> dict[str, Tensor]:
        """Everything a checkpoint needs to continue from here."""
        velocities = {
            f"velocity.{name}": self.optimizer.velocity(p)
            for name, p in self.method.named_parameters()
            if p.requires_grad
        }
        weights = {f"method.{name}": value for name, value in self.method.state_dict().items()}
        return weights | velocities | ({} if self.probe is None else self.probe.tensors())

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Continue from the tensors of a checkpoint, after its weights were loaded into the method."""
        with torch.no_grad():
            for name, p in self.method.named_parameters():
                if p.requires_grad:
                    self.optimizer.velocity(p).copy_(tensors[f"velocity.{name}"])
        if self.probe is not None:
            self.probe.load(tensors)

    def finite(self) -> Tensor:
        """Whether all trained weights are finite; on the device."""
        return torch.stack([p.isfinite().all() for p in self.method.parameters() if p.requires_grad]).all()

    def _backward(self, rows: Tensor) -> Output:
        """Add the gradients of a micro-batch, at its share of the batch; detaches its loss."""
        output = self.module(self.views(*self.data.gather(rows)))
        self.fabric.backward(output.loss / self.recipe.accumulation_steps)
        return output._replace(loss=output.loss.detach())

    def _unsynchronised(self) -> AbstractContextManager:
        """Processes average their gradients once, with those of the last micro-batch."""
        return nullcontext() if self.fabric.world_size == 1 else self.fabric.no_backward_sync(self.module)

    def _learn(self, output: Output, indices: Tensor) -> None:
        if self.probe is not None:
            self.probe.learn(output, indices)


class CompiledStep(Step):
    """Compiles views and method: for several GPUs, or where a step cannot be captured."""

    def setup(self) -> None:
        allow_variants()
        compiled = torch.compile(self.views.__call__, dynamic=False, backend=BACKEND)
        self.views = compiled  # type: ignore[assignment]
        self.method.compile(dynamic=False, backend=BACKEND)  # in place: names of weights stay
        super().setup()


class CapturedStep(Step):
    """Replays the step as one CUDA graph: for one GPU."""

    def setup(self) -> None:
        from simplicia.engine.step_graph import StepGraph

        self.graph = StepGraph(self.method, self.data, self.views, self.optimizer, self.probe)

    def __call__(self, step: int) -> Output:
        indices = self.prepare(step)
        self.graph.load_batch(step, indices)
        if self.graph.outdated:
            self.graph.record()
            self.prepare(step)  # recording drew random numbers: seed again
        return self.graph.replay()

    def tensors(self) -> dict[str, Tensor]:
        merged = {f"method.{name}": weight for name, weight in self.graph.merged_weights().items()}
        return super().tensors() | merged

    def load(self, tensors: dict[str, Tensor]) -> None:
        super().load(tensors)
        self.graph.refresh()

    def finite(self) -> Tensor:
        return self.graph.finite()


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
    kinds = {"eager": Step, "compiled": CompiledStep, "captured": CapturedStep}
    return kinds[engine](recipe, method, data, views, fabric, probe)


def _obstacle(recipe: Recipe, method: Method, fabric: Any) -> str | None:
    """Why a step cannot be captured; None if it can."""
    if fabric.world_size > 1:
        return "there are several processes"
    if recipe.optim.clip:
        return "gradients are clipped"
    if recipe.accumulation_steps > 1:
        return f"a batch is {recipe.accumulation_steps} micro-batches"
    if importlib.util.find_spec("simplicia.engine") is None:
        return "simplicia.engine is not installed"
    from simplicia import engine

    reason = engine.obstacle(method, fabric.device)
    if reason is None and recipe.precision != "bf16":
        return f"the precision is {recipe.precision}, not bf16"
    return reason
