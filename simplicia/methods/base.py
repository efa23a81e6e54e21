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
    blocks: int  # how many diagonal blocks the projector's first layer gets
    penalty: float | Tensor  # of the last batch; its mean over the views is added to the method's loss

    def __call__(self, h: Tensor, temperature: Temperature | None = None) -> Tensor: ...


class Output(NamedTuple):
    """What a method returns for a batch: the loss, and per view what a monitor or a probe looks at."""

    loss: Tensor
    features: tuple[Tensor, ...]  # the encoder's output, detached
    embeddings: tuple[Tensor, ...]  # the bottleneck's output, detached, less ``missing``
    missing: float = 0.0  # 1/V where a fast network hands out its simplices as the projector gets them


class Branch(NamedTuple):
    """One view's way through a network."""

    features: Tensor
    embedding: Tensor
    projection: Tensor
    penalty: float | Tensor = 0.0  # the bottleneck's


class Network(nn.Module):
    """encoder -> bottleneck -> projector.

    The projector is handed p - 1/V of a simplex. Where BatchNorm follows its first layer that is the same;
    elsewhere a constant that its bias can absorb is missing, which as a part of the input would learn like a
    bias at many times the rate. In 16 bits a near-uniform p would be left with a dozen levels.
    """

    encoded: Tensor | None = None  # the encoder's output, where a step computed it beforehand
    missing = 0.0  # what the embeddings of its branches lack

    def __init__(self, encoder: nn.Module, bottleneck: Bottleneck, projector: nn.Module):
        super().__init__()
        self.encoder, self.bottleneck, self.projector = encoder, bottleneck, projector
        self.offset = 1 / bottleneck.vertices if isinstance(bottleneck, SimplicialEmbedding) else 0.0

    def forward(self, images: Tensor, temperature: Temperature | None = None) -> Branch:
        features = self.features(images)
        embedding = self.bottleneck(features, temperature)
        centred = embedding - self.offset if self.offset else embedding
        return Branch(features, embedding, self.projector(centred), self.bottleneck.penalty)

    def features(self, images: Tensor) -> Tensor:
        """The encoder's output."""
        return self.encoder(images) if self.encoded is None else self.encoded


class Method(nn.Module):
    """A self-supervised method: ``method([view1, view2]).loss``.

    Without a target network, view 1 uses the bottleneck's temperature and view 2 the second one (tau').
    BatchNorm sees one view at a time.
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
        self.joint = False  # both views in one batch, for modules whose BatchNorm tells them apart

    def forward(self, views: list[Tensor]) -> Output:
        if len(views) != 2:
            raise ValueError(f"{type(self).__name__} was given {len(views)} views; it takes 2")
        branches = self.branches(views)
        penalty = sum(branch.penalty for branch in branches) / len(branches)
        loss = self.loss(views, branches) + penalty
        features = tuple(branch.features.detach() for branch in branches)
        embeddings = tuple(branch.embedding.detach() for branch in branches)
        return Output(loss, features, embeddings, self.online.missing)

    def branches(self, views: list[Tensor]) -> list[Branch]:
        """Each view through the online network, at its own temperature."""
        return self.through(self.online, views, None, self.second_temperature)

    def through(self, module: nn.Module, inputs: list[Tensor], *temperatures: Temperature | None) -> list:
        """A module's output for each view: one after the other, or, if ``joint``, in one batch."""
        if not self.joint:
            if not temperatures:
                return [module(x) for x in inputs]
            return [module(x, t) for x, t in zip(inputs, temperatures, strict=True)]
        arguments = (self._each_its_own(len(inputs[0]), temperatures),) if temperatures else ()
        output = module(torch.cat(inputs), *arguments)
        if isinstance(output, Branch):
            parts = zip(*(part.chunk(len(inputs)) for part in output[:3]), strict=True)
            return [Branch(*part)._replace(penalty=output.penalty) for part in parts]
        return list(output.chunk(len(inputs)))

    def _each_its_own(self, n: int, temperatures: tuple[Temperature | None, ...]) -> Temperature | None:
        """Temperatures of views as one tensor for a joint batch; None if all are the bottleneck's own."""
        if len(set(temperatures)) == 1:
            return temperatures[0]
        own = getattr(self.online.bottleneck, "temperature", 1.0)
        device = next(self.parameters()).device
        columns = [torch.ones(n, 1, 1, device=device) * (own if t is None else t) for t in temperatures]
        return torch.cat(columns)

    def chance(self, images: int) -> float | None:
        """The loss of guessing, ln K, where the objective is a K-way guess, for a batch of so many images."""
        return None

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

    def after_part(self) -> None:
        """Take a batch up into queues and centres, once its gradients are there, if no step follows yet."""

    def after_step(self) -> None:
        """Update averages and queues, after the optimiser's step."""
        self.after_part()


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
        self.follow = True  # False where the optimiser's own pass moves the target
        self.register_buffer("momentum", torch.tensor(momentum), persistent=False)

    def branches(self, views: list[Tensor]) -> list[Branch]:
        return self.through(self.online, views, None, None)

    @torch.no_grad()
    def targets(self, views: list[Tensor]) -> list[Tensor]:
        """The target network's projections."""
        branches = self.through(self.target, views, self.second_temperature, self.second_temperature)
        return [branch.projection for branch in branches]

    def schedule(self, step: int, total_steps: int, epoch: int) -> None:
        base, final = self.momenta
        self.momentum.fill_(final - (final - base) * (math.cos(math.pi * step / total_steps) + 1) / 2)

    @torch.no_grad()
    def after_step(self) -> None:
        super().after_step()
        if not self.follow:
            return
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
