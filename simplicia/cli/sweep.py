"""simplicia sweep: train a recipe with many settings."""

import argparse
import shlex
from typing import Any

from simplicia.cli.options import Parser, amount, positive
from simplicia.cli.pretrain import parse_recipe
from simplicia.cli.tables import accuracy, decimals, table
from simplicia.cli.verbs import verb
from simplicia.errors import UserError


@verb("sweep RECIPE", "try many settings: simplicia sweep shapes-byol-sem --grid sem.simplices=16,64,256")
def sweep(parser: Parser, arguments: list[str]) -> None:
    """Train a recipe with many settings, and choose among them on held-out training images."""
    from simplicia.experiments.sweep import sweep

    several: dict[str, Any] = {"nargs": "+", "action": "extend"}
    parser.add_argument("--grid", **several, metavar="SETTING=A,B,C", help="try every combination")
    parser.add_argument(
        "--search",
        **several,
        metavar="SETTING=LOW..HIGH[:log]",
        help="draw settings from ranges, or from values A,B,C",
    )
    parser.add_argument("--trials", type=positive, help="number of trials of a search (default: 12)")
    parser.add_argument("--out", metavar="FOLDER", help="folder of the sweep (default: sweeps/RECIPE)")
    parser.add_argument("--resume", action="store_true", help="continue the sweep in --out")
    parser.add_argument(
        "--prune",
        action=argparse.BooleanOptionalAction,
        help="stop trials below the median of the others (default: only in a search)",
    )
    parser.add_argument(
        "--downstream-temperatures",
        nargs="+",
        type=amount,
        metavar="TAU",
        help="temperatures of the probe that ranks trials",
    )
    parser.add_argument("--probe-epochs", type=positive, help="epochs of that probe (default: 30)")
    parser.add("--device", "--engine", "--download", "--quiet")
    recipe, args, changes = parse_recipe(parser, arguments)
    names = ("trials", "out", "resume", "probe_epochs", "prune", "device", "engine", "download", "quiet")
    outcome = sweep(
        recipe.name,
        grid=_assignments(args.grid, "16,64,256"),
        search=_assignments(args.search, "0.1..1:log"),
        temperatures=args.downstream_temperatures,
        **{name: getattr(args, name) for name in names},
        **changes,
    )
    settings = outcome["settings"]
    table(
        f"{recipe.name}: accuracy on {outcome['validation_images']} held-out training images",
        ["trial", *settings, "state", "validation %", "downstream temperature", "seconds"],
        [
            [
                *(row["trial"], *map(row["settings"].get, settings), row["state"]),
                accuracy(row, "validation_accuracy", 2),
                row["downstream_temperature"],
                decimals(row["seconds"], 0),
            ]
            for row in outcome["trials"]
        ],
    )
    if args.downstream_temperatures or not settings:  # a recipe alone is a sweep over temperatures
        table(
            "at each downstream temperature",
            ["trial", "downstream temperature", "validation %"],
            [
                [row["trial"], each["temperature"], decimals(each["accuracy"], 2)]
                for row in outcome["trials"]
                for each in row["per_temperature"]
            ],
        )
    best = outcome["best"]
    shown = accuracy(best, "validation_accuracy", 2)
    temperature = "-" if (t := best["downstream_temperature"]) is None else f"{t:.4g}"
    print(f"best: trial {best['trial']}, {shown} %, downstream temperature {temperature}")
    print(f"written to {args.out or f'sweeps/{recipe.name}'}/sweep.json, sweep.csv and sweep.svg")
    print(f"next, on all training images: simplicia pretrain {_best_command(recipe, outcome)}")


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
