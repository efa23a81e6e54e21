"""What a measurement says of itself: one set of fields for every evaluation, written beside the run."""

import hashlib
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.provenance import commit, versions
from simplicia.run import Run

K = 20  # the neighbours that vote, unless another number is asked for
_NUMBERS = (
    "accuracy",
    "standard_error",
    "standard_deviation",
    "top5_accuracy",
    "temperature",
    "fraction",
    "epochs",
    "regulariser",
)
# of each part with rows: what every row has
_PARTS: dict[str, tuple[str, ...]] = {
    "per_temperature": ("accuracy", "standard_error"),
    "trials": (),
    "path": ("regulariser",),
}


def result(
    run: Run,
    protocol: str,
    train: ImageSet,
    test: ImageSet,
    *,
    network: str = "online",
    layer: str | None = None,
    temperature: float | None = None,
    selected: dict[str, Any] | None = None,  # hyper-parameters that were chosen, and not on the test images
    validation_images: int = 0,
    seeds: Sequence[int] = (),
    **more: Any,
) -> dict[str, Any]:
    """The fields every measurement states, and those of its own protocol."""
    return {
        "protocol": protocol,
        "online": False,
        "dataset": train.name,
        "data": train.source or train.name,
        "run": run.recipe.name,
        "encoder": run.recipe.encoder,
        "method": run.recipe.method,
        "bottleneck": run.recipe.bottleneck,
        "sem": run.recipe.bottleneck == "sem",
        "pretrain_epochs": run.recipe.epochs,
        "pretrain_step": run.step,
        "run_id": run.state.get("id"),
        "pretrain_seed": run.recipe.seed,
        "batch_size": run.recipe.batch_size,
        "network": network,
        "layer": layer,
        "temperature": temperature,
        "selected": selected or {},
        "train_images": len(train),
        "validation_images": validation_images,
        "test_images": len(test),
        "classes": len(train.classes),
        "skipped_files": len(train.skipped) + len(test.skipped),
        "seeds": list(seeds),
        **more,
        **versions(run.device),
        "commit": commit(),
    }


def percent(correct: float, total: int, top5: float | None = None) -> dict[str, float]:
    """An accuracy in percent with its standard error; with ``top5`` correct ones, that accuracy as well."""

    def share(right: float) -> tuple[float, float]:
        p = right / total
        return 100 * p, 100 * math.sqrt(p * (1 - p) / total)

    accuracy, error = share(correct)
    found = {"accuracy": accuracy, "standard_error": error}
    if top5 is not None:
        found["top5_accuracy"], found["top5_standard_error"] = share(top5)
    return found


def over_seeds(correct: Sequence[int], total: int, top5: Sequence[int] | None = None) -> dict[str, Any]:
    """``percent`` of the mean over seeds; with several seeds, each accuracy and their standard deviation.

    All seeds are tested on the same images, so the standard error is that of one test.
    """
    n = len(correct)
    found: dict[str, Any] = percent(sum(correct) / n, total, None if top5 is None else sum(top5) / n)
    if n > 1:
        accuracies = [100 * c / total for c in correct]
        spread = math.sqrt(sum((a - found["accuracy"]) ** 2 for a in accuracies) / (n - 1))
        found |= {"seed_accuracies": accuracies, "standard_deviation": spread}
    return found


def changed(settings: Any, own: Any = None) -> dict[str, Any]:
    """The settings that are not a protocol's own; some are fields of a result."""
    given, defaults = vars(settings), vars(own if own is not None else type(settings)())
    apart = ("seeds", "fraction", "temperature")
    return {key: value for key, value in given.items() if key not in apart and value != defaults[key]}


def name(run: Run, protocol: str, found: dict[str, Any]) -> str:
    """The file of a measurement: what it is of the run's own, or what else it is of, so that none is lost."""
    words = [protocol, str(found["layer"])]
    tried = found.get("grid", {}).get("temperatures", [])
    chosen = len(tried) > 1 or "temperature" in found["selected"]
    if found["layer"] == "sem" and not chosen and found["temperature"] != run.recipe.sem.temperature:
        words.append(f"at-{found['temperature']:g}")
    if found.get("k", K) != K:
        words.append(f"k-{found['k']}")
    if len(found.get("seeds") or []) > 1:
        words.append(f"{len(found['seeds'])}-seeds")
    if "fraction" in found:
        words.append(f"{100 * found['fraction']:.3g}-percent")
    if found.get("list_file") is not None:
        words += [_plain(found["list_file"]), *([number] if (number := found.get("list_digest")) else [])]
    if told := "-".join(f"{key}-{listed(value, '_')}" for key, value in found.get("changed", {}).items()):
        words.append(_short(told, "changed"))
    if found.get("sets"):
        words.append(_short("-".join(_plain(str(row["set"])) for row in found["sets"]), "sets"))
        if places := [row["place"] for row in found["sets"] if "place" in row]:
            words.append(places[0] if len(places) == 1 else digest("\n".join(places)))
    words += of_others(run, found["data"], found["dataset"])
    if found["network"] != "online":
        words.append(found["network"])
    return "-".join(words)


def of_others(run: Run, data: str, called: str) -> list[str]:
    """What tells files about other images from those about the run's own."""
    if data == run.recipe.data:
        return []
    return [_plain(called), *([digest(data)] if data != called else [])]  # others may have its name


def digest(text: str) -> str:
    """Six digits that stand for a path or a list."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:6]


def _short(told: str, kind: str) -> str:
    """Names of files have an end."""
    return told if len(told) <= 80 else f"{kind}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


def listed(value: Any, between: str = " ") -> str:
    """A setting, or each of several."""
    return between.join(map(str, value if isinstance(value, list | tuple) else [value]))


def _plain(word: str) -> str:
    """A name of someone else's as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._]+", "_", word)


def read(folder: Path) -> list[dict[str, Any]]:
    """The measurements in a run's ``results``; files of another form are left out."""
    found = []
    for path in sorted((folder / "results").glob("*.json")):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{path} cannot be read as a result: {str(error).splitlines()[0]}") from error
        if is_result(value):
            found.append(value)
    return found


def is_result(value: Any) -> bool:
    """Whether numbers are numbers, and the parts that have parts what ``result`` makes them."""
    if not isinstance(value, dict) or not isinstance(value.get("protocol"), str):
        return False
    grid = value.get("grid") or {}
    if not isinstance(grid, dict) or not all(isinstance(values, list) for values in grid.values()):
        return False
    if not isinstance(value.get("changed") or {}, dict):
        return False
    parts: list[tuple[Any, tuple[str, ...]]] = [(value, ())]
    for key, needed in _PARTS.items():
        rows = value.get(key) or []
        if not isinstance(rows, list):
            return False
        parts += [(row, needed) for row in rows]
    return all(
        isinstance(part, dict)
        and all(key in part for key in needed)
        and all(is_number(part[key]) for key in _NUMBERS if part.get(key) is not None or key in needed)
        for part, needed in parts
    )


def is_number(value: Any) -> bool:
    """Whether a value of a JSON file is a number that can be computed with and shown."""
    return isinstance(value, int | float) and -1e300 < value < 1e300
