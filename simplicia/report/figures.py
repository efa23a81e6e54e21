"""The charts of analyses, on the page and as files. Several runs share each chart.

A chart without series says that no run has such numbers; it is left out.
"""

import math
from collections.abc import Sequence
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


def training(runs: Runs) -> list[Chart]:
    """Columns of the log over steps; the online accuracies last."""
    charts = []
    for key, (title, label) in TRAINING.items():
        series = []
        for i, (name, analysis) in enumerate(runs):
            log = analysis.log.train
            if any(value is not None for value in log.get(key, ())):
                series.append(Series(name, _steps(log), log[key], i))
        chart = Chart(title, Axis("step"), Axis(label), series, f"training-{key}")
        if key == "entropy":
            tops = {a.entropy.ln_vertices: f"ln {a.entropy.vertices}" for _, a in runs if a.entropy}
            chart.y_lines = list(tops.items())
        charts.append(chart)
    series = []
    for i, (run, analysis) in enumerate(runs):
        for j, (name, steps, values) in enumerate(online_curves(analysis)):
            colour, dash = _look(runs, i, j, name)
            series.append(Series(join(runs, run, name), steps, values, colour, dash, markers=True))
    caption = "Online: the classifiers learn during pre-training. They are not the offline probes below."
    up = Axis("online test accuracy, %")
    return [*charts, Chart("Online accuracy", Axis("step"), up, series, "online", caption)]


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
    series = []
    for i, (run, analysis) in enumerate(runs):
        for j, (file, rows) in enumerate(per_temperature(analysis).items()):
            colour, dash = _look(runs, i, j)
            taus, accuracies, errors = zip(*rows, strict=True)
            name = join(runs, run, file)
            series.append(Series(name, taus, accuracies, colour, dash, error=errors, markers=True))
    caption = "Bars are one standard error. Temperature 0 is the codes: one-hot simplices."
    across, up = Axis("temperature of the simplices", log=True), Axis("offline test accuracy, %")
    return Chart("Offline probe at each temperature", across, up, series, "temperature", caption)


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
    series, lines = [], {0.0: "0"}
    for i, (run, analysis) in enumerate(runs):
        if analysis.entropy is None:
            continue
        lines[analysis.entropy.ln2] = "ln 2"
        lines[analysis.entropy.ln_vertices] = f"ln {analysis.entropy.vertices}"
        curves = [curve for curve in analysis.entropy.curves if curve.own or len(runs) == 1]
        for j, curve in enumerate(curves):
            own = ", the run's own" if curve.own and len(runs) == 1 else ""
            name = join(runs, run, f"temperature {curve.temperature:g}{own}")
            shares = [count / curve.count if count else None for count in curve.counts]
            look = _look(runs, i, j)
            series.append(Series(name, analysis.entropy.edges, shares, *look, kind="histogram"))
    caption = "0: one-hot; ln 2: uniform over two vertices; ln V: uniform over all V."
    if len(runs) > 1:
        caption += " Each run at its own temperature."
    across, up = Axis("entropy of a simplex, nats"), Axis("share of simplices", log=True)
    lines_at = list(lines.items())
    return Chart("Entropy of simplices", across, up, series, "entropy", caption, x_lines=lines_at)


def coherence(runs: Runs) -> Chart:
    series = []
    for i, (run, analysis) in enumerate(runs):
        curves = analysis.coherence.curves if analysis.coherence else []
        for j, curve in enumerate(curves):
            if curve.coherence is not None:
                ks, look = list(range(1, len(curve.coherence) + 1)), _look(runs, i, j, curve.layer)
                series.append(Series(join(runs, run, curve.label), ks, curve.coherence, *look))
    caption = (
        "The share of a class's neighbours in the graph that are of its superclass, averaged over classes."
    )
    across, up = Axis("K, the largest weights of each class"), Axis("coherence", limits=(0.0, 1.0))
    return Chart("Coherence", across, up, series, "coherence", caption)


def spectrum(runs: Runs) -> Chart:
    series = []
    for i, (run, analysis) in enumerate(runs):
        for j, layer in enumerate(analysis.spectrum.layers):
            values = [value if value and value > 0 else None for value in layer.values]
            index, look = [at + 1 for at in layer.index], _look(runs, i, j, layer.layer)
            series.append(Series(join(runs, run, layer.layer), index, values, *look))
    across, up = Axis("index, high to low", log=True), Axis("singular value", log=True)
    caption = "A curve that falls early uses few directions."
    return Chart("Singular values of the covariance", across, up, series, "spectrum", caption)


def retrieval(runs: Runs) -> list[Chart]:
    charts = []
    for by, label in (("by_class", "class"), ("by_superclass", "superclass")):
        series: list[Series] = []
        lines: dict[float, str] = {}
        for i, (run, analysis) in enumerate(runs):
            for j, layer in enumerate(analysis.retrieval.layers if analysis.retrieval else []):
                assert analysis.retrieval is not None
                if layer[by] is not None:
                    name, (colour, dash) = join(runs, run, layer.layer), _look(runs, i, j, layer.layer)
                    ks = analysis.retrieval.k
                    series.append(Series(name, ks, layer[by], colour, dash, markers=True))
                    chance = (analysis.retrieval.chance or {}).get(by)
                    lines |= {} if chance is None else {chance: "chance"}
        across, up = Axis("k nearest images", log=True), Axis("precision", limits=(0.0, None))
        title = f"Nearest images of the same {label}"
        charts.append(Chart(title, across, up, series, f"retrieval-{by}", y_lines=list(lines.items())))
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


def _look(runs: Runs, run: int, line: int, layer: str = "") -> tuple[int, int]:
    """Colour and dash: a colour per line; with several runs a colour per run and a dash per layer."""
    if len(runs) == 1:
        return line, 0
    return run, LAYERS.index(layer) if layer in LAYERS else line


def join(runs: Runs, run: str, line: str) -> str:
    """The name of a line, with its run if there are several."""
    return line if len(runs) == 1 else f"{run}, {line}"
