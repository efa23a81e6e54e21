"""The expressivity over temperature, number of vertices and margin."""

from collections.abc import Sequence
from pathlib import Path

import torch

from simplicia.analyze.bound import expressivity, expressivity_base, expressivity_supremum
from simplicia.report.plots import Axis, Chart, Series, save
from simplicia.report.plots.chart import GREY

TEMPERATURES = (0.03, 0.1, 0.3, 1.0, 3.0)  # a line each, where another quantity is the axis
COUNTS = (2, 3, 4, 6, 8, 13, 21, 32, 64, 128)
DOTTED = 2


def draw(path: str | Path, vertices: Sequence[int] = (13,), margins: Sequence[float] = (0.1,)) -> Path:
    """Draw Lemma 4's bound (solid), the supremum (dotted) and the base (grey) as three panels."""
    v, margin = vertices[0], margins[0]
    taus = torch.logspace(-2, 2, 120, dtype=torch.float64).tolist()
    gaps = torch.linspace(0, 2, 101, dtype=torch.float64).tolist()
    by_temperature, by_vertices, by_margin = [], [], []
    for i, (count, gap) in enumerate((count, gap) for count in vertices for gap in margins):
        by_temperature += _pair(f"V {count}, margin {gap:g}", i, taus, [(count, tau, gap) for tau in taus])
    for i, tau in enumerate(TEMPERATURES):
        by_vertices += _pair(f"temperature {tau:g}", i, COUNTS, [(count, tau, margin) for count in COUNTS])
        by_margin += _pair(f"temperature {tau:g}", i, gaps, [(v, tau, gap) for gap in gaps])
    base = [expressivity_base(v, margin)] * len(taus)
    by_temperature.append(Series(f"base, V {v}, margin {margin:g}", taus, base, GREY))
    by_vertices.append(Series("base", COUNTS, [expressivity_base(c, margin) for c in COUNTS], GREY))
    by_margin.append(Series("base", gaps, [expressivity_base(v, gap) for gap in gaps], GREY))
    up = Axis("expressivity", log=True, limits=(1e-6, None))
    charts = [
        Chart("", Axis("temperature", log=True), up, by_temperature, size=(5, 4.5)),
        Chart("", Axis(f"vertices, at margin {margin:g}", log=True), up, by_vertices, size=(5, 4.5)),
        Chart("", Axis(f"margin, at V {v}"), up, by_margin, size=(5, 4.5)),
    ]
    return save(charts, path, title="Lemma 4's bound (solid) and the supremum it bounds (dotted)")


def _pair(
    name: str, colour: int, xs: Sequence[float], points: list[tuple[int, float, float]]
) -> list[Series]:
    """The bound and the supremum at (vertices, temperature, margin), in one colour."""
    bound = [expressivity(*point) for point in points]
    supremum = [expressivity_supremum(*point) for point in points]
    return [Series(name, xs, bound, colour), Series("", xs, supremum, colour, DOTTED)]
