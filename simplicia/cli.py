"""The command line: one verb per task. Thin: parses, calls, prints."""

import os
import sys
from collections.abc import Sequence

from simplicia.errors import Diverged, Interrupted, UserError, unknown
from simplicia.options import Parser, add_settings, positive, target, temperature


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0 when done, 2 when what was given was wrong."""
    try:
        return _dispatch(list(sys.argv[1:] if arguments is None else arguments))
    except UserError as error:
        return _complain(str(error), 2)
    except Diverged as error:
        return _complain(str(error), 1)
    except Interrupted as stop:
        return _complain(str(stop), 128 + stop.signal)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(f"{error.filename or 'a file'}: {error.strerror or error}", 2)
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            return _complain(
                "the device is out of memory; a smaller --batch-size or --sem.simplices needs less", 2
            )
        raise


def _dispatch(arguments: list[str]) -> int:
    verbs = {
        "demo": (
            _demo,
            "pre-train with and without SEM on the built-in set, look, and measure: a few minutes",
        ),
        "pretrain": (_pretrain, "train a recipe: simplicia pretrain cifar100-byol-sem --epochs 200"),
        "probe": (_probe, "offline linear probe of a run"),
        "knn": (_knn, "nearest-neighbour accuracy of a run"),
        "encode": (
            _encode,
            "representations or codes of images: simplicia encode RUN images/ --out codes.npz",
        ),
        "bench": (_bench, "how fast a step is: simplicia bench step cifar100-byol-sem"),
        "recipes": (_recipes, "the named recipes"),
        "datasets": (_datasets, "the data sets"),
        "methods": (_methods, "the methods and their options"),
    }
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        lines = [f"  {name:10} {words}" for name, (_, words) in verbs.items()]
        print("usage: simplicia VERB …   (simplicia VERB --help says more)\n\n" + "\n".join(lines))
        return 0
    if arguments[0] == "--version":
        from simplicia import __version__

        print(f"simplicia {__version__}")
        return 0
    if arguments[0] not in verbs:
        raise unknown("verb", arguments[0], verbs)
    verbs[arguments[0]][0](arguments[1:])
    return 0


def _pretrain(arguments: list[str]) -> None:
    from simplicia import methods
    from simplicia.train import recipes
    from simplicia.train.loop import pretrain

    if not arguments or arguments[0] in ("-h", "--help"):
        name, shown = "byol-sem", ["--help"]
    elif arguments[0].startswith("-"):
        raise UserError(
            f"pretrain takes a recipe's name first, not {arguments[0]}; simplicia recipes lists them"
        )
    else:
        name, shown = arguments[0], arguments[1:]
    recipe = recipes.get(name)  # before the options: a wrong name is told as such
    first = Parser("pretrain RECIPE", add_help=False)
    first.add_argument("--method", default=recipe.method)
    method = first.parse_known_args(shown)[0].method
    parser = Parser("pretrain RECIPE", description="Train a recipe. Any setting of it is an option.")
    parser.add_argument("--out", metavar="FOLDER", help="where the run goes (default: runs/RECIPE)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: auto)")
    parser.add_argument("--engine", default="auto", help="auto, eager or captured (default: auto)")
    parser.add_argument("--processes", type=int, default=1, help="how many processes share the batch")
    parser.add_argument("--download", action="store_true", help="fetch a standard data set that is not there")
    parser.add_argument("--dry-run", action="store_true", help="say what would happen, and stop")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    skip = ("name", "options")
    setters = add_settings(parser, recipe, skip=skip)
    group = parser.add_argument_group(f"options of {method}")
    for option, default in methods.options(method).items():
        flag = f"--{method}.{option.replace('_', '-')}"
        group.add_argument(
            flag, type=type(default), metavar=type(default).__name__, help=f"(default: {default})"
        )
        setters[f"{method}.{option}"] = f"options.{option}"
    given = vars(parser.parse(shown))
    changes = {setting: given[name] for name, setting in setters.items() if given[name] is not None}
    if "method" in changes:
        changes = {"options": {}, **changes}
    run = pretrain(
        name,
        out=given["out"],
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
        print(f"next: simplicia probe {run.path}")


def _measuring(verb: str, description: str) -> Parser:
    parser = Parser(f"{verb} RUN", description=description)
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("--data", help="a labelled data set or folder (default: the run's own)")
    parser.add_argument("--data-dir", help="where standard data sets lie (default: as in the run)")
    parser.add_argument("--layer", help="encoder, embedder, sem or codes (default: sem if the run has it)")
    parser.add_argument("--network", default="online", help="online or target (default: online)")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--json", type=target, metavar="PATH", help="where the result goes (default: with the run)"
    )
    return parser


def _probe(arguments: list[str]) -> None:
    from simplicia.evaluate.features import labelled
    from simplicia.evaluate.probe import ProbeSettings, probe
    from simplicia.run import load
    from simplicia.train.settings import with_changes

    parser = _measuring("probe", "Offline linear probe, chosen on held-out training images, tested once.")
    setters = add_settings(parser, ProbeSettings())
    given = vars(parser.parse(arguments))
    settings = with_changes(ProbeSettings(), {k: given[k] for k in setters if given[k] is not None})
    run = load(given["run"], given["device"])
    layer = run.check_layer(given["layer"])
    train, test = labelled(run, given["data"], given["data_dir"])
    found = probe(run, train, test, layer, settings, given["network"])
    rows = found["per_temperature"] or [found]
    _table(
        f"offline linear probe, {found['layer']}, {found['dataset']}, {found['network']} network",
        ["temperature", "lr", "L1", "validation %", "test %"],
        [
            [
                "-" if row["temperature"] is None else f"{row['temperature']:g}",
                f"{row['lr']:g}",
                f"{row['l1']:g}",
                f"{row['validation_accuracy']:.1f}",
                f"{row['accuracy']:.1f} ± {row['standard_error']:.1f}",
            ]
            for row in rows
        ],
    )
    if len(rows) > 1:
        print(f"chosen on validation: temperature {found['temperature']:g}, test {found['accuracy']:.1f} %")
    print(f"written to {run.write_result(f'probe-{layer}', found, given['json'])}")


def _knn(arguments: list[str]) -> None:
    from simplicia.evaluate.features import labelled
    from simplicia.evaluate.knn import knn
    from simplicia.run import load

    parser = _measuring(
        "knn", "Votes of the nearest training images, weighted by cosine (on codes: by overlap)."
    )
    parser.add_argument("--temperature", type=temperature, help="of SEM (default: the run's own)")
    parser.add_argument("--k", type=positive, default=20)
    given = parser.parse(arguments)
    run = load(given.run, given.device)
    layer = run.check_layer(given.layer)
    train, test = labelled(run, given.data, given.data_dir)
    found = knn(run, train, test, layer, given.temperature, given.k, network=given.network)
    tau = "-" if found["temperature"] is None else f"{found['temperature']:g}"
    _table(
        f"{given.k} nearest neighbours, {found['dataset']}, {found['network']} network",
        ["layer", "temperature", "test %"],
        [[layer, tau, f"{found['accuracy']:.1f} ± {found['standard_error']:.1f}"]],
    )
    print(f"written to {run.write_result(f'knn-{layer}', found, given.json)}")


def _encode(arguments: list[str]) -> None:
    from simplicia.run import load

    parser = Parser(
        "encode RUN IMAGES", description="Representations of images, with their file names, as .npz."
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("images", metavar="IMAGES", help="a folder of images, or one image")
    parser.add_argument("--out", required=True, metavar="FILE.npz")
    parser.add_argument("--layer", help="encoder, embedder, sem or codes (default: sem if the run has it)")
    parser.add_argument("--temperature", type=temperature, help="of SEM (default: the run's own)")
    parser.add_argument("--network", default="online", help="online or target (default: online)")
    parser.add_argument("--device", default="auto")
    given = parser.parse(arguments)
    run = load(given.run, given.device)
    layer = run.check_layer(given.layer)
    from simplicia.evaluate.encode import encode

    count, skipped, path = encode(run, given.images, given.out, layer, given.temperature, given.network)
    print(f"{count} images, layer {layer}, written to {path}")
    for name, reason in skipped[:5]:
        print(f"skipped {name}: {reason}", file=sys.stderr)
    if len(skipped) > 5:
        print(f"… and {len(skipped) - 5} more", file=sys.stderr)


def _demo(arguments: list[str]) -> None:
    parser = Parser(
        "demo", description="BYOL with and without SEM on the built-in shapes, looked at and measured."
    )
    parser.add_argument("--out", default="demo", metavar="FOLDER", help="(default: demo)")
    parser.add_argument("--epochs", type=positive, help="(default: the recipe's)")
    parser.add_argument("--device", default="auto")
    given = parser.parse(arguments)
    from simplicia.demo import demo

    demo(given.out, given.device, given.epochs)


def _bench(arguments: list[str]) -> None:
    parser = Parser("bench step", description="The whole step of recipes, on random images of CIFAR's shape.")
    parser.add_argument("what", choices=["step"])
    parser.add_argument(
        "recipes", nargs="*", default=["cifar100-byol", "cifar100-byol-sem"], metavar="RECIPE"
    )
    parser.add_argument("--engines", nargs="+", default=["auto", "eager"], help="(default: auto eager)")
    parser.add_argument("--steps", type=positive, default=100)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=target, metavar="PATH", help="where the numbers go as well")
    given = parser.parse(arguments)
    from simplicia.bench import bench_steps

    found = bench_steps(given.recipes, given.engines, given.steps, given.device, given.json)
    rows = [
        [
            row["recipe"],
            row["engine"],
            f"{row['ms_per_step']:.2f}",
            f"{row['images_per_s']:,.0f}",
            "-" if row["peak_gib"] is None else f"{row['peak_gib']:.2f}",
            f"{row['startup_s']:.0f}",
        ]
        for row in found
    ]
    title = f"steps on {found[0]['device']}, torch {found[0]['torch']}"
    _table(title, ["recipe", "engine", "ms per step", "images/s", "peak GiB", "start-up s"], rows)


def _recipes(arguments: list[str]) -> None:
    from simplicia.train import recipes

    parser = Parser("recipes", description="The named recipes; with a name, all settings of one as YAML.")
    parser.add_argument("name", nargs="?", help="show this recipe")
    name = parser.parse(arguments).name
    if name is not None:
        import yaml

        from simplicia.train.settings import as_dict

        print(yaml.safe_dump(as_dict(recipes.get(name)), sort_keys=False), end="")
        return
    rows = []
    for recipe in map(recipes.get, recipes.names()):
        data = "your own images" if recipe.data == "auto" else recipe.data
        taus = (
            f"{recipe.sem.temperature:g} / {recipe.sem.second_temperature:g}"
            if recipe.bottleneck == "sem"
            else "-"
        )
        optim = f"{recipe.optim.name} {recipe.optim.lr:g}"
        rows.append([recipe.name, data, recipe.encoder, str(recipe.epochs), optim, taus])
    _table("recipes", ["name", "data", "encoder", "epochs", "optimiser, lr", "tau / tau'"], rows)


def _datasets(arguments: list[str]) -> None:
    Parser("datasets", description="The data sets that have a name.").parse(arguments)
    rows = [
        ["shapes", "built in", "figures in 5 superclasses, drawn from a seed, 32 px"],
        ["digits", "with scikit-learn", "handwritten digits, 10 classes"],
        ["cifar10", "--data-dir or --download", "10 classes, 32 px"],
        ["cifar100", "--data-dir or --download", "100 classes in 20 superclasses, 32 px"],
        ["FOLDER", "your own", "folder/<class>/*, folder/{train,test}/<class>/*, or just images"],
    ]
    _table("data sets", ["name", "where", "what"], rows)


def _methods(arguments: list[str]) -> None:
    from simplicia import methods

    Parser("methods", description="The methods and their options.").parse(arguments)
    rows = [
        [name, ", ".join(f"{option} {value}" for option, value in methods.options(name).items())]
        for name in methods.names()
    ]
    _table("methods", ["name", "options (as --NAME.OPTION)"], rows)


def _table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 160).print(table)


def _complain(message: str, status: int) -> int:
    print(f"simplicia: {' '.join(message.split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
