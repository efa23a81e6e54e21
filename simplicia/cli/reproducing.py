"""The verb that measures the paper's tables and figures: reproduce."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from simplicia.cli.options import Parser, amount, positive, target
from simplicia.cli.tables import table
from simplicia.errors import Failed, Interrupted, Unfinished, UserError
from simplicia.files import atomic_write


def reproduce(arguments: list[str]) -> None:
    parser = Parser(
        "reproduce NAME",
        description="A table or figure of the paper: trains what is not trained yet, measures it, and shows "
        "it beside the paper's numbers. The same command goes on after a stop.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="of an experiment; --list shows them")
    parser.add_argument("--list", action="store_true", help="what each experiment needs")
    parser.add_argument("--page", type=target, metavar="PATH", help="write all results as a Markdown page")
    parser.add_argument(
        "--figure",
        type=target,
        metavar="PATH",
        help="draw what was measured of NAME (.svg, .png, .pdf), only",
    )
    cut = parser.add_argument_group("how much")
    cut.add_argument("--epochs", type=positive, help="of pre-training (default: the recipe's)")
    cut.add_argument("--batch-size", type=positive, help="(default: the recipe's)")
    cut.add_argument("--only", nargs="+", action="extend", default=[], metavar="WORD", help="cells named so")
    cut.add_argument("--seeds", nargs="+", type=_seed, default=[0], metavar="SEED", help="(default: 0)")
    cut.add_argument("--no-training", action="store_true", help="only cells whose runs are trained already")
    cut.add_argument("--data", help="another data set or folder; what it gives goes to RESULTS/other")
    cut.add_argument(
        "--probe-epochs", type=positive, help="of probes and fine-tuning, instead of the paper's"
    )
    place = parser.add_argument_group("where")
    place.add_argument("--data-dir", help="where standard data sets lie (default: SIMPLICIA_DATA)")
    place.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: auto)")
    place.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="(default: runs)")
    place.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="(default: results)"
    )
    place.add_argument("--keep", type=positive, default=1, help="checkpoints of each run (default: 1)")
    place.add_argument("--drop", action="store_true", help="the weights of runs whose cells are measured")
    stop = parser.add_argument_group("in stretches")
    stop.add_argument("--retry", action="store_true", help="also what failed before")
    stop.add_argument("--minutes", type=amount, help="stop before so many have passed; status 75: go on")
    stop.add_argument(
        "--probe-minutes",
        type=amount,
        default=3.0,
        help="begin no measurement with less left of --minutes (default: 3)",
    )
    parser.add_argument("--note", help="kept with what is trained and measured now, and shown in its row")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    given = vars(parser.parse(arguments))
    name, wanted, page, figure = (given.pop(key) for key in ("name", "list", "page", "figure"))
    if name is not None and (wanted or page is not None):
        raise UserError(f"{name!r} is an experiment to run; --list and --page are for all, without a name")
    if wanted:
        _list(given["epochs"], given["results"] / "bench" / "step.json")
    elif page is not None:
        from simplicia.experiments.tables import page as written

        Path(page).parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(Path(page)) as temporary:
            temporary.write_text(written(given["results"], Path(page)), encoding="utf-8")
        print(f"written to {page}")
    elif name is None:
        raise UserError("reproduce takes an experiment's name, such as table1; --list shows them")
    elif figure is not None:
        _draw(name, given, Path(figure))
    else:
        _run(name, given, arguments)


def _draw(name: str, given: dict[str, Any], path: Path) -> None:
    from simplicia.experiments import get, store
    from simplicia.experiments.figures import draw
    from simplicia.experiments.reproduce import Options, Session

    experiment, options = get(name), Options(**given)
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


def _run(name: str, given: dict[str, Any], arguments: list[str]) -> None:
    from simplicia.experiments import get

    experiment = get(name)
    from simplicia.experiments import store
    from simplicia.experiments.reproduce import Options, Session, reproduce
    from simplicia.experiments.tables import markdown

    again = f"go on with: simplicia reproduce {shlex.join(arguments)}"
    options = Options(**given)
    path, failed = Session(experiment, options).path, None
    try:
        reproduce(experiment, options)
    except Failed as error:
        failed = error
    except Unfinished as stop:
        raise Unfinished(f"{stop}; there is more to do; {again}") from None
    except Interrupted as stop:
        reason = str(stop).split(";")[0]
        if stop.signal == 0:
            raise Unfinished(f"{reason}: the time is up; {again}") from None
        raise Interrupted(f"{reason}; what is done is kept; {again}", stop.signal) from None
    print(markdown(experiment, store.read(path)))
    print(f"written to {path}")
    if failed is not None:
        raise failed


def _list(epochs: int | None, step_times: Path) -> None:
    from simplicia.experiments import EXPERIMENTS
    from simplicia.experiments.budget import SOURCE, Budgets
    from simplicia.progress import Progress

    rows, budgets = [], Budgets(step_times)
    bar = Progress("counting what models cost", len(EXPERIMENTS), 0)
    for number, experiment in enumerate(EXPERIMENTS.values(), 1):
        found = budgets.of(experiment, epochs)
        bar.update(number)
        hours = "-" if found.hours is None else f"{found.hours:.1f}" + ("" if found.timed else ", estimate")
        memory = "-" if found.gib is None else f"{found.gib:.0f}"
        disk = "-" if found.disk is None else f"{found.disk:.0f}"
        figures = str(found.runs), hours, memory, disk
        rows.append([experiment.name, experiment.title, *figures, experiment.data])
    bar.close()
    table("experiments", ["name", "what", "runs", "GPU hours", "GiB (estimate)", "GB on disk", "data"], rows)
    print(SOURCE.format(path=step_times))


def _seed(word: str) -> int:
    if not word.isdecimal():
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number from 0 up")
    return int(word)
