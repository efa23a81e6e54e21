"""The charts of analyses, on the page and as files. Several runs share each chart."""

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from simplicia.analyze.report_data import Analysis, DataFacts, Graph
from simplicia.files import write_errors, write_file
from simplicia.report.plots import Axis, Chart, Note, Series, save
from simplicia.report.plots.chart import GREY
from simplicia.result import Result

Runs = list[tuple[str, Analysis]]  # by the names that the page gives them
Curves = Iterator[tuple[str, Series]]  # of one run, each with its layer
CurvesOf = Callable[[Analysis], Curves]
LAYERS = ("encoder", "sem", "embedder", "codes")  # with several runs each layer has its dash
TRAINING = {  # a column of the log: title, label of its axis
    "loss": ("Loss", "loss"),
    "effective_rank": ("Effective rank of the encoder's features", "effective rank of a batch"),
    "feature_std": ("Spread of the features", "spread; 0: collapsed"),
    "entropy": ("Mean entropy of a simplex", "nats"),
    "lr": ("Learning rate", "learning rate"),
    "images_per_s": ("Speed", "images per second"),
}
WORDS = {"sem": "simplices", "knn": "kNN"}  # for names of layers and online accuracies
NOISE = 1e-12  # of the largest singular value of a covariance
CAPTIONS = {
    "online": "Online: the classifiers learn during pre-training. Do not compare them with offline probes.",
    "temperature": "Bars are one standard error. Temperature 0 is the codes: one-hot simplices.",
    "entropy": "0: one-hot; ln 2: uniform over two vertices; ln V: uniform over all V.",
    "coherence": "The share of a class's neighbours that are of its superclass, averaged over classes.",
    "spectrum": "A curve that falls early uses few directions.",
}


def name_runs(analyses: Sequence[Analysis]) -> Runs:
    """Each analysis with its run's name, with the folder where names are equal, numbered if both are."""
    names = [each.run.name for each in analyses]
    if len(set(names)) < len(names):
        names = [f"{each.run.name} ({each.run.folder})" for each in analyses]
    if len(set(names)) < len(names):
        names = [f"{i}. {name}" for i, name in enumerate(names, 1)]
    return list(zip(names, analyses, strict=True))


def write_figures(analyses: Sequence[Analysis], folder: str | Path) -> list[Path]:
    """Write every chart, and the graph with K = 5 of each layer, as SVG, PNG and CSV."""
    folder, runs = Path(folder), name_runs(analyses)
    written: list[Path] = []

    def write(chart: Chart, name: str, *rows: Sequence[Any]) -> None:
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        content = text.getvalue().encode("utf-8", "replace")  # names of files need not be UTF-8
        written.extend(save(chart, folder / f"{name}.{suffix}") for suffix in ("svg", "png"))
        written.append(write_file(folder / f"{name}.csv", content, "figures"))

    with write_errors("figures", folder):
        folder.mkdir(parents=True, exist_ok=True)
    for chart in (chart for section in charts(runs).values() for chart in section):
        header = ["series", chart.x.label, chart.y.label, "standard error"]
        write(chart, chart.id, header, *([s.name, *point] for s in chart.series for point in s.points))
    for i, (_, analysis) in enumerate(runs, 1):
        for graph in analysis.coherence.graphs if analysis.coherence else []:
            if graph.k == 5 and graph.edges:
                name = f"graph-{graph.layer}" + (f"-{i}" if len(runs) > 1 else "")
                rows = ([c, analysis.data.classes[int(c)], f, weight] for c, f, weight in graph.edges)
                write(class_graph(graph, analysis.data), name, ["class", "name", "feature", "weight"], *rows)
    return written


def charts(runs: Runs) -> dict[str, list[Chart]]:
    """The charts of each section of the page; a chart is left out if no run has its numbers."""
    entropies = [analysis.entropy for _, analysis in runs if analysis.entropy]
    uniform = {e.ln_vertices: f"ln {e.vertices}" for e in entropies}
    marks = {0.0: "0"} | {e.ln2: "ln 2" for e in entropies} | uniform
    names = ("training", "temperature", "entropy", "coherence", "spectrum", "retrieval")
    sections: dict[str, list[Chart]] = {name: [] for name in names}

    def add(id: str, title: str, x: Axis, y: Axis, curves: CurvesOf, **lines: Any) -> None:
        series = _collect(runs, curves)
        if any(len(each.points) > 1 for each in series):  # one point is no curve; tables hold it
            chart = Chart(title, x, y, series, id, CAPTIONS.get(id, ""), **lines)
            sections["training" if id == "online" else id.partition("-")[0]].append(chart)

    for key, (title, label) in TRAINING.items():
        lines = list(uniform.items()) if key == "entropy" else []
        add(f"training-{key}", title, Axis("step"), Axis(label), partial(_column, key), y_lines=lines)
    add("online", "Online accuracy", Axis("step"), Axis("online test accuracy, %"), _online)
    across, up = Axis("temperature of the simplices", log=True), Axis("offline test accuracy, %")
    add("temperature", "Offline probe at each temperature", across, up, _probes)
    across, up = Axis("entropy of a simplex, nats"), Axis("share of simplices", log=True)
    histograms = partial(_histograms, len(runs) == 1)
    add("entropy", "Entropy of simplices", across, up, histograms, x_lines=list(marks.items()))
    for chart in sections["entropy"] if len(runs) > 1 else []:
        chart.caption += " Each run at its own temperature."
    across, up = Axis("K, the largest weights of each class"), Axis("coherence", limits=(0.0, 1.0))
    add("coherence", "Coherence", across, up, _coherences)
    across, up = Axis("index, high to low", log=True), Axis("singular value", log=True)
    add("spectrum", "Singular values of the covariance", across, up, _singular_values)
    across, up = Axis("k nearest images", log=True), Axis("precision", limits=(0.0, None))
    for by, label in (("by_class", "class"), ("by_superclass", "superclass")):
        chances = dict.fromkeys((a.retrieval.chance or {}).get(by) for _, a in runs if a.retrieval)
        lines = [(chance, "chance") for chance in chances if chance is not None]
        title = f"Nearest images of the same {label}"
        add(f"retrieval-{by}", title, across, up, partial(_precisions, by), y_lines=lines)
    return sections


def _collect(runs: Runs, curves_of: CurvesOf) -> list[Series]:
    """The curves of every run, named and coloured.

    One run has a colour per curve; several have a colour per run and a dash per layer.
    """
    collected = []
    for i, (run, analysis) in enumerate(runs):
        for j, (layer, series) in enumerate(curves_of(analysis)):
            name, colour, dash = series.name or run, j, 0
            if len(runs) > 1:
                name, colour = join(runs, run, series.name) if series.name else run, i
                dash = LAYERS.index(layer) if layer in LAYERS else j
            collected.append(dataclasses.replace(series, name=name, colour=colour, dash=dash))
    return collected


def join(runs: Runs, run: str, line: str) -> str:
    """The name of a line, with its run if there are several."""
    return line if len(runs) == 1 else f"{run}, {line}"


def _column(key: str, analysis: Analysis) -> Curves:
    log = analysis.log.train
    if any(value is not None for value in log.get(key, ())):
        steps: Any = log["step"]
        yield "", Series("", steps, log[key])


def _online(analysis: Analysis) -> Curves:
    for name, steps, values in online_curves(analysis):
        yield name, Series(name, steps, values, markers=True)


def _probes(analysis: Analysis) -> Curves:
    for file, rows in per_temperature(analysis).items():
        taus, accuracies, errors = zip(*rows, strict=True)
        yield "", Series(file, taus, accuracies, error=errors, markers=True)


def _histograms(alone: bool, analysis: Analysis) -> Curves:
    """At each temperature; of several runs each at its own."""
    for curve in analysis.entropy.curves if analysis.entropy else []:
        if analysis.entropy and (alone or curve.own):
            own = ", the run's own" if alone and curve.own else ""
            shares = [count / curve.count if count else None for count in curve.counts]
            name = f"temperature {curve.temperature:g}{own}"
            yield "", Series(name, analysis.entropy.edges, shares, kind="histogram")


def _coherences(analysis: Analysis) -> Curves:
    for curve in analysis.coherence.curves if analysis.coherence else []:
        if curve.coherence is not None:
            yield curve.layer, Series(curve.label, range(1, len(curve.coherence) + 1), curve.coherence)


def _singular_values(analysis: Analysis) -> Curves:
    for layer in analysis.spectrum.layers:
        # smaller ones are rounding errors of features in 32 bits
        least = NOISE * max((value for value in layer.values if value is not None), default=0.0)
        values = [value if value is not None and value > least else None for value in layer.values]
        yield layer.layer, Series(layer_name(layer.layer), [at + 1 for at in layer.index], values)


def _precisions(by: str, analysis: Analysis) -> Curves:
    for layer in analysis.retrieval.layers if analysis.retrieval else []:
        if analysis.retrieval and layer[by] is not None:
            yield layer.layer, Series(layer_name(layer.layer), analysis.retrieval.k, layer[by], markers=True)


def online_curves(analysis: Analysis) -> Iterator[tuple[str, list[Any], list[float | None]]]:
    """The online accuracies: name, steps and values."""
    log = analysis.log.online
    for key in (key for key in log if key.startswith("online_")):
        head, _, temperature = key.removeprefix("online_").replace("_accuracy", "").partition("@")
        name = layer_name(head)
        yield name + (f" at temperature {temperature}" if temperature else ""), log.get("step", []), log[key]


def per_temperature(analysis: Analysis) -> dict[str, list[tuple[float, float, float]]]:
    """The results at several temperatures, by name: temperature, accuracy and standard error of each."""
    results: dict[str, list[tuple[float, float, float]]] = {}
    for file, result in analysis.results.items():
        rows = [row for row in result.get("per_temperature", []) if row.get("temperature") is not None]
        if rows:
            values = ((row["temperature"], row["accuracy"], row["standard_error"]) for row in rows)
            name = describe(result)
            results[name if name not in results else f"{name} ({file})"] = sorted(values)
    return results


def layer_name(layer: str) -> str:
    """A layer in words."""
    return WORDS.get(layer, layer.replace("_", " "))


def describe(result: Result) -> str:
    """Describe a result in words: "linear probe of the simplices, epochs 8"."""
    preset = str(result.get("preset") or "").partition(",")[0]
    kind = result.protocol.removeprefix("offline ").replace("weighted kNN", "kNN")
    words = [f"{kind} of the {layer_name(result.layer)}" if result.layer else kind]
    words += [f"settings: {preset}"] if preset not in ("", "quick") else []
    changed = result.get("changed")
    words += [f"{name} {value}" for name, value in changed.items()] if isinstance(changed, dict) else []
    words += [f"{result.network} network"] if result.network != "online" else []
    return ", ".join(words)


def class_graph(graph: Graph, data: DataFacts) -> Chart:
    """W_K: classes by name, coloured by superclass, around the features they share."""
    import networkx

    nodes = networkx.Graph((("class", int(c)), ("feature", int(f))) for c, f, _ in graph.edges)
    at: Any = networkx.spring_layout(nodes, seed=0, weight=None, k=1.6 / math.sqrt(len(nodes)))
    gap = math.nan, math.nan

    def points(name: str, places: list[Any], colour: int, **look: Any) -> Series:
        return Series(name, [x for x, _ in places], [y for _, y in places], colour, **look)

    edges = [place for start, end in nodes.edges for place in (at[start], at[end], gap)]
    features = [at[node] for node in nodes if node[0] == "feature"]
    series = [points("", edges, GREY, faint=True), points("features", features, GREY, kind="points")]
    classes = sorted(node[1] for node in nodes if node[0] == "class")
    groups = [data.superclass[c] if data.superclass else 0 for c in classes]
    for group in dict.fromkeys(groups):
        name = data.superclasses[group] if data.superclass else "classes"
        members = [at["class", c] for c, g in zip(classes, groups, strict=True) if g == group]
        series.append(points(name, members, group, kind="points"))
    notes = [Note(at["class", c][0], at["class", c][1], data.classes[c]) for c in classes]
    title = f"Graph of classes and features, K = {graph.k}, {graph.layer}"
    return Chart(title, Axis(), Axis(), series, notes=notes, frame=False, size=(12.0, 12.0))
