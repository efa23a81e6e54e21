"""The charts of analyses, on the page and as files. Several runs share each chart.

A chart without series says that no run has such numbers; it is left out.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from simplicia.analyze.report_data import Analysis, DataFacts, Graph
from simplicia.errors import UserError
from simplicia.report.plots import Axis, Chart, Note, Series, save, write_csv
from simplicia.report.plots.chart import GREY

Runs = list[tuple[str, Analysis]]  # by the names that the page gives them
LAYERS = ("encoder", "sem", "embedder", "codes")  # with several runs each layer has its dash
TRAINING = {  # a column of the log: title, label of its axis
    "loss": ("Loss", "loss"),
    "effective_rank": ("Effective rank of the encoder's features", "effective rank of a batch"),
    "feature_std": ("Spread of the features", "spread; 0: collapsed"),
    "entropy": ("Mean entropy of a simplex", "nats"),
    "lr": ("Learning rate", "learning rate"),
    "images_per_s": ("Speed", "images per second"),
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
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"figures cannot be written to {folder}: {error.strerror}") from error
    charts = [*training(runs), temperature(runs), entropy(runs), coherence(runs), spectrum(runs)]
    written = []
    for chart in (chart for chart in [*charts, *retrieval(runs)] if chart.series):
        written += [save(chart, folder / f"{chart.id}.{suffix}") for suffix in ("svg", "png")]
        rows = [[series.name, *point] for series in chart.series for point in series.points]
        header = ["series", chart.x.label, chart.y.label, "standard error"]
        written.append(write_csv(folder / f"{chart.id}.csv", header, rows))
    for i, (_, analysis) in enumerate(runs, 1):
        for graph in analysis.coherence.graphs if analysis.coherence else []:
            if graph.k == 5 and graph.edges:
                path = folder / (f"graph-{graph.layer}" + (f"-{i}.svg" if len(runs) > 1 else ".svg"))
                chart, names = class_graph(graph, analysis.data), analysis.data.classes
                written += [save(chart, path), save(chart, path.with_suffix(".png"))]
                rows = [[c, names[int(c)], feature, weight] for c, feature, weight in graph.edges]
                header = ["class", "name", "feature", "weight"]
                written.append(write_csv(path.with_suffix(".csv"), header, rows))
    return written


def _collect(runs: Runs, curves_of: Callable[[Analysis], Iterator[tuple[str, Series]]]) -> list[Series]:
    """The curves of every run, each with its layer, named and coloured.

    One run has a colour per curve; several have a colour per run and a dash per layer.
    """
    collected = []
    for i, (run, analysis) in enumerate(runs):
        for j, (layer, series) in enumerate(curves_of(analysis)):
            name, colour, dash = series.name, j, 0
            if len(runs) > 1:
                name, colour = join(runs, run, name) if name else run, i
                dash = LAYERS.index(layer) if layer in LAYERS else j
            collected.append(dataclasses.replace(series, name=name or run, colour=colour, dash=dash))
    return collected


def training(runs: Runs) -> list[Chart]:
    """Columns of the log over steps; the online accuracies last."""
    charts = []
    for key, (title, label) in TRAINING.items():

        def column(analysis: Analysis, key: str = key) -> Iterator[tuple[str, Series]]:
            log = analysis.log.train
            if any(value is not None for value in log.get(key, ())):
                yield "encoder", Series("", _steps(log), log[key])

        chart = Chart(title, Axis("step"), Axis(label), _collect(runs, column), f"training-{key}")
        if key == "entropy":
            tops = {a.entropy.ln_vertices: f"ln {a.entropy.vertices}" for _, a in runs if a.entropy}
            chart.y_lines = list(tops.items())
        charts.append(chart)

    def online(analysis: Analysis) -> Iterator[tuple[str, Series]]:
        for name, steps, values in online_curves(analysis):
            yield name, Series(name, steps, values, markers=True)

    caption = "Online: the classifiers learn during pre-training. They are not the offline probes below."
    up = Axis("online test accuracy, %")
    return [*charts, Chart("Online accuracy", Axis("step"), up, _collect(runs, online), "online", caption)]


def online_curves(analysis: Analysis) -> list[tuple[str, list[float], list[float | None]]]:
    """The online accuracies: name, steps and values."""
    log = analysis.log.online
    return [
        (key.removeprefix("online_").removesuffix("_accuracy").replace("_", " "), _steps(log), values)
        for key, values in log.items()
        if key.startswith("online_")
    ]


def temperature(runs: Runs) -> Chart:
    """Accuracy of offline probes at each temperature."""

    def probes(analysis: Analysis) -> Iterator[tuple[str, Series]]:
        for file, rows in per_temperature(analysis).items():
            taus, accuracies, errors = zip(*rows, strict=True)
            yield "", Series(file, taus, accuracies, error=errors, markers=True)

    caption = "Bars are one standard error. Temperature 0 is the codes: one-hot simplices."
    across, up = Axis("temperature of the simplices", log=True), Axis("offline test accuracy, %")
    title = "Offline probe at each temperature"
    return Chart(title, across, up, _collect(runs, probes), "temperature", caption)


def per_temperature(analysis: Analysis) -> dict[str, list[tuple[float, float, float]]]:
    """The results at several temperatures, by file: temperature, accuracy and standard error of each."""
    results = {}
    for file, result in analysis.results.items():
        rows = [row for row in result.get("per_temperature", []) if row.get("temperature") is not None]
        if rows:
            keys = ("temperature", "accuracy", "standard_error")
            results[file] = sorted(tuple(row[key] for key in keys) for row in rows)
    return results


def entropy(runs: Runs) -> Chart:
    """Histograms at each temperature; of several runs each at its own."""
    alone = len(runs) == 1

    def histograms(analysis: Analysis) -> Iterator[tuple[str, Series]]:
        if analysis.entropy is None:
            return
        for curve in analysis.entropy.curves:
            if alone or curve.own:
                name = f"temperature {curve.temperature:g}" + (
                    ", the run's own" if alone and curve.own else ""
                )
                shares = [count / curve.count if count else None for count in curve.counts]
                yield "", Series(name, analysis.entropy.edges, shares, kind="histogram")

    lines = {0.0: "0"}
    for e in (analysis.entropy for _, analysis in runs if analysis.entropy):
        lines |= {e.ln2: "ln 2", e.ln_vertices: f"ln {e.vertices}"}
    caption = "0: one-hot; ln 2: uniform over two vertices; ln V: uniform over all V."
    caption += "" if alone else " Each run at its own temperature."
    across, up = Axis("entropy of a simplex, nats"), Axis("share of simplices", log=True)
    series, x_lines = _collect(runs, histograms), list(lines.items())
    return Chart("Entropy of simplices", across, up, series, "entropy", caption, x_lines=x_lines)


def coherence(runs: Runs) -> Chart:
    def curves(analysis: Analysis) -> Iterator[tuple[str, Series]]:
        for curve in analysis.coherence.curves if analysis.coherence else []:
            if curve.coherence is not None:
                ks = range(1, len(curve.coherence) + 1)
                yield curve.layer, Series(curve.label, ks, curve.coherence)

    caption = "The share of a class's neighbours that are of its superclass, averaged over classes."
    across, up = Axis("K, the largest weights of each class"), Axis("coherence", limits=(0.0, 1.0))
    return Chart("Coherence", across, up, _collect(runs, curves), "coherence", caption)


def spectrum(runs: Runs) -> Chart:
    def layers(analysis: Analysis) -> Iterator[tuple[str, Series]]:
        for layer in analysis.spectrum.layers:
            values = [value if value and value > 0 else None for value in layer.values]
            yield layer.layer, Series(layer.layer, [at + 1 for at in layer.index], values)

    across, up = Axis("index, high to low", log=True), Axis("singular value", log=True)
    caption, series = "A curve that falls early uses few directions.", _collect(runs, layers)
    return Chart("Singular values of the covariance", across, up, series, "spectrum", caption)


def retrieval(runs: Runs) -> list[Chart]:
    charts = []
    for by, label in (("by_class", "class"), ("by_superclass", "superclass")):

        def layers(analysis: Analysis, by: str = by) -> Iterator[tuple[str, Series]]:
            if analysis.retrieval is None:
                return
            for layer in analysis.retrieval.layers:
                if layer[by] is not None:
                    yield layer.layer, Series(layer.layer, analysis.retrieval.k, layer[by], markers=True)

        chances = [(a.retrieval.chance or {}).get(by) for _, a in runs if a.retrieval]
        lines = [(chance, "chance") for chance in dict.fromkeys(chances) if chance is not None]
        across, up = Axis("k nearest images", log=True), Axis("precision", limits=(0.0, None))
        title, series = f"Nearest images of the same {label}", _collect(runs, layers)
        charts.append(Chart(title, across, up, series, f"retrieval-{by}", y_lines=lines))
    return charts


def class_graph(graph: Graph, data: DataFacts) -> Chart:
    """W_K: classes by name, coloured by superclass, around the features they share."""
    import networkx

    nodes = networkx.Graph()
    nodes.add_edges_from((("class", c), ("feature", f)) for c, f, _ in graph.edges)
    at: Any = networkx.spring_layout(nodes, seed=0, weight=None, k=1.6 / math.sqrt(len(nodes)))

    def points(nodes: list[tuple[str, int]]) -> tuple[list[float], list[float]]:
        return [at[node][0] for node in nodes], [at[node][1] for node in nodes]

    gap = ("gap", 0)
    at[gap] = math.nan, math.nan
    ends = [node for c, f, _ in graph.edges for node in (("class", int(c)), ("feature", int(f)), gap)]
    series = [Series("", *points(ends), GREY, faint=True)]
    series.append(Series("features", *points([n for n in nodes if n[0] == "feature"]), GREY, kind="points"))
    groups: dict[int, list[int]] = {}
    for c in sorted({int(c) for c, _, _ in graph.edges}):
        groups.setdefault(data.superclass[c] if data.superclass else 0, []).append(c)
    for group, members in groups.items():
        name = data.superclasses[group] if data.superclass else "classes"
        series.append(Series(name, *points([("class", c) for c in members]), group, kind="points"))
    notes = [
        Note(at["class", c][0], at["class", c][1], data.classes[c])
        for members in groups.values()
        for c in members
    ]
    title = f"Graph of classes and features, K = {graph.k}, {graph.layer}"
    return Chart(title, Axis(), Axis(), series, notes=notes, frame=False, size=(12.0, 12.0))


def _steps(log: dict[str, list[float | None]]) -> list[float]:
    return [step for step in log.get("step", []) if step is not None]


def join(runs: Runs, run: str, line: str) -> str:
    """The name of a line, with its run if there are several."""
    return line if len(runs) == 1 else f"{run}, {line}"
