"""Verbs that look for good settings: sweep by trying, bound by theory."""

import argparse
import shlex
from typing import Any

from simplicia.cli.options import Parser, amount, positive, target
from simplicia.cli.tables import table, write_text
from simplicia.errors import UserError


def sweep(arguments: list[str]) -> None:
    from simplicia.cli.training import named_recipe, with_settings

    recipe, shown = named_recipe("sweep", arguments)
    parser = Parser(
        "sweep RECIPE",
        description="Train a recipe with many settings; choose on held-out training images.",
    )
    parser.add_argument(
        "--grid", nargs="+", action="extend", metavar="SETTING=A,B,C", help="try every combination"
    )
    parser.add_argument(
        "--search",
        nargs="+",
        action="extend",
        metavar="SETTING=LOW..HIGH[:log]",
        help="draw settings from ranges, or from values A,B,C",
    )
    parser.add_argument("--trials", type=positive, help="how many of a search (default: 12)")
    parser.add_argument("--out", metavar="FOLDER", help="where the sweep goes (default: sweeps/RECIPE)")
    parser.add_argument("--resume", action="store_true", help="go on with the sweep in --out")
    parser.add_argument(
        "--prune",
        action=argparse.BooleanOptionalAction,
        help="stop trials that are below the median (default: of a search)",
    )
    parser.add_argument(
        "--downstream-temperatures", nargs="+", type=amount, metavar="TAU", help="of the selection probe"
    )
    parser.add_argument("--probe-epochs", type=positive, help="of the selection probe (default: 30)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: auto)")
    parser.add_argument("--engine", default="auto", help="auto, eager, compiled or captured (default: auto)")
    parser.add_argument("--download", action="store_true", help="fetch a standard data set that is not there")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    given, changes, _ = with_settings(parser, recipe, shown)
    from simplicia.experiments.sweep import sweep
    from simplicia.settings import as_dict, flat

    found = sweep(
        recipe.name,
        grid=_assignments(given["grid"], "16,64,256"),
        search=_assignments(given["search"], "0.1..1:log"),
        temperatures=given["downstream_temperatures"],
        **{k: given[k] for k in ("trials", "out", "resume", "probe_epochs", "prune")},
        **{k: given[k] for k in ("device", "engine", "download", "quiet")},
        **changes,
    )
    names = found["settings"]
    rows = [
        [
            str(row["trial"]),
            *(_word(row["settings"].get(name)) for name in names),
            row["state"],
            _accuracy(row),
            _word(row["downstream_temperature"]),
            "-" if row["seconds"] is None else f"{row['seconds']:.0f}",
        ]
        for row in found["trials"]
    ]
    held = found["validation_images"]
    title = f"{recipe.name}: accuracy on {held} held-out training images"
    table(title, ["trial", *names, "state", "validation %", "downstream temperature", "seconds"], rows)
    if given["downstream_temperatures"] or not names:  # a recipe alone is a sweep over these
        each = [[str(r["trial"]), _word(c["temperature"]), f"{c['accuracy']:.2f}"] for r, c in _cells(found)]
        table("at each downstream temperature", ["trial", "downstream temperature", "validation %"], each)
    best = found["best"]
    print(f"best: trial {best['trial']}, {_accuracy(best)} %, downstream temperature ", end="")
    print(_word(best["downstream_temperature"]))
    folder = given["out"] or f"sweeps/{recipe.name}"
    print(f"written to {folder}/sweep.json, sweep.csv and sweep.svg")
    named, own = flat(as_dict(recipe)), flat(found["plan"]["recipe"])  # also of a sweep taken up again
    apart = ("name", "holdout", *(["online_every"] if found["plan"]["prune"] else []), *names)
    method = best["settings"].get("method", own["method"])
    kept = {k: v for k, v in own.items() if k not in apart and v != named.get(k)}
    if method != own["method"]:  # which had none of the other's options
        kept = {k: v for k, v in kept.items() if not k.startswith("options.")}
    kept |= best["settings"]
    flags = [f"--{_flag(name, method)} {_words(value)}" for name, value in kept.items()]
    print(f"next, on all training images: simplicia pretrain {' '.join([recipe.name, *flags])}")


def bound(arguments: list[str]) -> None:
    parser = Parser(
        "bound [RUN]",
        description="Expressivity and gap of Theorem 1: in theory, or with RUN as measured on its simplices.",
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="the folder of a run with SEM")
    parser.add_argument("--temperatures", nargs="+", type=amount, metavar="TAU")
    parser.add_argument("--figure", type=target, metavar="PATH", help="draw theory to PATH.svg or PATH.png")
    parser.add_argument("--json", type=target, metavar="PATH", help="where the numbers go")
    theory = parser.add_argument_group("in theory")
    theory.add_argument("--vertices", nargs="+", type=positive, metavar="V", help="(default: 13)")
    theory.add_argument("--simplices", type=positive, metavar="L", help="(default: 5000)")
    theory.add_argument("--margins", nargs="+", type=float, metavar="DELTA", help="(default: 0.1)")
    measured = parser.add_argument_group("with RUN")
    measured.add_argument("--data", help="a data set or folder (default: the run's own)")
    measured.add_argument("--data-dir", help="where standard data sets lie (default: as in the run)")
    measured.add_argument("--network", help="online or target (default: online)")
    measured.add_argument("--samples", type=positive, help="images looked at (default: 2000)")
    measured.add_argument("--device", help="auto, cpu, cuda, cuda:1, mps (default: auto)")
    given = parser.parse(arguments)
    others: tuple[str, ...] = ("data", "data_dir", "network", "samples", "device")
    if given.run is not None:
        others = () if given.figure else ("vertices", "simplices", "margins")
    for name in others:
        if getattr(given, name) is not None:
            which = "without a run" if given.run is None else "with a run"
            raise UserError(f"--{name.replace('_', '-')} does nothing {which}; leave it out")
    given.vertices, given.simplices = given.vertices or [13], given.simplices or 5000
    given.margins = given.margins or [0.1]
    if given.run is not None:
        _bound_of_run(given)
    else:
        _bound_in_theory(given)
    if given.figure is not None:
        from simplicia.report.bound_figure import draw

        draw(given.figure, given.vertices, given.margins)
        print(f"drawn to {given.figure}")


def _bound_in_theory(given: Any) -> None:
    import json
    from pathlib import Path

    from simplicia.analyze.bound import expressivity_table

    temperatures = given.temperatures or [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
    found = expressivity_table(given.vertices, temperatures, given.margins, given.simplices)
    columns = ["temperature", "supremum", "bound", "base", "R sqrt(L phi) / R", "base's", "Lemma 6"]
    rows = [
        [
            str(row["vertices"]),
            f"{row['margin']:g}",
            f"{row['temperature']:g}",
            *(f"{row[k]:.4g}" for k in ("supremum", "bound", "base", "term", "term_base")),
            "holds" if row["lemma6"] else "fails",
        ]
        for row in found
    ]
    table(f"expressivity, L = {given.simplices}", ["V", "margin", *columns], rows)
    if given.json is not None:
        text = json.dumps({"simplices": given.simplices, "rows": found}, indent=1)
        write_text(Path(given.json), text + "\n")


def _bound_of_run(given: Any) -> None:
    from simplicia.analyze.tradeoff import SAMPLES, tradeoff
    from simplicia.data import datasets
    from simplicia.evaluate.features import report_skipped
    from simplicia.evaluate.make_result import data_suffix
    from simplicia.run import load

    run = load(given.run, given.device or "auto")
    network, samples = given.network or "online", given.samples or SAMPLES
    name = given.data or run.recipe.data
    size = datasets.decoded_size(name, run.recipe.actual_decode_size)
    place = given.data_dir or run.recipe.data_dir
    train = datasets.load(name, "train", place, size=size)
    test = None if train.labels is None else datasets.load(name, "test", place, size=size)
    for images in (train, test):
        if images is not None:
            report_skipped(images.name, images.skipped)
    chosen = {} if given.temperatures is None else {"temperatures": given.temperatures}
    found = tradeoff(run, train, test, samples=samples, network=network, **chosen)
    margin = found["margin"]
    keys = ("measured", "supremum", "bound", "lipschitz", "train_loss", "test_loss", "term")
    rows = [
        [
            "base" if row["temperature"] is None else f"{row['temperature']:g}",
            *("-" if row.get(k) is None else f"{row[k]:.4g}" for k in keys),
        ]
        for row in found["rows"]
    ]
    title = f"Theorem 1 on {found['dataset']}: L {found['simplices']}, V {found['vertices']}"
    columns = ["temperature", "phi measured", "supremum", "bound", "R", "train loss", "test loss"]
    table(title, [*columns, "R sqrt(L phi)"], rows)
    print(
        f"margin: least {margin['least']:.2g}, 1st percentile {margin['percentile_1']:.2g}, "
        f"median {margin['median']:.2g}, in units of the largest magnitude, {found['scale']:.3g}"
    )
    words = ["bound", *data_suffix(run, train.source or train.name, train.name)]
    words += [f"samples-{samples}"] if samples != SAMPLES else []
    words += [f"at-{'_'.join(f'{t:g}' for t in given.temperatures)}"] if given.temperatures else []
    words += [network] if network != "online" else []
    print(f"written to {run.write_result('-'.join(words), found, given.json)}")


def _assignments(words: list[str] | None, example: str) -> dict[str, str] | None:
    out: dict[str, str] = {}
    for word in words or []:
        name, equals, values = word.partition("=")
        if not equals or not name or not values:
            raise UserError(f"{word!r} is not SETTING=VALUES, such as sem.simplices={example}")
        if name in out:
            raise UserError(f"{name} is given twice")
        out[name] = values
    return out or None


def _cells(found: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each trial with what it has at each downstream temperature."""
    return [(row, cell) for row in found["trials"] for cell in row["per_temperature"]]


def _flag(name: str, method: str) -> str:
    return name.replace("options.", f"{method}.").replace("_", "-")


def _words(value: Any) -> str:
    return shlex.join(map(str, value if isinstance(value, list) else [value]))


def _word(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _accuracy(row: Any) -> str:
    if row["validation_accuracy"] is None:
        return "-"
    return f"{row['validation_accuracy']:.2f} ± {row['standard_error']:.2f}"
