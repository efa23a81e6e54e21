"""The parts of an analysis that need no images: the run's recipe, log, results and cost."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from simplicia.analyze.model_cost import COUNTS, cost
from simplicia.analyze.report_data import Log, LogWarning, RunFacts
from simplicia.errors import UserError
from simplicia.result import Result
from simplicia.run import Run
from simplicia.settings import as_dict
from simplicia.train.run_dir import read_log

POINTS = 400  # of a curve


def read(run: Run) -> dict[str, Any]:
    """``run``, ``log``, ``results`` and ``cost`` of an analysis."""
    counts = None
    with suppress(RuntimeError):  # an encoder whose operations cannot be counted
        total = cost(run.method, run.recipe.image_size)
        counts = {name: getattr(total, name) for name in COUNTS}
    log, results = training_curves(run.path / "log.jsonl"), read_results(run.path / "results")
    return {"run": run_facts(run), "log": log, "results": results, "cost": counts}


def run_facts(run: Run) -> RunFacts:
    recipe, state = run.recipe, run.state
    facts = RunFacts(
        name=recipe.name,
        folder=run.path.resolve().name,
        recipe=as_dict(recipe),
        step=run.step,
        finished=run.finished,
        layers=list(run.layers()),
        **{name: state[name] for name in ("total_steps", "seconds", "loss")},
    )
    if "sem" in facts.layers:
        facts.simplices, facts.vertices = recipe.sem.simplices, recipe.sem.vertices
        facts.temperature = recipe.sem.temperature if recipe.bottleneck == "sem" else None
    return facts


def training_curves(path: Path) -> Log:
    """The curves of a log, thinned, and its first 50 warnings."""
    lines = read_log(path)
    warnings = [LogWarning(line["step"], str(line["warning"])) for line in lines if "warning" in line]
    train = [line for line in lines if "loss" in line]
    online = [line for line in lines if any(key.startswith("online_") for key in line)]
    return Log(_columns(train), _columns(online), warnings[:50])


def _columns(lines: list[dict[str, Any]]) -> dict[str, list[float | None]]:
    """A list for each number, of at most POINTS lines evenly spread, including the first and the last."""
    if len(lines) > POINTS:
        lines = [lines[round(i * (len(lines) - 1) / (POINTS - 1))] for i in range(POINTS)]
    numbers = (key for line in lines for key, value in line.items() if isinstance(value, int | float))
    return {key: [line.get(key) for line in lines] for key in dict.fromkeys(numbers)}


def read_results(folder: Path) -> dict[str, Result]:
    """The run's results by file name; files that are no results are left out."""
    results = {}
    for path in sorted(folder.glob("*.json")):
        with suppress(UserError):
            results[path.stem] = Result.read(path)
    return results
