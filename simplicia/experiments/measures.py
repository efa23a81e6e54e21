"""The measurements of cells: functions of a job and its options that give results.

A measurement with several results names the part of each. What it measured is stored with the run and taken
from there the next time.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from simplicia import bottlenecks
from simplicia.analyze import class_coherence
from simplicia.analyze.bound import expressivity_table
from simplicia.analyze.class_coherence import EPOCHS_ON_CPU
from simplicia.analyze.covariance_spectrum import layer_spectrum
from simplicia.analyze.entropy import entropy_histogram
from simplicia.analyze.model_cost import COUNTS, cost_of, paper_table
from simplicia.analyze.study import FIT_ON_CPU, MOST_K, analyze
from simplicia.analyze.tradeoff import tradeoff as bound_terms
from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.data.imagenet import labelled_list, others
from simplicia.devices import choose
from simplicia.errors import UserError
from simplicia.evaluate import finetune as finetuning
from simplicia.evaluate import robustness as other_sets
from simplicia.evaluate import transfer as transferring
from simplicia.evaluate.features import check_classes, layer_batches
from simplicia.evaluate.knn import knn as nearest_neighbours
from simplicia.evaluate.probe import ProbeSettings
from simplicia.evaluate.probe import fit as fit_probe
from simplicia.evaluate.probe import probe as linear_probe
from simplicia.experiments.job import Job, reported
from simplicia.experiments.runner import Measurement, Unprepared
from simplicia.experiments.store import CellResult
from simplicia.result import Result
from simplicia.run import Run
from simplicia.train import checkpoint

Rows = list[CellResult]
HELD_OUT = "offline linear probe, on held-out training images"
MEASURES: dict[str, Callable[..., Rows]] = {}


def measure(function: Callable[..., Rows]) -> Callable[..., Rows]:
    """Register a measurement by the name of its function."""
    MEASURES[function.__name__] = function
    return function


@measure
def probe(job: Job, layer: str | None = None, temperature: float | None = None) -> Rows:
    """The linear probe: the best, or the one trained at a temperature of the grid."""
    name, grid = job.session.probe, job.session.probe_settings.temperatures
    if temperature not in (None, *grid):
        known = ", ".join(f"{tau:g}" for tau in grid)
        raise Unprepared(f"temperature is {temperature:g}; the probe {name!r} has {known}")
    measured = _probe(job, layer)
    chosen = {} if temperature is None else measured["per_temperature"][grid.index(temperature)]
    return [job.row(measured, probe=name, **reported(chosen))]


@measure
def probe_each(job: Job) -> Rows:
    """The best linear probe at each temperature downstream."""
    measured = _probe(job)
    return [
        job.row(measured, f"tau_d={row['temperature']:g}", probe=job.session.probe, **reported(row))
        for row in measured["per_temperature"]
    ]


@measure
def probe_and_cost(job: Job) -> Rows:
    """The linear probe, and the cost of the model."""
    cost = cost_of(job.recipe)
    return [row.replace(flops=cost.flops, parameters=cost.parameters) for row in probe(job)]


@measure
def probe_timed(job: Job) -> Rows:
    """The linear probe of a run that trains for as long as its base, and the seconds of its steps."""
    rows, times = probe(job), job.times
    steps = checkpoint.state_of(job.folder)["total_steps"]
    about = {name: times[name] for name in ("ms_per_step", "base_ms_per_step", "base")}
    about["step_seconds"] = steps * times["ms_per_step"] / 1e3
    return [row.replace(**about) for row in rows]


@measure
def holdout(job: Job) -> Rows:
    """A short linear probe on the training images that the run's ``holdout`` kept: no test image is read."""
    settings = ProbeSettings(epochs=job.options.probe_epochs or ProbeSettings.epochs)

    def measure(run: Run) -> Result:
        train = datasets.split(job.images[0], run.recipe.holdout)
        return linear_probe(run, *train, settings=settings).replace(protocol=HELD_OUT)

    return [job.row(job.once("holdout", vars(settings), measure), probe=f"{settings.epochs} epochs")]


@measure
def knn(job: Job, k: int, held_out: bool = False) -> Rows:
    """Weighted votes of the k nearest training images, by cosine, on the encoder's output.

    They vote on the test images, or on the training images that the run's ``holdout`` kept.
    """

    def measure(run: Run) -> Result:
        train, test = datasets.split(job.images[0], run.recipe.holdout) if held_out else job.images
        result = nearest_neighbours(run, train, test, "encoder", k=k)
        protocol = f"{result.protocol}, on held-out training images" if held_out else result.protocol
        return result.replace(protocol=protocol)

    name = f"knn-{k}{'-held-out' if held_out else ''}"
    return [job.row(job.once(name, {"k": k, "held_out": held_out}, measure), probe=f"k={k}")]


def _probe(job: Job, layer: str | None = None) -> Measurement:
    """The linear probe of a layer, by default what the bottleneck gives or else the encoder."""
    name, settings = job.session.probe, job.session.probe_settings
    layer = layer or next(iter(bottlenecks.layers(job.plan.recipe.bottleneck)), "encoder")

    def measure(run: Run, train: ImageSet, test: ImageSet, **options: Any) -> Result:
        return linear_probe(run, train, test, layer, **options).replace(preset=name)

    return job.evaluate(f"probe-{name}-{layer}", measure, settings, {"layer": layer})


@measure
def transfer(job: Job, to: str) -> Rows:
    """Logistic regression on frozen features of another data set."""
    settings = transferring.TransferSettings()
    measured = job.evaluate(f"transfer-{to}", transferring.transfer, settings, {"to": to})
    return [job.row(measured, probe=None, dataset=to)]


@measure
def finetune(job: Job, to: str) -> Rows:
    """Fine-tuning on another data set."""
    given, settings = job.options.probe_epochs, finetuning.FinetuneSettings()
    if given is not None:  # 200 steps of 256 images are about an epoch of CIFAR
        settings = finetuning.FinetuneSettings(steps=200 * given)
    measured = job.evaluate(f"finetune-{settings.steps}-{to}", finetuning.finetune, settings, {"to": to})
    return [job.row(measured, probe=f"{settings.steps} steps", dataset=to)]


@measure
def semi(job: Job, fraction: float) -> Rows:
    """Fine-tuning on a share of the labels: top-1 and top-5."""
    given, settings = job.options.probe_epochs, finetuning.SemiSettings(fraction=fraction)
    if given is not None:
        settings = finetuning.SemiSettings(fraction=fraction, epochs=(given,))
    names = labelled_list(fraction, job.options.data_dir) if job.recipe.data == "imagenet" else None
    epochs = "-".join(map(str, settings.epochs))
    asked = {} if names is None else {"list": names.name}
    name = f"semi-{epochs}-{100 * fraction:g}-percent"
    measured = job.evaluate(name, finetuning.semi, settings, asked, names=names)
    common = {"probe": f"epochs {epochs}", "labelled_list": measured.get("labelled_list")}
    rows = [job.row(measured, "top-1", **common)]
    if measured.get("top5_accuracy") is not None:
        top5 = {key: measured[f"top5_{key}"] for key in ("accuracy", "standard_error")}
        top5["correct_images"] = None  # those are of the top-1 accuracy
        rows.append(job.row(measured, "top-5", **common, **top5))
    return rows


@measure
def robustness(job: Job) -> Rows:
    """The linear probe on clean test images and on fifteen corruptions of them; after ImageNet on more.

    These are ImageNet's other test sets, as far as they are available. The published corrupted images replace
    generated ones.
    """
    probe, settings = job.session.probe, job.session.probe_settings
    available = others(job.options.data_dir) if job.recipe.data == "imagenet" else {}
    corrupt = "corruptions" not in available

    def measure(run: Run, train: ImageSet, test: ImageSet, **options: Any) -> Result:
        sets = list(available.values())
        return other_sets.robustness(run, train, test, sets, corrupt, **options).replace(preset=probe)

    asked = {"corrupt": corrupt, **({"sets": list(available)} if available else {})}
    measured = job.evaluate(f"robustness-{probe}", measure, settings, asked)
    rows = [job.row(measured, "clean", probe=probe)]
    for part, test in zip([*available, *["corruptions"] * corrupt], measured["sets"], strict=True):
        known = ("accuracy", "standard_error", "set", "per_severity", "per_corruption")
        values = {"standard_error": None, **{key: test[key] for key in known if key in test}}
        if "accuracy_among_all" in test:  # the paper's benchmark guesses among all classes
            values |= {key: test[f"{key}_among_all"] for key in ("accuracy", "standard_error")}
            values["accuracy_among_present"] = test["accuracy"]
        rows.append(job.row(measured, part, probe=probe, **values))
    return rows


@measure
def entropy(job: Job) -> Rows:
    """The histogram of the entropies of all simplices of all training images."""

    @torch.no_grad()
    def measure(run: Run) -> dict[str, Any]:
        train, sem = job.images[0], run.recipe.sem
        histogram = entropy_histogram(layer_batches(run, train.images, "sem"), sem.vertices)
        return {
            "protocol": "entropy of simplices, training images",
            "layer": "sem",
            "temperature": sem.temperature,
            "mean_entropy": histogram.pop("mean"),
            "ln_vertices": math.log(sem.vertices),
            "images": len(train),
            **histogram,
        }

    return [job.row(job.once("reproduce-entropy", {}, measure))]


@measure
def spectrum(job: Job, layer: str = "embedder") -> Rows:
    """Singular values of the covariance of a layer on the test images: at most 300, with their index."""

    @torch.no_grad()
    def measure(run: Run) -> dict[str, Any]:
        test = job.images[1]
        features = torch.cat([batch.float() for batch in layer_batches(run, test.images, layer)])
        about = {"protocol": "spectrum of the covariance, test images", "images": len(test)}
        return about | layer_spectrum(layer, features).to_json()

    return [job.row(job.once(f"reproduce-spectrum-{layer}", {"layer": layer}, measure))]


@measure
def coherence(job: Job, layer: str) -> Rows:
    """Coherence at each K, and the graph at K = 5, of the weights of the linear probe.

    ``probe`` trains the linear probe, at the temperature it chooses. Independent components have none; they
    get the plain linear classifiers of ``analyze``, by another protocol, with fewer images on a CPU.
    """
    if layer == "ica":
        return [job.row(job.once(f"reproduce-coherence-{layer}", *_ica_coherence(job)))]
    name, settings = job.session.probe, job.session.probe_settings

    def measure(run: Run) -> dict[str, Any]:
        train, test = job.images
        labels = check_classes(train, test)[1]
        fitted = fit_probe(run, train, layer, settings, quiet=job.options.quiet).best_probe()
        weight = fitted.classifiers.weight[0, :, : fitted.classes].T
        (right,) = fitted.correct(test.images, labels)[:1]
        graph = class_coherence.coherence_graph(weight, min(5, weight.shape[1]), train.classes)
        _, components, _ = class_coherence.describe_graph(graph)
        file = run.path / "results" / f"coherence-{name}-{layer}-5.graphml"
        class_coherence.write_graphml(graph, file)
        curve, isolated = list[float](), list[int]()
        if train.superclass is not None:
            curve, isolated = class_coherence.coherence_curve(
                weight, train.superclass, min(MOST_K, weight.shape[1])
            )
        return {
            "protocol": "coherence of the linear probe's weights",
            "probe": name,
            "layer": layer,
            "temperature": fitted.details["temperature"],
            "selected": fitted.details["selected"],
            "classifier_accuracy": 100 * right / len(test),
            "fit_images": len(train),
            **_coherence_values(curve, isolated, train.classes, components),
            "graph": f"results/{file.name}",
        }

    return [job.row(job.once(f"coherence-{name}-{layer}", {"layer": layer, **vars(settings)}, measure))]


def _ica_coherence(job: Job) -> tuple[dict[str, Any], Callable[[Run], dict[str, Any]]]:
    """The options of ``analyze``, and the measurement."""
    briefly = choose(job.options.device).type == "cpu"
    how = f", {EPOCHS_ON_CPU} epochs of at most {FIT_ON_CPU:,} images" if briefly else ""

    def measure(run: Run) -> dict[str, Any]:
        analysis, folder = analyze(run, None, job.options.data_dir, quiet=job.options.quiet)
        coherence = analysis.coherence
        assert coherence is not None  # the images have labels
        curve = next((curve for curve in coherence.curves if curve.layer == "ica"), None)
        if curve is None:
            raise UserError(f"{run.path} has no coherence of 'ica': {'; '.join(analysis.notes)}")
        graph = next(graph for graph in coherence.graphs if (graph.layer, graph.k) == ("ica", 5))
        values = curve.coherence or []  # only data with superclasses has it
        return {
            "protocol": f"coherence of plain linear classifiers (simplicia analyze){how}",
            "layer": "ica",
            "temperature": curve.temperature,
            "classifier_accuracy": curve.test_accuracy,
            "fit_images": curve.fit_images,
            "fit_epochs": curve.fit_epochs,
            **_coherence_values(values, curve.isolated, analysis.data.classes, graph.components),
            "graph": f"{folder.name}/{graph.file}",
        }

    return {"layer": "ica", "briefly": briefly}, measure


def _coherence_values(
    curve: list[float], isolated: list[int] | None, classes: Sequence[str], components: list[Any]
) -> dict[str, Any]:
    """The curves over all classes and over those with neighbours, and their values at K = 1, 5 and 20."""
    connected = class_coherence.over_connected(curve, isolated or [], len(classes))
    values: dict[str, Any] = {"k": list(range(1, len(curve) + 1)), "coherence": curve, "isolated": isolated}
    values["coherence_connected"] = connected
    for k in (1, 5, 20):
        values[f"coherence_at_{k}"] = curve[k - 1] if k <= len(curve) else None
        values[f"connected_at_{k}"] = connected[k - 1] if k <= len(curve) else None
        values[f"isolated_at_{k}"] = isolated[k - 1] if isolated and k <= len(curve) else None
    values["components_at_5"] = len(components)
    values["components"] = [
        {"classes": [classes[i] for i in part["classes"]], "features": part["features"]}
        for part in components
    ]
    return values


@measure
def tradeoff(job: Job) -> Rows:
    """The terms of Theorem 1 on a run, at each temperature and without the softmax."""

    def measure(run: Run) -> dict[str, Any]:
        terms = bound_terms(run, *job.images)
        return {key: terms[key] for key in ("rows", "margin", "scale")}

    measured = job.once("reproduce-bound", {}, measure)
    rows = []
    for row in measured.details.pop("rows"):
        part = "no softmax" if row["temperature"] is None else f"tau={row['temperature']:g}"
        rows.append(job.row(measured, part, protocol="Theorem 1, measured", layer="sem", **row))
    return rows


@measure
def theory(job: Job) -> Rows:
    """Theorem 1's expressivities, for 5000 simplices."""
    name = "V={vertices}, margin {margin:g}, tau={temperature:g}"
    table = expressivity_table((13,), (0.01, 0.1, 1.0, 10.0), (0.01, 0.1), 5000)
    return [job.row(None, name.format(**row), protocol="Theorem 1, in theory", **row) for row in table]


@measure
def cost(job: Job, of: tuple[str, str]) -> Rows:
    """The counts of one model of the paper's cost table."""
    row = next(row for row in _paper_table() if (row["encoder"], row["model"]) == of)
    values: dict[str, Any] = {name: row[name] for name in (*COUNTS, "estimated_gib")}
    values |= {f"paper_{name}": int(row["paper"][name]) for name in COUNTS}
    values["paper_gib"] = row["paper"]["gib"]
    return [job.row(protocol="counted", encoder=of[0], method="byol", **values)]


_paper_table = cache(paper_table)
