"""From analyses to one HTML file that needs nothing else: no network, no other file, no library.

Analyses may come from strangers. Their names and texts reach the page through autoescaping templates or as
JSON without markup, and the page's script sets text, never HTML. A policy in the page forbids every request
and every script but its own.
"""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path, PurePath
from typing import Any

import jinja2
from markupsafe import Markup

from simplicia.analyze.report_data import Analysis
from simplicia.errors import printable
from simplicia.files import write_file
from simplicia.report import figures, tables
from simplicia.report.figures import Runs
from simplicia.report.plots import BOX, layout
from simplicia.report.summary import summarise

SHEET = re.compile(r"thumbnails-\d+\.jpg")
JPEG = b"\xff\xd8\xff"
EXPLORED = ("data", "coherence", "atlas", "retrieval", "thumbnails")  # what the page's script shows of a run
Analyses = Sequence[tuple[Analysis, Path]]  # each with the folder it lies in


def write(analyses: Analyses, out: str | Path) -> Path:
    """Write the page of analyses.

    >>> write([analyze(run, images=60, fit_images=100, quiet=True)], "page.html").name
    'page.html'
    """
    # names of files need not be UTF-8
    return write_file(Path(out), page(analyses).encode("utf-8", "replace"), "the page")


def page(analyses: Analyses) -> str:
    """The page as text.

    >>> "<h1>shapes-byol-sem</h1>" in page([analyze(run, images=60, fit_images=100, quiet=True)])
    True
    """
    runs = figures.name_runs([_mailable(analysis) for analysis, _ in analyses])
    sheets, missing = _sheets(analyses)
    charts = {section: [layout(chart) for chart in part] for section, part in figures.charts(runs).items()}
    data = {
        "charts": {chart["id"]: chart["readout"] for part in charts.values() for chart in part},
        "runs": [{"vertices": a.run.vertices} | {key: a[key] for key in EXPLORED} for _, a in runs],
    }
    script = _text("graph.js") + _text("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return render(
        "template.html.j2",
        runs=runs,
        title=runs[0][0] if len(runs) == 1 else f"Comparison of {len(runs)} runs",
        warnings=_warnings(runs) + missing,
        charts=charts,
        **BOX,
        summaries=[summarise(analysis) for _, analysis in runs],
        tables=tables.page_tables(runs),
        stored=[(name, tables.stored(analysis.results)) for name, analysis in runs],
        recipes=[(name, json.dumps(analysis.run.recipe, indent=1)) for name, analysis in runs],
        sheets=sheets,
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'",
        # the package's own file, and JSON that cannot end its element
        script=Markup(script),
        data=Markup(embedded(data)),
    )


def render(template: str, **values: Any) -> str:
    """A page from one of the package's templates; values are escaped."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["printable"] = printable
    style = Markup(_text("style.css"))  # the package's own file
    return environment.from_string(_text(template)).render(style=style, **values)


def embedded(data: Any) -> str:
    """JSON that is safe inside a script element, whatever strings it holds."""
    text = json.dumps(data, default=lambda part: part.to_json(), allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _text(name: str) -> str:
    return resources.files("simplicia.report").joinpath(name).read_text(encoding="utf-8")


def _mailable(analysis: Analysis) -> Analysis:
    """The analysis with the last part of the recipe's paths only: the page may be mailed."""
    recipe = dict(analysis.run.recipe)
    for key in ("data", "data_dir"):
        if isinstance(recipe.get(key), str):
            recipe[key] = PurePath(recipe[key]).name
    return analysis.replace(run=analysis.run.replace(recipe=recipe))


def _warnings(runs: Runs) -> list[tuple[str, str]]:
    """The name of a run, and what a reader must know first."""
    warnings = []
    for name, analysis in runs:
        run = analysis.run
        if not run.finished:
            warnings.append((name, f"unfinished: step {run.step:,} of {run.total_steps:,}"))
        warnings += [(name, f"step {w.step:,}: {w.words}") for w in analysis.log.warnings]
        warnings += [(name, note) for note in analysis.notes]
    return warnings


def _sheets(analyses: Analyses) -> tuple[list[tuple[int, int, str]], list[tuple[str, str]]]:
    """Each run's sheets of thumbnails in base64, and a warning for each that is missing."""
    sheets, missing = [], []
    for i, (analysis, folder) in enumerate(analyses):
        for j, sheet in enumerate(analysis.thumbnails.sheets):
            path = folder / sheet.file
            try:
                # a stranger's analysis names files: read none but its own thumbnails
                inside = SHEET.fullmatch(sheet.file) and path.resolve().parent == folder.resolve()
                content = path.read_bytes() if inside else b""
            except OSError:
                content = b""
            if content.startswith(JPEG):
                sheets.append((i, j, base64.b64encode(content).decode()))
            else:
                missing.append((analysis.run.name, f"a sheet of images is missing: {sheet.file}"))
    return sheets, missing
