"""simplicia bound: Theorem 1, in theory or measured on a run."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

from simplicia.cli.tables import Column, echo, load_run, table, write_json
from simplicia.cli.verbs import NOT_NEGATIVE, POSITIVE, Images, Json, Network, OutputFile, verb
from simplicia.errors import UserError

TEMPERATURES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass
class Theory:
    """Options without a run."""

    vertices: Annotated[tuple[int, ...], "V, without RUN", POSITIVE] = (13,)
    simplices: Annotated[int, "L, without RUN", POSITIVE] = 5000
    margins: Annotated[tuple[float, ...], "delta, without RUN"] = (0.1,)


@dataclass(kw_only=True)
class OnRun(Images):
    """Options with a run."""

    samples: Annotated[int, "number of images, with RUN", POSITIVE] = 2000
    network: Network = "online"


@verb("bound [RUN]")
def bound(
    theory: Theory,
    given: OnRun,
    run: Annotated[str | None, "folder of a run with SEM"] = None,
    *,
    temperatures: Annotated[tuple[float, ...] | None, "temperatures of SEM", NOT_NEGATIVE] = None,
    figure: Annotated[OutputFile | None, "draw the theory (.svg or .png)"] = None,
    json: Json = None,
) -> None:
    """Compute the bound of Theorem 1, in theory or for a run."""
    unused: Any = given if run is None else theory
    for field in dataclasses.fields(unused) if run is None or figure is None else ():
        if getattr(unused, field.name) != field.default:
            which = "without a run" if run is None else "with a run"
            raise UserError(f"--{field.name.replace('_', '-')} does nothing {which}; leave it out")
    if run is None:
        from simplicia.analyze.bound import expressivity_table

        settings = theory.vertices, temperatures or TEMPERATURES, theory.margins, theory.simplices
        rows = expressivity_table(*settings)
        columns: list[Column] = [("V", "vertices"), "margin", "temperature", "supremum", "bound", "base"]
        columns += [("R sqrt(L phi) / R", "term"), ("base's", "term_base")]
        columns += [("Lemma 6", lambda row: "holds" if row["lemma6"] else "fails")]
        table(f"expressivity, L = {theory.simplices}", columns, rows)
        write_json(json, {"simplices": theory.simplices, "rows": rows})
    else:
        _measure(run, given, temperatures, json)
    if figure is not None:
        from simplicia.report.bound_figure import draw

        draw(figure, theory.vertices, theory.margins)
        echo(f"drawn to {figure}")


def _measure(path: str, given: OnRun, temperatures: Any, json: Json) -> None:
    from simplicia.analyze.tradeoff import tradeoff
    from simplicia.evaluate.features import load_split, report_skipped
    from simplicia.evaluate.make_result import data_suffix

    run = load_run(path, given.device)
    where = given.data, given.data_dir
    train = load_split(run.recipe, "train", *where)
    test = None if train.labels is None else load_split(run.recipe, "test", *where)
    for images in (train, test):
        if images is not None:
            report_skipped(images.name, images.skipped)
    changes = {"temperatures": temperatures} if temperatures else {}
    result = tradeoff(run, train, test, samples=given.samples, network=given.network, **changes)
    columns: list[Column] = [("temperature", lambda row: row["temperature"] or "base")]
    columns += [("phi measured", "measured"), "supremum", "bound", ("R", "lipschitz")]
    columns += [("train loss", "train_loss"), ("test loss", "test_loss"), ("R sqrt(L phi)", "term")]
    title = f"Theorem 1 on {result['dataset']}: L {result['simplices']}, V {result['vertices']}"
    table(title, columns, result["rows"])
    margin = result["margin"]
    echo(
        f"margin: least {margin['least']:.2g}, 1st percentile {margin['percentile_1']:.2g}, "
        f"median {margin['median']:.2g}, in units of the largest magnitude, {result['scale']:.3g}"
    )
    parts = ["bound", *data_suffix(run, train.source or train.name, train.name)]
    parts += [f"samples-{given.samples}"] if given.samples != OnRun.samples else []
    parts += [f"at-{'_'.join(f'{t:g}' for t in temperatures)}"] if temperatures else []
    parts += [given.network] if given.network != "online" else []
    echo(f"written to {run.write_result('-'.join(parts), result, json)}")
