"""The parts of an analysis that need no images: the run's recipe, log, results and cost."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from simplicia.analyze.model_cost import cost
from simplicia.analyze.report_data import Log, LogWarning, RunFacts
from simplicia.errors import UserError
from simplicia.result import Result
from simplicia.run import Run
from simplicia.settings import as_dict
from simplicia.train.run_dir import read_log

POINTS = 400  # of a curve


def read(run: Run) -> dict[str, Any]:
    """``run``, ``log``, ``results`` and ``cost`` of an analysis."""
    try:
        total = cost(run.method, run.recipe.image_size)
        counted = {name: getattr(total, name) for name in ("parameters", "activations", "flops")}
    except RuntimeError:  # an encoder whose operations cannot be counted
        counted = None
    return {
        "run": run_facts(run),
        "log": training_curves(run.path / "log.jsonl"),
        "results": read_results(run.path / "results"),
        "cost": counted,
    }


def run_facts(run: Run) -> RunFacts:
    sem = run.recipe.sem if "sem" in run.layers() else None
    return RunFacts(
        run.recipe.name,
        run.path.resolve().name,
        as_dict(run.recipe),
        run.step,
        run.state["total_steps"],
        run.finished,
        run.state["seconds"],
        run.state["loss"],
        list(run.layers()),
        sem.simplices if sem else None,
        sem.vertices if sem else None,
        sem.temperature if sem and run.recipe.bottleneck == "sem" else None,
    )


def training_curves(path: Path) -> Log:
    """The curves of a log, thinned, and its first 50 warnings."""
    lines = read_log(path)
    warnings = [LogWarning(line["step"], str(line["warning"])) for line in lines if "warning" in line]
    return Log(
        _columns([line for line in lines if "loss" in line]),
        _columns([line for line in lines if any(key.startswith("online_") for key in line)]),
        warnings[:50],
    )


def _columns(lines: list[dict[str, Any]]) -> dict[str, list[float | None]]:
    """A list for each number, of at most POINTS lines evenly spread, including the first and the last."""
    if len(lines) > POINTS:
        lines = [lines[round(i * (len(lines) - 1) / (POINTS - 1))] for i in range(POINTS)]
    keys = dict.fromkeys(
        key for line in lines for key, value in line.items() if isinstance(value, int | float)
    )
    return {key: [line.get(key) for line in lines] for key in keys}


def read_results(folder: Path) -> dict[str, Result]:
    """The run's results by file name; files that are no results are left out."""
    results = {}
    for path in sorted(folder.glob("*.json")):
        with suppress(UserError):
            results[path.stem] = Result.read(path)
    return results
