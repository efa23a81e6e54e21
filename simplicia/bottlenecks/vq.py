"""Vector quantisation (van den Oord et al., https://arxiv.org/abs/1711.00937).

"vq" has a codebook for each position, of moving averages. "vq-shared" is the form of the paper's authors: one
codebook for all positions and both networks, learned by the loss.
"""

from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simplicia.bottlenecks.base import register
from simplicia.distributed import agreed, average, gather
from simplicia.sem import Embedder, Temperature
from simplicia.settings import Formerly, Range

LAYERS = ("quantised", "embedder", "codes")
BETA = 0.25  # weight of the commitment loss over that of the loss that moves the shared codes


class Quantiser(nn.Module):
    """Replaces each of L embedded vectors by the nearest of V codes; the gradient passes straight through.

    ``penalty`` is the commitment loss, which keeps the embedding near its codes.
    """

    codebook: Tensor  # (V, dimensions), or one for each position: (L, V, dimensions)

    def __init__(
        self,
        in_features: int,
        simplices: int,
        vertices: int,
        dimensions: int,
        norm: Literal["batch", "layer"] | None,
        embedder: Literal["linear", "identity", "mlp"],
        blocks: int,
        commitment: float,
    ):
        super().__init__()
        if vertices < 1:
            raise ValueError(f"vertices is {vertices}; it must be at least 1")
        self.embed = Embedder(in_features, simplices, dimensions, norm=norm, embedder=embedder, blocks=blocks)
        self.simplices, self.vertices, self.dimensions = simplices, vertices, dimensions
        self.out_features, self.blocks = self.embed.out_features, blocks
        self.commitment = commitment
        self.penalty: float | Tensor = 0.0

    def logits(self, h: Tensor) -> Tensor:
        """Minus the squared distance to each code, up to a constant: (..., in) -> (..., L*V)."""
        return self._join(self._scores(self._split(h)), h)

    def codes(self, h: Tensor) -> Tensor:
        """The index of the nearest code at each position: (..., in_features) -> (..., simplices)."""
        return self._scores(self._split(h)).argmax(-1).T.reshape(*h.shape[:-1], self.simplices)

    def _split(self, h: Tensor) -> Tensor:
        """The embedded vectors by position, (L, N, dimensions)."""
        return self.embed(h).float().reshape(-1, self.simplices, self.dimensions).transpose(0, 1)

    def _join(self, parts: Tensor, h: Tensor) -> Tensor:
        return parts.transpose(0, 1).reshape(*h.shape[:-1], self.simplices * parts.shape[-1])

    def _scores(self, z: Tensor) -> Tensor:
        with torch.autocast("cuda" if z.is_cuda else "cpu", enabled=False):
            products = torch.matmul(z, self.codebook.mT)
            return 2 * products - self.codebook.square().sum(-1)[..., None, :]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "penalty": 0.0}  # its graph cannot be copied

    def extra_repr(self) -> str:
        return f"simplices={self.simplices}, vertices={self.vertices}, dimensions={self.dimensions}"


@register("vq-shared", layers=LAYERS)
class SharedVectorQuantised(Quantiser):
    """One codebook for all positions, learned by the loss.

    ``penalty`` also moves the codes towards the vectors that chose them, with 1 / 0.25 of the commitment's
    weight. A target network uses the online network's codebook (see ``TargetMethod.targets``).
    """

    def __init__(
        self,
        in_features: int,
        simplices: int = 512,  # L, the positions
        vertices: int = 128,  # V, the codes
        dimensions: Annotated[int, "dimensions of each code", Range(low=1)] = 16,
        norm: Literal["batch", "layer"] | None = "batch",
        embedder: Literal["linear", "identity", "mlp"] = "linear",
        blocks: int = 1,
        commitment: Annotated[float, "weight of the commitment loss", Range(low=0)] = 0.01,
    ):
        super().__init__(in_features, simplices, vertices, dimensions, norm, embedder, blocks, commitment)
        self.codebook = nn.Parameter(torch.randn(vertices, dimensions))

    def forward(self, h: Tensor, temperature: Temperature | None = None) -> Tensor:
        z = self._split(h)
        with torch.no_grad():
            nearest = self._scores(z).argmax(-1)
        quantised = F.embedding(nearest, self.codebook)
        commit, learn = (z - quantised.detach()).square().mean(), (z.detach() - quantised).square().mean()
        self.penalty = self.commitment * (commit + learn / BETA)
        return self._join(quantised.detach() + (z - z.detach()), h)


@register("vq", layers=LAYERS)
class VectorQuantised(Quantiser):
    """A codebook for each position. A code is the moving average of the vectors that chose it.

    A dead code, one that is rarely chosen, restarts at a random sample, which is also how the first batch
    initialises the codebooks. No step synchronises with the host.
    """

    counts: Tensor

    def __init__(
        self,
        in_features: int,
        simplices: int = 512,  # L, the codebooks
        vertices: int = 128,  # V, the codes of each
        dimensions: Annotated[int, "dimensions of each code", Range(low=1)] = 32,
        norm: Literal["batch", "layer"] | None = "batch",
        embedder: Literal["linear", "identity", "mlp"] = "linear",
        blocks: int = 1,
        commitment: Annotated[float, "weight of the commitment loss", Range(low=0)] = 0.01,
        decay: Annotated[float, "decay of the codes' moving averages", Range(low=0, below=1)] = 0.99,
        dead_code_threshold: Annotated[
            float,
            "a code used less than this share of the average restarts",
            Range(low=0, below=1),
            Formerly("revive"),
        ] = 0.1,
    ):
        super().__init__(in_features, simplices, vertices, dimensions, norm, embedder, blocks, commitment)
        self.decay, self.dead_code_threshold = decay, dead_code_threshold
        self.register_buffer("codebook", torch.randn(simplices, vertices, dimensions))
        self.register_buffer("counts", torch.zeros(simplices, vertices))  # 0: not initialised

    def forward(self, h: Tensor, temperature: Temperature | None = None) -> Tensor:
        z = self._split(h)
        quantised = self._quantise(z.detach())
        self.penalty = self.commitment * (z - quantised).square().mean()
        return self._join(quantised + (z - z.detach()), h)

    @torch.no_grad()
    def _quantise(self, z: Tensor) -> Tensor:
        """The nearest codes of one view; in training, they then move towards it."""
        if self.training:
            self._restart_dead_codes(z)
        codes = self._scores(z).argmax(-1)
        quantised = self._take(self.codebook, codes)
        if self.training:
            self._update_codes(z, codes)
        return quantised

    def _restart_dead_codes(self, z: Tensor) -> None:
        fair = z.shape[1] / self.vertices
        dead = self.counts < self.dead_code_threshold * fair
        samples = gather(z.transpose(0, 1)).transpose(0, 1)  # processes share their codebooks
        picks = agreed(torch.randint(samples.shape[1], self.counts.shape, device=z.device))
        self.codebook.copy_(torch.where(dead[..., None], self._take(samples, picks), self.codebook))
        self.counts.copy_(torch.where(dead, fair, self.counts))

    def _update_codes(self, z: Tensor, codes: Tensor) -> None:
        """Move each code to (moving average of the sum) / (moving average of the count) of its vectors."""
        chosen = (codes[..., None] == torch.arange(self.vertices, device=z.device)).to(z.dtype)
        with torch.autocast("cuda" if z.is_cuda else "cpu", enabled=False):
            sums = average(torch.bmm(chosen.transpose(1, 2), z))
        counts = average(chosen.sum(1))
        self.counts.lerp_(counts, 1 - self.decay)
        pull = sums - counts[..., None] * self.codebook
        counts = self.counts[..., None].clamp_min(torch.finfo(z.dtype).tiny)  # an unused code stays
        self.codebook.addcdiv_(pull, counts, value=1 - self.decay)

    @staticmethod
    def _take(table: Tensor, indices: Tensor) -> Tensor:
        return table.gather(1, indices[..., None].expand(-1, -1, table.shape[-1]))
