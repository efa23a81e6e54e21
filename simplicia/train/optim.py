"""Optimisers whose every changing quantity is a tensor, and the learning-rate schedule.

Nothing in a step asks the host: norms, trust ratios and rates stay on the device.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from simplicia.train.recipe import OptimSettings


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


def create(method: nn.Module, settings: OptimSettings, rates: dict[str, Tensor], lr: Tensor) -> LARS:
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
    ramp = (
        warmup - 1 if settings.lr_per_epoch else warmup
    )  # whole epochs: the last one of the warm-up has the peak
    if epoch < ramp:
        return start + (peak - start) * epoch / ramp
    if epoch < warmup:
        return peak
    return floor + (peak - floor) * (1 + math.cos(math.pi * (epoch - warmup) / (epochs - warmup))) / 2
