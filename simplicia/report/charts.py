"""Line charts: from series of numbers to the geometry that the template draws as SVG.

Positions are pixels of a drawing of WIDTH x HEIGHT, which the page scales. What a reader points at is read
out from the numbers themselves, so each point keeps its exact values beside its place.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 458, 16, 252  # of the plot within the drawing
COLOURS = 7  # of the palette in style.css; further series take other dashes


@dataclass
class Series:
    """A line. ``x`` has one number more than ``y`` for a histogram: the edges of its bins."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    colour: int = 0
    dash: int = 0
    error: Sequence[float] | None = None


@dataclass
class Chart:
    id: str
    title: str
    x: str
    y: str
    series: list[Series]
    caption: str = ""
    x_log: bool = False
    y_log: bool = False
    y_range: tuple[float, float] | None = None  # the axis reaches at least so far
    x_lines: list[tuple[float, str]] = field(default_factory=list)  # references: value, label
    y_lines: list[tuple[float, str]] = field(default_factory=list)
    markers: bool = False


class Scale:
    """Numbers to pixels. On a logarithmic scale 0 has a place of its own, a decade below all others."""

    def __init__(self, values: list[float], first: float, last: float, log: bool):
        positive = [v for v in values if v > 0]
        self.log = log and bool(positive)
        self.zero = None
        if self.log:
            low, high = math.log10(min(positive)), math.log10(max(positive))
            if min(values) <= 0:
                self.zero = low = low - 1
        else:
            low, high = min(values, default=0.0), max(values, default=1.0)
        if high - low < 1e-12 * max(1.0, abs(high)):  # one value: it is drawn in the middle
            low, high = low - 0.5, high + 0.5
        self.low, self.high, self.first, self.last = low, high, first, last

    def __call__(self, value: float) -> float:
        if self.log:
            value = math.log10(value) if value > 0 else self.low
        share = (value - self.low) / (self.high - self.low)
        return round(self.first + share * (self.last - self.first), 2)

    def ticks(self, count: int = 5) -> list[dict[str, Any]]:
        if not self.log:
            values = _round_values(self.low, self.high, count)
        else:
            least, most = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
            apart = max(1, -(-(most - least + 1) // (count + 2)))
            values = [10.0**i for i in range(least, most + 1, apart)]
            if most - least < 1:  # less than two decades: 1, 2, 5
                tens = range(least - 1, most + 2)
                some = [m * 10.0**i for i in tens for m in (1, 2, 5)]
                values = [v for v in some if self.low - 1e-9 <= math.log10(v) <= self.high + 1e-9]
            if self.zero is not None:
                values = [0.0, *(v for v in values if math.log10(v) > self.zero + 0.5)]
        return [{"at": self(v), "words": _words(v)} for v in values]


def layout(chart: Chart) -> dict[str, Any]:
    """What the template needs to draw a chart, and the points for whoever reads it out."""
    xs = [float(x) for s in chart.series for x in s.x] + [value for value, _ in chart.x_lines]
    ys = [float(y) for s in chart.series for y in s.y if y is not None and (y > 0 or not chart.y_log)]
    for s in chart.series:
        for y, error in zip(s.y, s.error or (), strict=False):
            ys += [] if y is None else [y - error, y + error]
    ys += [value for value, _ in chart.y_lines] + list(chart.y_range or ())
    if ys and chart.y_log:
        ys.append(0.7 * min(ys))  # the smallest stays above the base line
    elif ys and chart.y_range is None:
        low, high = min(ys), max(ys)
        air = 0.05 * (high - low)
        ys += [high + air, low - air if low < 0 else max(0.0, low - air)]
    across = Scale(xs, LEFT, RIGHT, chart.x_log)
    up = Scale(ys, BOTTOM, TOP, chart.y_log)
    lines, points = [], []
    for s in chart.series:
        histogram = len(s.x) > len(s.y)
        middle = [(a + b) / 2 for a, b in zip(s.x, s.x[1:], strict=False)] if histogram else s.x
        kept = [(float(x), y, i) for i, (x, y) in enumerate(zip(middle, s.y, strict=True)) if y is not None]
        places = [(across(x), up(y)) for x, y, _ in kept]
        line: dict[str, Any] = {
            "class": f"s{s.colour % COLOURS} d{(s.dash + s.colour // COLOURS) % 4}",
            "name": s.name,
        }
        line["path"] = _outline(s, across, up) if histogram else _path(places)
        line["dots"] = places if (chart.markers and len(places) <= 40) or len(places) == 1 else []
        line["bars"] = [
            (place[0], up(y - s.error[i]), up(y + s.error[i]))
            for place, (_, y, i) in zip(places, kept, strict=True)
            if s.error
        ]
        lines.append(line)
        points.append(
            {
                "name": s.name,
                "class": line["class"],
                "x": [x for x, _, _ in kept],
                "y": [y for _, y, _ in kept],
                "px": [x for x, _ in places],
                "py": [y for _, y in places],
            }
        )
    return {
        "chart": chart,
        "lines": lines,
        "points": {"x": chart.x, "y": chart.y, "top": TOP, "bottom": BOTTOM, "series": points},
        "x_ticks": across.ticks(),
        "y_ticks": up.ticks(),
        "x_lines": [{"at": across(value), "words": words} for value, words in chart.x_lines],
        "y_lines": [{"at": up(value), "words": words} for value, words in chart.y_lines],
    }


def _path(places: list[tuple[float, float]]) -> str:
    return "".join(f"{'L' if i else 'M'}{x:g},{y:g}" for i, (x, y) in enumerate(places))


def _outline(s: Series, across: Scale, up: Scale) -> str:
    """The outline of a histogram, from its base line and back."""
    places: list[tuple[float, float]] = [(across(s.x[0]), BOTTOM)]
    for a, b, y in zip(s.x, s.x[1:], s.y, strict=False):
        height = BOTTOM if not y else up(y)
        places += [(across(a), height), (across(b), height)]
    return _path([*places, (across(s.x[-1]), BOTTOM)])


def _round_values(low: float, high: float, count: int) -> list[float]:
    """Round numbers from low to high, about ``count`` of them."""
    rough = (high - low) / count
    ten = 10.0 ** math.floor(math.log10(rough))
    step = next(m * ten for m in (1, 2, 2.5, 5, 10) if m * ten >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def _words(value: float) -> str:
    size = abs(value)
    if size >= 1e6 or (0 < size < 1e-3):
        mantissa, exponent = f"{value:.0e}".split("e")
        power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"10{power}" if mantissa == "1" else f"{mantissa}·10{power}"
    if size >= 1e4:
        return f"{value / 1000:.4g}k"
    return f"{value:.4g}".replace("-", "−")
