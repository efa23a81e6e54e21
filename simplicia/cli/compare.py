"""simplicia compare: the results of several runs side by side."""

import json
from typing import Any

from simplicia.cli.options import Parser, output_file
from simplicia.cli.tables import accuracy, table, write_json
from simplicia.cli.verbs import verb


@verb("compare RUN RUN …", "show the results of several runs side by side")
def compare(parser: Parser, arguments: list[str]) -> None:
    """Show the results of several runs side by side.

    Results share a row only if they agree in data set, layer, temperature, protocol, and online or offline.
    """
    from simplicia.evaluate.compare import compare

    parser.add("runs")
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        type=lambda text: text if text == "-" else output_file(text),
        metavar="PATH",
        help="write JSON to PATH, or print it without a table",
    )
    args = parser.parse(arguments)
    comparison = compare(args.runs).to_json()
    if args.json == "-":
        print(json.dumps(comparison, indent=1))
        return
    keys = ["dataset", "test_images", "when", "protocol", "variant", "network", "layer", "temperature"]
    table(
        "test accuracy in percent",
        ["data", "tested", *keys[2:], *map(column, comparison["runs"])],
        [
            [*(row[key] for key in keys), *(None if c is None else accuracy(c) for c in row["cells"])]
            for row in comparison["rows"]
        ],
    )
    cells = [cell for row in comparison["rows"] for cell in row["cells"] if cell is not None]
    if any("standard_deviation" in cell for cell in cells):
        print("±: standard error of the test images, or the standard deviation over several seeds")
    if args.json is not None:
        write_json(args.json, comparison)


def column(run: dict[str, Any]) -> str:
    """The title of a run's column."""
    step, total = run["step"], run["total_steps"]
    stopped = "" if step in (None, total) else f", stopped at step {step} of {total}"
    return f"{run['path']} ({run['recipe']}, {run['epochs']} ep{stopped})"
