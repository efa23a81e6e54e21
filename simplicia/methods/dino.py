"""DINO (Caron et al., https://arxiv.org/abs/2104.14294)."""

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simplicia import losses
from simplicia.distributed import average
from simplicia.layers import Prototypes, mlp
from simplicia.methods.base import Bottleneck, Branch, TargetMethod, register
from simplicia.sem import Temperature
from simplicia.settings import Range


@register("dino")
class DINO(TargetMethod):
    """The student must predict the centred and sharpened output of its own moving average."""

    center: Tensor
    teacher_temperature: Tensor
    prototype_rate: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        bottleneck: Bottleneck,
        second_temperature: Temperature | None = None,
        hidden: Annotated[int, "width of the projector's hidden layers", Range(low=1)] = 2048,
        out: Annotated[int, "width of the projector's output", Range(low=1)] = 256,
        prototypes: Annotated[int, "number of prototypes", Range(low=1)] = 4096,
        student_temperature: Annotated[float, "student's temperature", Range(above=0)] = 0.1,
        teacher_temperature: Annotated[float, "teacher's temperature at first", Range(above=0)] = 0.04,
        final_teacher_temperature: Annotated[
            float, "teacher's temperature at the end", Range(above=0)
        ] = 0.07,
        warmup_epochs: Annotated[int, "epochs over which the teacher's temperature rises", Range(low=0)] = 50,
        center_momentum: Annotated[float, "momentum of the teacher's centre", Range(0, 1)] = 0.9,
        frozen_epochs: Annotated[int, "epochs before the prototypes start to learn", Range(low=0)] = 1,
        momentum: Annotated[float, "target's EMA momentum at first", Range(0, 1)] = 0.9995,
        final_momentum: Annotated[float, "target's EMA momentum at the end", Range(0, 1)] = 1.0,
    ):
        width, blocks = bottleneck.out_features, bottleneck.blocks
        trunk = mlp(width, hidden, out, layers=3, norm=False, activation=nn.GELU, blocks=blocks)
        for p in trunk.parameters():  # larger biases would dominate the differences between samples
            nn.init.zeros_(p) if p.ndim == 1 else nn.init.trunc_normal_(p, std=0.02)
        projector = nn.Sequential(trunk, _Normalize(), Prototypes(out, prototypes))
        super().__init__(encoder, bottleneck, projector, second_temperature, momentum, final_momentum)
        self.student_temperature, self.center_momentum = student_temperature, center_momentum
        self.teacher_temperatures = teacher_temperature, final_teacher_temperature
        self.warmup_epochs, self.frozen_epochs = warmup_epochs, frozen_epochs
        self.batch_center: Tensor | None = None
        self.register_buffer("center", torch.zeros(prototypes))
        self.register_buffer("teacher_temperature", torch.tensor(teacher_temperature), persistent=False)
        self.register_buffer("prototype_rate", torch.ones(()), persistent=False)

    def chance(self, images: int) -> float:
        return math.log(len(self.center))

    def loss(self, views: list[Tensor], branches: list[Branch]) -> Tensor:
        teacher = [losses.widen(x) for x in self.targets(views)]
        self.batch_center = average(torch.cat(teacher).mean(0))
        students = (branch.projection for branch in branches)
        temperatures = self.student_temperature, self.teacher_temperature
        return losses.dino(*students, *teacher, self.center, *temperatures)

    def schedule(self, step: int, total_steps: int, epoch: int) -> None:
        super().schedule(step, total_steps, epoch)
        start, end = self.teacher_temperatures
        share = 1.0 if epoch >= self.warmup_epochs else epoch / max(1, self.warmup_epochs - 1)
        self.teacher_temperature.fill_(start + (end - start) * share)
        self.prototype_rate.fill_(float(epoch >= self.frozen_epochs))

    def rates(self) -> dict[str, Tensor]:
        return {"online.projector.2": self.prototype_rate}

    @torch.no_grad()
    def after_micro_batch(self) -> None:
        if self.batch_center is not None:
            self.center.lerp_(self.batch_center.to(self.center.dtype), 1 - self.center_momentum)
            self.batch_center = None


class _Normalize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)
