"""Build the result of an evaluation, and name its file."""

import hashlib
from typing import Any

from simplicia.data.datasets import ImageSet
from simplicia.provenance import commit, versions
from simplicia.result import Result, digest, file_word
from simplicia.run import Run

K = 20  # default number of neighbours that vote


def make_result(run: Run, protocol: str, train: ImageSet, test: ImageSet, **values: Any) -> Result:
    """Describe the run, its data and this machine; ``values`` are the protocol's own fields and details."""
    recipe = run.recipe
    about = {
        "protocol": protocol,
        "dataset": train.name,
        "data": train.source or train.name,
        "run": recipe.name,
        **{name: getattr(recipe, name) for name in ("encoder", "method", "bottleneck", "batch_size")},
        "sem": recipe.bottleneck == "sem",
        "pretrain_epochs": recipe.epochs,
        "pretrain_step": run.step,
        "run_id": run.state.get("id"),
        "pretrain_seed": recipe.seed,
        "train_images": len(train),
        "validation_images": 0,
        "test_images": len(test),
        "classes": len(train.classes),
        "skipped_files": len(train.skipped) + len(test.skipped),
        "commit": commit(),
    }
    return Result.make(**{**about, **versions(run.device), **values})


def changed_settings(settings: Any, defaults: Any = None) -> dict[str, Any]:
    """Settings that differ from the protocol's defaults, without those that are fields of a result."""
    default_values = vars(defaults if defaults is not None else type(settings)())
    fields = ("seeds", "fraction", "temperature")
    return {k: v for k, v in vars(settings).items() if k not in fields and v != default_values[k]}


def result_name(run: Run, verb: str, result: Result) -> str:
    """Name a result after everything that is not the default, so that no file replaces another."""
    words = [verb, str(result.layer)]
    grid_temperatures = result.get("grid", {}).get("temperatures", [])
    is_chosen = len(grid_temperatures) > 1 or "temperature" in result.selected
    if result.layer == "sem" and not is_chosen and result.temperature != run.recipe.sem.temperature:
        words.append(f"at-{result.temperature:g}")
    if (k := result.get("k", K)) != K:
        words.append(f"k-{k}")
    if len(result.seeds) > 1:
        words.append(f"{len(result.seeds)}-seeds")
    if (fraction := result.get("fraction")) is not None:
        words.append(f"{100 * fraction:.3g}-percent")
    if (list_file := result.get("list_file")) is not None:
        words += [file_word(list_file), result["list_digest"]]
    if changes := "-".join(f"{k}-{join_values(v, '_')}" for k, v in result.get("changed", {}).items()):
        words.append(_limit_length(changes, "changed"))
    if test_sets := result.get("sets"):
        words.append(_limit_length("-".join(file_word(str(row["set"])) for row in test_sets), "sets"))
        if digests := [row["place"] for row in test_sets if "place" in row]:
            words.append(digests[0] if len(digests) == 1 else digest("\n".join(digests)))
    words += data_suffix(run, str(result.data), result.dataset)
    if result.network != "online":
        words.append(result.network)
    return "-".join(words)


def data_suffix(run: Run, data: str, name: str) -> list[str]:
    """Words for the name of a file about other images than the run's own."""
    if data == run.recipe.data:
        return []
    return [file_word(name), *([digest(data)] if data != name else [])]  # folders may share a name


def join_values(value: Any, separator: str = " ") -> str:
    """Write a setting's value, or each of its values."""
    return separator.join(map(str, value if isinstance(value, list | tuple) else [value]))


def _limit_length(words: str, kind: str) -> str:
    """Hash long names to stay under the file system's limit."""
    return words if len(words) <= 80 else f"{kind}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"
