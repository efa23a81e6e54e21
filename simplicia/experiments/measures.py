"""The measurements of cells: functions of a job and its options that give results.

A measurement with several results names the part of each. What it measured is stored with the run and taken
from there the next time.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from simplicia.analyze.bound import expressivity_table
from simplicia.analyze.coherence_baselines import EPOCHS_ON_CPU
from simplicia.analyze.covariance_spectrum import effective_rank, spaced
from simplicia.analyze.covariance_spectrum import spectrum as singular_values
from simplicia.analyze.entropy import entropy_histogram
from simplicia.analyze.model_cost import cost_of, paper_table
from simplicia.analyze.study import FIT_ON_CPU, analyze
from simplicia.analyze.tradeoff import tradeoff as bound_terms
from simplicia.data.imagenet import labelled_list, others
from simplicia.devices import choose
from simplicia.errors import UserError
from simplicia.evaluate.features import encoder_features
from simplicia.evaluate.finetune import FinetuneSettings
from simplicia.evaluate.finetune import finetune as finetune_run
from simplicia.evaluate.probe import probe as linear_probe
from simplicia.evaluate.probe import progress_bar
from simplicia.evaluate.robustness import robustness as test_robustness
from simplicia.evaluate.semi import SemiSettings
from simplicia.evaluate.semi import semi as finetune_on_few
from simplicia.evaluate.transfer import TransferSettings
from simplicia.evaluate.transfer import transfer as transfer_run
from simplicia.experiments.job import Job
from simplicia.experiments.runner import Measurement, Unprepared
from simplicia.experiments.store import CellResult
from simplicia.representation import represent
from simplicia.result import Result
from simplicia.run import Run

Measure = Callable[..., list[CellResult]]
MEASURES: dict[str, Measure] = {}
REPORTED = (  # fields of an evaluation that its cells state
    *("accuracy", "standard_error", "top5_accuracy", "validation_accuracy", "temperature", "selected"),
    *("protocol", "online", "network", "layer", "commit", "torch", "simplicia", "date"),
)


def measure(function: Measure) -> Measure:
    """Register a measurement by the name of its function."""
    MEASURES[function.__name__] = function
    return function


@measure
def probe(job: Job, layer: str, temperature: float | None = None) -> list[CellResult]:
    """The linear probe: the best, or the one trained at a temperature of the grid."""
    grid = job.session.probe_settings.temperatures
    if temperature is None:
        return [_evaluated(job, _probe(job, layer), job.session.probe)]
    if temperature not in grid:
        known = ", ".join(f"{tau:g}" for tau in grid)
        raise Unprepared(f"temperature is {temperature:g}; the probe {job.session.probe!r} has {known}")
    measured = _probe(job, layer)
    row = measured["per_temperature"][grid.index(temperature)]
    return [_evaluated(job, measured, job.session.probe, None, **_reported(row))]


@measure
def probe_each(job: Job, layer: str) -> list[CellResult]:
    """The best linear probe at each temperature downstream."""
    measured = _probe(job, layer)
    return [
        _evaluated(job, measured, job.session.probe, f"tau_d={row['temperature']:g}", **_reported(row))
        for row in measured["per_temperature"]
    ]


@measure
def probe_and_cost(job: Job, layer: str) -> list[CellResult]:
    """The linear probe, and the cost of the model."""
    measured, cost = _probe(job, layer), cost_of(job.recipe)
    counts = {"flops": cost.flops, "parameters": cost.parameters}
    return [_evaluated(job, measured, job.session.probe, None, **counts)]


def _probe(job: Job, layer: str) -> Measurement:
    name, settings = job.session.probe, job.session.probe_settings

    def measure(run: Run) -> Result:
        with progress_bar(layer, settings, job.options.quiet) as progress:
            result = linear_probe(run, *job.sets, layer, settings, progress=progress)
        return result.replace(preset=name)

    return job.once(f"probe-{name}-{layer}", {"layer": layer, **vars(settings)}, measure)


@measure
def transfer(job: Job, to: str) -> list[CellResult]:
    """Logistic regression on frozen features of another data set."""
    settings, quiet = TransferSettings(), job.options.quiet
    measured = job.once(
        f"transfer-{to}",
        {"to": to, **vars(settings)},
        lambda run: transfer_run(run, job.splits, settings=settings, quiet=quiet),
    )
    return [_evaluated(job, measured, dataset=to)]


@measure
def finetune(job: Job, to: str) -> list[CellResult]:
    """Fine-tuning on another data set."""
    settings, quiet = FinetuneSettings(), job.options.quiet
    if job.options.probe_epochs is not None:  # 200 steps of 256 images are about an epoch of CIFAR
        settings.steps = job.options.probe_epochs * 200
    measured = job.once(
        f"finetune-{settings.steps}-{to}",
        {"to": to, **vars(settings)},
        lambda run: finetune_run(run, job.splits, settings=settings, quiet=quiet),
    )
    return [_evaluated(job, measured, f"{settings.steps} steps", dataset=to)]


@measure
def semi(job: Job, fraction: float) -> list[CellResult]:
    """Fine-tuning on a share of the labels: top-1 and top-5."""
    settings, quiet = SemiSettings(fraction=fraction), job.options.quiet
    names = labelled_list(fraction, job.options.data_dir) if job.recipe.data == "imagenet" else None
    if job.options.probe_epochs is not None:
        settings = dataclasses.replace(settings, epochs=(job.options.probe_epochs,))
    epochs = "-".join(map(str, settings.epochs))
    measured = job.once(
        f"semi-{epochs}-{100 * fraction:g}-percent",
        vars(settings) | ({} if names is None else {"list": names.name}),
        lambda run: finetune_on_few(run, *job.sets, settings=settings, names=names, quiet=quiet),
    )
    tops = {"top-1": (measured["accuracy"], measured["standard_error"])}
    if measured.get("top5_accuracy") is not None:
        tops["top-5"] = measured["top5_accuracy"], measured["top5_standard_error"]
    common = {"labelled_list": measured.get("labelled_list")}
    return [
        _evaluated(job, measured, f"epochs {epochs}", part, accuracy=accuracy, standard_error=error, **common)
        for part, (accuracy, error) in tops.items()
    ]


@measure
def robustness(job: Job) -> list[CellResult]:
    """The linear probe on clean test images and on fifteen corruptions of them; after ImageNet on more.

    These are ImageNet's other test sets, as far as they are available. The published corrupted images replace
    generated ones.
    """
    probe, settings, quiet = job.session.probe, job.session.probe_settings, job.options.quiet
    available = others(job.options.data_dir) if job.recipe.data == "imagenet" else {}
    corrupt = "corruptions" not in available

    def measure(run: Run) -> Result:
        sets = list(available.values())
        result = test_robustness(run, *job.sets, sets, corrupt=corrupt, settings=settings, quiet=quiet)
        return result.replace(preset=probe)

    asked = {"corrupt": corrupt, **({"sets": list(available)} if available else {}), **vars(settings)}
    measured = job.once(f"robustness-{probe}", asked, measure)
    rows = [_evaluated(job, measured, probe, "clean")]
    for part, test in zip([*available, *["corruptions"] * corrupt], measured["sets"], strict=True):
        known = ("accuracy", "standard_error", "set", "per_severity", "per_corruption")
        values = {"standard_error": None, **{key: test[key] for key in known if key in test}}
        if "accuracy_among_all" in test:  # the paper's benchmark guesses among all classes
            values |= {key: test[f"{key}_among_all"] for key in ("accuracy", "standard_error")}
            values["accuracy_among_present"] = test["accuracy"]
        rows.append(_evaluated(job, measured, probe, part, **values))
    return rows


@measure
def entropy(job: Job) -> list[CellResult]:
    """The histogram of the entropies of all simplices of all training images."""

    def measure(run: Run) -> dict[str, Any]:
        train, vertices = job.sets[0], run.recipe.sem.vertices
        batches = encoder_features(run, train.images).split(256)
        with torch.no_grad():
            simplices = (represent(run.network(), batch, "sem") for batch in batches)
            histogram = entropy_histogram(simplices, vertices)
        return {
            "protocol": "entropy of simplices, training images",
            "layer": "sem",
            "temperature": run.recipe.sem.temperature,
            "mean_entropy": histogram.pop("mean"),
            "ln_vertices": math.log(vertices),
            "images": len(train),
            **histogram,
        }

    return [_analysed(job, job.analysis("entropy", measure))]


@measure
def spectrum(job: Job, layer: str = "embedder") -> list[CellResult]:
    """Singular values of the covariance of a layer on the test images: at most 300, with their index."""

    def measure(run: Run) -> dict[str, Any]:
        test = job.sets[1]
        batches = encoder_features(run, test.images).split(256)
        with torch.no_grad():
            features = torch.cat([represent(run.network(), batch, layer).float() for batch in batches])
        values = singular_values(features)
        index = spaced(len(values), 300)
        return {
            "protocol": "spectrum of the covariance, test images",
            "layer": layer,
            "features": features.shape[1],
            "images": len(test),
            "effective_rank": effective_rank(values),
            "count": len(values),
            "index": index,
            "values": values.cpu()[index].tolist(),
        }

    return [_analysed(job, job.analysis(f"spectrum-{layer}", measure, layer=layer))]


@measure
def coherence(job: Job, layer: str) -> list[CellResult]:
    """Coherence at each K, and the graph at K = 5, of the linear classifiers that ``analyze`` fits.

    On a CPU it fits them to fewer images, for fewer epochs: that is another protocol.
    """
    briefly = choose(job.options.device).type == "cpu"
    how = f", {EPOCHS_ON_CPU} epochs of at most {FIT_ON_CPU:,} images" if briefly else ""

    def measure(run: Run) -> dict[str, Any]:
        analysis, folder = analyze(run, None, job.options.data_dir, quiet=job.options.quiet)
        curves = {curve["layer"]: curve for curve in analysis["coherence"]["curves"]}
        if layer not in curves:
            raise UserError(f"{run.path} has no coherence of {layer!r}: {'; '.join(analysis['notes'])}")
        curve, classes = curves[layer], analysis["data"]["classes"]
        graph = next(g for g in analysis["coherence"]["graphs"] if (g["layer"], g["k"]) == (layer, 5))
        values = curve["coherence"] or []  # only data with superclasses has it
        return {
            "protocol": f"coherence of plain linear classifiers (simplicia analyze){how}",
            "layer": layer,
            "temperature": curve["temperature"],
            "classifier_accuracy": curve["test_accuracy"],
            "fit_images": curve["fit_images"],
            "fit_epochs": curve["fit_epochs"],
            "k": analysis["coherence"]["k"][: len(values)],
            "coherence": values,
            "isolated": curve["isolated"],
            **{f"coherence_at_{k}": values[k - 1] if k <= len(values) else None for k in (1, 5, 20)},
            **{f"isolated_at_{k}": curve["isolated"][k - 1] if k <= len(values) else None for k in (5, 20)},
            "components_at_5": len(graph["components"]),
            "components": [
                {"classes": [classes[i] for i in part["classes"]], "features": part["features"]}
                for part in graph["components"]
            ],
            "graph": f"{folder.name}/{graph['file']}",
        }

    return [_analysed(job, job.analysis(f"coherence-{layer}", measure, layer=layer, briefly=briefly))]


@measure
def tradeoff(job: Job) -> list[CellResult]:
    """The terms of Theorem 1 on a run, at each temperature and without the softmax."""

    def measure(run: Run) -> dict[str, Any]:
        terms = bound_terms(run, *job.sets)
        return {"rows": terms["rows"], "margin": terms["margin"], "scale": terms["scale"]}

    measured = job.analysis("bound", measure)
    rows = measured.details.pop("rows")
    return [
        _analysed(
            job,
            measured,
            "no softmax" if row["temperature"] is None else f"tau={row['temperature']:g}",
            protocol="Theorem 1, measured",
            layer="sem",
            **row,
        )
        for row in rows
    ]


@measure
def theory(job: Job) -> list[CellResult]:
    """Theorem 1's expressivities, for 5000 simplices."""
    return [
        job.row(
            part=f"V={row['vertices']}, margin {row['margin']:g}, tau={row['temperature']:g}",
            protocol="Theorem 1, in theory",
            **row,
        )
        for row in expressivity_table((13,), (0.01, 0.1, 1.0, 10.0), (0.01, 0.1), 5000)
    ]


@measure
def cost(job: Job, of: tuple[str, str]) -> list[CellResult]:
    """The counts of one model of the paper's cost table."""
    row = next(row for row in _paper_table() if (row["encoder"], row["model"]) == of)
    counts: dict[str, Any] = {
        name: row[name] for name in ("parameters", "activations", "flops", "estimated_gib")
    }
    paper: dict[str, Any] = {
        f"paper_{name}": int(row["paper"][name]) for name in ("parameters", "activations", "flops")
    }
    paper["paper_gib"] = row["paper"]["gib"]
    return [job.row(protocol="counted", encoder=of[0], method="byol", **counts, **paper)]


_paper_table = cache(paper_table)


def _evaluated(
    job: Job, measured: Measurement, probe: str | None = None, part: str | None = None, **values: Any
) -> CellResult:
    """A result of an evaluation; ``values`` replace its own."""
    about = {"probe_seconds": measured["seconds"], "probe_device": measured["device"]}
    return job.row(measured, part, **{**_reported(measured.details), "probe": probe, **about, **values})


def _reported(values: dict[str, Any]) -> dict[str, Any]:
    return {key: values[key] for key in REPORTED if key in values}


def _analysed(job: Job, measured: Measurement, part: str | None = None, /, **values: Any) -> CellResult:
    """A result of an analysis; ``values`` replace its own."""
    weights = {"pretrain_step": measured.pretrain_step, "run_id": measured.run_id}
    return job.row(measured, part, **{**measured.details, **weights, **values})
