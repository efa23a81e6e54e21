"""simplicia pretrain: train a recipe."""

import shlex
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simplicia.cli.options import Parser
from simplicia.cli.verbs import verb
from simplicia.errors import UserError

if TYPE_CHECKING:
    from simplicia.run import Run
    from simplicia.train.recipe import Recipe


@verb("pretrain RECIPE", "train a recipe: simplicia pretrain cifar100-byol-sem --epochs 200")
def pretrain(parser: Parser, arguments: list[str]) -> None:
    """Train a recipe. Every setting of the recipe is an option."""
    from simplicia.api import pretrain

    parser.add_argument("--out", metavar="FOLDER", help="folder of the run (default: runs/RECIPE)")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add("--device", "--engine", "--download", "--quiet")
    parser.add_argument(
        "--processes", type=int, default=1, help="processes that share the batch (default: 1)"
    )
    parser.add_argument("--dry-run", action="store_true", help="take three steps, print the plan, and stop")
    recipe, args, changes = parse_recipe(parser, arguments)
    if args.resume and args.out and not Path(args.out, "recipe.yaml").exists():
        print(f"there is no run in {args.out} to resume: a new one begins", file=sys.stderr)
    names = ("out", "resume", "device", "processes", "engine", "download", "quiet", "dry_run")
    run = pretrain(recipe.name, **{name: getattr(args, name) for name in names}, **changes)
    if run is not None:
        print(f"{run.path}: {run.step} steps in {run.state['seconds']:.0f} s, loss {run.state['loss']:.4f}")
        print(f"next: simplicia {_next(run)}")


def _next(run: "Run") -> str:
    """A command to continue with; a run on images without labels cannot be probed."""
    from simplicia.data import datasets, folder

    data, path = run.recipe.data, shlex.quote(str(run.path))
    if data in datasets.names() or not Path(data).is_dir() or folder.layout(Path(data))[0].labelled:
        return f"probe {path}"
    return f"encode {path} {shlex.quote(data)} --out features.npz"


def parse_recipe(parser: Parser, arguments: list[str]) -> "tuple[Recipe, Namespace, dict[str, Any]]":
    """The recipe, named first, the other arguments, and the changes of the recipe's settings."""
    from simplicia import methods
    from simplicia.train import recipes

    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        name, rest = "byol-sem", ["--help"]
    if name.startswith("-"):
        raise UserError(
            f"{parser.prog} takes a recipe's name first, not {name}; simplicia recipes lists them"
        )
    recipe = recipes.get(name)
    method = parser.peek(rest, "--method", recipe.method)
    values = recipe.options if method == recipe.method else {}
    parser.add_settings(recipe)
    group = parser.add_argument_group(f"options of {method}")
    for option in methods.options(method).values():
        value = values.get(option.name, option.default)
        parser.add_setting(group, f"options.{option.name}", option, value, f"{method}.{option.name}")
    for word in rest:
        other = word.removeprefix("--").partition(".")[0]
        if word.startswith("--") and "." in word and other in methods.names() and other != method:
            raise UserError(f"{word.split('=')[0]} is an option of {other}, and the method is {method}")
    args = parser.parse(rest)
    return recipe, args, parser.changes(args)
