"""simplicia sweep: train a recipe with many settings."""

import shlex
from typing import Annotated, Any

from simplicia.cli.options import NOT_NEGATIVE, POSITIVE
from simplicia.cli.pretrain import RecipeName, Training, named_recipe
from simplicia.cli.tables import accuracy, decimals, table
from simplicia.cli.verbs import Settings, verb
from simplicia.errors import UserError


@verb(
    "sweep RECIPE",
    "try many settings: simplicia sweep shapes-byol-sem --grid sem.simplices=16,64,256",
    named_recipe,
)
def sweep(
    recipe: RecipeName,
    settings: Settings,
    given: Training,
    *,
    grid: Annotated[list[str] | None, "SETTING=A,B,C: try every combination"] = None,
    search: Annotated[
        list[str] | None, "SETTING=LOW..HIGH[:log]: draw settings from ranges, or from values A,B,C"
    ] = None,
    trials: Annotated[int | None, "number of trials of a search (default: 12)", POSITIVE] = None,
    out: Annotated[str | None, "folder of the sweep (default: sweeps/RECIPE)"] = None,
    prune: Annotated[
        bool | None, "stop trials below the median of the others (default: only in a search)"
    ] = None,
    downstream_temperatures: Annotated[
        tuple[float, ...] | None, "temperatures of the probe that ranks trials", NOT_NEGATIVE
    ] = None,
    probe_epochs: Annotated[int | None, "epochs of that probe (default: 30)", POSITIVE] = None,
    retry: Annotated[bool, "with --resume: try failed trials again"] = False,
) -> None:
    """Train a recipe with many settings, and choose among them on held-out training images."""
    from simplicia.experiments.sweep import sweep

    outcome = sweep(
        recipe,
        grid=_assignments(grid, "16,64,256"),
        search=_assignments(search, "0.1..1:log"),
        trials=trials,
        out=out,
        temperatures=downstream_temperatures,
        probe_epochs=probe_epochs,
        prune=prune,
        retry=retry,
        **vars(given),
        **settings.changes,
    )
    names, rows = outcome["settings"], outcome["trials"]
    columns: dict[str, Any] = {"trial": "trial"}
    columns |= {name: lambda row, name=name: row["settings"].get(name) for name in names}
    columns |= {
        "state": "state",
        "validation %": lambda row: accuracy(row, "validation_accuracy", 2),
        "downstream temperature": "downstream_temperature",
        "seconds": lambda row: decimals(row["seconds"], 0),
    }
    table(f"{recipe}: accuracy on {outcome['validation_images']} held-out training images", columns, rows)
    if downstream_temperatures or not names:  # a recipe alone is a sweep over temperatures
        table(
            "at each downstream temperature",
            ["trial", "downstream temperature", "validation %"],
            [
                [row["trial"], each["temperature"], decimals(each["accuracy"], 2)]
                for row in rows
                for each in row["per_temperature"]
            ],
        )
    best = outcome["best"]
    shown = accuracy(best, "validation_accuracy", 2)
    temperature = "-" if (t := best["downstream_temperature"]) is None else f"{t:.4g}"
    print(f"best: trial {best['trial']}, {shown} %, downstream temperature {temperature}")
    print(f"written to {out or f'sweeps/{recipe}'}/sweep.json, sweep.csv and sweep.svg")
    print(f"next, on all training images: simplicia pretrain {_best_command(settings.defaults, outcome)}")


def _assignments(words: list[str] | None, example: str) -> dict[str, str] | None:
    settings: dict[str, str] = {}
    for word in words or []:
        name, _, values = word.partition("=")
        if not name or not values:
            raise UserError(f"{word!r} is not SETTING=VALUES, such as sem.simplices={example}")
        if name in settings:
            raise UserError(f"{name} is given twice")
        settings[name] = values
    return settings or None


def _best_command(recipe: Any, outcome: Any) -> str:
    """The arguments of ``pretrain`` that train with the best settings, also after resuming a sweep."""
    from simplicia.settings import as_dict, flat

    named, swept = flat(as_dict(recipe)), flat(outcome["plan"]["recipe"])
    method = outcome["best"]["settings"].get("method", swept["method"])
    left_out = {"name", "holdout", *(["online_every"] if outcome["plan"]["prune"] else [])}
    changes = {k: v for k, v in swept.items() if k not in left_out and v != named.get(k)}
    if method != swept["method"]:  # options belong to their method
        changes = {k: v for k, v in changes.items() if not k.startswith("options.")}
    words = [recipe.name]
    for name, value in (changes | outcome["best"]["settings"]).items():
        words.append(f"--{name.replace('options.', f'{method}.').replace('_', '-')}")
        words += map(str, value if isinstance(value, list) else [value])
    return shlex.join(words)
