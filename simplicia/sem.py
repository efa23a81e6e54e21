"""Simplicial Embeddings in Self-Supervised Learning and Downstream Classification.

Lavoie et al., ICLR 2023, https://arxiv.org/abs/2204.00616. SEM turns a vector into L probability vectors
(simplices) of V entries (vertices) each. To use it elsewhere, copy this file: it needs only torch, and
``layers.py`` for blocks > 1.
"""

from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Temperature = float | Tensor
_HALF = torch.float16, torch.bfloat16
_NORMS = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm, None: nn.Identity}
# devices with autocast, unlike "meta"; torch.compile cannot trace is_autocast_available in every release
_DEVICES = "cpu", "cuda", "mps", "xpu", "hpu", "xla", "ipu", "mtia", "maia", "privateuseone"
_AUTOCAST = frozenset(kind for kind in _DEVICES if torch.amp.is_autocast_available(kind))


def simplicial(x: Tensor, vertices: int, temperature: Temperature = 1.0) -> Tensor:
    """Softmax over each group of ``vertices`` entries: (..., L*V) -> (..., L*V), each group sums to one.

    Temperature 0 gives the one-hot argmax. A float is checked; a tensor is trusted to be positive and never
    branched on, so it can be scheduled inside a captured step. It may be 0-d or broadcast to (..., L, 1).

    >>> simplicial(torch.tensor([0.0, 0.0, 3.0, 3.0]), vertices=2)
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    >>> simplicial(torch.tensor([0.0, 1.0, 3.0, 2.0]), vertices=2, temperature=0)
    tensor([0., 1., 1., 0.])
    """
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
    return -(wide * wide.clamp_min(torch.finfo(wide.dtype).tiny).log()).sum(-1).to(p.dtype)


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
        return f"simplices={self.simplices}, vertices={self.vertices}, temperature={self.temperature}"


class SimplicialEmbedding(Embedder):
    """Drop-in simplicial embedding: (..., in_features) -> (..., simplices * vertices).

    Embeds with a linear layer, normalises, and applies a softmax with a temperature to each simplex.

    >>> sem = SimplicialEmbedding(16, simplices=4, vertices=3, temperature=0.1)
    >>> sem(torch.randn(2, 16)).view(2, 4, 3).sum(-1).allclose(torch.ones(2, 4))
    True
    """

    def forward(self, h: Tensor, temperature: Temperature | None = None) -> Tensor:
        logits = self.logits(h)
        device = logits.device.type
        if device in _AUTOCAST and torch.is_autocast_enabled(device):  # which runs softmax in float32
            logits = logits.float()
        return simplicial(logits, self.vertices, self.temperature if temperature is None else temperature)


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
