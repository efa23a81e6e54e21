"""Verbs that measure a run or use it: probe, knn, compare, encode."""

import json
import sys
from typing import Any

from simplicia.cli.options import Parser, add_settings, amount, measuring, positive, target
from simplicia.cli.tables import table, write_text
from simplicia.errors import UserError


def probe(arguments: list[str]) -> None:
    from simplicia.evaluate.features import load_labelled
    from simplicia.evaluate.make_result import changed_settings, result_name
    from simplicia.evaluate.probe import preset, preset_label, probe, progress_bar
    from simplicia.run import load
    from simplicia.settings import with_changes

    first = Parser("probe RUN", add_help=False)
    first.add_argument("--preset", default="quick")
    preset_name = first.parse_known_args(arguments)[0].preset
    settings = preset(preset_name)
    parser = measuring("probe", "Offline linear probe, chosen on held-out training images, tested once.")
    parser.add_argument(
        "--preset", default="quick", help="quick, or the paper's cifar or imagenet (default: quick)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    setters = add_settings(parser, settings)
    given = vars(parser.parse(arguments))
    settings = with_changes(settings, {k: given[k] for k in setters if given[k] is not None})
    settings.validate()
    run = load(given["run"], given["device"])
    layer = run.check_layer(given["layer"])
    if given["temperatures"] is not None and layer != "sem":
        raise UserError(f"--temperatures are of layer sem; layer {layer!r} takes none")
    run.network(given["network"])
    train, test = load_labelled(run, given["data"], given["data_dir"])
    with progress_bar(layer, settings, given["quiet"]) as progress:
        found = probe(run, train, test, layer, settings, given["network"], progress)
    changes = changed_settings(settings, preset(preset_name))
    found = found.replace(preset=preset_label(preset_name, settings), changed=changes)
    rows = found["per_temperature"] or [found]
    table(
        f"offline linear probe, {found['layer']}, {_images(found)}, {found['network']} network",
        ["temperature", "lr", "L1", "L2", "validation %", "test %", "top-5 %"],
        [
            [
                _tau(row["temperature"]),
                *(f"{row['selected'][key]:g}" for key in ("lr", "l1", "l2")),
                f"{row['validation_accuracy']:.1f}",
                _accuracy(row),
                f"{row['top5_accuracy']:.1f}" if "top5_accuracy" in row else "-",
            ]
            for row in rows
        ],
    )
    matrix = found["temperature_matrix"]
    if matrix is not None:
        table(
            "test % of each probe at every temperature",
            ["trained at", *(f"tested at {_tau(tau)}" for tau in matrix["tested_at"])],
            [
                [_tau(tau), *(f"{accuracy:.1f}" for accuracy in row)]
                for tau, row in zip(matrix["trained_at"], matrix["accuracy"], strict=True)
            ],
        )
        print(f"chosen on validation: temperature {found['temperature']:g}, test {_accuracy(found)} %")
    if settings.seeds > 1:
        print(f"mean of {settings.seeds} seeds ± their standard deviation")
    protocol = "probe" if found["preset"] == "quick" else f"probe-{found['preset'].replace(', ', '-')}"
    print(f"written to {run.write_result(result_name(run, protocol, found), found, given['json'])}")


def _images(found: Any) -> str:
    """On what something was measured: who took train and test for two classes sees it here."""
    return f"{found['test_images']:,} test images of {found['dataset']}, {found['classes']} classes"


def knn(arguments: list[str]) -> None:
    from simplicia.evaluate.features import load_labelled
    from simplicia.evaluate.knn import knn
    from simplicia.evaluate.make_result import K, result_name
    from simplicia.run import load

    parser = measuring(
        "knn", "Votes of the nearest training images, weighted by cosine (on codes: by overlap)."
    )
    parser.add_argument("--temperature", type=amount, help="of SEM (default: the run's own)")
    parser.add_argument("--k", type=positive, default=K, help=f"neighbours that vote (default: {K})")
    given = parser.parse(arguments)
    run = load(given.run, given.device)
    layer = run.check_layer(given.layer)
    train, test = load_labelled(run, given.data, given.data_dir)
    found = knn(run, train, test, layer, given.temperature, given.k, network=given.network)
    table(
        f"{found['k']} nearest neighbours, {_images(found)}, {found['network']} network",
        ["layer", "temperature", "test %", "top-5 %"],
        [
            [
                layer,
                _tau(found["temperature"]),
                _accuracy(found),
                f"{found['top5_accuracy']:.1f}" if "top5_accuracy" in found else "-",
            ]
        ],
    )
    print(f"written to {run.write_result(result_name(run, 'knn', found), found, given.json)}")


def compare(arguments: list[str]) -> None:
    from pathlib import Path

    from simplicia.evaluate.compare import compare

    parser = Parser(
        "compare RUN RUN …",
        description="All results of runs side by side. Online and offline, data sets, layers, temperatures "
        "and protocols have rows of their own.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the folder of a run")
    parser.add_argument(
        "--json", nargs="?", const="-", type=_json, metavar="PATH", help="as JSON: printed, or to a file"
    )
    given = parser.parse(arguments)
    found = compare(given.runs).to_json()
    text = json.dumps(found, indent=1)
    if given.json == "-":
        print(text)
        return
    keys = ["dataset", "test_images", "when", "protocol", "variant", "network", "layer", "temperature"]
    table(
        "test accuracy in percent",
        [
            "data",
            "tested",
            *keys[2:],
            *map(_column, found["runs"]),
        ],
        [
            [
                *(row[key] for key in keys),
                *("-" if cell is None else _accuracy(cell) for cell in row["cells"]),
            ]
            for row in found["rows"]
        ],
    )
    cells = [cell for row in found["rows"] for cell in row["cells"] if cell is not None]
    if any("standard_deviation" in cell for cell in cells):
        print("±: standard error of the test images; of several seeds their standard deviation")
    if given.json is not None:
        write_text(Path(given.json), text + "\n")


def _column(run: dict[str, Any]) -> str:
    done, total = run["step"], run["total_steps"]
    stopped = "" if done in (None, total) else f", stopped at step {done} of {total}"
    return f"{run['path']} ({run['recipe']}, {run['epochs']} ep{stopped})"


def _json(word: str) -> str:
    return word if word == "-" else target(word)


def _tau(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _accuracy(row: Any) -> str:
    """An accuracy with the standard deviation over seeds if there are several, else its standard error."""
    spread = row.get("standard_deviation", row.get("standard_error"))
    return f"{row['accuracy']:.1f}" + ("" if spread is None else f" ± {spread:.1f}")


def encode(arguments: list[str]) -> None:
    from simplicia.run import load

    parser = Parser(
        "encode RUN IMAGES",
        description="Representations of images as .npz, with their file names; of a set that has a name with "
        "labels, classes and split.",
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("images", metavar="IMAGES", help="a folder of images, one image, or a data set")
    parser.add_argument("--out", required=True, metavar="FILE.npz")
    parser.add_argument(
        "--layer",
        nargs="+",
        help="encoder, embedder, sem, codes, …, or several (default: sem if trained with it)",
    )
    parser.add_argument("--temperature", type=amount, help="of SEM (default: the run's own)")
    parser.add_argument("--network", default="online", help="online or target (default: online)")
    parser.add_argument("--data-dir", help="where standard data sets lie (default: as in the run)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    given = parser.parse(arguments)
    run = load(given.run, given.device)
    from simplicia.evaluate.encode import check_layers, encode

    layers = check_layers(run, given.layer, given.temperature)
    words = given.out, layers, given.temperature, given.network, given.data_dir, given.quiet
    count, skipped, path = encode(run, given.images, *words)
    print(f"{count} images, layer {', '.join(layers)}, written to {path}")
    for name, reason in skipped[:5]:
        print(f"skipped {name}: {reason}", file=sys.stderr)
    if len(skipped) > 5:
        print(f"… and {len(skipped) - 5} more", file=sys.stderr)
