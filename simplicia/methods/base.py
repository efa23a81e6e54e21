"""The parts that methods share: the registry, the online network, the EMA target and the ring queue."""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simplicia.bottlenecks.vq import SharedVectorQuantised
from simplicia.distributed import average, gather
from simplicia.sem import SimplicialEmbedding, Temperature, entropy
from simplicia.settings import Entry, Registry


class Bottleneck(Protocol):
    """The interface of the module between encoder and projector."""

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
    """Apply a module to each view, so that BatchNorm sees one view at a time.

    A module with ``apply_jointly`` takes all views in one batch and separates them in its BatchNorm.
    """
    jointly = getattr(module, "apply_jointly", None)
    if jointly is not None:
        return jointly(inputs, *temperatures)
    arguments = zip(inputs, temperatures, strict=True) if temperatures else zip(inputs, strict=True)
    return [module(*view) for view in arguments]


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
        self.entropy_weight = 0.0  # of ``entropy_penalty``

    def forward(self, views: list[Tensor]) -> Output:
        if len(views) != 2:
            raise ValueError(f"{type(self).__name__} was given {len(views)} views; it takes 2")
        branches = self.branches(views)
        penalty = sum(branch.penalty for branch in branches) / len(branches)
        penalty = average(penalty) if isinstance(penalty, Tensor) else penalty
        if self.entropy_weight:
            penalty = penalty + self.entropy_weight * self.entropy_penalty(branches)
        return Output(
            self.loss(views, branches) + penalty,
            tuple(branch.features.detach() for branch in branches),
            tuple(branch.embedding.detach() for branch in branches),
        )

    def entropy_penalty(self, branches: list[Branch]) -> Tensor:
        """Mean entropy of a sample's simplices minus that of the batch's mean simplices, in nats.

        Lowering it makes each sample's simplices decided, and uses all vertices: it is minus the mutual
        information of images and vertices.
        """
        vertices = self.online.bottleneck.vertices  # type: ignore[attr-defined]
        terms = []
        for branch in branches:
            p = branch.embedding.float() + self.online.offset
            each, shared = average(entropy(p, vertices).mean()), average(p.mean(0))
            terms.append(each - entropy(shared, vertices).mean())
        return torch.stack(terms).mean()

    def branches(self, views: list[Tensor]) -> list[Branch]:
        """Apply the online network to each view, at its own temperature."""
        return apply_per_view(self.online, views, None, self.second_temperature)

    def loss(self, views: list[Tensor], branches: list[Branch]) -> Tensor:
        """Compute the method's objective from the branches of the online network."""
        raise NotImplementedError

    def chance(self, images: int) -> float | None:
        """Return the loss of guessing, ln K, if the objective is a K-way guess on a batch of ``images``."""
        return None

    def schedule(self, step: int, total_steps: int, epoch: int) -> None:
        """Set what changes during training, before each step.

        Keep numbers in tensors: a captured step reads them without asking the host. A plain attribute
        (bool, int, float or str) may change now and then; the engine then captures the step again.
        """

    def rates(self) -> dict[str, Tensor]:
        """Return 0/1 multipliers for the updates of modules, by name: 0 freezes a module."""
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
        """Return the target network's projections."""
        own, followed = self.target.bottleneck, self.online.bottleneck
        if isinstance(own, SharedVectorQuantised) and isinstance(followed, SharedVectorQuantised):
            own.codebook.copy_(followed.codebook)  # both networks use one codebook
        temperatures = [self.second_temperature] * len(views)
        return [branch.projection for branch in apply_per_view(self.target, views, *temperatures)]

    def schedule(self, step: int, total_steps: int, epoch: int) -> None:
        base, final = self.momenta
        self.momentum.fill_(final - (final - base) * (math.cos(math.pi * step / total_steps) + 1) / 2)

    @torch.no_grad()
    def after_step(self) -> None:
        self.after_micro_batch()
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


_METHODS: Registry[Method] = Registry("method", arguments=3)  # encoder, bottleneck, second_temperature
_RECOMMENDED: dict[str, dict[str, Any]] = {}

names = _METHODS.names
options = _METHODS.options  # the defaults are the paper's
converted = _METHODS.converted


def register(name: str, recipe: Mapping[str, Any] | None = None) -> Callable[[Entry], Entry]:
    """Register a method, with the recipe settings it recommends, such as ``{"optim.lr": 0.5}``.

    >>> @register("mine", recipe={"optim.lr": 0.5})
    ... class Mine(Method):
    ...     def loss(self, views, branches):
    ...         return (branches[0].projection - branches[1].projection).square().mean()
    >>> recommended("mine")
    {'optim.lr': 0.5}
    >>> del _METHODS._classes["mine"], _RECOMMENDED["mine"]
    """
    _RECOMMENDED[name] = dict(recipe or {})
    return _METHODS.register(name)


def recommended(name: str) -> dict[str, Any]:
    """Return the recipe settings that a method recommends; empty for most.

    >>> recommended("byol")
    {}
    """
    _METHODS.get(name)
    return _RECOMMENDED[name]


def create(
    name: str,
    encoder: nn.Module,
    bottleneck: Bottleneck,
    second_temperature: Temperature | None = None,
    entropy_weight: float = 0.0,
    centred: bool = True,
    **options: Any,
) -> Method:
    """Build a method. ``second_temperature`` is the paper's tau' (None: the bottleneck's temperature).

    ``entropy_weight`` is that of ``Method.entropy_penalty`` in the loss. With ``centred=False`` projectors
    see the simplices p as in the paper, not p - 1/V.

    >>> encoder = simplicia.encoders.create("tiny")
    >>> sem = simplicia.bottlenecks.create("sem", encoder.out_features, simplices=8)
    >>> method = create("byol", encoder, sem, hidden=16, out=8)
    >>> method([torch.randn(4, 3, 16, 16), torch.randn(4, 3, 16, 16)]).loss.shape
    torch.Size([])
    """
    method = _METHODS.create(name, encoder, bottleneck, second_temperature, **options)
    method.entropy_weight = entropy_weight
    for network in [] if centred else method.modules():
        if isinstance(network, Network):
            network.offset = 0.0
    return method
