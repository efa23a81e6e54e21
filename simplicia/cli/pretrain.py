"""simplicia pretrain: train a recipe."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from simplicia.cli.options import Device, Parser, Quiet
from simplicia.cli.verbs import Settings, verb
from simplicia.errors import UserError

if TYPE_CHECKING:
    from simplicia.run import Run
    from simplicia.train.recipe import Recipe

RecipeName = Annotated[str, "name of a recipe; simplicia recipes lists them"]


@dataclass
class Training:
    """The options that all trainings share."""

    resume: Annotated[bool, "continue in --out"] = False
    device: Device = "auto"
    engine: Annotated[str, "auto, eager, compiled or captured"] = "auto"
    download: Annotated[bool, "download a standard data set that is missing"] = False
    quiet: Quiet = False


def named_recipe(parser: Parser, words: list[str]) -> "Recipe":
    """The recipe named first; adds the options of its method."""
    from simplicia import methods
    from simplicia.train import recipes

    if not words:
        words.append("--help")
    name = "byol-sem" if words[0] in ("-h", "--help") else words[0]
    if name.startswith("-"):
        raise UserError(
            f"{parser.prog} takes a recipe's name first, not {name}; simplicia recipes lists them"
        )
    recipe = recipes.get(name)
    method = parser.peek(words, "--method", recipe.method)
    values = recipe.options if method == recipe.method else {}
    group = parser.add_argument_group(f"options of {method}")
    for option in methods.options(method).values():
        value = values.get(option.name, option.default)
        parser.add_setting(group, f"options.{option.name}", option, value, f"{method}.{option.name}")
    for word in words:
        other = word.removeprefix("--").partition(".")[0]
        if word.startswith("--") and "." in word and other in methods.names() and other != method:
            raise UserError(f"{word.split('=')[0]} is an option of {other}, and the method is {method}")
    return recipe


@verb("pretrain RECIPE", "train a recipe: simplicia pretrain cifar100-byol-sem --epochs 200", named_recipe)
def pretrain(
    recipe: RecipeName,
    settings: Settings,
    given: Training,
    *,
    out: Annotated[str | None, "folder of the run (default: runs/RECIPE)"] = None,
    processes: Annotated[int, "processes that share the batch"] = 1,
    dry_run: Annotated[bool, "take three steps, print the plan, and stop"] = False,
) -> None:
    """Train a recipe. Every setting of the recipe is an option."""
    from simplicia.api import pretrain

    if given.resume and out and not Path(out, "recipe.yaml").exists():
        print(f"there is no run in {out} to resume: a new one begins", file=sys.stderr)
    run = pretrain(recipe, out=out, processes=processes, dry_run=dry_run, **vars(given), **settings.changes)
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
