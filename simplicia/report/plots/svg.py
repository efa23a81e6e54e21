"""Charts as SVG for a page, whose style sheet has the colours and fonts.

Positions are pixels of a drawing of WIDTH x HEIGHT, which the page scales. The page's script reads out the
numbers a reader points at, so ``positions`` has the exact values of each point and where it lies.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from markupsafe import Markup

from simplicia.report.plots.chart import COLOURS, GREY, Axis, Chart, Series

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 458, 16, 252  # of the plot within the drawing
MOST_MARKERS = 40


@dataclass
class Positions:
    """The points of a series: their values, and their pixels."""

    name: str
    style: str  # classes of its colour and dash
    x: list[float]
    y: list[float]
    px: list[float]
    py: list[float]


class Scale:
    """Values to pixels. On a logarithmic scale 0 lies a decade below the smallest positive value."""

    def __init__(self, axis: Axis, values: Sequence[float], first: float, last: float):
        positive = [v for v in values if v > 0]
        self.axis, self.first, self.last = axis, first, last
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

    def ticks(self, count: int = 5) -> list[tuple[float, str]]:
        """Positions of about ``count`` round values, and how they are written."""
        if self.axis.names:
            return [(self(i), name) for i, name in enumerate(self.axis.names)]
        if not self.log:
            values = _round_values(self.low, self.high, count)
        else:
            least, most = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
            apart = max(1, -(-(most - least + 1) // (count + 2)))
            values = [10.0**i for i in range(least, most + 1, apart)]
            if most - least < 1:  # less than two decades: 1, 2, 5
                some = [m * 10.0**i for i in range(least - 1, most + 2) for m in (1, 2, 5)]
                values = [v for v in some if self.low - 1e-9 <= math.log10(v) <= self.high + 1e-9]
            if self.has_zero:
                values = [0.0, *(v for v in values if math.log10(v) > self.low + 0.5)]
        return [(self(v), _number(v)) for v in values]


def to_svg(chart: Chart) -> Markup:
    """The chart as an SVG element; everything that comes from the chart is escaped."""
    across, up = _scales(chart)
    parts = []
    for at, text in up.ticks():
        parts.append(_path("grid", f"M{LEFT},{at}H{RIGHT}"))
        parts.append(_text("tick", LEFT - 7, at, text, "end", dy="0.35em"))
    for at, text in across.ticks():
        parts.append(_path("notch", f"M{at},{BOTTOM}v4"))
        parts.append(_text("tick", at, BOTTOM + 6, text, dy="1em"))
    parts.append(_path("axis", f"M{LEFT},{BOTTOM}H{RIGHT}"))
    for value, text in chart.x_lines:
        parts.append(_path("reference", f"M{across(value)},{TOP}V{BOTTOM}"))
        parts.append(_text("reference-label", across(value), TOP - 4, text))
    for value, text in chart.y_lines:
        parts.append(_path("reference", f"M{LEFT},{up(value)}H{RIGHT}"))
        parts.append(_text("reference-label", RIGHT, up(value) - 4, text, "end"))
    for series in chart.series:
        parts.append(_draw_series(series, across, up))
    for note in chart.notes:
        dx, anchor = {"left": (-6, "end"), "right": (6, "start"), "above": (0, "middle")}[note.side]
        dy = "-0.5em" if note.side == "above" else "0.35em"
        parts.append(_text("note", across(note.x) + dx, up(note.y), note.text, anchor, dy=dy))
    parts.append(_text("label", (LEFT + RIGHT) / 2, HEIGHT - 6, chart.x.label))
    turned = f"translate(13 {(TOP + BOTTOM) / 2}) rotate(-90)"
    parts.append(_text("label", 0, 0, chart.y.label, transform=turned))
    parts.append(Markup('<g class="cursor"></g>'))
    about = f"{chart.title}: {chart.y.label} against {chart.x.label}. Arrow keys read out values."
    return Markup('<svg viewBox="0 0 {} {}" role="img" tabindex="0" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, about, Markup("\n").join(parts)
    )


def positions(chart: Chart) -> dict[str, object]:
    """What the page's script needs to read out values: JSON."""
    scales = _scales(chart)
    series = [asdict(_positions(series, *scales)) for series in chart.series]
    return {"x": chart.x.label, "y": chart.y.label, "top": TOP, "bottom": BOTTOM, "series": series}


def style(series: Series) -> str:
    """The classes of a series' colour and dash."""
    colour = "grey" if series.colour == GREY else f"s{series.colour % len(COLOURS)}"
    return f"{colour} d{series.style}" + (" faint" if series.faint else "")


def _scales(chart: Chart) -> tuple[Scale, Scale]:
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
    return Scale(chart.x, xs, LEFT, RIGHT), Scale(chart.y, ys, BOTTOM, TOP)


def _positions(series: Series, across: Scale, up: Scale) -> Positions:
    xs, ys = [float(x) for x, _, _ in series.points], [y for _, y, _ in series.points]
    return Positions(series.name, style(series), xs, ys, [across(x) for x in xs], [up(y) for y in ys])


def _draw_series(series: Series, across: Scale, up: Scale) -> Markup:
    points, parts = _positions(series, across, up), []
    pixels = list(zip(points.px, points.py, strict=True))
    if series.kind == "histogram":
        parts.append(_path(f"line {points.style}", _outline(series, across, up)))
    elif series.kind == "line":
        parts.append(_path(f"line {points.style}", _polyline(pixels)))
    for x, y, error in series.points:
        if error is not None:
            parts.append(_path(f"bar {points.style}", f"M{across(x)},{up(y - error)}V{up(y + error)}"))
    if series.kind == "points" or (series.markers and len(pixels) <= MOST_MARKERS) or len(pixels) == 1:
        kind = "ring" if series.hollow else "dot"
        circle = Markup('<circle class="{} {}" cx="{}" cy="{}" r="3"/>')
        parts += [circle.format(kind, points.style, x, y) for x, y in pixels]
    return Markup("").join(parts)


def _outline(series: Series, across: Scale, up: Scale) -> str:
    """The outline of a histogram, which begins and ends on the base line."""
    corners: list[tuple[float, float]] = [(across(series.x[0]), BOTTOM)]
    for a, b, y in zip(series.x, series.x[1:], series.y, strict=False):
        height = BOTTOM if not y else up(y)
        corners += [(across(a), height), (across(b), height)]
    return _polyline([*corners, (across(series.x[-1]), BOTTOM)])


def _polyline(pixels: list[tuple[float, float]]) -> str:
    return "".join(f"{'L' if i else 'M'}{x:g},{y:g}" for i, (x, y) in enumerate(pixels))


def _path(style: str, d: str) -> Markup:
    return Markup('<path class="{}" d="{}"/>').format(style, d)


def _text(style: str, x: float, y: float, text: str, anchor: str = "middle", **more: str) -> Markup:
    attributes = Markup("").join(Markup(' {}="{}"').format(name, value) for name, value in more.items())
    return Markup('<text class="{}" x="{}" y="{}" text-anchor="{}"{}>{}</text>').format(
        style, x, y, anchor, attributes, text
    )


def _round_values(low: float, high: float, count: int) -> list[float]:
    """Round numbers from low to high, about ``count`` of them."""
    rough = (high - low) / count
    ten = 10.0 ** math.floor(math.log10(rough))
    step = next(m * ten for m in (1, 2, 2.5, 5, 10) if m * ten >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def _number(value: float) -> str:
    size = abs(value)
    if size >= 1e6 or (0 < size < 1e-3):
        mantissa, exponent = f"{value:.0e}".split("e")
        power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"10{power}" if mantissa == "1" else f"{mantissa}·10{power}"
    return f"{value / 1000:.4g}k" if size >= 1e4 else f"{value:.4g}".replace("-", "−")
