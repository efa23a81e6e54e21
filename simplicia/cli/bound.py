"""simplicia bound: Theorem 1, in theory or measured on a run."""

from argparse import Namespace

from simplicia.cli.options import SHARED, Parser, amount, output_file, positive
from simplicia.cli.tables import table, write_json
from simplicia.cli.verbs import verb
from simplicia.errors import UserError

THEORY = {"vertices": [13], "simplices": 5000, "margins": [0.1]}
TEMPERATURES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@verb("bound [RUN]", "compute the bound of Theorem 1, in theory or for a run")
def bound(parser: Parser, arguments: list[str]) -> None:
    """Compute expressivity and generalisation gap of Theorem 1, in theory or on the simplices of a run."""
    parser.add("run", nargs="?", help="folder of a run with SEM")
    parser.add_argument("--temperatures", nargs="+", type=amount, metavar="TAU", help="temperatures of SEM")
    parser.add_argument("--figure", type=output_file, metavar="PATH", help="draw the theory (.svg or .png)")
    parser.add("--json", help="file for the numbers")
    theory = parser.add_argument_group("in theory")
    theory.add_argument("--vertices", nargs="+", type=positive, metavar="V", help="(default: 13)")
    theory.add_argument("--simplices", type=positive, metavar="L", help="(default: 5000)")
    theory.add_argument("--margins", nargs="+", type=float, metavar="DELTA", help="(default: 0.1)")
    measured = parser.add_argument_group("with RUN")
    measured.add_argument("--samples", type=positive, help="number of images (default: 2000)")
    for name in ("--data", "--data-dir", "--network", "--device"):
        measured.add_argument(name, **SHARED[name] | {"default": None})
    args = parser.parse(arguments)
    unused = ["data", "data_dir", "network", "samples", "device"]
    if args.run is not None:
        unused = [] if args.figure else list(THEORY)
    for name in unused:
        if getattr(args, name) is not None:
            which = "without a run" if args.run is None else "with a run"
            raise UserError(f"--{name.replace('_', '-')} does nothing {which}; leave it out")
    for name, default in THEORY.items():
        setattr(args, name, getattr(args, name) or default)
    (_theory if args.run is None else _measure)(args)
    if args.figure is not None:
        from simplicia.report.bound_figure import draw

        draw(args.figure, args.vertices, args.margins)
        print(f"drawn to {args.figure}")


def _theory(args: Namespace) -> None:
    from simplicia.analyze.bound import expressivity_table

    rows = expressivity_table(args.vertices, args.temperatures or TEMPERATURES, args.margins, args.simplices)
    keys = ("vertices", "margin", "temperature", "supremum", "bound", "base", "term", "term_base")
    columns = ["V", "margin", "temperature", "supremum", "bound", "base", "R sqrt(L phi) / R", "base's"]
    lines = [[*(row[key] for key in keys), "holds" if row["lemma6"] else "fails"] for row in rows]
    table(f"expressivity, L = {args.simplices}", [*columns, "Lemma 6"], lines)
    if args.json is not None:
        write_json(args.json, {"simplices": args.simplices, "rows": rows})


def _measure(args: Namespace) -> None:
    from simplicia.analyze.tradeoff import SAMPLES, tradeoff
    from simplicia.data import datasets
    from simplicia.evaluate.features import report_skipped
    from simplicia.evaluate.make_result import data_suffix
    from simplicia.run import load

    run = load(args.run, args.device or "auto")
    network, samples = args.network or "online", args.samples or SAMPLES
    name, data_dir = args.data or run.recipe.data, args.data_dir or run.recipe.data_dir
    size = datasets.decoded_size(name, run.recipe.actual_decode_size)
    train = datasets.load(name, "train", data_dir, size=size)
    test = None if train.labels is None else datasets.load(name, "test", data_dir, size=size)
    for images in (train, test):
        if images is not None:
            report_skipped(images.name, images.skipped)
    changes = {} if args.temperatures is None else {"temperatures": args.temperatures}
    result = tradeoff(run, train, test, samples=samples, network=network, **changes)
    keys = ("measured", "supremum", "bound", "lipschitz", "train_loss", "test_loss", "term")
    columns = ["temperature", "phi measured", "supremum", "bound", "R", "train loss", "test loss"]
    table(
        f"Theorem 1 on {result['dataset']}: L {result['simplices']}, V {result['vertices']}",
        [*columns, "R sqrt(L phi)"],
        [
            ["base" if row["temperature"] is None else row["temperature"], *map(row.get, keys)]
            for row in result["rows"]
        ],
    )
    margin = result["margin"]
    print(
        f"margin: least {margin['least']:.2g}, 1st percentile {margin['percentile_1']:.2g}, "
        f"median {margin['median']:.2g}, in units of the largest magnitude, {result['scale']:.3g}"
    )
    parts = ["bound", *data_suffix(run, train.source or train.name, train.name)]
    parts += [f"samples-{samples}"] if samples != SAMPLES else []
    parts += [f"at-{'_'.join(f'{t:g}' for t in args.temperatures)}"] if args.temperatures else []
    parts += [network] if network != "online" else []
    print(f"written to {run.write_result('-'.join(parts), result, args.json)}")
