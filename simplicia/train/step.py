"""One training step: views, forward, backward, optimiser, averages and queues.

Everything random in it is a function of (seed, step, process), whatever ran before.
"""

from typing import Any

import torch
from torch import Tensor

from simplicia.data.resident import Resident, mix
from simplicia.data.views import Views
from simplicia.methods import Method, Output
from simplicia.train import optim
from simplicia.train.online import OnlineProbe
from simplicia.train.recipe import Recipe


class Step:
    """The eager step, the reference for faster ones."""

    def __init__(self, recipe: Recipe, method: Method, data: Resident, views: Views, fabric: Any):
        self.recipe, self.method, self.data, self.views, self.fabric = recipe, method, data, views, fabric
        self.total = recipe.epochs * data.batches
        self.lr = torch.zeros((), device=fabric.device)
        self.optimizer = optim.create(method, recipe.optim, method.rates(), self.lr)
        self.module, self.stepper = fabric.setup(method, self.optimizer)
        self.probe: OnlineProbe | None = None

    def __call__(self, step: int) -> Output:
        epoch = step // self.data.batches
        torch.manual_seed(mix(self.recipe.seed, step, self.data.rank))
        settings = self.recipe.optim
        position = epoch if settings.per_epoch else step / self.data.batches
        self.lr.fill_(optim.learning_rate(settings, self.recipe.batch_size, position, self.recipe.epochs))
        self.method.schedule(step, self.total, epoch)

        indices = self.data.indices(step)
        output = self.module(self.views(self.data.images[indices]))
        self.fabric.backward(output.loss)
        if settings.clip:
            self.fabric.clip_gradients(self.module, self.stepper, max_norm=settings.clip)
        self.stepper.step()
        self.stepper.zero_grad()
        self.method.after_step()
        if self.probe is not None:
            self.probe.learn(output, indices)
        return output

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint must hold to go on from here."""
        velocities = {
            f"velocity.{name}": self._velocity(p)
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
                    self._velocity(p).copy_(tensors[f"velocity.{name}"])
        if self.probe is not None:
            self.probe.load(tensors)

    def _velocity(self, p: Tensor) -> Tensor:
        state = self.optimizer.state[p]
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(p)
        return state["velocity"]
