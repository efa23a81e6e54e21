"""Verbs that train: pretrain, demo."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simplicia.cli.options import Parser, add_settings, described, positive
from simplicia.errors import UserError

if TYPE_CHECKING:
    from simplicia.run import Run
    from simplicia.train.recipe import Recipe


def pretrain(arguments: list[str]) -> None:
    from simplicia.api import pretrain

    recipe, shown = named_recipe("pretrain", arguments)
    parser = Parser("pretrain RECIPE", description="Train a recipe. Any setting of it is an option.")
    parser.add_argument("--out", metavar="FOLDER", help="where the run goes (default: runs/RECIPE)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: auto)")
    parser.add_argument("--engine", default="auto", help="auto, eager, compiled or captured (default: auto)")
    parser.add_argument("--processes", type=int, default=1, help="how many processes share the batch")
    parser.add_argument("--download", action="store_true", help="fetch a standard data set that is not there")
    parser.add_argument("--dry-run", action="store_true", help="say what would happen, and stop")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    given, changes, _ = with_settings(parser, recipe, shown)
    out = given["out"]
    if given["resume"] and out and not Path(out, "recipe.yaml").exists():
        print(f"there is no run in {out} to go on with: a new one begins", file=sys.stderr)
    run = pretrain(
        recipe.name,
        out=out,
        resume=given["resume"],
        device=given["device"],
        processes=given["processes"],
        engine=given["engine"],
        download=given["download"],
        quiet=given["quiet"],
        dry_run=given["dry_run"],
        **changes,
    )
    if run is not None:
        print(f"{run.path}: {run.step} steps in {run.state['seconds']:.0f} s, loss {run.state['loss']:.4f}")
        print(f"next: simplicia {_next(run)}")


def _next(run: "Run") -> str:
    """What can be done with a run: without labels it cannot be probed."""
    from simplicia.data import datasets, folder

    data, path = run.recipe.data, shlex.quote(str(run.path))
    if data in datasets.names() or not Path(data).is_dir() or folder.layout(Path(data))[0].labelled:
        return f"probe {path}"
    return f"encode {path} {shlex.quote(data)} --out features.npz"


def named_recipe(verb: str, arguments: list[str]) -> "tuple[Recipe, list[str]]":
    """The recipe a verb is given first, before its options are read: a wrong name is told as such."""
    from simplicia.train import recipes

    if not arguments or arguments[0] in ("-h", "--help"):
        return recipes.get("byol-sem"), ["--help"]
    if arguments[0].startswith("-"):
        raise UserError(
            f"{verb} takes a recipe's name first, not {arguments[0]}; simplicia recipes lists them"
        )
    return recipes.get(arguments[0]), arguments[1:]


def with_settings(
    parser: Parser, recipe: "Recipe", arguments: list[str]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """What a verb that trains was given: its own options, changes of the recipe, and options' settings."""
    from simplicia import methods

    first = Parser("pretrain", add_help=False)
    first.add_argument("--method", default=recipe.method)
    method = first.parse_known_args(arguments)[0].method
    setters = add_settings(parser, recipe, skip=("name", "options"))
    group = parser.add_argument_group(f"options of {method}")
    own = recipe.options if method == recipe.method else {}
    for name, option in methods.options(method).items():
        flag, metavar = f"--{method}.{name.replace('_', '-')}", "X" if option.type is float else "N"
        text = described(option.help, own.get(name, option.default))
        group.add_argument(flag, type=option.type, metavar=metavar, help=text)
        setters[f"{method}.{name}"] = f"options.{name}"
    for word in arguments:
        other = word.removeprefix("--").partition(".")[0]
        if word.startswith("--") and "." in word and other in methods.names() and other != method:
            raise UserError(f"{word.split('=')[0]} is an option of {other}, and the method is {method}")
    given = vars(parser.parse(arguments))
    changes = {setting: given[name] for name, setting in setters.items() if given[name] is not None}
    return given, changes, setters


def demo(arguments: list[str]) -> None:
    parser = Parser(
        "demo", description="BYOL with and without SEM on the built-in shapes, looked at and measured."
    )
    parser.add_argument("--out", default="demo", metavar="FOLDER", help="(default: demo)")
    parser.add_argument("--epochs", type=positive, help="(default: the recipe's)")
    parser.add_argument("--device", default="auto")
    given = parser.parse(arguments)
    from simplicia.cli.demo import demo

    demo(given.out, given.device, given.epochs)
