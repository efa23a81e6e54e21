"""Charts in pixels of a drawing of 480 x 300, which the page's template makes an SVG."""

import math
from collections.abc import Sequence
from typing import Any

from simplicia.report.plots.chart import COLOURS, Axis, Chart, Series

LEFT, RIGHT, TOP, BOTTOM = 70, 458, 16, 252
BOX = {"left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}  # of the plot within the drawing
MOST_MARKERS = 40


class Scale:
    """Values to pixels. On a logarithmic scale 0 lies a decade below the smallest positive value."""

    def __init__(self, axis: Axis, values: Sequence[float], first: float, last: float):
        positive = [v for v in values if v > 0]
        self.first, self.last = first, last
        self.log, self.has_zero = axis.log and bool(positive), False
        if self.log:
            low, high = math.log10(min(positive)), math.log10(max(positive))
            if min(values) <= 0:
                self.has_zero, low = True, low - 1
        else:
            low, high = min(values, default=0.0), max(values, default=1.0)
        limits = (math.log10(end) if end and self.log else end for end in axis.limits)
        low, high = (end if limit is None else limit for end, limit in zip((low, high), limits, strict=True))
        if abs(high - low) < 1e-12 * max(1.0, abs(high)):  # one value: it lies in the middle
            low, high = low - 0.5, high + 0.5
        self.low, self.high = low, high

    def __call__(self, value: float) -> float:
        if self.log:
            value = math.log10(value) if value > 0 else self.low
        share = (value - self.low) / (self.high - self.low)
        return round(self.first + share * (self.last - self.first), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Positions of up to six round values, and how they are written."""
        if self.log:
            least, most = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
            apart = max(1, math.ceil((most - least + 1) / 7))
            values = [10.0**i for i in range(least, most + 1, apart)]
            if most - least < 1:  # less than two decades: 1, 2, 5
                some = [m * 10.0**i for i in range(least - 1, most + 2) for m in (1, 2, 5)]
                values = [v for v in some if self.low - 1e-9 <= math.log10(v) <= self.high + 1e-9]
            if self.has_zero:
                values = [0.0, *(v for v in values if math.log10(v) > self.low + 0.5)]
        else:
            rough = (self.high - self.low) / 5
            ten = 10.0 ** math.floor(math.log10(rough))
            step = next(m * ten for m in (1, 2, 5, 10) if m * ten >= rough * 0.999)
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            values = [i * step for i in range(first, last + 1)]
        return [(self(v), _number(v)) for v in values]


def layout(chart: Chart) -> dict[str, Any]:
    """The chart with its ticks, reference lines and series in pixels."""
    xs = [float(x) for s in chart.series for x in s.x] + [value for value, _ in chart.x_lines]
    ys = [value for value, _ in chart.y_lines]
    for _, y, error in (point for s in chart.series for point in s.points):
        ys += [y - (error or 0), y + (error or 0)] if y > 0 or not chart.y.log else []
    if ys and chart.y.log:
        ys.append(0.7 * min(ys))  # the smallest value stays above the base line
    elif ys:
        low, high = min(ys), max(ys)
        margin = 0.05 * (high - low)
        ys += [high + margin, low - margin if low < 0 else max(0.0, low - margin)]
    across, up = Scale(chart.x, xs, LEFT, RIGHT), Scale(chart.y, ys, BOTTOM, TOP)
    series = [_series(series, across, up) for series in chart.series]
    readout = {"x": chart.x.label, "y": chart.y.label, "series": [each["points"] for each in series]}
    return {
        **vars(chart),
        "x_ticks": across.ticks(),
        "y_ticks": up.ticks(),
        "x_lines": [(across(value), label) for value, label in chart.x_lines],
        "y_lines": [(up(value), label) for value, label in chart.y_lines],
        "series": series,
        "readout": readout | BOX,
    }


def _series(series: Series, across: Scale, up: Scale) -> dict[str, Any]:
    """The points' exact values and pixels, for the page's script, and the shapes that the template draws."""
    xs, ys = [float(x) for x, _, _ in series.points], [y for _, y, _ in series.points]
    px, py = [across(x) for x in xs], [up(y) for y in ys]
    corners = list(zip(px, py, strict=True))
    dots = corners if (series.markers and len(corners) <= MOST_MARKERS) or len(corners) == 1 else []
    if series.kind == "histogram":  # an outline that begins and ends on the base line
        corners = [(across(series.x[0]), BOTTOM)]
        for a, b, y in zip(series.x, series.x[1:], series.y, strict=False):
            corners += [(across(edge), up(y) if y else BOTTOM) for edge in (a, b)]
        corners.append((across(series.x[-1]), BOTTOM))
    bars = [(across(x), up(y - error), up(y + error)) for x, y, error in series.points if error is not None]
    style = f"s{series.colour % len(COLOURS)} d{series.style}"
    points = {"name": series.name, "style": style, "x": xs, "y": ys, "px": px, "py": py}
    line = "M" + "L".join(f"{x:g},{y:g}" for x, y in corners) if corners else ""
    return {"points": points, "line": line, "bars": bars, "dots": dots}


def _number(value: float) -> str:
    size = abs(value)
    if size >= 1e6 or (0 < size < 1e-3):
        mantissa, exponent = f"{value:.0e}".split("e")
        power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"10{power}" if mantissa == "1" else f"{mantissa}·10{power}"
    return f"{value / 1000:.4g}k" if size >= 1e4 else f"{value:.4g}".replace("-", "−")
