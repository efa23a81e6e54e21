"""DINO (Caron et al., https://arxiv.org/abs/2104.14294)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simplicia import losses
from simplicia.distributed import average
from simplicia.layers import Prototypes, mlp
from simplicia.methods.base import Bottleneck, Branch, TargetMethod
from simplicia.sem import Temperature


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
        hidden: int = 2048,  # width of the projector's hidden layers
        out: int = 256,  # width of the projector's output
        prototypes: int = 4096,  # how many
        student_temperature: float = 0.1,  # of the student's guesses
        teacher_temperature: float = 0.04,  # of the teacher's, at first
        final_teacher_temperature: float = 0.07,  # of the teacher's, after the warm-up
        warmup_epochs: int = 50,  # of the teacher's temperature
        center_momentum: float = 0.9,  # of the teacher's mean, which is taken off
        frozen_epochs: int = 1,  # during which the prototypes stay as they are
        momentum: float = 0.9995,  # of the target's moving average, at first
        final_momentum: float = 1.0,  # of the target's moving average, at the end
    ):
        width, blocks = bottleneck.out_features, bottleneck.blocks
        trunk = mlp(width, hidden, out, layers=3, norm=False, activation=nn.GELU, blocks=blocks)
        for p in trunk.parameters():  # a bias would outweigh what tells samples apart
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
        teacher = [x.float() for x in self.targets(views)]
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
    def after_part(self) -> None:
        if self.batch_center is not None:
            self.center.lerp_(self.batch_center.to(self.center.dtype), 1 - self.center_momentum)
            self.batch_center = None


class _Normalize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)
