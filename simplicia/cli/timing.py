"""The verb that measures speed: bench."""

import json
from pathlib import Path
from typing import Any

from simplicia.cli.options import Parser, add_settings, positive, target
from simplicia.cli.tables import table, write_text


def bench(arguments: list[str]) -> None:
    parser = Parser("bench", description="How fast the parts are, as a table and as JSON.")
    parser.add_argument("what", choices=["step", "views", "probe", "sem"])
    parser.add_argument(
        "recipes", nargs="*", metavar="RECIPE", help="for step (default: CIFAR's two of BYOL)"
    )
    parser.add_argument(
        "--engines", nargs="+", default=["auto", "eager"], help="for step (default: auto eager)"
    )
    parser.add_argument("--steps", type=positive, default=100, help="for step (default: 100)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=target, metavar="PATH", help="where the numbers go as well")
    from simplicia.train.recipe import Recipe

    setters = add_settings(parser, Recipe(), skip=("name", "options"))
    given = parser.parse(arguments)
    values = vars(given)
    given.changes = {setting: values[name] for name, setting in setters.items() if values[name] is not None}
    if given.recipes and given.what != "step":
        parser.error(f"bench {given.what} takes no recipe, but was given {given.recipes[0]!r}")
    if given.changes and given.what != "step":
        parser.error(f"bench {given.what} takes no settings of a recipe, but was given {min(given.changes)}")
    rows = {"step": _step, "views": _views, "probe": _probe, "sem": _sem}[given.what](given)
    if given.json is not None:
        write_text(Path(given.json), json.dumps(rows, indent=1) + "\n")


def _step(given: Any) -> list[dict[str, Any]]:
    from simplicia.cli.bench import bench_steps

    recipes = given.recipes or ["cifar100-byol", "cifar100-byol-sem"]
    found = bench_steps(recipes, given.engines, given.steps, given.device, given.json, **given.changes)
    rows = [
        [
            " ".join([row["recipe"], *(f"{k}={v}" for k, v in row["changes"].items())]),
            row["engine"],
            f"{row['ms_per_step']:.2f}",
            f"{row['images_per_s']:,.0f}",
            "-" if row["peak_gib"] is None else f"{row['peak_gib']:.2f}",
            f"{row['startup_s']:.0f}",
            "-" if row["speedup_over_eager"] is None else f"{row['speedup_over_eager']:.2f}",
            "-" if row["over_floor"] is None else f"{row['over_floor']:.2f}",
            ", ".join(f"{part} {ms:.2f}" for part, ms in row["ms_of"].items()) or "-",
        ]
        for row in found
    ]
    columns = ["recipe", "engine", "ms per step", "images/s", "peak GiB", "start-up s", "x eager", "x floor"]
    columns.append("ms of")
    table(f"steps on {found[0]['device']}, torch {found[0]['torch']}", columns, rows)
    return found


def _views(given: Any) -> list[dict[str, Any]]:
    from simplicia.cli.bench import bench_views

    found = bench_views(given.device)
    rows = [
        [
            str(r["batch"]),
            str(r["size"]),
            r["views"],
            f"{r['ms_per_view']:.3f}",
            f"{r['speedup_over_eager']:.1f}",
        ]
        for r in found
    ]
    columns = ["batch", "size", "views", "ms per view", "x eager"]
    table(f"views on {found[0]['device']}, torch {found[0]['torch']}", columns, rows)
    return found


def _sem(given: Any) -> list[dict[str, Any]]:
    from simplicia.cli.bench import bench_sem

    found = bench_sem(given.device)
    shape, numbers = (
        ("batch", "simplices", "vertices"),
        ("softmax_ms", "ratio at temperature 1", "ratio at temperature 0.5"),
    )
    rows = [[*(str(r[k]) for k in shape), *(f"{r[k]:.2f}" for k in numbers)] for r in found]
    table(f"softmax and simplicial on {found[0]['device']}", [*shape, *numbers], rows)
    return found


def _probe(given: Any) -> list[dict[str, Any]]:
    from simplicia.cli.bench import bench_probe
    from simplicia.cli.bench.probe import SMALL
    from simplicia.devices import choose

    sizes: dict[str, Any] = {}
    if choose(given.device).type == "cpu":
        sizes = SMALL
        print("on a CPU the probe is measured at small sizes, not the paper's")
    found = bench_probe(given.device, **sizes)
    shown = ("preset", "layer", "encoder", "images", "simplices", "vertices", "classes", "probes")
    each = found["seconds_per_epoch"]
    numbers = [each["choosing"], each["retraining"], found["whole_seconds"]]
    peak = "-" if found["whole_peak_gib"] is None else f"{found['whole_peak_gib']:.2f}"
    columns = ["s per epoch, choosing", "retraining", f"s of {found['whole_epochs']} epochs", "peak GiB"]
    table(
        f"linear probe on {found['device']}, torch {found['torch']}",
        [*shown, *columns],
        [[*(str(found[key]) for key in shown), *(f"{n:.3g}" for n in numbers), peak]],
    )
    return [found]
