"""simplicia bench: how fast the parts are. Comparisons with other libraries are in ``benchmarks/``."""

from typing import Annotated, Literal

from simplicia.cli.tables import Column, decimals, echo, table, write_json
from simplicia.cli.verbs import POSITIVE, Device, Json, Settings, verb
from simplicia.errors import UserError

RECIPES = ("cifar100-byol", "cifar100-byol-sem")
EAGER: Column = ("x eager", "speedup_over_eager")
TITLES = {"step": "steps", "views": "views", "probe": "linear probe", "sem": "softmax and simplicial"}
COLUMNS: dict[str, list[Column]] = {
    "step": ["recipe", "engine", ("ms per step", "ms_per_step"), ("images/s", "images_per_s")],
    "views": ["batch", "size", "views", ("ms per view", "ms_per_view"), EAGER],
    "probe": ["preset", "layer", "encoder", "images", "simplices", "vertices", "classes", "probes"],
    "sem": ["batch", "simplices", "vertices", "softmax_ms"],
}
COLUMNS["step"] += [("peak GiB", "peak_gib"), ("start-up s", "startup_s"), EAGER, ("x floor", "over_floor")]
COLUMNS["probe"] += [("s of 100 epochs", "whole_seconds"), ("peak GiB", "whole_peak_gib")]
COLUMNS["sem"] += ["ratio at temperature 1", "ratio at temperature 0.5"]


@verb("bench step|views|probe|sem", "train.recipe:Recipe")
def bench(
    settings: Settings,
    what: Annotated[Literal["step", "views", "probe", "sem"], "the part to time"],
    recipes: Annotated[tuple[str, ...], f"for step (default: {' '.join(RECIPES)})"] = (),
    *,
    engines: Annotated[tuple[str, ...], "for step"] = ("auto", "eager"),
    steps: Annotated[int, "for step", POSITIVE] = 100,
    device: Device = "auto",
    json: Json = None,
) -> None:
    """Time a training step or another part: simplicia bench step shapes-byol.

    The parts are the training step, the augmentation, the linear probe, and the softmax of SEM.
    """
    from simplicia.cli.bench import parts
    from simplicia.cli.bench.step import bench_steps

    given = [f"recipe, but was given {name!r}" for name in recipes]
    given += [f"settings of a recipe, but was given {name}" for name in sorted(settings.changes)]
    if given and what != "step":
        raise UserError(f"bench {what} takes no {given[0]}; see simplicia bench --help")
    if what == "step":
        rows = bench_steps(recipes or RECIPES, engines, steps, device, json, **settings.changes)
    else:
        rows = {"views": parts.bench_views, "probe": parts.bench_probe, "sem": parts.bench_sem}[what](device)
    table(f"{TITLES[what]} on {rows[0]['device']}, torch {rows[0]['torch']}", COLUMNS[what], rows)
    for row in rows:
        if row.get("ms_of"):
            shares = ", ".join(f"{part} {decimals(ms, 2)}" for part, ms in row["ms_of"].items())
            echo(f"{row['recipe']}, {row['engine']}, ms of: {shares}")
        if each := row.get("seconds_per_epoch"):
            echo(f"seconds per epoch: {each['choosing']:.3g} choosing, {each['retraining']:.3g} retraining")
    write_json(json, rows)
