"""simplicia pretrain, sweep: train a recipe, or train it with many settings."""

import dataclasses
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import simplicia
from simplicia.cli.tables import Column, accuracy, cell, decimals, echo, table
from simplicia.cli.verbs import NOT_NEGATIVE, POSITIVE, Device, Parser, Quiet, Settings, verb
from simplicia.errors import UserError, is_out_of_memory
from simplicia.progress import plural, say
from simplicia.settings import with_changes

if TYPE_CHECKING:
    from simplicia.run import Run
    from simplicia.train.recipe import Recipe

RecipeName = Annotated[str, "a recipe's name (simplicia recipes lists them), or a YAML file"]
# options that --help shows
BASICS = (
    "out resume device download quiet config data data_dir image_size encoder epochs batch_size seed init "
    "sem.simplices sem.vertices sem.temperature optim.lr optim.weight_decay online_every"
)


@dataclass
class Training:
    """The options that all trainings share."""

    resume: Annotated[bool, "continue in --out"] = False
    device: Device = "auto"
    engine: Annotated[str, "auto, eager, compiled or captured"] = "auto"
    download: Annotated[bool, "download a standard data set that is missing"] = False
    quiet: Quiet = False


def _move_config(words: list[str]) -> None:
    """Let ``--config FILE`` stand for the recipe: move the file to the front."""
    for i, word in enumerate(words):
        option, equals, file = word.partition("=")
        if option != "--config":
            continue
        if not equals and i + 1 == len(words):
            raise UserError("--config is given without a file; give the path of a recipe as YAML")
        value = file if equals else words[i + 1]
        rest = words[:i] + words[i + (1 if equals else 2) :]
        if rest and not rest[0].startswith("-"):
            raise UserError(f"the recipe is {rest[0]!r} and --config names {value!r}; give one of the two")
        if not value.endswith((".yaml", ".yml")):
            raise UserError(f"--config is {value!r}; it must be a YAML file, such as recipe.yaml")
        words[:] = [value, *rest]
        return


def named_recipe(parser: Parser, words: list[str]) -> "Recipe":
    """The recipe named first; adds the options of its method."""
    from simplicia.train import recipes

    if not words:
        words.append("--help")
    _move_config(words)
    name = "byol-sem" if words[0] in ("-h", "--help", "--help-all") else words[0]
    if name.startswith("-"):
        raise UserError(f"{parser.prog} takes a recipe's name first, not {name}; see simplicia recipes")
    recipe = recipes.get(name)
    parser.add_argument("--config", metavar="FILE", help="the recipe as a YAML file, in place of RECIPE")
    method = parser.peek(words, "--method", recipe.method)
    values = recipe.options if method == recipe.method else {}
    group = parser.add_argument_group(f"options of {method}")
    for option in simplicia.methods.options(method).values():
        value = values.get(option.name, option.default)
        parser.add_setting(group, f"options.{option.name}", option, value, f"{method}.{option.name}")
    for word in words:
        other = word.removeprefix("--").partition(".")[0]
        if word.startswith("--") and "." in word and other in simplicia.methods.names() and other != method:
            raise UserError(f"{word.split('=')[0]} is an option of {other}, and the method is {method}")
    return recipe


def check_used(settings: Settings, tried: Iterable[str] = ()) -> None:
    """A UserError for an option of a bottleneck that the run does not have; ``tried``: by a sweep."""
    from simplicia.train import recipes

    kind = settings.changes.get("bottleneck", settings.defaults.bottleneck)
    recipe = dataclasses.replace(settings.defaults, bottleneck=kind)
    idle = None if "bottleneck" in tried else recipes.without_effect(recipe, [*settings.changes, *tried])
    if idle is not None:
        raise UserError(idle)


@verb("pretrain RECIPE", named_recipe, f"{BASICS} processes dry_run")
def pretrain(
    recipe: RecipeName,
    settings: Settings,
    given: Training,
    *,
    out: Annotated[str | None, "folder of the run (default: runs/RECIPE)"] = None,
    processes: Annotated[
        int | None, "processes that share the batch (default: those of torchrun or srun, else 1)"
    ] = None,
    allow_other_processes: Annotated[bool, "no longer needed: any number of processes may resume"] = False,
    dry_run: Annotated[bool, "take three steps, print the plan, and stop"] = False,
) -> None:
    """Train a recipe: simplicia pretrain cifar100-byol-sem --epochs 200.

    Every setting of the recipe is an option.
    """
    from simplicia.distributed import rank

    check_used(settings)
    if given.resume and out and not Path(out, "recipe.yaml").exists():
        say([f"there is no run in {out} to resume: a new one begins"])
    options: Any = {"out": out, "processes": processes, **vars(given), **settings.changes}
    with _advice_if_memory_is_full(settings, given.device, processes):
        if dry_run:
            simplicia.dry_run(recipe, **options)
            return
        run = simplicia.pretrain(recipe, **options)
    if rank() == 0:
        steps, seconds = plural(run.step, "step"), decimals(run.state["seconds"], 0)
        echo(f"{run.path}: {steps} in {seconds} s, loss {run.state['loss']:.4f}")
        echo(f"next: simplicia {_next(run)}")


@contextmanager
def _advice_if_memory_is_full(settings: Settings, device: str, processes: int | None) -> Iterator[None]:
    """Turn an error of full memory into a UserError with the size of micro-batches that should fit."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        if (size := _fitting(settings, device, processes)) is None:
            raise  # the command line has an answer for all verbs
        raise UserError(
            f"the device is out of memory; use --process-batch-size {size}, which should fit"
        ) from None


def _fitting(settings: Settings, where: str, processes: int | None) -> int | None:
    """The size of micro-batches that a device should hold; None if none, or if the images decide settings."""
    from simplicia.analyze.model_cost import fitting_batch
    from simplicia.devices import choose, process_count, total_memory

    device = choose(where)
    recipe, memory = with_changes(settings.defaults, settings.changes), total_memory(device)
    if recipe.precision == "auto":
        recipe = with_changes(recipe, {"precision": "bf16" if device.type == "cuda" else "32"})
    try:
        return None if memory is None else fitting_batch(recipe, memory, process_count(processes))
    except UserError:  # settings are open
        return None


def _next(run: "Run") -> str:
    """A command to continue with; a run on images without labels cannot be probed."""
    from simplicia.data import datasets, folder

    data, path = run.recipe.data, shlex.quote(str(run.path))
    if data in datasets.names() or not Path(data).is_dir() or folder.layout(Path(data))[0].labelled:
        return f"probe {path}"
    return f"encode {path} {shlex.quote(data)} --out features.npz"


@verb("sweep RECIPE", named_recipe, f"{BASICS} grid search trials downstream_temperatures")
def sweep(
    recipe: RecipeName,
    settings: Settings,
    given: Training,
    *,
    grid: Annotated[list[str] | None, "SETTING=A,B,C: try every combination"] = None,
    search: Annotated[list[str] | None, "SETTING=LOW..HIGH[:log] or SETTING=A,B,C: draw settings"] = None,
    trials: Annotated[int | None, "number of trials of a search (default: 12)", POSITIVE] = None,
    out: Annotated[str | None, "folder of the sweep (default: sweeps/RECIPE)"] = None,
    prune: Annotated[bool | None, "stop trials below the others' median (default: in a search)"] = None,
    downstream_temperatures: Annotated[
        tuple[float, ...] | None, "temperatures of the probe that ranks trials", NOT_NEGATIVE
    ] = None,
    probe_epochs: Annotated[int | None, "epochs of that probe (default: 30)", POSITIVE] = None,
    retry: Annotated[bool, "with --resume: try failed trials again"] = False,
) -> None:
    """Try many settings: simplicia sweep shapes-byol-sem --grid sem.simplices=16,64,256.

    They are compared on held-out training images.
    """
    from simplicia.experiments.sweep import sweep

    check_used(settings, [word.partition("=")[0] for word in [*(grid or []), *(search or [])]])
    tried = {"grid": _assignments(grid, "16,64,256"), "search": _assignments(search, "0.1..1:log")}
    how: Any = {"trials": trials, "out": out, "prune": prune, "probe_epochs": probe_epochs, "retry": retry}
    how |= {"temperatures": downstream_temperatures, **tried, **vars(given), **settings.changes}
    name = settings.defaults.name
    outcome = sweep(recipe if recipe == name else settings.defaults, **how)
    columns: list[Column] = ["trial"]
    columns += [(name, lambda row, name=name: row["settings"].get(name)) for name in outcome["settings"]]
    columns += ["state", ("validation %", lambda row: accuracy(row, "validation_accuracy", 2))]
    columns += [("downstream temperature", "downstream_temperature")]
    columns += [("seconds", lambda row: decimals(row["seconds"], 0))]
    title = f"{name}: accuracy on {outcome['validation_images']} held-out training images"
    table(title, columns, outcome["trials"])
    if downstream_temperatures or not outcome["settings"]:  # a recipe alone is a sweep over temperatures
        at_each = [(row["trial"], each) for row in outcome["trials"] for each in row["per_temperature"]]
        rows = [[trial, each["temperature"], decimals(each["accuracy"], 2)] for trial, each in at_each]
        table("at each downstream temperature", ["trial", "downstream temperature", "validation %"], rows)
    best = outcome["best"]
    shown, at = accuracy(best, "validation_accuracy", 2), cell(best["downstream_temperature"])
    echo(f"best: trial {best['trial']}, {shown} %, downstream temperature {at}")
    echo(f"written to {out or f'sweeps/{name}'}/sweep.json, sweep.csv and sweep.svg")
    arguments = best_command(recipe, settings.defaults, outcome)
    echo(f"next, on all training images: simplicia pretrain {arguments}")


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


def best_command(source: str, recipe: Any, outcome: Any) -> str:
    """The arguments of ``pretrain`` that train with the best settings, also after resuming a sweep."""
    from simplicia.settings import as_dict, flat

    named, swept = flat(as_dict(recipe)), flat(outcome["plan"]["recipe"])
    method = outcome["best"]["settings"].get("method", swept["method"])
    left_out = {"name", "holdout", *(["online_every"] if outcome["plan"]["prune"] else [])}
    changes = {k: v for k, v in swept.items() if k not in left_out and v != named.get(k)}
    if method != swept["method"]:  # options belong to their method
        changes = {k: v for k, v in changes.items() if not k.startswith("options.")}
    words = [source]
    for name, value in (changes | outcome["best"]["settings"]).items():
        words.append(f"--{name.replace('options.', f'{method}.').replace('_', '-')}")
        words += map(str, (value or ["none"]) if isinstance(value, list) else [value])
    return shlex.join(words)
