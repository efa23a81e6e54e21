"""One training step: views, forward, backward, optimiser, averages and queues.

Everything random in a step is a function of (seed, step), whatever ran before and on how many processes.
Everything that changes in the optimiser is a tensor: norms, trust ratios and rates never wait for the host.
"""

import importlib.util
import math
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from simplicia.data.augmentation import Views
from simplicia.data.loaders import DeviceLoader, mix_seed
from simplicia.devices import allow_variants
from simplicia.distributed import send_large_gradients_in_half
from simplicia.errors import UserError, unknown
from simplicia.methods import Method, Output
from simplicia.train.monitor import OnlineProbe
from simplicia.train.recipe import OptimSettings, Recipe

ENGINES = ("auto", "eager", "compiled", "captured")
BACKEND = "inductor"  # of compiled steps


def step_times(step: "Step", steps: int, rounds: int) -> list[float]:
    """Milliseconds of a step in each of several rounds of steps."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for i in range(steps):
            output = step(i)
        output.loss.item()  # waits for the device
        times.append(1e3 * (time.perf_counter() - start) / steps)
    return times


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
        obstacle: str | None = None,  # why a GPU does not capture the step
    ):
        self.recipe, self.method, self.data, self.views, self.fabric = recipe, method, data, views, fabric
        self.total = recipe.epochs * data.batches
        self.accumulation_steps = recipe.accumulation_steps(fabric.world_size)
        self.lr = torch.zeros((), device=fabric.device)
        self.optimizer = create_optimizer(method, recipe.optim, method.rates(), self.lr)
        self.probe = probe
        self.obstacle = obstacle
        self.setup()

    def setup(self) -> None:
        self.module, self.stepper = self.fabric.setup(self.method, self.optimizer)
        if self.recipe.optim.reduce_bits == "16":
            send_large_gradients_in_half(self.module)

    def __call__(self, step: int) -> Output:
        indices = self.prepare(step)
        rows = self.data.fetch(step, indices)
        count = self.accumulation_steps
        micro_batches = list(zip(indices.chunk(count), rows.chunk(count), strict=True))
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
        torch.manual_seed(mix_seed(self.recipe.seed, step, 0))  # 0: views were once seeded by process
        settings = self.recipe.optim
        position = epoch if settings.lr_per_epoch else step / self.data.batches
        self.lr.fill_(learning_rate(settings, self.recipe.batch_size, position, self.recipe.epochs))
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
        self.fabric.backward(output.loss / self.accumulation_steps)
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

        parts = self.data, self.views, self.optimizer, self.probe
        self.graph = StepGraph(self.method, *parts, micro_batches=self.accumulation_steps)

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


def create_step(
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
    reason = None
    if engine == "auto":
        compiles = fabric.device.type == "cuda" and importlib.util.find_spec("triton") is not None
        engine = "captured" if obstacle is None else "compiled" if compiles else "eager"
        reason = obstacle if fabric.device.type == "cuda" else None
    kinds = {"eager": Step, "compiled": CompiledStep, "captured": CapturedStep}
    return kinds[engine](recipe, method, data, views, fabric, probe, reason)


def _obstacle(recipe: Recipe, method: Method, fabric: Any) -> str | None:
    """Why a step cannot be captured; None if it can."""
    if fabric.world_size > 1:
        return "there are several processes"
    if recipe.optim.clip:
        return "gradients are clipped"
    if recipe.freeze != "none":
        return "the encoder is frozen"
    if importlib.util.find_spec("simplicia.engine") is None:
        return "simplicia.engine is not installed"
    from simplicia import engine

    reason = engine.obstacle(method, fabric.device, recipe.actual_view_size)
    if reason is None and recipe.precision != "bf16":
        return f"the precision is {recipe.precision}, not bf16"
    return reason


class LARS(torch.optim.Optimizer):
    """SGD with momentum, each tensor's step scaled by a trust ratio (You et al., https://arxiv.org/abs/1708.03888).

    d = trust * (g + wd * p),  trust = min(eta * |p| / (|g| + wd * |p| + 1e-8) / lr, 1),
    v = momentum * v + rate * d,  p = p - lr * v.

    Groups may set ``weight_decay``, ``trust`` (False: plain SGD) and ``rate``, a 0/1 tensor that freezes what
    is not to move yet, its momentum included. ``lr`` is a tensor shared by all groups.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        eta: float = 0.02,
        trust: bool = True,
        dtype: torch.dtype = torch.float32,  # in which momentum is kept
    ):
        defaults = {
            "momentum": momentum,
            "weight_decay": weight_decay,
            "eta": eta,
            "trust": trust,
            "rate": None,
        }
        super().__init__(groups, defaults)
        self.lr, self.dtype = lr, dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, group)

    def _update(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        decay = group["weight_decay"]
        direction = grad.add(p, alpha=decay) if decay else grad.clone()
        if group["trust"]:
            p_norm, g_norm = p.norm(), grad.norm()
            ratio = group["eta"] * p_norm / (g_norm + decay * p_norm + 1e-8) / self.lr.clamp_min(1e-12)
            meaningful = (p_norm > 0) & (g_norm > 0)
            direction.mul_(torch.where(meaningful, ratio.clamp_max(1.0), 1.0))
        if group["rate"] is not None:
            direction.mul_(group["rate"])
        stored = self.velocity(p)
        velocity = direction.add_(stored, alpha=group["momentum"])
        stored.copy_(velocity)  # in the precision it is kept in
        p.sub_(velocity.mul_(self.lr))

    def velocity(self, p: Tensor) -> Tensor:
        """The momentum of a parameter; zero at first."""
        state = self.state[p]
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(p, dtype=self.dtype)
        return state["velocity"]


def create_optimizer(
    method: nn.Module, settings: OptimSettings, rates: dict[str, Tensor], lr: Tensor
) -> LARS:
    """The optimiser of whatever requires a gradient; nobody lists parameters by hand.

    ``rates`` maps the name of a module to the 0/1 tensor that multiplies its updates.
    """
    groups: dict[tuple[bool, bool, str | None], dict[str, Any]] = {}
    for name, p in method.named_parameters():
        if not p.requires_grad:
            continue
        excluded = settings.exclude_1d and p.ndim == 1
        frozen = next((prefix for prefix in rates if name.startswith(prefix + ".")), None)
        own = settings.embedder_weight_decay is not None and name.startswith("online.bottleneck.")
        decay = settings.embedder_weight_decay if own else settings.weight_decay
        group = groups.setdefault(
            (excluded, own, frozen),
            {
                "params": [],
                "weight_decay": 0.0 if excluded else decay,
                "trust": settings.name == "lars" and not excluded,
                "rate": None if frozen is None else rates[frozen],
            },
        )
        group["params"].append(p)
    dtype = torch.bfloat16 if settings.momentum_bits == "16" else torch.float32
    return LARS(groups.values(), lr, momentum=settings.momentum, eta=settings.eta, dtype=dtype)


def learning_rate(settings: OptimSettings, batch_size: int, epoch: float, epochs: int) -> float:
    """Linear warm-up, then cosine: the rate at an epoch (whole, or with its fraction)."""
    peak = settings.lr * batch_size / 256
    floor = min(settings.min_lr, peak)
    start = min(settings.warmup_lr, peak)
    warmup = min(settings.warmup_epochs, epochs / 2)  # a short run must get past its warm-up
    ramp = warmup - settings.lr_per_epoch  # with one rate per epoch, the last of the warm-up has the peak
    if epoch < ramp:
        return start + (peak - start) * epoch / ramp
    if epoch < warmup:
        return peak
    return floor + (peak - floor) * (1 + math.cos(math.pi * (epoch - warmup) / (epochs - warmup))) / 2
