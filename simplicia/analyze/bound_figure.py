"""The expressivity drawn over temperature, number of vertices and margin."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simplicia.analyze.bound import Number, expressivity, expressivity_base, expressivity_supremum
from simplicia.errors import UserError

LINES = (0.03, 0.1, 0.3, 1.0, 3.0)  # temperatures, where another quantity is the axis


def draw(path: str | Path, vertices: Sequence[int] = (13,), margins: Sequence[float] = (0.1,)) -> None:
    """Lemma 4's bound (solid), the supremum (dotted) and the base (grey) as three panels, .svg or .png."""
    from matplotlib.figure import Figure

    path = Path(path)
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise UserError(f"the figure is to be {path.name!r}; its name must end in .svg, .png or .pdf")
    figure = Figure(figsize=(15, 4.5), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    v, margin = vertices[0], margins[0]

    taus = torch.logspace(-2, 2, 120, dtype=torch.float64)
    for count in vertices:
        for gap in margins:
            _pair(left, taus, count, taus, gap, f"V {count}, margin {gap:g}")
    left.axhline(expressivity_base(v, margin), color="grey", label=f"base, V {v}, margin {margin:g}")
    left.set(xscale="log", xlabel="temperature")

    counts = [2, 3, 4, 6, 8, 13, 21, 32, 64, 128]
    gaps = torch.linspace(0, 2, 101, dtype=torch.float64)
    for tau in LINES:
        line = middle.plot(
            counts, [expressivity(c, tau, margin) for c in counts], label=f"temperature {tau:g}"
        )
        sup = [expressivity_supremum(c, tau, margin) for c in counts]
        middle.plot(counts, sup, ":", color=line[0].get_color())
        _pair(right, gaps, v, tau, gaps, f"temperature {tau:g}")
    middle.plot(counts, [expressivity_base(c, margin) for c in counts], color="grey", label="base")
    middle.set(xscale="log", xlabel=f"vertices, at margin {margin:g}")
    right.plot(gaps, expressivity_base(v, gaps), color="grey", label="base")
    right.set(xlabel=f"margin, at V {v}")
    for axis in (left, middle, right):
        axis.set(yscale="log", ylim=(1e-6, None), ylabel="expressivity")
        axis.legend(fontsize="x-small")
    figure.suptitle("Lemma 4's bound (solid) and the supremum it bounds (dotted)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _pair(axis: Any, xs: Tensor, vertices: int, temperature: Number, margin: Number, label: str) -> None:
    """The bound and the supremum over xs, in one colour."""
    line = axis.plot(xs, expressivity(vertices, temperature, margin), label=label)
    axis.plot(xs, expressivity_supremum(vertices, temperature, margin), ":", color=line[0].get_color())
