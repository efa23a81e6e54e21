"""simplicia bench: how fast the parts are. Comparisons with other libraries are in ``benchmarks/``."""

from argparse import Namespace
from typing import Any

from simplicia.cli.options import Parser, positive
from simplicia.cli.tables import decimals, table, write_json
from simplicia.cli.verbs import verb

Rows = list[dict[str, Any]]
RECIPES = ("cifar100-byol", "cifar100-byol-sem")


@verb("bench step|views|probe|sem", "time a training step or another part: simplicia bench step shapes-byol")
def bench(parser: Parser, arguments: list[str]) -> None:
    """Time the training step, the augmentation, the linear probe, or the softmax of SEM."""
    from simplicia.train.recipe import Recipe

    parser.add_argument("what", choices=["step", "views", "probe", "sem"], help="the part to time")
    parser.add_argument(
        "recipes", nargs="*", metavar="RECIPE", help=f"for step (default: {' '.join(RECIPES)})"
    )
    parser.add_argument(
        "--engines", nargs="+", default=["auto", "eager"], help="for step (default: auto eager)"
    )
    parser.add_argument("--steps", type=positive, default=100, help="for step (default: 100)")
    parser.add("--device")
    parser.add("--json", help="file for the numbers")
    parser.add_settings(Recipe())
    args = parser.parse(arguments)
    args.changes = parser.changes(args)
    if args.recipes and args.what != "step":
        parser.error(f"bench {args.what} takes no recipe, but was given {args.recipes[0]!r}")
    if args.changes and args.what != "step":
        parser.error(f"bench {args.what} takes no settings of a recipe, but was given {min(args.changes)}")
    rows = {"step": _step, "views": _views, "probe": _probe, "sem": _sem}[args.what](args)
    if args.json is not None:
        write_json(args.json, rows)


def _show(what: str, rows: Rows, columns: dict[str, str]) -> Rows:
    """Print rows as a table; ``columns`` maps titles to keys."""
    title = f"{what} on {rows[0]['device']}, torch {rows[0]['torch']}"
    table(title, columns, [[row[key] for key in columns.values()] for row in rows])
    return rows


def _step(args: Namespace) -> Rows:
    from simplicia.cli.bench.step import bench_steps

    names = args.recipes or RECIPES
    rows = bench_steps(names, args.engines, args.steps, args.device, args.json, **args.changes)
    columns = {"recipe": "recipe", "engine": "engine", "ms per step": "ms_per_step"}
    columns |= {"images/s": "images_per_s", "peak GiB": "peak_gib", "start-up s": "startup_s"}
    _show("steps", rows, columns | {"x eager": "speedup_over_eager", "x floor": "over_floor"})
    for row in rows:
        if row["ms_of"]:
            shares = ", ".join(f"{part} {decimals(ms, 2)}" for part, ms in row["ms_of"].items())
            print(f"{row['recipe']}, {row['engine']}, ms of: {shares}")
    return rows


def _views(args: Namespace) -> Rows:
    from simplicia.cli.bench.parts import bench_views

    columns = {key: key for key in ("batch", "size", "views")}
    columns |= {"ms per view": "ms_per_view", "x eager": "speedup_over_eager"}
    return _show("views", bench_views(args.device), columns)


def _sem(args: Namespace) -> Rows:
    from simplicia.cli.bench.parts import bench_sem

    keys = ["batch", "simplices", "vertices", "softmax_ms"]
    keys += ["ratio at temperature 1", "ratio at temperature 0.5"]
    return _show("softmax and simplicial", bench_sem(args.device), {key: key for key in keys})


def _probe(args: Namespace) -> Rows:
    from simplicia.cli.bench.parts import SMALL, bench_probe
    from simplicia.devices import choose

    sizes: dict[str, Any] = {}
    if choose(args.device).type == "cpu":
        sizes = SMALL
        print("on a CPU the probe is timed at small sizes, not the paper's")
    row = bench_probe(args.device, **sizes)
    keys = ("preset", "layer", "encoder", "images", "simplices", "vertices", "classes", "probes")
    columns = {key: key for key in keys} | {f"s of {row['whole_epochs']} epochs": "whole_seconds"}
    _show("linear probe", [row], columns | {"peak GiB": "whole_peak_gib"})
    each = row["seconds_per_epoch"]
    print(f"seconds per epoch: {each['choosing']:.3g} choosing, {each['retraining']:.3g} retraining")
    return [row]
