"""simplicia reproduce: measure the paper's tables and figures."""

import shlex
from pathlib import Path
from typing import Any

from simplicia.cli.options import Parser, amount, output_file, positive, seed
from simplicia.cli.tables import decimals, table
from simplicia.cli.verbs import verb
from simplicia.errors import Failed, Interrupted, Unfinished, UserError
from simplicia.files import atomic_write


@verb("reproduce NAME", "measure a table or figure of the paper: simplicia reproduce table1 --only byol")
def reproduce(parser: Parser, arguments: list[str]) -> None:
    """Measure a table or figure of the paper and show it next to the paper's numbers.

    Models that are not trained yet are trained first. After a stop, the same command continues.
    """
    parser.add_argument("name", nargs="?", metavar="NAME", help="experiment; --list shows them")
    parser.add_argument("--list", action="store_true", help="list the experiments and their costs")
    parser.add_argument("--page", type=output_file, metavar="PATH", help="write all results as Markdown")
    parser.add_argument(
        "--figure", type=output_file, metavar="PATH", help="only draw the results of NAME (.svg, .png, .pdf)"
    )
    size = parser.add_argument_group("size")
    size.add_argument("--epochs", type=positive, help="epochs of pre-training (default: the recipe's)")
    size.add_argument("--batch-size", type=positive, help="batch size (default: the recipe's)")
    size.add_argument(
        "--only", nargs="+", action="extend", default=[], metavar="WORD", help="cells with these words only"
    )
    size.add_argument("--seeds", nargs="+", type=seed, default=[0], metavar="SEED", help="(default: 0)")
    size.add_argument("--no-training", action="store_true", help="skip cells whose runs are not trained")
    size.add_argument("--data", help="another data set or folder; its results go to RESULTS/other")
    size.add_argument("--probe-epochs", type=positive, help="epochs of probes and fine-tuning")
    places = parser.add_argument_group("places")
    places.add_argument("--data-dir", help="folder of the standard data sets (default: SIMPLICIA_DATA)")
    places.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="(default: runs)")
    places.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="(default: results)"
    )
    places.add_argument("--keep", type=positive, default=1, help="checkpoints per run (default: 1)")
    places.add_argument("--drop", action="store_true", help="delete the weights of measured runs")
    limits = parser.add_argument_group("time limits")
    limits.add_argument("--retry", action="store_true", help="repeat cells that failed")
    limits.add_argument(
        "--minutes", type=amount, help="stop within this time, with status 75 if work is left"
    )
    limits.add_argument(
        "--probe-minutes",
        type=amount,
        default=3.0,
        help="start no measurement with less of --minutes left (default: 3)",
    )
    parser.add_argument("--note", help="note to store with the new results")
    parser.add("--device", "--quiet")
    values = vars(parser.parse(arguments))
    name, listing, page, figure = (values.pop(key) for key in ("name", "list", "page", "figure"))
    if name is not None and (listing or page is not None):
        raise UserError(f"{name!r} is an experiment to run; --list and --page are for all, without a name")
    if listing:
        _list(values["epochs"], values["results"] / "bench" / "step.json")
    elif page is not None:
        _write_page(values["results"], page)
    elif name is None:
        raise UserError("reproduce takes an experiment's name, such as table1; --list shows them")
    elif figure is not None:
        _draw(name, values, figure)
    else:
        _run(name, values, f"continue with: simplicia reproduce {shlex.join(arguments)}")


def _write_page(results: Path, path: Path) -> None:
    from simplicia.experiments.tables import page

    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_text(page(results, path), encoding="utf-8")
    print(f"written to {path}")


def _draw(name: str, values: dict[str, Any], path: Path) -> None:
    from simplicia.experiments import get, store
    from simplicia.experiments.figures import draw
    from simplicia.experiments.reproduce import Options, Session

    experiment, options = get(name), Options(**values)
    session, cells = Session(experiment, options), experiment.select(options.only)
    indices = {experiment.cells.index(cell) for cell in cells}
    asked = {"epochs": options.epochs, "batch_size": options.batch_size}
    rows = [
        row
        for row in store.read(session.path)
        if experiment.index(row.cell) in indices
        and row.pretrained_on in (None, session.data)
        and all(value in (None, row.get(key)) for key, value in asked.items())
    ]
    draw(experiment, rows, path)
    print(f"drawn to {path}")


def _run(name: str, values: dict[str, Any], how_to_continue: str) -> None:
    from simplicia.experiments import get, store
    from simplicia.experiments.reproduce import Options, Session, reproduce
    from simplicia.experiments.tables import markdown

    experiment, options = get(name), Options(**values)
    path, failed = Session(experiment, options).path, None
    try:
        reproduce(experiment, options)
    except Failed as error:
        failed = error
    except Unfinished as stop:
        raise Unfinished(f"{stop}; there is more to do; {how_to_continue}") from None
    except Interrupted as stop:
        reason = str(stop).split(";")[0]
        if stop.signal == 0:
            raise Unfinished(f"{reason}: the time is up; {how_to_continue}") from None
        raise Interrupted(f"{reason}; finished work is kept; {how_to_continue}", stop.signal) from None
    print(markdown(experiment, store.read(path)))
    print(f"written to {path}")
    if failed is not None:
        raise failed


def _list(epochs: int | None, step_times: Path) -> None:
    from simplicia.experiments import EXPERIMENTS
    from simplicia.experiments.budget import SOURCE, Budgets
    from simplicia.progress import Progress

    rows, budgets = [], Budgets(step_times)
    bar = Progress("counting costs of models", len(EXPERIMENTS), 0)
    for number, experiment in enumerate(EXPERIMENTS.values(), 1):
        cost = budgets.of(experiment, epochs)
        bar.update(number)
        hours = decimals(cost.hours) + ("" if cost.hours is None or cost.timed else ", estimate")
        sizes = decimals(cost.gib, 0), decimals(cost.disk, 0)
        rows.append([experiment.name, experiment.title, cost.runs, hours, *sizes, experiment.data])
    bar.close()
    table("experiments", ["name", "what", "runs", "GPU hours", "GiB (estimate)", "GB on disk", "data"], rows)
    print(SOURCE.format(path=step_times))
