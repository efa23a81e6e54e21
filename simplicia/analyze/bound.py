"""The theory of SEM: how far apart representations with the same codes can be, and the gap that follows.

Theorem 1 bounds the expected loss by the training loss plus ``R sqrt(L phi)`` plus a term that is the same
with and without SEM. phi, the expressivity, is the largest squared distance between two vectors of one
simplex whose largest component is the same one, and larger than the others by a margin. Before the softmax
they lie in [-1, 1]; a cube of side 2r is that one with temperature and margin divided by r.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor

from simplicia.errors import UserError

Number = float | Tensor


@overload
def expressivity(vertices: float, temperature: float, margin: float) -> float: ...
@overload
def expressivity(vertices: Number, temperature: Number, margin: Number) -> Number: ...
def expressivity(vertices: Number, temperature: Number, margin: Number) -> Number:
    """Lemma 4's bound on SEM's expressivity. Numbers give a number, tensors are broadcast.

    (1/(1+(V-1)a) - 1/(1+(V-1)b))^2 + (V-1) (b/(b+1+(V-2)a) - a/(a+1+(V-2)b))^2 with a = exp(-2/temperature)
    and b = exp(-margin/temperature). Temperature 0 gives the limit, which is 0 for any margin above 0.
    """
    (v, tau, gap), scalar = _checked(vertices, temperature, margin)
    a, b, difference = _odds(tau, gap)
    # both terms have b - a as a factor: taken out, nothing cancels, however large or small the temperature is
    first = (v - 1) / ((1 + (v - 1) * a) * (1 + (v - 1) * b))
    other = (1 + (v - 2) * (a + b)) / ((1 + b + (v - 2) * a) * (1 + a + (v - 2) * b))
    bound = difference**2 * (first**2 + (v - 1) * other**2)
    return bound.item() if scalar else bound


@overload
def expressivity_base(vertices: float, margin: float) -> float: ...
@overload
def expressivity_base(vertices: Number, margin: Number) -> Number: ...
def expressivity_base(vertices: Number, margin: Number) -> Number:
    """The expressivity without the softmax: no coordinate can differ by more than 2 - margin, and all can."""
    (v, _, gap), scalar = _checked(vertices, 1.0, margin)
    value = v * (2 - gap) ** 2
    return value.item() if scalar else value


@overload
def expressivity_supremum(vertices: int, temperature: float, margin: float) -> float: ...
@overload
def expressivity_supremum(vertices: int, temperature: Number, margin: Number) -> Number: ...
def expressivity_supremum(vertices: int, temperature: Number, margin: Number) -> Number:
    """SEM's expressivity itself, which Lemma 4 bounds; exact, in V^2 / 2 evaluations.

    With the largest component p_1, the allowed p are those with a p_1 <= p_j <= b p_1: a polytope, whose
    corners have each p_j at a p_1 or b p_1. A distance is convex, so it is largest between two corners, and
    by symmetry only how many components are at b in the one (k), in the other (m) and in both counts. The
    squared distance falls with the number in both, so that is as small as it can be.
    """
    (v, tau, gap), scalar = _checked(vertices, temperature, margin)
    if v.dim() or v != v.round():
        raise UserError(f"vertices is {vertices}; the supremum takes one integer")
    n = int(v) - 1
    a, b, difference = (x[..., None] for x in _odds(tau, gap))
    best = torch.zeros(torch.broadcast_shapes(tau.shape, gap.shape), dtype=torch.float64, device=tau.device)
    for k in range(n + 1):
        m = torch.arange(k, n + 1, dtype=torch.float64, device=tau.device)
        both = (k + m - n).clamp(min=0)
        neither = n - k - m + both
        one, two = 1 + k * b + (n - k) * a, 1 + m * b + (n - m) * a  # 1 / p_1 of each
        square = (m - k) ** 2 * (1 + both * b**2 + neither * a**2)
        square = square + (k - both) * (1 + m * b + (n - k) * a) ** 2
        square = square + (m - both) * (1 + k * b + (n - m) * a) ** 2
        best = torch.maximum(best, (square * (difference / (one * two)) ** 2).amax(-1))
    return best.item() if scalar else best


@overload
def gap_term(expressivity: float, simplices: int, lipschitz: float = 1.0) -> float: ...
@overload
def gap_term(expressivity: Number, simplices: int, lipschitz: Number = 1.0) -> Number: ...
def gap_term(expressivity: Number, simplices: int, lipschitz: Number = 1.0) -> Number:
    """Theorem 1's second term, R sqrt(L phi): what an expressivity adds to the bound on the expected loss."""
    return lipschitz * (simplices * expressivity) ** 0.5


def lemma6(vertices: Number, temperature: Number, margin: Number) -> bool | Tensor:
    """Whether SEM's bound is below the base's expressivity by 3/4 (V - 1) or more, as Lemma 6 has it.

    It is for every margin up to 1, which its proof uses where (2 - margin)^2 is taken to be at least 1.
    """
    (v, tau, gap), scalar = _checked(vertices, temperature, margin)
    difference = torch.as_tensor(expressivity(v, tau, gap)) - torch.as_tensor(expressivity_base(v, gap))
    # at margin 1 the two sides can meet; rounding must not decide
    holds = difference <= 0.75 * (1 - v) + 1e-12 * v
    return bool(holds) if scalar else holds


def lemma6_largest_margin(vertices: Number) -> Number:
    """Above this margin Lemma 6's inequality fails at every temperature: V (2 - margin)^2 < 3/4 (V - 1)."""
    share = 0.75 * (1 - 1 / vertices)
    return 2 - (share.sqrt() if isinstance(share, Tensor) else math.sqrt(share))


def expressivity_table(
    vertices: Sequence[int], temperatures: Sequence[float], margins: Sequence[float], simplices: int
) -> list[dict[str, Any]]:
    """Bound, supremum, base, the gap terms with R = 1, and Lemma 6, for every combination."""
    rows = []
    for v, margin in itertools.product(vertices, margins):
        base = expressivity_base(v, margin)
        for temperature in temperatures:
            phi = expressivity(v, temperature, margin)
            rows.append(
                {
                    "vertices": v,
                    "margin": margin,
                    "temperature": temperature,
                    "supremum": expressivity_supremum(v, temperature, margin),
                    "bound": phi,
                    "base": base,
                    "term": gap_term(phi, simplices),
                    "term_base": gap_term(base, simplices),
                    "lemma6": lemma6(v, temperature, margin),
                }
            )
    return rows


def _odds(temperature: Tensor, margin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How small p_j / p_1 can be, how large, and their difference without cancellation; limits at 0."""

    def over(distance: Tensor) -> Tensor:  # 0 / 0 is 0: two components that are equal stay so
        return torch.where(distance == 0, 0.0, distance / temperature)

    a, b = torch.exp(-2 / temperature), torch.exp(-over(margin))
    return a, b, -b * torch.expm1(-over(2 - margin))


def _checked(vertices: Number, temperature: Number, margin: Number) -> tuple[tuple[Tensor, ...], bool]:
    """All three in 64 bits on one device, and whether all were plain numbers."""
    arguments = {"vertices": vertices, "temperature": temperature, "margin": margin}
    devices = [x.device for x in arguments.values() if isinstance(x, Tensor)]
    tensors = {
        k: torch.as_tensor(x, dtype=torch.float64, device=devices[0] if devices else None)
        for k, x in arguments.items()
    }
    ranges = {"vertices": (2.0, math.inf), "temperature": (0.0, math.inf), "margin": (0.0, 2.0)}
    for name, (least, most) in ranges.items():
        x = tensors[name]
        if not ((x >= least) & (x <= most)).all():
            wanted = f"from 0 to {most:g}" if math.isfinite(most) else f"{least:g} or more"
            raise UserError(f"{name} is {arguments[name]}; it must be {wanted}")
    return tuple(tensors.values()), not any(torch.as_tensor(x).dim() for x in arguments.values())
