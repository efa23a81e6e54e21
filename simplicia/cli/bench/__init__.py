"""simplicia bench: how fast the parts are. Comparisons with other libraries are in ``benchmarks/``."""

from typing import Annotated, Any, Literal

from simplicia.cli.options import POSITIVE, Device, Json
from simplicia.cli.tables import decimals, table, write_json
from simplicia.cli.verbs import Settings, defaults_of, verb
from simplicia.errors import UserError

RECIPES = ("cifar100-byol", "cifar100-byol-sem")
COLUMNS: dict[str, dict[str, Any]] = {  # by part: titles and keys
    "step": {"recipe": "recipe", "engine": "engine", "ms per step": "ms_per_step", "images/s": "images_per_s"}
    | {"peak GiB": "peak_gib", "start-up s": "startup_s", "x eager": "speedup_over_eager"}
    | {"x floor": "over_floor"},
    "views": {key: key for key in ("batch", "size", "views")}
    | {"ms per view": "ms_per_view", "x eager": "speedup_over_eager"},
    "probe": {key: key for key in ("preset", "layer", "encoder", "images", "simplices", "vertices")}
    | {"classes": "classes", "probes": "probes", "s of 100 epochs": "whole_seconds"}
    | {"peak GiB": "whole_peak_gib"},
    "sem": {key: key for key in ("batch", "simplices", "vertices", "softmax_ms")}
    | {key: key for key in ("ratio at temperature 1", "ratio at temperature 0.5")},
}
TITLES = {"step": "steps", "views": "views", "probe": "linear probe", "sem": "softmax and simplicial"}


@verb(
    "bench step|views|probe|sem",
    "time a training step or another part: simplicia bench step shapes-byol",
    defaults_of("train.recipe", "Recipe"),
)
def bench(
    settings: Settings,
    what: Annotated[Literal["step", "views", "probe", "sem"], "the part to time"],
    recipes: Annotated[tuple[str, ...], "for step (default: cifar100-byol cifar100-byol-sem)"] = (),
    *,
    engines: Annotated[tuple[str, ...], "for step"] = ("auto", "eager"),
    steps: Annotated[int, "for step", POSITIVE] = 100,
    device: Device = "auto",
    json: Json = None,
) -> None:
    """Time the training step, the augmentation, the linear probe, or the softmax of SEM."""
    from simplicia.cli.bench import parts
    from simplicia.cli.bench.step import bench_steps

    for kind, given in (
        ("recipe", [*map(repr, recipes)]),
        ("settings of a recipe", sorted(settings.changes)),
    ):
        if given and what != "step":
            message = f"bench {what} takes no {kind}, but was given {given[0]}"
            raise UserError(f"{message}; see simplicia bench --help")
    if what == "step":
        rows = bench_steps(recipes or RECIPES, engines, steps, device, json, **settings.changes)
    else:
        rows = {"views": parts.bench_views, "probe": parts.bench_probe, "sem": parts.bench_sem}[what](device)
    title = f"{TITLES[what]} on {rows[0]['device']}, torch {rows[0]['torch']}"
    table(title, COLUMNS[what], rows)
    for row in rows:
        if row.get("ms_of"):
            shares = ", ".join(f"{part} {decimals(ms, 2)}" for part, ms in row["ms_of"].items())
            print(f"{row['recipe']}, {row['engine']}, ms of: {shares}")
        if each := row.get("seconds_per_epoch"):
            print(f"seconds per epoch: {each['choosing']:.3g} choosing, {each['retraining']:.3g} retraining")
    write_json(json, rows)
