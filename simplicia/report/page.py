"""From analyses to one HTML file that needs nothing else: no network, no other file, no library.

What analyses hold may come from strangers (names of classes, files and runs, whole folders): it reaches the
page through autoescaping templates or as JSON in which no markup is left, and the script that shows it sets
text, never HTML. A policy in the page forbids every request and every script but its own.
"""

import base64
import hashlib
import json
import re
from importlib import resources
from pathlib import Path, PurePath
from typing import Any

import jinja2
from markupsafe import Markup

from simplicia.analyze.summary import names
from simplicia.errors import UserError
from simplicia.files import atomic_write
from simplicia.report import figures, tables
from simplicia.report.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, layout
from simplicia.report.figures import Found, Runs

SHEET = re.compile(r"thumbnails-\d+\.jpg")
JPEG = b"\xff\xd8\xff"


def write(analyses: list[tuple[Found, Path]], out: str | Path) -> Path:
    """Write the page of analyses, each with the folder it lies in."""
    text, target = page(analyses), Path(out)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target) as temporary:
            temporary.write_bytes(text.encode("utf-8", "replace"))  # names of files need not be UTF-8
    except OSError as error:
        raise UserError(f"the page cannot be written to {target}: {error.strerror}") from error
    return target


def page(analyses: list[tuple[Found, Path]]) -> str:
    """The page as text."""
    try:
        return _page(analyses)
    except (
        LookupError,
        TypeError,
        AttributeError,
        ValueError,
        ArithmeticError,
        jinja2.TemplateError,
    ) as error:
        folders = ", ".join(str(folder) for _, folder in analyses)
        raise UserError(
            f"the analysis of {folders} is not whole ({type(error).__name__}: {error}); "
            "simplicia analyze RUN --again writes it anew"
        ) from error


def _page(analyses: list[tuple[Found, Path]]) -> str:
    shown = [_mailable(found) for found, _ in analyses]
    runs: Runs = list(zip(names(shown), shown, strict=True))
    sheets, lost = _sheets(analyses)
    charts: dict[str, list[dict[str, Any]]] = {
        "training": _drawn(figures.training(runs)),
        "temperature": _drawn([figures.temperature(runs)]),
        "entropy": _drawn([figures.entropy(runs)]),
        "coherence": _drawn([figures.coherence(runs)]),
        "spectrum": _drawn([figures.spectrum(runs)]),
        "retrieval": _drawn(figures.retrieval(runs)),
    }
    data = {
        "charts": {c["chart"].id: c["points"] for part in charts.values() for c in part},
        "runs": [_explored(name, found) for name, found in runs],
    }
    script = _text("graph.js") + _text("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_text("template.html.j2")).render(
        runs=runs,
        title=runs[0][0] if len(runs) == 1 else f"{len(runs)} runs side by side",
        warnings=_warnings(runs) + lost,
        charts=charts,
        settings=tables.settings(runs),
        accuracies=[t for t in (tables.offline(runs), tables.online(runs)) if t.rows],
        temperatures=tables.temperatures(runs),
        classifiers=tables.coherence(runs),
        inside=tables.inside(runs),
        ranks=tables.ranks(runs),
        cost=tables.cost(runs),
        stored=[(name, tables.stored(found)) for name, found in runs],
        recipes=[(name, json.dumps(found["run"]["recipe"], indent=1)) for name, found in runs],
        plot={"w": WIDTH, "h": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM},
        sheets=sheets,
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'",
        # our own files; and JSON in which nothing can end its element
        style=Markup(_text("style.css")),
        script=Markup(script),
        data=Markup(embedded(data)),
    )


def embedded(data: Any) -> str:
    """JSON that is safe inside a script element, whatever the strings in it say."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _text(name: str) -> str:
    return resources.files("simplicia.report").joinpath(name).read_text(encoding="utf-8")


def _drawn(charts: list[Chart]) -> list[dict[str, Any]]:
    return [layout(chart) for chart in charts if chart.series]


def _mailable(found: Found) -> Found:
    """The same with the last part of the recipe's paths only: the page may be mailed."""
    recipe = found["run"]["recipe"]
    short = {key: PurePath(recipe[key]).name for key in ("data", "data_dir") if recipe[key]}
    return {**found, "run": {**found["run"], "recipe": {**recipe, **short}}}


def _warnings(runs: Runs) -> list[tuple[str, str]]:
    """What a reader must know first: who, and what."""
    found = []
    for name, analysis in runs:
        run = analysis["run"]
        if not run["finished"]:
            found.append((name, f"unfinished: step {run['step']:,} of {run['total_steps']:,}"))
        found += [(name, f"step {w['step']:,}: {w['words']}") for w in analysis["log"]["warnings"]]
        found += [(name, str(note)) for note in analysis["notes"]]
    return found


def _explored(name: str, found: Found) -> dict[str, Any]:
    """What the page's script needs of a run: graph, atlas, retrieval's examples and where images are."""
    data, thumbnails = found["data"], found["thumbnails"]
    return {
        "name": name,
        "vertices": found["run"]["vertices"],
        "classes": data["classes"],
        "counts": data["class_counts"],
        "superclass": data["superclass"],
        "superclasses": data["superclasses"],
        "graphs": (found["coherence"] or {"graphs": []})["graphs"],
        "layers": {c["layer"]: c["label"] for c in (found["coherence"] or {"curves": []})["curves"]},
        "atlas": found["atlas"] and {key: found["atlas"][key] for key in ("features", "ranked_by", "images")},
        "examples": (found["retrieval"] or {"examples": []})["examples"],
        "tile": thumbnails["tile"],
        "sheets": [[sheet["width"], sheet["height"]] for sheet in thumbnails["sheets"]],
        "images": {
            index: [*(int(place[key]) for key in ("sheet", "x", "y")), place["label"], place["file"]]
            for index, place in thumbnails["images"].items()
        },
    }


def _sheets(analyses: list[tuple[Found, Path]]) -> tuple[list[tuple[int, int, str]], list[tuple[str, str]]]:
    """Each run's sheets of thumbnails in base64, and a warning for each that is not there."""
    sheets, lost = [], []
    for i, (found, folder) in enumerate(analyses):
        for j, sheet in enumerate(found["thumbnails"]["sheets"]):
            path = folder / sheet["file"]
            try:
                # a stranger's analysis names files: it gets none but its own pictures
                inside = SHEET.fullmatch(sheet["file"]) and path.resolve().parent == folder.resolve()
                content = path.read_bytes() if inside else b""
            except OSError:
                content = b""
            if content.startswith(JPEG):
                sheets.append((i, j, base64.b64encode(content).decode()))
            else:
                lost.append((str(found["run"]["name"]), f"a sheet of images is missing: {sheet['file']}"))
    return sheets, lost
