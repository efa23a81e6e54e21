"""simplicia reproduce: measure the paper's tables and figures."""

import shlex
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from simplicia.cli.tables import decimals, echo, table
from simplicia.cli.verbs import NOT_NEGATIVE, POSITIVE, Device, OutputFile, Quiet, Words, verb
from simplicia.errors import Failed, Interrupted, Unfinished, UserError, printable
from simplicia.files import write_file


@dataclass
class Size:
    """How much of an experiment is run, on which data, and where results go."""

    epochs: Annotated[int | None, "epochs of pre-training (default: the recipe's)", POSITIVE] = None
    batch_size: Annotated[int | None, "batch size (default: the recipe's)", POSITIVE] = None
    only: Annotated[list[str], "cells with these words only"] = field(default_factory=list)
    seeds: Annotated[tuple[int, ...], "seeds of pre-training", NOT_NEGATIVE] = (0,)
    no_training: Annotated[bool, "skip cells whose runs are not trained"] = False
    data: Annotated[str | None, "another data set or folder; its results go to RESULTS/other"] = None
    probe_epochs: Annotated[int | None, "epochs of probes and fine-tuning", POSITIVE] = None
    data_dir: Annotated[str | None, "folder of the standard data sets (default: SIMPLICIA_DATA)"] = None
    runs: Annotated[Path, "folder of runs"] = Path("runs")
    results: Annotated[Path, "folder of results"] = Path("results")
    keep: Annotated[int, "checkpoints per run", POSITIVE] = 1
    drop: Annotated[bool, "delete the weights of measured runs"] = False
    retry: Annotated[bool, "repeat cells that failed"] = False
    minutes: Annotated[float | None, "stop by then, with status 75 if work is left", NOT_NEGATIVE] = None
    probe_minutes: Annotated[float, "start no measurement with less of --minutes left", NOT_NEGATIVE] = 3.0
    note: Annotated[str | None, "note to store with the new results"] = None
    device: Device = "auto"
    quiet: Quiet = False


@verb(
    "reproduce NAME",
    basics="list_ page figure epochs only seeds data data_dir minutes retry runs results device",
)
def reproduce(
    given: Size,
    words: Words,
    name: Annotated[str | None, "experiment; --list shows them"] = None,
    *,
    list_: Annotated[bool, "list the experiments and their costs"] = False,
    page: Annotated[OutputFile | None, "write all results as Markdown"] = None,
    figure: Annotated[OutputFile | None, "only draw the results of NAME (.svg, .png, .pdf)"] = None,
) -> None:
    """Measure a table or figure of the paper: simplicia reproduce table1 --only byol.

    Models that are not trained yet are trained first. After a stop, the same command continues.
    """
    if name is not None and (list_ or page is not None):
        raise UserError(f"{name!r} is an experiment to run; --list and --page are for all, without a name")
    if list_:
        _list(given.epochs, given.results / "bench" / "step.json")
    elif page is not None:
        from simplicia.experiments.page import page as all_results

        text = all_results(given.results, page).encode(errors="replace")  # results may hold lone surrogates
        echo(f"written to {write_file(page, text, 'the page')}")
    elif name is None:
        raise UserError("reproduce takes an experiment's name, such as table1; --list shows them")
    else:
        _run(name, given, figure, f"continue with: simplicia reproduce {shlex.join(words)}")


def _run(name: str, given: Size, figure: Path | None, how_to_continue: str) -> None:
    from simplicia.experiments import get, store
    from simplicia.experiments.figures import draw
    from simplicia.experiments.reproduce import Options, Session, reproduce
    from simplicia.experiments.tables import markdown

    experiment, options, failed = get(name), Options(**vars(given)), None
    session = Session(experiment, options)
    if figure is not None:
        indices = {experiment.cells.index(cell) for cell in experiment.select(given.only)}
        asked = {"epochs": given.epochs, "batch_size": given.batch_size}
        rows = [
            row
            for row in store.read(session.path)
            if experiment.index(row.cell) in indices
            and row.pretrained_on in (None, session.data)
            and all(value in (None, row.get(key)) for key, value in asked.items())
        ]
        draw(experiment, rows, figure)
        echo(f"drawn to {figure}")
        return
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
    for line in markdown(experiment, store.read(session.path)).splitlines():
        echo(line)
    echo(f"written to {session.path}")
    if failed is not None:
        raise failed


def _list(epochs: int | None, step_times: Path) -> None:
    from simplicia.experiments import EXPERIMENTS
    from simplicia.experiments.budget import SOURCE, Budgets
    from simplicia.progress import Progress

    rows, budgets = [], Budgets(step_times)
    with closing(Progress("counting costs of models", len(EXPERIMENTS), 0)) as bar:
        for number, experiment in enumerate(EXPERIMENTS.values(), 1):
            cost = budgets.of(experiment, epochs)
            bar.update(number)
            hours = decimals(cost.hours) + ("" if cost.hours is None or cost.timed else ", estimate")
            sizes = decimals(cost.gib, 0), decimals(cost.disk, 0)
            rows.append([experiment.name, experiment.title, cost.runs, hours, *sizes, experiment.data])
    table("experiments", ["name", "what", "runs", "GPU hours", "GiB (estimate)", "GB on disk", "data"], rows)
    print(SOURCE.format(path=printable(step_times)))
