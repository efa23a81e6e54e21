"""The page's figures: which numbers of an analysis go into which chart. Several runs share each chart.

A chart without series says that no run has such numbers; the page leaves it out.
"""

from typing import Any

from simplicia.report.charts import Chart, Series

Found = dict[str, Any]  # an analysis
Runs = list[tuple[str, Found]]  # by the names that the page gives them

DASHED = ("encoder", "sem", "embedder", "codes")  # in the figures of several runs; the first is solid
TRAINING = {  # a figure of the log: title, what its axis says
    "loss": ("Loss", "loss"),
    "effective_rank": ("Effective rank of the encoder's features", "effective rank of a batch"),
    "feature_std": ("Spread of the features", "spread; 0: collapsed"),
    "entropy": ("Mean entropy of a simplex", "nats"),
    "lr": ("Learning rate", "learning rate"),
    "images_per_s": ("Speed", "images per second"),
}


def training(runs: Runs) -> list[Chart]:
    """Figures of the log over steps, the online accuracies last."""
    charts = []
    for key, (title, words) in TRAINING.items():
        series = []
        for i, (name, found) in enumerate(runs):
            log = found["log"]["train"]
            if any(value is not None for value in log.get(key, ())):
                series.append(Series(name, log["step"], log[key], i))
        chart = Chart(f"training-{key}", title, "step", words, series)
        if key == "entropy":
            tops = {found["run"]["vertices"]: found["entropy"] for _, found in runs if found["entropy"]}
            chart.y_lines = [(e["ln_vertices"], f"ln {vertices}") for vertices, e in tops.items()]
        charts.append(chart)
    series = []
    for i, (name, found) in enumerate(runs):
        for j, (words, steps, values) in enumerate(online_curves(found)):
            series.append(Series(join(runs, name, words), steps, values, *_look(runs, i, j, words)))
    caption = "Online: the classifiers learn beside the method. They are not the offline probes below."
    charts.append(
        Chart("online", "Online accuracy", "step", "online test accuracy, %", series, caption, markers=True)
    )
    return charts


def online_curves(found: Found) -> list[tuple[str, list[int], list[float | None]]]:
    """What was measured online: its name, the steps, and the accuracies."""
    log = found["log"]["online"]
    return [
        (key.removeprefix("online_").removesuffix("_accuracy").replace("_", " "), log["step"], values)
        for key, values in log.items()
        if key.startswith("online_")
    ]


def temperature(runs: Runs) -> Chart:
    """Accuracy of offline probes at each temperature."""
    series = []
    for i, (name, found) in enumerate(runs):
        for j, (file, result) in enumerate(per_temperature(found).items()):
            rows = sorted(result, key=lambda row: row["temperature"])
            errors = [row["standard_error"] for row in rows if _number(row.get("standard_error"))]
            series.append(
                Series(
                    join(runs, name, file),
                    [row["temperature"] for row in rows],
                    [row["accuracy"] for row in rows],
                    *_look(runs, i, j),
                    error=errors if len(errors) == len(rows) else None,
                )
            )
    caption = "Bars are one standard error. Temperature 0 is the codes: one-hot simplices."
    return Chart(
        "temperature",
        "Offline probe at each temperature",
        "temperature of the simplices",
        "offline test accuracy, %",
        series,
        caption,
        x_log=True,
        markers=True,
    )


def per_temperature(found: Found) -> dict[str, list[Found]]:
    """The results of a run that have several temperatures: {file: rows with temperature and accuracy}."""
    several = {}
    for file, result in found["results"].items():
        rows = result.get("per_temperature") if isinstance(result, dict) else None
        wanted = ("temperature", "accuracy")
        if isinstance(rows, list) and len(rows) > 1:
            fit = [row for row in rows if isinstance(row, dict) and all(_number(row.get(w)) for w in wanted)]
            if fit:
                several[file] = fit
    return several


def entropy(runs: Runs) -> Chart:
    series, lines = [], {0.0: "0"}
    for i, (name, found) in enumerate(runs):
        e = found["entropy"]
        if e is None:
            continue
        lines[e["ln2"]] = "ln 2"
        lines[e["ln_vertices"]] = f"ln {e['vertices']}"
        curves = e["curves"] if len(runs) == 1 else [c for c in e["curves"] if c["own"]]
        for j, curve in enumerate(curves):
            own = ", the run's own" if curve["own"] and len(runs) == 1 else ""
            label = join(runs, name, f"temperature {curve['temperature']:g}{own}")
            shares = [count / curve["count"] if count else None for count in curve["counts"]]
            series.append(Series(label, e["edges"], shares, *_look(runs, i, j)))
    caption = "0: one-hot; ln 2: two vertices share it; ln V: uniform over its V vertices."
    if len(runs) > 1:
        caption += " Each run at its own temperature."
    return Chart(
        "entropy",
        "Entropy of simplices",
        "entropy of a simplex, nats",
        "share of simplices",
        series,
        caption,
        y_log=True,
        x_lines=list(lines.items()),
    )


def coherence(runs: Runs) -> Chart:
    series = []
    for i, (name, found) in enumerate(runs):
        curves = [c for c in (found["coherence"] or {"curves": []})["curves"] if c["coherence"] is not None]
        for j, curve in enumerate(curves):
            k = list(range(1, len(curve["coherence"]) + 1))
            series.append(
                Series(
                    join(runs, name, curve["label"]),
                    k,
                    curve["coherence"],
                    *_look(runs, i, j, curve["layer"]),
                )
            )
    return Chart(
        "coherence",
        "Coherence",
        "K, the largest weights of each class",
        "coherence",
        series,
        "The share of a class's neighbours in the graph that are of its superclass, averaged over classes.",
        y_range=(0.0, 1.0),
    )


def spectrum(runs: Runs) -> Chart:
    series = []
    for i, (name, found) in enumerate(runs):
        for j, layer in enumerate(found["spectrum"]["layers"]):
            values = [value if value and value > 0 else None for value in layer["values"]]
            index = [at + 1 for at in layer["index"]]
            series.append(
                Series(join(runs, name, layer["layer"]), index, values, *_look(runs, i, j, layer["layer"]))
            )
    return Chart(
        "spectrum",
        "Singular values of the covariance",
        "index, high to low",
        "singular value",
        series,
        "A curve that falls early uses few directions.",
        x_log=True,
        y_log=True,
    )


def retrieval(runs: Runs) -> list[Chart]:
    charts = []
    for by, words in (("by_class", "class"), ("by_superclass", "superclass")):
        series, lines = [], {}
        for i, (name, found) in enumerate(runs):
            r = found["retrieval"]
            for j, layer in enumerate(r["layers"] if r else []):
                if layer[by] is not None:
                    label = join(runs, name, layer["layer"])
                    series.append(Series(label, r["k"], layer[by], *_look(runs, i, j, layer["layer"])))
                    lines[r["chance"][by]] = "chance"
        charts.append(
            Chart(
                f"retrieval-{by}",
                f"Nearest images of the same {words}",
                "k nearest images",
                "precision",
                series,
                x_log=True,
                markers=True,
                y_lines=list(lines.items()),
                y_range=(0.0, 0.0),  # from 0 up
            )
        )
    return charts


def _look(runs: Runs, run: int, line: int, layer: str = "") -> tuple[int, int]:
    """Colour and dash: of one run each line has a colour; of several each run has, and each layer a dash."""
    if len(runs) == 1:
        return line, 0
    return run, DASHED.index(layer) if layer in DASHED else line


def join(runs: Runs, run: str, line: str) -> str:
    """What a line is called: with its run, where there are several."""
    return line if len(runs) == 1 else f"{run}, {line}"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
