"""The theory of SEM: how far apart representations with the same codes can be, and the gap that follows.

Theorem 1 bounds the expected loss by the training loss plus ``R sqrt(L phi)`` plus a term that is the same
with and without SEM. phi, the expressivity, is the largest squared distance between two vectors of one
simplex whose largest component is the same one, and larger than the others by a margin. Before the softmax
they lie in [-1, 1]; a cube of side 2r is that one with temperature and margin divided by r.
"""

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, cast

import torch
from torch import Tensor

from simplicia.errors import UserError

Number = float | Tensor
P = ParamSpec("P")
RANGES = {"vertices": (2.0, math.inf), "temperature": (0.0, math.inf), "margin": (0.0, 2.0)}


def _elementwise(formula: Callable[P, Any]) -> Callable[P, Any]:
    """Give a formula its checked arguments in 64 bits on one device; plain numbers give a plain number."""

    @functools.wraps(formula)
    def compute(*args: P.args, **options: P.kwargs) -> Any:
        given = inspect.signature(formula).bind(*args, **options).arguments
        device = next((x.device for x in given.values() if isinstance(x, Tensor)), None)
        tensors = {k: torch.as_tensor(x, dtype=torch.float64, device=device) for k, x in given.items()}
        for name, x in tensors.items():
            least, most = RANGES[name]
            if not ((x >= least) & (x <= most)).all():
                valid = f"from 0 to {most:g}" if math.isfinite(most) else f"{least:g} or more"
                raise UserError(f"{name} is {given[name]}; it must be {valid}")
        value = cast(Any, formula)(**tensors)
        return value if any(x.dim() for x in tensors.values()) else value.item()

    return compute


@_elementwise
def expressivity(vertices: Number, temperature: Number, margin: Number) -> Any:
    """Lemma 4's bound on SEM's expressivity. Numbers give a number, tensors are broadcast.

    (1/(1+(V-1)a) - 1/(1+(V-1)b))^2 + (V-1) (b/(b+1+(V-2)a) - a/(a+1+(V-2)b))^2 with a = exp(-2/temperature)
    and b = exp(-margin/temperature). Temperature 0 gives the limit, which is 0 for any margin above 0.

    >>> round(expressivity(vertices=13, temperature=1.0, margin=0.5), 3)
    0.451
    """
    v = vertices
    a, b, difference = _odds(temperature, margin)
    # both terms have b - a as a factor: taken out, nothing cancels, however large or small the temperature is
    first = (v - 1) / ((1 + (v - 1) * a) * (1 + (v - 1) * b))
    other = (1 + (v - 2) * (a + b)) / ((1 + b + (v - 2) * a) * (1 + a + (v - 2) * b))
    return difference**2 * (first**2 + (v - 1) * other**2)


@_elementwise
def expressivity_base(vertices: Number, margin: Number) -> Any:
    """The expressivity without the softmax: no coordinate can differ by more than 2 - margin, and all can.

    >>> expressivity_base(vertices=13, margin=0.5)
    29.25
    """
    return vertices * (2 - margin) ** 2


@_elementwise
def expressivity_supremum(vertices: Any, temperature: Any, margin: Any) -> Any:
    """SEM's expressivity itself, which Lemma 4 bounds; exact, in V^2 / 2 evaluations.

    With the largest component p_1, the allowed p are those with a p_1 <= p_j <= b p_1: a polytope, whose
    corners have each p_j at a p_1 or b p_1. A distance is convex, so it is largest between two corners, and
    by symmetry only how many components are at b in the one (k), in the other (m) and in both counts. The
    squared distance falls with the number in both, so that is as small as it can be.

    >>> expressivity_supremum(13, 1.0, 0.5) <= expressivity(13, 1.0, 0.5)
    True
    """
    if vertices.dim() or vertices != vertices.round():
        raise UserError(f"vertices is {vertices}; the supremum takes one integer")
    n = int(vertices) - 1
    a, b, difference = (x[..., None] for x in _odds(temperature, margin))
    best = torch.zeros_like(difference[..., 0])
    for k in range(n + 1):
        m = torch.arange(k, n + 1, dtype=torch.float64, device=best.device)
        both = (k + m - n).clamp(min=0)
        neither = n - k - m + both
        one, two = 1 + k * b + (n - k) * a, 1 + m * b + (n - m) * a  # 1 / p_1 of each
        square = (m - k) ** 2 * (1 + both * b**2 + neither * a**2)
        square = square + (k - both) * (1 + m * b + (n - k) * a) ** 2
        square = square + (m - both) * (1 + k * b + (n - m) * a) ** 2
        best = torch.maximum(best, (square * (difference / (one * two)) ** 2).amax(-1))
    return best


def gap_term(expressivity: Any, simplices: int, lipschitz: Number = 1.0) -> Any:
    """Theorem 1's second term, R sqrt(L phi): what an expressivity adds to the bound on the expected loss.

    >>> gap_term(expressivity_base(13, 0.75), simplices=4)
    9.01387818865997...
    """
    return lipschitz * (simplices * expressivity) ** 0.5


@_elementwise
def lemma6(vertices: Number, temperature: Number, margin: Number) -> Any:
    """Whether SEM's bound is below the base's expressivity by 3/4 (V - 1) or more, as Lemma 6 has it.

    It is for every margin up to 1, which its proof uses where (2 - margin)^2 is taken to be at least 1.

    >>> lemma6(vertices=13, temperature=1.0, margin=0.5)
    True
    """
    difference = expressivity(vertices, temperature, margin) - expressivity_base(vertices, margin)
    # at margin 1 the two sides can meet; rounding must not decide
    return difference <= 0.75 * (1 - vertices) + 1e-12 * vertices


def lemma6_largest_margin(vertices: Any) -> Any:
    """Above this margin Lemma 6's inequality fails at every temperature: V (2 - margin)^2 < 3/4 (V - 1)."""
    return 2 - (0.75 * (1 - 1 / vertices)) ** 0.5


def expressivity_table(
    vertices: Sequence[int], temperatures: Sequence[float], margins: Sequence[float], simplices: int
) -> list[dict[str, Any]]:
    """Bound, supremum, base, the gap terms with R = 1, and Lemma 6, for every combination."""
    rows = []
    for v, margin, temperature in itertools.product(vertices, margins, temperatures):
        point, base = (v, temperature, margin), expressivity_base(v, margin)
        bound = expressivity(*point)
        row = {"vertices": v, "margin": margin, "temperature": temperature}
        row |= {"supremum": expressivity_supremum(*point), "bound": bound, "base": base}
        row |= {"term": gap_term(bound, simplices), "term_base": gap_term(base, simplices)}
        rows.append(row | {"lemma6": lemma6(*point)})
    return rows


def _odds(temperature: Any, margin: Any) -> tuple[Tensor, Tensor, Tensor]:
    """How small p_j / p_1 can be, how large, and their difference without cancellation; limits at 0."""

    def over(distance: Tensor) -> Tensor:  # 0 / 0 is 0: two components that are equal stay so
        return torch.where(distance == 0, 0.0, distance / temperature)

    a, b = torch.exp(-2 / temperature), torch.exp(-over(margin))
    return a, b, -b * torch.expm1(-over(2 - margin))
