"""What the methods share: the online network, the EMA target, the ring queue, and their schedules."""

import copy
import math
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simplicia.distributed import gather
from simplicia.sem import SimplicialEmbedding, Temperature


class Bottleneck(Protocol):
    """What a method asks of the module between encoder and projector."""

    out_features: int
    blocks: int  # diagonal blocks of the projector's first layer
    penalty: float | Tensor  # of the last batch; a method adds its mean over the views to the loss

    def __call__(self, h: Tensor, temperature: Temperature | None = None) -> Tensor: ...


class Output(NamedTuple):
    """A method's output for a batch: the loss, and what monitors and probes read of each view."""

    loss: Tensor
    features: tuple[Tensor, ...]  # the encoder's output, detached
    embeddings: tuple[Tensor, ...]  # the projector's input, detached: p - offset of simplices p


class Branch(NamedTuple):
    """A network's outputs for one view."""

    features: Tensor
    embedding: Tensor  # the projector's input
    projection: Tensor
    penalty: float | Tensor = 0.0  # of the bottleneck


class Network(nn.Module):
    """encoder -> bottleneck -> projector.

    The projector's input is p - offset, with offset = 1/V for simplices. If BatchNorm follows the projector's
    first layer, this changes nothing. Elsewhere it removes a constant that the layer's bias can represent,
    and that would learn like a bias at many times the rate. In 16 bits a near-uniform p has a dozen levels;
    p - 1/V keeps its precision.
    """

    def __init__(self, encoder: nn.Module, bottleneck: Bottleneck, projector: nn.Module):
        super().__init__()
        self.encoder, self.bottleneck, self.projector = encoder, bottleneck, projector
        self.offset = 1 / bottleneck.vertices if isinstance(bottleneck, SimplicialEmbedding) else 0.0

    def forward(self, images: Tensor, temperature: Temperature | None = None) -> Branch:
        features = self.encoder(images)
        embedding = self.embed(features, temperature)
        return Branch(features, embedding, self.projector(embedding), self.bottleneck.penalty)

    def embed(self, features: Tensor, temperature: Temperature | None = None) -> Tensor:
        """The projector's input."""
        embedding = self.bottleneck(features, temperature)
        return embedding - self.offset if self.offset else embedding


def apply_per_view(module: nn.Module, inputs: list[Tensor], *temperatures: Temperature | None) -> list:
    """The module's output for each view, so that BatchNorm sees one view at a time.

    A module with ``apply_jointly`` takes all views in one batch and separates them in its BatchNorm.
    """
    jointly = getattr(module, "apply_jointly", None)
    if jointly is not None:
        return jointly(inputs, *temperatures)
    if not temperatures:
        return [module(x) for x in inputs]
    return [module(x, temperature) for x, temperature in zip(inputs, temperatures, strict=True)]


class Method(nn.Module):
    """A self-supervised method: ``method([view1, view2]).loss``.

    Without a target network, view 1 uses the bottleneck's temperature and view 2 the second one (tau').
    """

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
        penalty = sum(branch.penalty for branch in branches) / len(branches)
        loss = self.loss(views, branches) + penalty
        features = tuple(branch.features.detach() for branch in branches)
        embeddings = tuple(branch.embedding.detach() for branch in branches)
        return Output(loss, features, embeddings)

    def branches(self, views: list[Tensor]) -> list[Branch]:
        """Each view through the online network, at its own temperature."""
        return apply_per_view(self.online, views, None, self.second_temperature)

    def chance(self, images: int) -> float | None:
        """The loss of guessing, ln K, if the objective is a K-way guess on a batch of this many images."""
        return None

    def loss(self, views: list[Tensor], branches: list[Branch]) -> Tensor:
        """The method's objective, from the branches of the online network."""
        raise NotImplementedError

    def schedule(self, step: int, total_steps: int, epoch: int) -> None:
        """Set what changes during training, before each step.

        Keep numbers in tensors: a captured step reads them without asking the host. A plain attribute
        (bool, int, float or str) may change now and then; the engine then captures the step again.
        """

    def rates(self) -> dict[str, Tensor]:
        """0/1 multipliers for the updates of modules, by name: 0 freezes a module."""
        return {}

    def after_micro_batch(self) -> None:
        """Add a micro-batch to queues and centres, after its backward pass."""

    def after_step(self) -> None:
        """Update queues, centres and averages, after the optimiser's step."""
        self.after_micro_batch()


class TargetMethod(Method):
    """A method with a target network, the moving average of the online one.

    The target starts as a copy, averages parameters only (its BatchNorms see their own batches), and uses
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
        return apply_per_view(self.online, views, None, None)

    @torch.no_grad()
    def targets(self, views: list[Tensor]) -> list[Tensor]:
        """The target network's projections."""
        branches = apply_per_view(self.target, views, self.second_temperature, self.second_temperature)
        return [branch.projection for branch in branches]

    def schedule(self, step: int, total_steps: int, epoch: int) -> None:
        base, final = self.momenta
        self.momentum.fill_(final - (final - base) * (math.cos(math.pi * step / total_steps) + 1) / 2)

    def after_step(self) -> None:
        self.after_micro_batch()
        self.update_target()

    @torch.no_grad()
    def update_target(self) -> None:
        """Move the target network towards the online one."""
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
        """Replace the oldest vectors by (2, N, features) of every process."""
        size = self.vectors.shape[1]
        vectors = gather(vectors.transpose(0, 1)).transpose(0, 1)[:, -size:]
        slots = (self.pointer + torch.arange(vectors.shape[1], device=vectors.device)) % size
        self.vectors.index_copy_(1, slots, vectors.to(self.vectors.dtype))
        self.pointer.copy_((self.pointer + vectors.shape[1]) % size)
