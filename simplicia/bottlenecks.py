"""Bottlenecks between encoder and projector, all with one interface: SEM and what it is compared with.

``bottleneck(h, temperature=None) -> z`` with ``.out_features``, ``.blocks`` (how many diagonal blocks the
projector's first layer should have) and ``.penalty`` (of the last batch; methods add its mean over views).
"""

import inspect
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from simplicia.distributed import agreed, average, gather
from simplicia.errors import unknown
from simplicia.sem import Embedder, SimplicialEmbedding, Temperature, simplicial


class NoBottleneck(nn.Module):
    """The baseline: the encoder's output as it is."""

    penalty = 0.0
    blocks = 1

    def __init__(self, in_features: int):
        super().__init__()
        self.out_features = in_features

    def forward(self, h: Tensor, temperature: Temperature | None = None) -> Tensor:
        return h


class GumbelEmbedding(Embedder):
    """One-hot simplices: sampled while training, the argmax in evaluation.

    The forward pass is the one-hot argmax of logits + Gumbel noise; the gradient is that of their softmax at
    the temperature (straight-through Gumbel-softmax, Jang et al., https://arxiv.org/abs/1611.01144).
    """

    def __init__(
        self,
        in_features: int,
        simplices: int = 5000,  # L
        vertices: int = 13,  # V
        temperature: Temperature = 2.0,
        norm: Literal["batch", "layer"] | None = "batch",
        embedder: Literal["linear", "identity", "mlp"] = "linear",
        blocks: int = 1,
    ):
        super().__init__(in_features, simplices, vertices, temperature, norm, embedder, blocks)
        _check_gumbel(temperature)

    def forward(self, h: Tensor, temperature: Temperature | None = None) -> Tensor:
        logits = self.logits(h)
        if not self.training:
            return simplicial(logits, self.vertices, 0.0)
        temperature = self.temperature if temperature is None else temperature
        _check_gumbel(temperature)
        wide = logits.float()  # sixteen bits would make ties of the noise
        waiting = torch.empty_like(wide).exponential_().clamp_min(torch.finfo(wide.dtype).tiny)
        noisy = wide - waiting.log()
        soft = simplicial(noisy, self.vertices, temperature)
        hard = simplicial(noisy.detach(), self.vertices, 0.0)
        # soft - soft is exactly zero: the value is the one-hot vector, the gradient that of the soft sample
        return (hard + (soft - soft.detach())).to(logits.dtype)


class VectorQuantised(nn.Module):
    """Each of L embedded vectors becomes the nearest of its own V codes (https://arxiv.org/abs/1711.00937).

    The gradient passes straight through; ``penalty`` is the commitment loss, which keeps the embedder near
    its codes. Codes are moving averages of what they stand for. One that is hardly chosen is put in the place
    of a random sample, which is also how the first batch initialises them. No step asks the host.
    """

    codebook: Tensor
    counts: Tensor

    def __init__(
        self,
        in_features: int,
        simplices: int = 512,  # L, the codebooks
        vertices: int = 128,  # V, the codes of each
        dimensions: int = 32,  # of each code
        norm: Literal["batch", "layer"] | None = "batch",
        embedder: Literal["linear", "identity", "mlp"] = "linear",
        blocks: int = 1,
        commitment: float = 0.25,  # weight of the commitment loss
        decay: float = 0.99,  # of the moving averages
        revive: float = 0.1,  # share of the average use below which a code is replaced
    ):
        super().__init__()
        if vertices < 1:
            raise ValueError(f"vertices is {vertices}; it must be at least 1")
        self.embed = Embedder(in_features, simplices, dimensions, norm=norm, embedder=embedder, blocks=blocks)
        self.simplices, self.vertices, self.dimensions = simplices, vertices, dimensions
        self.out_features, self.blocks = self.embed.out_features, blocks
        self.commitment, self.decay, self.revive = commitment, decay, revive
        self.views = 1  # how many views a batch holds one after the other, each followed on its own
        self.penalty: float | Tensor = 0.0
        self.register_buffer("codebook", torch.randn(simplices, vertices, dimensions))
        self.register_buffer("counts", torch.zeros(simplices, vertices))  # zero: nothing was seen yet

    def forward(self, h: Tensor, temperature: Temperature | None = None) -> Tensor:
        z = self._split(h)
        parts = z.detach().chunk(self.views, dim=1) if self.training else [z.detach()]
        quantised = torch.cat([self._quantise(part) for part in parts], dim=1)
        self.penalty = self.commitment * (z - quantised).square().mean()
        return self._join(quantised + (z - z.detach()), h)

    def logits(self, h: Tensor) -> Tensor:
        """Minus the squared distance to each code, up to a constant: (..., in) -> (..., L*V)."""
        return self._join(self._scores(self._split(h)), h)

    def codes(self, h: Tensor) -> Tensor:
        """The index of the nearest code of each codebook: (..., in_features) -> (..., simplices)."""
        return self._scores(self._split(h)).argmax(-1).T.reshape(*h.shape[:-1], self.simplices)

    def _split(self, h: Tensor) -> Tensor:
        """The embedded vectors by codebook, (L, N, dimensions)."""
        return self.embed(h).float().reshape(-1, self.simplices, self.dimensions).transpose(0, 1)

    def _join(self, parts: Tensor, h: Tensor) -> Tensor:
        return parts.transpose(0, 1).reshape(*h.shape[:-1], self.simplices * parts.shape[-1])

    def _scores(self, z: Tensor) -> Tensor:
        with torch.autocast("cuda" if z.is_cuda else "cpu", enabled=False):
            products = torch.bmm(z, self.codebook.transpose(1, 2))
            return 2 * products - self.codebook.square().sum(-1)[:, None]

    @torch.no_grad()
    def _quantise(self, z: Tensor) -> Tensor:
        """The nearest codes of one view, which then move towards it."""
        if self.training:
            self._revive(z)
        codes = self._scores(z).argmax(-1)
        quantised = self._take(self.codebook, codes)
        if self.training:
            self._follow(z, codes)
        return quantised

    def _revive(self, z: Tensor) -> None:
        fair = z.shape[1] / self.vertices
        dead = self.counts < self.revive * fair
        everyone = gather(z.transpose(0, 1)).transpose(0, 1)  # processes share their codebooks
        picks = agreed(torch.randint(everyone.shape[1], self.counts.shape, device=z.device))
        self.codebook.copy_(torch.where(dead[..., None], self._take(everyone, picks), self.codebook))
        self.counts.copy_(torch.where(dead, fair, self.counts))

    def _follow(self, z: Tensor, codes: Tensor) -> None:
        """Codes are (moving average of the sums) / (moving average of the counts) of what chose them."""
        chosen = (codes[..., None] == torch.arange(self.vertices, device=z.device)).to(z.dtype)
        with torch.autocast("cuda" if z.is_cuda else "cpu", enabled=False):
            sums = average(torch.bmm(chosen.transpose(1, 2), z))
        counts = average(chosen.sum(1))
        self.counts.lerp_(counts, 1 - self.decay)
        pull = sums - counts[..., None] * self.codebook
        some = self.counts[..., None].clamp_min(torch.finfo(z.dtype).tiny)  # a code that none chose stays
        self.codebook.addcdiv_(pull, some, value=1 - self.decay)

    @staticmethod
    def _take(table: Tensor, places: Tensor) -> Tensor:
        return table.gather(1, places[..., None].expand(-1, -1, table.shape[-1]))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "penalty": 0.0}  # a batch's penalty, with its graph, is not to be copied

    def extra_repr(self) -> str:
        return f"simplices={self.simplices}, vertices={self.vertices}, dimensions={self.dimensions}"


_BOTTLENECKS: dict[str, Callable[..., nn.Module]] = {
    "embed": Embedder,
    "gumbel": GumbelEmbedding,
    "none": NoBottleneck,
    "sem": SimplicialEmbedding,
    "vq": VectorQuantised,
}


def names() -> list[str]:
    """The bottlenecks there are."""
    return sorted(_BOTTLENECKS)


def options(name: str) -> list[str]:
    """The names of a bottleneck's options."""
    if name not in _BOTTLENECKS:
        raise unknown("bottleneck", name, names())
    return list(inspect.signature(_BOTTLENECKS[name]).parameters)[1:]


def create(name: str, in_features: int, **settings) -> nn.Module:
    """A bottleneck by name: "sem", "embed", "gumbel" and "vq" with their options, "none" without any."""
    known = options(name)
    for setting in settings:
        if setting not in known:
            raise unknown(f"option of bottleneck {name!r}:", setting, known)
    return _BOTTLENECKS[name](in_features, **settings)


def _check_gumbel(temperature: Temperature) -> None:
    if not isinstance(temperature, Tensor) and not 0 < temperature < math.inf:
        raise ValueError(f"temperature is {temperature}; Gumbel samples need a positive one")
