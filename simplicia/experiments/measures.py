"""What cells can measure: functions of a job and its options that give the rows of a result.

A row has the figures of one number or curve. A measure with several parts names each (``part``); the others
give one row. Each stores what it found beside the run, and takes it from there the next time.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import cache

from simplicia.errors import UserError
from simplicia.experiments.job import Job, Row, Unprepared

_KEPT = (  # of an evaluation's result: what a row states
    *("accuracy", "standard_error", "top5_accuracy", "validation_accuracy", "temperature", "selected"),
    *("protocol", "online", "network", "layer", "commit", "torch", "simplicia", "date"),
)


def probe(job: Job, layer: str, temperature: float | None = None) -> list[Row]:
    """The linear probe; the one that was trained at a temperature of the grid, or the chosen one."""
    grid = job.probe_settings.temperatures
    if temperature is None:
        return [_row(_probed(job, layer), job.probe)]
    if temperature not in grid:
        there = ", ".join(f"{tau:g}" for tau in grid)
        raise Unprepared(f"temperature is {temperature:g}; the probe {job.probe!r} has {there}")
    found = _probed(job, layer)
    return [_row(found | found["per_temperature"][grid.index(temperature)], job.probe)]


def probe_each(job: Job, layer: str) -> list[Row]:
    """The best linear probe at each temperature downstream."""
    found = _probed(job, layer)
    return [
        {"part": f"tau_d={row['temperature']:g}", **_row(found | row, job.probe)}
        for row in found["per_temperature"]
    ]


def probe_and_cost(job: Job, layer: str) -> list[Row]:
    """The linear probe, and what the model costs."""
    from simplicia.analyze.model_cost import cost_of

    (row,) = probe(job, layer)
    found = cost_of(job.recipe)
    return [row | {"flops": found.flops, "parameters": found.parameters}]


def _probed(job: Job, layer: str) -> Row:
    from simplicia.evaluate.probe import probe, progress_bar

    def measure() -> Row:
        with progress_bar(layer, job.probe_settings, job.quiet) as progress:
            found = probe(job.run, *job.sets, layer, job.probe_settings, progress=progress)
        return found.replace(preset=job.probe).to_json()

    asked = {"layer": layer, **vars(job.probe_settings)}
    return job.once(f"probe-{job.probe}-{layer}", asked, measure)


def transfer(job: Job, to: str) -> list[Row]:
    """Logistic regression on frozen features of another data set."""
    from simplicia.evaluate.transfer import TransferSettings, transfer

    settings = TransferSettings()

    def measure() -> Row:
        return transfer(job.run, job.splits, settings=settings, quiet=job.quiet).to_json()

    found = job.once(f"transfer-{to}", {"to": to, **vars(settings)}, measure)
    return [_row(found) | {"dataset": to}]


def finetune(job: Job, to: str) -> list[Row]:
    """Fine-tuned on another data set."""
    from simplicia.evaluate.finetune import FinetuneSettings, finetune

    settings = FinetuneSettings()
    if job.probe_epochs is not None:  # 200 steps of 256 are about an epoch of CIFAR
        settings.steps = job.probe_epochs * 200

    def measure() -> Row:
        return finetune(job.run, job.splits, settings=settings, quiet=job.quiet).to_json()

    found = job.once(f"finetune-{settings.steps}-{to}", {"to": to, **vars(settings)}, measure)
    return [_row(found, f"{settings.steps} steps") | {"dataset": to}]


def semi(job: Job, fraction: float) -> list[Row]:
    """Fine-tuned on a share of the labels: top-1 and top-5."""
    from simplicia.data.imagenet import labelled_list
    from simplicia.evaluate.semi import SemiSettings, semi

    settings = SemiSettings(fraction=fraction)
    names = labelled_list(fraction, job.data_dir) if job.recipe.data == "imagenet" else None
    if job.probe_epochs is not None:
        settings = dataclasses.replace(settings, epochs=(job.probe_epochs,))
    words = "-".join(map(str, settings.epochs))

    def measure() -> Row:
        return semi(job.run, *job.sets, settings=settings, names=names, quiet=job.quiet).to_json()

    asked = vars(settings) | ({} if names is None else {"list": names.name})
    found = job.once(f"semi-{words}-{100 * fraction:g}-percent", asked, measure)
    row = _row(found, f"epochs {words}") | {"labelled_list": found["labelled_list"]}
    rows = [{"part": "top-1", **row}]
    if "top5_accuracy" in found:
        error = found["top5_standard_error"]
        rows.append({"part": "top-5", **row, "accuracy": found["top5_accuracy"], "standard_error": error})
    return rows


def robustness(job: Job) -> list[Row]:
    """The linear probe on clean test images and on fifteen corruptions of them; after ImageNet on more.

    These are ImageNet's other test sets, as far as they are there. The published corrupted images take the
    place of those made here.
    """
    from simplicia.data.imagenet import others
    from simplicia.evaluate.robustness import robustness

    settings, data = job.probe_settings, job.recipe.data
    there = others(job.data_dir) if data == "imagenet" else {}
    corrupt = "corruptions" not in there

    def measure() -> Row:
        sets = list(there.values())
        found = robustness(job.run, *job.sets, sets, corrupt=corrupt, settings=settings, quiet=job.quiet)
        return found.replace(preset=job.probe).to_json()

    asked = {"corrupt": corrupt, **({"sets": list(there)} if there else {}), **vars(settings)}
    found = job.once(f"robustness-{job.probe}", asked, measure)
    row = _row(found, job.probe)
    rows = [{"part": "clean", **row}]
    for part, other in zip([*there, *["corruptions"] * corrupt], found["sets"], strict=True):
        known = ("accuracy", "standard_error", "set", "per_severity", "per_corruption")
        more = {key: other[key] for key in known if key in other}
        if "accuracy_among_all" in other:  # as the paper's benchmark guesses
            more |= {key: other[f"{key}_among_all"] for key in ("accuracy", "standard_error")}
            more["accuracy_among_present"] = other["accuracy"]
        rows.append({"part": part, **row, "standard_error": None, **more})
    return rows


def entropy(job: Job) -> list[Row]:
    """The histogram of the entropies of all simplices of all training images."""
    import torch

    from simplicia.analyze.entropy import entropy_histogram
    from simplicia.evaluate.features import encoder_features
    from simplicia.representation import represent

    def measure() -> Row:
        run, (train, _) = job.run, job.sets
        net, vertices = run.network(), run.recipe.sem.vertices
        parts = encoder_features(run, train.images).split(256)
        with torch.no_grad():
            found = entropy_histogram((represent(net, part, "sem") for part in parts), vertices)
        return {
            "protocol": "entropy of simplices, training images",
            "layer": "sem",
            "temperature": run.recipe.sem.temperature,
            "mean_entropy": found.pop("mean"),
            "ln_vertices": math.log(vertices),
            "images": len(train),
            **found,
        }

    return [job.analysed("entropy", measure)]


def spectrum(job: Job, layer: str = "embedder") -> list[Row]:
    """Singular values of the covariance of a layer on the test images: at most 300, with their index."""
    import torch

    from simplicia.analyze.covariance_spectrum import effective_rank, spaced, spectrum
    from simplicia.evaluate.features import encoder_features
    from simplicia.representation import represent

    def measure() -> Row:
        run, (_, test) = job.run, job.sets
        parts = encoder_features(run, test.images).split(256)
        with torch.no_grad():
            features = torch.cat([represent(run.network(), part, layer).float() for part in parts])
        values = spectrum(features)
        index = spaced(len(values), 300)
        return {
            "protocol": "spectrum of the covariance, test images",
            "layer": layer,
            "temperature": None,
            "features": features.shape[1],
            "images": len(test),
            "effective_rank": effective_rank(values),
            "count": len(values),
            "index": index,
            "values": values.cpu()[index].tolist(),
        }

    return [job.analysed(f"spectrum-{layer}", measure, layer=layer)]


def coherence(job: Job, layer: str) -> list[Row]:
    """Coherence at each K, and the graph at K = 5, of the linear classifiers that ``analyze`` fits.

    On a CPU it fits them to fewer images, for fewer epochs: that is another protocol.
    """
    from simplicia.analyze.coherence_baselines import EPOCHS_ON_CPU
    from simplicia.analyze.study import FIT_ON_CPU, analyze
    from simplicia.devices import choose

    briefly = choose(job.session.options.device).type == "cpu"
    how = f", {EPOCHS_ON_CPU} epochs of at most {FIT_ON_CPU:,} images" if briefly else ""

    def measure() -> Row:
        analysis, folder = analyze(job.run, None, job.data_dir, quiet=job.quiet)
        curves = {curve["layer"]: curve for curve in analysis["coherence"]["curves"]}
        if layer not in curves:
            raise UserError(f"{job.run.path} has no coherence of {layer!r}: {'; '.join(analysis['notes'])}")
        curve, classes = curves[layer], analysis["data"]["classes"]
        graph = next(g for g in analysis["coherence"]["graphs"] if (g["layer"], g["k"]) == (layer, 5))
        found = curve["coherence"] or []  # only data with superclasses has it
        return {
            "protocol": f"coherence of plain linear classifiers (simplicia analyze){how}",
            "layer": layer,
            "temperature": curve["temperature"],
            "classifier_accuracy": curve["test_accuracy"],
            "fit_images": curve["fit_images"],
            "fit_epochs": curve["fit_epochs"],
            "k": analysis["coherence"]["k"][: len(found)],
            "coherence": found,
            "isolated": curve["isolated"],
            **{f"coherence_at_{k}": found[k - 1] if k <= len(found) else None for k in (1, 5, 20)},
            **{f"isolated_at_{k}": curve["isolated"][k - 1] if k <= len(found) else None for k in (5, 20)},
            "components_at_5": len(graph["components"]),
            "components": [
                {"classes": [classes[i] for i in part["classes"]], "features": part["features"]}
                for part in graph["components"]
            ],
            "graph": f"{folder.name}/{graph['file']}",
        }

    return [job.analysed(f"coherence-{layer}", measure, layer=layer, briefly=briefly)]


def tradeoff(job: Job) -> list[Row]:
    """The terms of Theorem 1 on a run, at each temperature and without the softmax."""
    from simplicia.analyze.tradeoff import tradeoff

    def measure() -> Row:
        found = tradeoff(job.run, *job.sets)
        return {"rows": found["rows"], "margin": found["margin"], "scale": found["scale"]}

    found = job.analysed("bound", measure)
    rows = found.pop("rows")
    return [
        {
            **found,
            "part": "no softmax" if row["temperature"] is None else f"tau={row['temperature']:g}",
            "protocol": "Theorem 1, measured",
            "layer": "sem",
            **row,
        }
        for row in rows
    ]


def theory(job: Job) -> list[Row]:
    """Theorem 1's expressivities, for 5000 simplices."""
    from simplicia.analyze.bound import expressivity_table

    rows = expressivity_table((13,), (0.01, 0.1, 1.0, 10.0), (0.01, 0.1), 5000)
    return [
        {
            "part": f"V={row['vertices']}, margin {row['margin']:g}, tau={row['temperature']:g}",
            "protocol": "Theorem 1, in theory",
            **row,
        }
        for row in rows
    ]


def cost(job: Job, of: tuple[str, str]) -> list[Row]:
    """The counts of one model of the paper's cost table."""
    row = next(row for row in _counted() if (row["encoder"], row["model"]) == of)
    counts = {name: row[name] for name in ("parameters", "activations", "flops", "estimated_gib")}
    paper = {f"paper_{name}": int(row["paper"][name]) for name in ("parameters", "activations", "flops")}
    paper["paper_gib"] = row["paper"]["gib"]
    return [{"protocol": "counted", "encoder": of[0], "method": "byol", **counts, **paper}]


@cache
def _counted() -> list[Row]:
    from simplicia.analyze.model_cost import paper_table

    return paper_table()


def _row(found: Row, settings: str | None = None) -> Row:
    kept = {key: found[key] for key in _KEPT if key in found}
    return {**kept, "probe": settings, "probe_seconds": found["seconds"], "probe_device": found["device"]}


MEASURES: dict[str, Callable[..., list[Row]]] = {
    function.__name__: function
    for function in (
        *(probe, probe_each, probe_and_cost, transfer, finetune, semi, robustness),
        *(entropy, spectrum, coherence, tradeoff, theory, cost),
    )
}
