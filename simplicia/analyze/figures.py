"""Figures of one or several analyses as files: SVG, PNG and the numbers as CSV."""

import csv
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from simplicia.analyze.summary import names
from simplicia.errors import UserError

Found = dict[str, Any]  # an analysis
Row = list[Any]


def draw(analyses: list[Found], folder: str | Path) -> list[Path]:
    """Every figure that the analyses have something for; several runs share each figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"figures cannot be written to {folder}: {error.strerror}") from error
    runs = [(_plain(name), found) for name, found in zip(names(analyses), analyses, strict=True)]
    written: list[Path] = []

    def save(
        name: str, plot: Callable[[Any], tuple[Row, list[Row]]], size: tuple[float, float] = (6, 4)
    ) -> None:
        figure = Figure(size, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        header, rows = plot(axes)
        if not rows:
            return
        for ending in ("svg", "png"):
            written.append(folder / f"{name}.{ending}")
            figure.savefig(written[-1], dpi=150)
        written.append(folder / f"{name}.csv")
        with written[-1].open("w", newline="", encoding="utf-8", errors="replace") as file:
            csv.writer(file).writerows([header, *rows])

    save("entropy", partial(_entropy, runs))
    save("coherence", partial(_coherence, runs))
    save("spectrum", partial(_spectrum, runs))
    save("retrieval", partial(_retrieval, runs))
    save("temperature", partial(_temperature, runs))
    for key in ("loss", "effective_rank"):
        save(f"training-{key}", partial(_training, runs, which="train", wanted=key))
    save("training-accuracy", partial(_training, runs, which="online", wanted=""))
    for i, (_, found) in enumerate(runs):
        for graph in (found["coherence"] or {"graphs": []})["graphs"]:
            if graph["k"] == 5:
                number = f"-{i + 1}" if len(runs) > 1 else ""
                name = f"graph-{graph['layer']}{number}"
                save(name, partial(_graph, graph, found["data"]), (12, 12))
    return written


def _plain(text: str) -> str:
    """Words as they are: matplotlib would read formulas between dollars, and SVG takes no controls."""
    shown = "".join(c if c.isprintable() and not "\ud800" <= c <= "\udfff" else "?" for c in text)
    return shown.replace("$", r"\$")


def _entropy(runs: list[tuple[str, Found]], axes: Any) -> tuple[Row, list[Row]]:
    rows: list[Row] = []
    for name, found in runs:
        entropy = found["entropy"]
        # of one run all temperatures; of several each at its own, as in the paper
        for curve in entropy["curves"] if entropy else []:
            if len(runs) > 1 and not curve["own"]:
                continue
            edges, total = entropy["edges"], max(curve["count"], 1)
            width = edges[1] - edges[0] or 1
            density = [count / total / width for count in curve["counts"]]
            axes.stairs(density, edges, fill=True, alpha=0.5, label=f"{name}, τ = {curve['temperature']:g}")
            rows += [
                [name, curve["temperature"], a, b, count]
                for a, b, count in zip(edges, edges[1:], curve["counts"], strict=False)
            ]
    marks = {0.0: "0"} | {math.log(2): "ln 2"}
    marks |= {found["entropy"]["ln_vertices"]: "ln V" for _, found in runs if found["entropy"]}
    for x, label in marks.items():
        axes.axvline(x, color="grey", linewidth=0.8)
        axes.annotate(label, (x, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom")
    axes.set(xlabel="entropy of a simplex, nats", ylabel="density", yscale="log")
    _legend(axes, rows)
    return ["run", "temperature", "from", "to", "simplices"], rows


def _coherence(runs: list[tuple[str, Found]], axes: Any) -> tuple[Row, list[Row]]:
    rows: list[Row] = []
    for name, found in runs:
        for curve in (found["coherence"] or {"curves": []})["curves"]:
            if curve["coherence"] is None:
                continue
            k = list(range(1, len(curve["coherence"]) + 1))
            axes.plot(k, curve["coherence"], label=f"{name}, {curve['label']}")
            values = zip(k, curve["coherence"], curve["isolated"], strict=True)
            rows += [[name, curve["layer"], *each] for each in values]
    axes.set(xlabel="K, the largest weights of each class", ylabel="coherence", ylim=(0, 1))
    _legend(axes, rows)
    return ["run", "layer", "k", "coherence", "classes without neighbours"], rows


def _spectrum(runs: list[tuple[str, Found]], axes: Any) -> tuple[Row, list[Row]]:
    rows: list[Row] = []
    for name, found in runs:
        for layer in found["spectrum"]["layers"]:
            pairs = [(i + 1, v) for i, v in zip(layer["index"], layer["values"], strict=True) if v > 0]
            if pairs:
                axes.plot(*zip(*pairs, strict=True), label=f"{name}, {layer['layer']}")
            rows += [[name, layer["layer"], *pair] for pair in pairs]
    axes.set(xlabel="index", ylabel="singular value of the covariance", yscale="log")
    _legend(axes, rows)
    return ["run", "layer", "index", "value"], rows


def _retrieval(runs: list[tuple[str, Found]], axes: Any) -> tuple[Row, list[Row]]:
    rows: list[Row] = []
    for name, found in runs:
        retrieval = found["retrieval"]
        for layer in retrieval["layers"] if retrieval else []:
            for by, style in (("by_class", "-"), ("by_superclass", "--")):
                if layer[by] is not None:
                    label = f"{name}, {layer['layer']}, {by.replace('_', ' ')}"
                    axes.plot(retrieval["k"], layer[by], style, marker=".", label=label)
                    pairs = zip(retrieval["k"], layer[by], strict=True)
                    rows += [[name, layer["layer"], by, k, value] for k, value in pairs]
    axes.set(xlabel="k nearest images", ylabel="precision", xscale="log", ylim=(0, 1))
    _legend(axes, rows)
    return ["run", "layer", "by", "k", "precision"], rows


def _temperature(runs: list[tuple[str, Found]], axes: Any) -> tuple[Row, list[Row]]:
    """Accuracy of the offline probe at each temperature, where a run has that result."""
    rows: list[Row] = []
    for name, found in runs:
        probes = {key: value for key, value in found["results"].items() if _has_temperatures(key, value)}
        for key, probe in probes.items():
            label = name if len(probes) == 1 else f"{name}, {key}"
            each = probe["per_temperature"]
            mine = sorted((row["temperature"], row["accuracy"], row["standard_error"]) for row in each)
            taus, accuracies, errors = zip(*mine, strict=True)
            axes.errorbar(taus, accuracies, errors, marker=".", label=label)
            rows += [[label, *row] for row in mine]
    axes.set(xlabel="temperature of the probe (0: codes)", ylabel="test accuracy, %")
    axes.set_xscale("symlog", linthresh=1e-3)
    _legend(axes, rows)
    return ["run", "temperature", "accuracy", "standard error"], rows


def _has_temperatures(key: str, result: Any) -> bool:
    """Whether it is a probe on simplices at several temperatures, with whatever preset."""
    return key.startswith("probe-") and isinstance(result, dict) and bool(result.get("per_temperature"))


def _training(runs: list[tuple[str, Found]], axes: Any, which: str, wanted: str) -> tuple[Row, list[Row]]:
    """A figure of the log over steps; of the online probes all accuracies."""
    rows: list[Row] = []
    for name, found in runs:
        columns = found["log"][which]
        for key, values in columns.items():
            if key == wanted or (not wanted and key.startswith("online_")):
                pairs = [(x, y) for x, y in zip(columns["step"], values, strict=True) if y is not None]
                xs, ys = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
                axes.plot(xs, ys, label=f"{name}, {key.replace('_', ' ')}")
                rows += [[name, key, *pair] for pair in pairs]
    axes.set(xlabel="step", ylabel=wanted.replace("_", " ") or "online test accuracy, %")
    _legend(axes, rows)
    return ["run", "figure", "step", "value"], rows


def _graph(graph: Found, data: Found, axes: Any) -> tuple[Row, list[Row]]:
    """W_K: classes by name, coloured by superclass, around the features they share."""
    import networkx

    drawn = networkx.Graph()
    for i, feature, weight in graph["edges"]:
        drawn.add_edge(("class", i), ("feature", feature), weight=abs(weight))
    if not drawn:
        return [], []
    place = networkx.spring_layout(drawn, seed=0, weight=None, k=1.6 / math.sqrt(len(drawn)))
    classes = [node for node in drawn if node[0] == "class"]
    features = [node for node in drawn if node[0] == "feature"]
    groups = data["superclass"] or [0] * len(data["classes"])
    colours = [groups[i] for _, i in classes]
    networkx.draw_networkx_edges(drawn, place, ax=axes, edge_color="lightgrey")
    networkx.draw_networkx_nodes(drawn, place, features, ax=axes, node_size=8, node_color="grey")
    networkx.draw_networkx_nodes(
        drawn, place, classes, ax=axes, node_size=60, node_color=colours, cmap="tab20", vmin=0, vmax=19
    )
    for node in classes:
        axes.annotate(_plain(data["classes"][node[1]]), place[node], fontsize=7, ha="center", va="bottom")
    axes.set_axis_off()
    axes.set_title(f"W with K = {graph['k']}, {graph['layer']}")
    return ["class", "name", "feature", "weight"], [
        [i, data["classes"][i], feature, weight] for i, feature, weight in graph["edges"]
    ]


def _legend(axes: Any, rows: list[Row]) -> None:
    if rows:
        axes.legend(fontsize="small")
