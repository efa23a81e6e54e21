"""What is known of a run without looking at an image: its recipe, its log, its results, its cost."""

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

from simplicia.errors import UserError
from simplicia.result import Result
from simplicia.run import Run
from simplicia.settings import as_dict
from simplicia.train.log import lines_of

POINTS = 400  # of a curve


def of_run(run: Run) -> dict[str, Any]:
    """``run``, ``log``, ``results`` and ``cost`` of an analysis."""
    sem = run.recipe.sem if "sem" in run.layers() else None
    return {
        "run": {
            "name": run.recipe.name,
            "folder": run.path.resolve().name,
            "recipe": as_dict(run.recipe),
            "step": run.step,
            "total_steps": run.state["total_steps"],
            "finished": run.finished,
            "seconds": run.state["seconds"],
            "loss": run.state["loss"],
            "layers": list(run.layers()),
            "simplices": sem and sem.simplices,
            "vertices": sem and sem.vertices,
            "temperature": sem.temperature if sem and run.recipe.bottleneck == "sem" else None,
        },
        "log": log(run.path / "log.jsonl"),
        "results": results(run.path / "results"),
        "cost": cost(run),
    }


def names(analyses: list[dict[str, Any]]) -> list[str]:
    """What each run is called: its name, with its folder where names are equal, numbered if both are."""
    found = [str(analysis["run"]["name"]) for analysis in analyses]
    if len(set(found)) < len(found):
        found = [f"{name} ({each['run']['folder']})" for name, each in zip(found, analyses, strict=True)]
    if len(set(found)) < len(found):
        found = [f"{i}. {name}" for i, name in enumerate(found, 1)]
    return found


def log(path: Path) -> dict[str, Any]:
    """The curves of a log, thinned, and its warnings."""
    lines = lines_of(path)
    warnings = [{"step": line["step"], "words": str(line["warning"])} for line in lines if "warning" in line]
    return {
        "train": _columns([line for line in lines if "loss" in line]),
        "online": _columns([line for line in lines if any(key.startswith("online_") for key in line)]),
        "warnings": warnings[:50],
    }


def _columns(lines: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """A list for each key, of at most POINTS lines evenly spread, the first and the last among them."""
    if len(lines) > POINTS:
        lines = [lines[round(i * (len(lines) - 1) / (POINTS - 1))] for i in range(POINTS)]
    keys = dict.fromkeys(
        key for line in lines for key, value in line.items() if isinstance(value, int | float)
    )
    return {key: [line.get(key) for line in lines] for key in keys}


def results(folder: Path) -> dict[str, Any]:
    """The measurements beside a run, as they are; what is no measurement is left out."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        with suppress(UserError):
            found[path.stem] = Result.read(path).to_json()
    return found


def cost(run: Run) -> dict[str, Any] | None:
    """Parameters, activations and multiply-adds for one image."""
    from simplicia.analyze.model_cost import cost as count

    try:
        found = count(run.method, run.recipe.image_size)
    except RuntimeError:  # an encoder that cannot be counted loses nobody an analysis
        return None
    return {name: getattr(found, name) for name in ("parameters", "activations", "flops")}


def finite(value: Any) -> Any:
    """The same, with None for numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {str(key): finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
