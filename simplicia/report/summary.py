"""The first screen of the page: how accurate a run is, whether it is healthy, and its best simplices."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from simplicia.analyze.report_data import Analysis, ShownVertex
from simplicia.report.figures import describe
from simplicia.report.tables import Cell, number
from simplicia.train.monitor import LEAST_RANK, LEAST_SPREAD, ONE_HOT, UNIFORM

FEW = 0.02  # a share of unused vertices or simplices that is no problem
CLASSES = 3  # named for each vertex


@dataclass
class Summary:
    """A run in a few numbers and sentences."""

    headlines: list[tuple[str, Cell]]
    health: list[tuple[bool, str]]  # whether it is fine, and a sentence
    simplices: list[dict[str, Any]]  # number, what it tells, vertices with images and classes


def summarise(analysis: Analysis) -> Summary:
    """Summarise a run."""
    return Summary(list(_headlines(analysis)), list(_health(analysis)), list(_simplices(analysis)))


def _headlines(analysis: Analysis) -> Iterator[tuple[str, Cell]]:
    """The best offline probe and the best kNN of the run's own images, or what there is instead."""
    own = [
        result
        for result in analysis.results.values()
        if result.accuracy is not None and not result.online and result.dataset == analysis.data.name
    ]
    for title, part in (("accuracy", "linear probe"), ("kNN accuracy", "kNN")):
        matching = [result for result in own if part in result.protocol]
        if matching:
            best = max(matching, key=lambda result: result.accuracy or 0.0)
            error = "" if best.standard_error is None else f" ± {best.standard_error:.1f}"
            at = "" if best.temperature is None else f", temperature {best.temperature:g}"
            yield title, number(best.accuracy, f"{{:.1f}}{error} %", describe(best) + at)
    if analysis.data.class_counts is None:
        yield "images", number(analysis.data.images, "{:,}", "without labels, so there is no accuracy")
    layer = next((layer for layer in analysis.spectrum.layers if layer.layer == "encoder"), None)
    if layer is not None:
        note = f"of {layer.features:,}, by effective rank"
        yield "directions in use", number(layer.effective_rank, "{:.0f}", note)


def _health(analysis: Analysis) -> Iterator[tuple[bool, str]]:
    """Sentences about collapse, unused simplices, entropy and the training."""
    run, atlas, entropy = analysis.run, analysis.atlas, analysis.entropy
    rank = min((layer.effective_rank for layer in analysis.spectrum.layers), default=None)
    spread = next((x for x in reversed(analysis.log.train.get("feature_std", [])) if x is not None), None)
    if rank is not None and (rank < LEAST_RANK or (spread is not None and spread < LEAST_SPREAD)):
        yield False, "Features collapsed: different images have nearly equal features."
    elif rank is not None:
        yield True, "Features did not collapse."
    if atlas is not None:
        constant, dead = atlas.constant_simplices, atlas.dead_vertices
        share, dead_share = constant / atlas.simplices, dead / (atlas.simplices * atlas.vertices)
        text = f"{_percent(share)} of the simplices give every image the same code."
        yield share <= FEW, text if constant else "All simplices tell images apart."
        text = f"{_percent(dead_share)} of the vertices are unused."
        yield dead_share <= FEW, text if dead else "All vertices are used."
    own = next((curve for curve in entropy.curves if curve.own), None) if entropy else None
    if own is not None and entropy is not None and entropy.vertices > 1:
        share = own.mean / math.log(entropy.vertices)
        kind = "nearly one-hot" if share < ONE_HOT else "nearly uniform" if share > UNIFORM else ""
        mean = f"the mean entropy is {100 * share:.1f} % of ln V, its maximum"
        yield not kind, f"Simplices are {kind or 'neither uniform nor one-hot'}: {mean}."
    if not run.finished:
        yield False, f"Training is unfinished: step {run.step:,} of {run.total_steps:,}."
    count = len(analysis.log.warnings)
    if count:
        yield False, f"The training gave {count} warning{'s' * (count > 1)}; see Warnings and notes."


def _percent(share: float) -> str:
    percent = 100 * share
    return "Under 1 %" if 0 < percent < 1 else f"{percent:.0f} %"


def _simplices(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """The best simplices; vertices on images, and by name the classes that they fire on most."""
    atlas = analysis.atlas
    for shown in atlas.showcase if atlas else []:
        vertices = [
            {**vertex.to_json(), "names": ", ".join(_names(analysis, vertex))} for vertex in shown.vertices
        ]
        by_class = atlas is not None and atlas.ranked_by == "information"
        about = f"{shown.score:.2f} nats about the class" if by_class else f"contrast {shown.score:.2f}"
        yield {"number": shown.simplex, "score": about, "vertices": vertices}


def _names(analysis: Analysis, vertex: ShownVertex) -> list[str]:
    names = analysis.data.classes
    indices = [index for index, *_ in vertex.classes[:CLASSES]]
    return [names[index] for index in indices if 0 <= index < len(names)]
