"""Simplicial Embeddings in Self-Supervised Learning and Downstream Classification.

Lavoie et al., ICLR 2023, https://arxiv.org/abs/2204.00616. SEM turns a vector into L probability vectors
(simplices) of V entries (vertices) each. To use it elsewhere, copy this file: it needs only torch, and
``layers.py`` for blocks > 1.
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Temperature = float | Tensor
_HALF = torch.float16, torch.bfloat16
_NORMS = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm, None: nn.Identity}
# devices with autocast, unlike "meta"; torch.compile cannot trace is_autocast_available in every release
_DEVICES = "cpu", "cuda", "mps", "xpu", "hpu", "xla", "ipu", "mtia", "maia", "privateuseone"
_AUTOCAST = frozenset(kind for kind in _DEVICES if torch.amp.is_autocast_available(kind))


def simplicial(x: Tensor, vertices: int, temperature: Temperature = 1.0, hard: bool = False) -> Tensor:
    """Softmax over each group of ``vertices`` entries: (..., L*V) -> (..., L*V), each group sums to one.

    Temperature 0 gives the one-hot argmax. A float is checked; a tensor is trusted to be positive and never
    branched on, so it can be scheduled inside a captured step. It may be 0-d or broadcast to (..., L, 1).
    ``hard``: the value is the one-hot argmax, the gradient that of the softmax (straight-through).

    >>> simplicial(torch.tensor([0.0, 0.0, 3.0, 3.0]), vertices=2)
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    >>> simplicial(torch.tensor([0.0, 1.0, 3.0, 2.0]), vertices=2, temperature=0)
    tensor([0., 1., 1., 0.])
    """
    if hard:
        soft = simplicial(x, vertices, temperature)
        # soft - soft.detach() is exactly 0
        return simplicial(x.detach(), vertices, 0.0) + (soft - soft.detach())
    groups = _groups(x, vertices)
    if not isinstance(temperature, Tensor):
        _check_temperature(temperature)
        if temperature == 0:
            return F.one_hot(groups.argmax(-1), vertices).to(x.dtype).flatten(-2)
        if temperature == 1 and x.dtype not in _HALF and not _is_short(groups):
            return torch.softmax(groups, -1).flatten(-2)
        if temperature < 1e-4:  # x / temperature may overflow, x - max cannot
            groups = groups - groups.detach().amax(-1, keepdim=True)
            temperature = max(temperature, torch.finfo(torch.float32).tiny)
    elif temperature.requires_grad:  # a learned temperature needs its own gradient
        wide = groups.float() if x.dtype in _HALF else groups
        return torch.softmax(wide / temperature, -1).to(x.dtype).flatten(-2)
    return _ScaledSoftmax.apply(groups, 1 / temperature).flatten(-2)


def entropy(probabilities: Tensor, vertices: int) -> Tensor:
    """Entropy of each simplex in nats: (..., L*V) -> (..., L), from 0 (one-hot) to ln V (uniform).

    Value and gradient are finite at probability 0.

    >>> entropy(torch.tensor([0.5, 0.5, 0.9, 0.1]), vertices=2)
    tensor([0.6931, 0.3251])
    """
    p = _groups(probabilities, vertices)
    wide = p.float() if p.dtype in _HALF else p
    return -_x_log_x(wide).sum(-1).to(p.dtype)


class Usage(NamedTuple):
    """How samples use the L simplices of V vertices: see ``usage``."""

    perplexity: Tensor  # (L,), from 1 (every sample has the same code) to V (all codes are equally common)
    dead: Tensor  # (L, V), whether no sample has this code
    redundancy: Tensor  # (L, L), from 0 (independent) to 1 (each determines the other)


def usage(codes: Tensor, vertices: int) -> Usage:
    """Statistics of codes (..., L): which vertices are used, and which simplices say the same.

    Perplexity is exp of the entropy of a simplex's codes. Redundancy is the normalised mutual information of
    two simplices, 2 I(i, j) / (H(i) + H(j)); a simplex of one code has 0. It takes time N (L V)^2 and memory
    N L V, so give a few thousand samples.

    >>> found = usage(torch.tensor([[0, 0], [1, 1], [0, 0], [1, 1]]), vertices=3)
    >>> found.perplexity, found.dead[0], found.redundancy[0, 1]
    (tensor([2., 2.]), tensor([False, False,  True]), tensor(1.))
    """
    _check_codes(codes, vertices)
    if codes.numel() == 0:
        raise ValueError(f"codes are {tuple(codes.shape)}; usage needs at least one")
    flat = codes.flatten(end_dim=-2) if codes.dim() > 1 else codes[None]
    simplices = flat.shape[1]
    one_hots = F.one_hot(flat.long(), vertices).flatten(1).float()
    counts = one_hots.sum(0).view(simplices, vertices)
    own = -_x_log_x(counts / len(flat)).sum(-1)
    rows = []
    for part in one_hots.split(vertices * max(1, 2**24 // (simplices * vertices**2)), dim=1):
        joint = (part.T @ one_hots / len(flat)).view(-1, vertices, simplices, vertices)
        rows.append(-_x_log_x(joint).sum((1, 3)))
    total = own[:, None] + own
    shared = 2 * (total - torch.cat(rows)) / total.clamp_min(torch.finfo(total.dtype).tiny)
    return Usage(own.exp(), counts == 0, shared.clamp(0, 1))


def pack(codes: Tensor, vertices: int) -> Tensor:
    """Codes as bits: (..., L) integers -> (..., ceil(L * ceil(log2 V) / 8)) uint8, lowest bit first.

    >>> pack(torch.tensor([[1, 2, 12]]), vertices=13)  # 4 bits each
    tensor([[33, 12]], dtype=torch.uint8)
    """
    if not torch.compiler.is_compiling():
        _check_codes(codes, vertices)
    bits = (vertices - 1).bit_length()
    places = torch.arange(bits, device=codes.device, dtype=torch.int32)
    ones = (codes.to(torch.int32)[..., None] >> places & 1).to(torch.uint8).flatten(-2)
    octets = F.pad(ones, (0, -ones.shape[-1] % 8)).unflatten(-1, (-(-ones.shape[-1] // 8), 8))
    return (octets << _octet(codes.device)).sum(-1, dtype=torch.uint8)


def unpack(packed: Tensor, simplices: int, vertices: int) -> Tensor:
    """The codes that ``pack`` made bits of: (..., bytes) uint8 -> (..., simplices) int64.

    >>> unpack(pack(torch.tensor([[1, 2, 12]]), vertices=13), simplices=3, vertices=13)
    tensor([[ 1,  2, 12]])
    """
    bits = (vertices - 1).bit_length()
    size = -(-simplices * bits // 8)
    if packed.dtype != torch.uint8 or packed.dim() == 0 or packed.shape[-1] != size:
        raise ValueError(
            f"packed codes are {packed.dtype} {tuple(packed.shape)}; {simplices} simplices of {vertices} "
            f"vertices are torch.uint8 (..., {size})"
        )
    ones = (packed[..., None] >> _octet(packed.device) & 1).flatten(-2)[..., : simplices * bits]
    places = torch.arange(bits, device=packed.device)
    return (ones.unflatten(-1, (simplices, bits)).long() << places).sum(-1)


class Embedder(nn.Module):
    """SEM without its softmax, a linear layer and norm: (..., in_features) -> (..., simplices * vertices)."""

    penalty = 0.0  # a training method adds it to its loss

    def __init__(
        self,
        in_features: int,
        simplices: int = 5000,  # L
        vertices: int = 13,  # V, the entries of each simplex
        temperature: Temperature = 1.0,
        norm: Literal["batch", "layer"] | None = "batch",
        embedder: Literal["linear", "identity", "mlp"] = "linear",
        blocks: int = 1,  # block-diagonal embedder with this many blocks
        hard: bool = False,  # one-hot values with the softmax's gradient
    ):
        super().__init__()
        for name, value in (("in_features", in_features), ("simplices", simplices), ("vertices", vertices)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if norm not in _NORMS:
            raise ValueError(f"norm is {norm!r}; choose 'batch', 'layer' or None")
        if not isinstance(temperature, Tensor):
            _check_temperature(temperature)
        self.in_features, self.simplices, self.vertices = in_features, simplices, vertices
        self.out_features, self.blocks = simplices * vertices, blocks
        self.temperature = temperature  # in the state_dict only if it is a Parameter
        self.hard = hard
        self.embedder = _embedder(embedder, in_features, self.out_features, blocks, norm)
        self.norm = _NORMS[norm](self.out_features)

    def logits(self, h: Tensor) -> Tensor:
        """The normalised embedding before the softmax.

        >>> SimplicialEmbedding(16, simplices=4, vertices=3).logits(torch.randn(2, 16)).shape
        torch.Size([2, 12])
        """
        if h.dim() == 2:
            return self.norm(self.embedder(h))
        flat = self.norm(self.embedder(h.reshape(-1, h.shape[-1])))  # BatchNorm1d takes (N, D)
        return flat.view(*h.shape[:-1], self.out_features)

    def forward(self, h: Tensor, temperature: Temperature | None = None) -> Tensor:
        return self.logits(h)

    def codes(self, h: Tensor) -> Tensor:
        """The index of the largest entry of each simplex: (..., in_features) -> (..., simplices).

        >>> SimplicialEmbedding(16, simplices=4, vertices=3).codes(torch.randn(2, 16)).shape
        torch.Size([2, 4])
        """
        return _groups(self.logits(h), self.vertices).argmax(-1)

    def extra_repr(self) -> str:
        sizes = f"simplices={self.simplices}, vertices={self.vertices}, temperature={self.temperature}"
        return f"{sizes}, hard=True" if self.hard else sizes


class SimplicialEmbedding(Embedder):
    """Drop-in simplicial embedding: (..., in_features) -> (..., simplices * vertices).

    Embeds with a linear layer, normalises, and applies a softmax with a temperature to each simplex. With
    ``hard`` its values are one-hot, and gradients are those of the softmax (straight-through).

    >>> sem = SimplicialEmbedding(16, simplices=4, vertices=3, temperature=0.1)
    >>> sem(torch.randn(2, 16)).view(2, 4, 3).sum(-1).allclose(torch.ones(2, 4))
    True
    """

    def forward(self, h: Tensor, temperature: Temperature | None = None, hard: bool | None = None) -> Tensor:
        logits = self.logits(h)
        device = logits.device.type
        if device in _AUTOCAST and torch.is_autocast_enabled(device):  # which runs softmax in float32
            logits = logits.float()
        temperature = self.temperature if temperature is None else temperature
        return simplicial(logits, self.vertices, temperature, self.hard if hard is None else hard)


class SimNorm(nn.Module):
    """SEM's softmax alone, over groups of ``dim`` features: (..., L * dim) -> the same, no parameters.

    Known by this name from world models (TD-MPC2, https://arxiv.org/abs/2310.16828).

    >>> SimNorm(dim=2)(torch.zeros(1, 4))
    tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
    """

    def __init__(self, dim: int = 8):
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim is {dim}; a group has at least 1 feature")
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return simplicial(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class _ScaledSoftmax(torch.autograd.Function):
    """softmax(scale * x) over the last dimension, computed in float32 for 16-bit inputs.

    Saves only its output for backward, in the input's precision, and scales the gradient in place.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, scale: Temperature) -> Tensor:
        wide = x.float() if x.dtype in _HALF else x
        if _is_short(wide):
            powers = ((wide - wide.amax(-1, keepdim=True)) * scale).exp()
            result = powers / powers.sum(-1, keepdim=True)
        else:
            result = torch.softmax(wide * scale, -1)
        # torch.compile of torch 2.11 loses the gradient through a .to() that changes nothing
        return result if result.dtype == x.dtype else result.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        scale = inputs[1]
        if isinstance(scale, Tensor):
            ctx.save_for_backward(output, scale)
        else:
            ctx.save_for_backward(output)
            ctx.scale = scale

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        saved = ctx.saved_tensors  # activation checkpointing allows one read
        y, scale = saved if len(saved) == 2 else (*saved, ctx.scale)
        dtype = y.dtype
        if dtype in _HALF:
            y, grad = y.float(), grad.float()
        if _is_short(y):
            return ((grad - (grad * y).sum(-1, keepdim=True)) * y * scale).to(dtype), None
        # d softmax: y * (grad - <grad, y>), in one pass
        return torch._softmax_backward_data(grad, y, -1, y.dtype).mul_(scale).to(dtype), None


def _is_short(x: Tensor) -> bool:
    """Whether exp and sum are faster than torch.softmax: on a CPU it is made for long rows."""
    return x.device.type == "cpu" and x.shape[-1] <= 64


def _groups(x: Tensor, vertices: int) -> Tensor:
    if vertices < 1:
        raise ValueError(f"vertices is {vertices}; a simplex needs at least 1")
    if not x.is_floating_point():
        raise ValueError(f"the features are {x.dtype}; they must be floating-point numbers")
    if x.dim() == 0 or x.shape[-1] % vertices:
        size = x.shape[-1] if x.dim() else "no"
        raise ValueError(f"{size} features do not split into simplices of {vertices}; give a multiple")
    return x.unflatten(-1, (x.shape[-1] // vertices, vertices))


def _x_log_x(x: Tensor) -> Tensor:
    """x ln x, 0 with a finite gradient at 0."""
    return x * x.clamp_min(torch.finfo(x.dtype).tiny).log()


def _octet(device: torch.device) -> Tensor:
    """The places of a byte's bits."""
    return torch.arange(8, device=device, dtype=torch.uint8)


def _check_codes(codes: Tensor, vertices: int) -> None:
    if codes.is_floating_point() or codes.dtype == torch.bool or codes.dim() == 0:
        raise ValueError(f"codes are {codes.dtype} {tuple(codes.shape)}; they must be integers (..., L)")
    low, high = (int(code) for code in codes.aminmax()) if codes.numel() else (0, 0)
    if low < 0 or high >= vertices:
        raise ValueError(
            f"codes are from {low} to {high}; those of {vertices} vertices end at {vertices - 1}"
        )


def _check_temperature(value: float) -> None:
    if not value >= 0:  # also True for NaN
        raise ValueError(f"temperature is {value}; it must be 0 (one-hot) or positive")


def _embedder(kind: str, in_features: int, out_features: int, blocks: int, norm: str | None) -> nn.Module:
    linear: Any = partial(nn.Linear, bias=norm is None)  # a norm layer cancels the bias
    if blocks != 1:
        from simplicia.layers import BlockLinear

        linear = partial(BlockLinear, blocks=blocks, bias=norm is None)
    if kind == "linear":
        return linear(in_features, out_features)
    if kind == "mlp":
        hidden = linear(in_features, in_features), _NORMS[norm](in_features), nn.ReLU()
        return nn.Sequential(*hidden, linear(in_features, out_features))
    if kind != "identity":
        raise ValueError(f"embedder is {kind!r}; choose 'linear', 'identity' or 'mlp'")
    if blocks != 1:
        raise ValueError(f"embedder 'identity' has no weights to split into {blocks} blocks; give blocks=1")
    if in_features != out_features:
        raise ValueError(
            f"embedder 'identity' has {in_features} features, simplices * vertices is {out_features}; "
            "choose them equal"
        )
    return nn.Identity()
