"""The description of a chart, independent of how it is drawn. The page draws no part marked "files only"."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

# Okabe and Ito's colours, darkened to a contrast of 3:1 on white; style.css has their values for dark pages.
COLOURS = ("#0067a5", "#c24e00", "#007f5f", "#a8437f", "#9a7400", "#44484d", "#5b4bb5")
GREY = -1  # the colour of a series that others are compared with; files only


@dataclass
class Axis:
    label: str = ""
    log: bool = False  # 0 has a position of its own, below the smallest positive value
    limits: tuple[float | None, float | None] = (None, None)  # first and last value; None: fitted to the data
    names: Sequence[str] = ()  # of categories, which lie at 0, 1, 2, …; files only


@dataclass
class Series:
    """A line, a histogram or, in files only, a set of points."""

    name: str  # in the legend; "": not listed there
    x: Sequence[float]  # of a histogram the edges of its bins: one more than y
    y: Sequence[float | None]  # None: no point there
    colour: int = 0  # number in the palette; further series repeat the colours with other dashes
    dash: int = 0
    kind: Literal["line", "points", "histogram"] = "line"
    error: Sequence[float] | None = None  # half the length of the error bars
    markers: bool = False  # also mark the points of a line
    hollow: bool = False  # draw markers as rings; files only
    faint: bool = False  # files only

    @property
    def points(self) -> list[tuple[float, float, float | None]]:
        """x, y and error of every point; of a histogram x is the middle of a bin."""
        xs = self.x
        if self.kind == "histogram":
            xs = [(a + b) / 2 for a, b in zip(self.x, self.x[1:], strict=False)]
        errors: Sequence[float | None] = self.error or [None] * len(self.y)
        return [(x, y, error) for x, y, error in zip(xs, self.y, errors, strict=True) if y is not None]

    @property
    def style(self) -> int:
        """The number of the dash pattern."""
        return (self.dash + max(self.colour, 0) // len(COLOURS)) % 4


@dataclass
class Note:
    """Text next to a point; files only."""

    x: float
    y: float
    text: str
    side: Literal["left", "right", "above"] = "above"
    colour: int = GREY


@dataclass
class Chart:
    title: str
    x: Axis
    y: Axis
    series: list[Series]
    id: str = ""  # on a page, and of its file in a folder of figures
    caption: str = ""  # on a page
    x_lines: list[tuple[float, str]] = field(default_factory=list)  # reference lines: value, label
    y_lines: list[tuple[float, str]] = field(default_factory=list)
    # files only: text at points, axes that can be hidden, inches, and a heat map with rows of values
    notes: list[Note] = field(default_factory=list)
    frame: bool = True
    size: tuple[float, float] = (6.0, 4.0)
    cells: Sequence[Sequence[float | None]] = ()
    cells_label: str = ""
