"""What the methods share: the online network, the EMA target, the ring queue, and their schedules."""

import copy
import math
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simplicia.distributed import gather
from simplicia.sem import Temperature


class Bottleneck(Protocol):
    """What a method asks of the module between encoder and projector."""

    out_features: int
    blocks: int  # how many diagonal blocks the projector's first layer gets
    penalty: float | Tensor  # added to the method's loss

    def __call__(self, h: Tensor, temperature: Temperature | None = None) -> Tensor: ...


class Output(NamedTuple):
    """What a method returns for a batch: the loss, and per view what a monitor or a probe looks at."""

    loss: Tensor
    features: tuple[Tensor, ...]  # the encoder's output, detached
    embeddings: tuple[Tensor, ...]  # the bottleneck's output, detached


class Branch(NamedTuple):
    """One view's way through a network."""

    features: Tensor
    embedding: Tensor
    projection: Tensor


class Network(nn.Module):
    """encoder -> bottleneck -> projector."""

    def __init__(self, encoder: nn.Module, bottleneck: Bottleneck, projector: nn.Module):
        super().__init__()
        self.encoder, self.bottleneck, self.projector = encoder, bottleneck, projector

    def forward(self, images: Tensor, temperature: Temperature | None = None) -> Branch:
        features = self.encoder(images)
        embedding = self.bottleneck(features, temperature)
        return Branch(features, embedding, self.projector(embedding))


class Method(nn.Module):
    """A self-supervised method: ``method([view1, view2]).loss``.

    Without a target network, view 1 uses the bottleneck's temperature and view 2 the second one (tau').
    BatchNorm sees one view at a time.
    """

    chance: float | None = None  # the loss of guessing, ln K, where the objective is a K-way guess

    def __init__(
        self,
        encoder: nn.Module,
        bottleneck: Bottleneck,
        projector: nn.Module,
        second_temperature: Temperature | None = None,
    ):
        super().__init__()
        self.online = Network(encoder, bottleneck, projector)
        self.second_temperature = second_temperature

    def forward(self, views: list[Tensor]) -> Output:
        if len(views) != 2:
            raise ValueError(f"{type(self).__name__} was given {len(views)} views; it takes 2")
        branches = self.branches(views)
        loss = self.loss(views, branches) + self.online.bottleneck.penalty
        features, embeddings = (
            tuple(x.detach() for x in part) for part in list(zip(*branches, strict=True))[:2]
        )
        return Output(loss, features, embeddings)

    def branches(self, views: list[Tensor]) -> list[Branch]:
        """Each view through the online network, at its own temperature."""
        return [self.online(views[0]), self.online(views[1], self.second_temperature)]

    def loss(self, views: list[Tensor], branches: list[Branch]) -> Tensor:
        """The method's objective, from the branches of the online network."""
        raise NotImplementedError

    def schedule(self, step: int, total_steps: int, epoch: int) -> None:
        """Set, before each step, what changes during training. All of it is in tensors except ``phase``."""

    @property
    def phase(self) -> int:
        """Changes when the step's computation does, so that a captured step must be captured anew."""
        return 0

    def rates(self) -> dict[str, Tensor]:
        """A 0/1 multiplier for the updates of the parameters under a name: what is frozen at first."""
        return {}

    def after_step(self) -> None:
        """Update averages and queues, after the optimiser's step."""


class TargetMethod(Method):
    """A method with a target network, the moving average of the online one.

    The target starts as a copy, averages parameters only (its BatchNorms live on their own batches), and uses
    the second temperature. Its momentum is a tensor that follows a cosine from first to final.
    """

    momentum: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        bottleneck: Bottleneck,
        projector: nn.Module,
        second_temperature: Temperature | None,
        momentum: float,
        final_momentum: float,
    ):
        super().__init__(encoder, bottleneck, projector, second_temperature)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.momenta = momentum, final_momentum
        self.register_buffer("momentum", torch.tensor(momentum), persistent=False)

    def branches(self, views: list[Tensor]) -> list[Branch]:
        return [self.online(view) for view in views]

    @torch.no_grad()
    def targets(self, views: list[Tensor]) -> list[Tensor]:
        """The target network's projections."""
        return [self.target(view, self.second_temperature).projection for view in views]

    def schedule(self, step: int, total_steps: int, epoch: int) -> None:
        base, final = self.momenta
        self.momentum.fill_(final - (final - base) * (math.cos(math.pi * step / total_steps) + 1) / 2)

    @torch.no_grad()
    def after_step(self) -> None:
        rate = 1 - self.momentum
        for target, online in zip(self.target.parameters(), self.online.parameters(), strict=True):
            target.lerp_(online, rate.to(target.dtype))


class Queue(nn.Module):
    """The last ``size`` vectors of each view, (2, size, features), in a ring."""

    vectors: Tensor
    pointer: Tensor

    def __init__(self, size: int, features: int):
        super().__init__()
        self.register_buffer("vectors", F.normalize(torch.randn(2, size, features), dim=-1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def push(self, vectors: Tensor) -> None:
        """Put (2, N, features) of every process in place of the oldest."""
        size = self.vectors.shape[1]
        vectors = gather(vectors.transpose(0, 1)).transpose(0, 1)[:, -size:]
        places = (self.pointer + torch.arange(vectors.shape[1], device=vectors.device)) % size
        self.vectors.index_copy_(1, places, vectors.to(self.vectors.dtype))
        self.pointer.copy_((self.pointer + vectors.shape[1]) % size)
