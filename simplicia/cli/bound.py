"""simplicia bound: Theorem 1, in theory or measured on a run."""

from dataclasses import dataclass
from typing import Annotated, Any

from simplicia.cli.options import NOT_NEGATIVE, POSITIVE, Images, Json, OutputFile
from simplicia.cli.tables import table, write_json
from simplicia.cli.verbs import verb
from simplicia.errors import UserError

TEMPERATURES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass
class Theory:
    """Options without a run."""

    vertices: Annotated[tuple[int, ...] | None, "V, without RUN (default: 13)", POSITIVE] = None
    simplices: Annotated[int | None, "L, without RUN (default: 5000)", POSITIVE] = None
    margins: Annotated[tuple[float, ...] | None, "delta, without RUN (default: 0.1)"] = None


@dataclass(kw_only=True)
class OnRun(Images):
    """Options with a run; None if they are not given."""

    samples: Annotated[int | None, "number of images, with RUN (default: 2000)", POSITIVE] = None
    network: Annotated[str | None, "online or target (default: online)"] = None
    device: Annotated[str | None, "auto, cpu, cuda, cuda:1 or mps (default: auto)"] = None  # type: ignore[assignment]


@verb("bound [RUN]", "compute the bound of Theorem 1, in theory or for a run")
def bound(
    theory: Theory,
    given: OnRun,
    run: Annotated[str | None, "folder of a run with SEM"] = None,
    *,
    temperatures: Annotated[tuple[float, ...] | None, "temperatures of SEM", NOT_NEGATIVE] = None,
    figure: Annotated[OutputFile | None, "draw the theory (.svg or .png)"] = None,
    json: Json = None,
) -> None:
    """Compute expressivity and generalisation gap of Theorem 1, in theory or on the simplices of a run."""
    unused = vars(given) if run is None else {} if figure else vars(theory)
    for name, value in unused.items():
        if value is not None:
            which = "without a run" if run is None else "with a run"
            raise UserError(f"--{name.replace('_', '-')} does nothing {which}; leave it out")
    vertices, margins = theory.vertices or [13], theory.margins or [0.1]
    if run is None:
        _theory(vertices, margins, theory.simplices or 5000, temperatures or TEMPERATURES, json)
    else:
        _measure(run, given, temperatures, json)
    if figure is not None:
        from simplicia.report.bound_figure import draw

        draw(figure, vertices, margins)
        print(f"drawn to {figure}")


def _theory(vertices: Any, margins: Any, simplices: int, temperatures: Any, json: Json) -> None:
    from simplicia.analyze.bound import expressivity_table

    rows = expressivity_table(vertices, temperatures, margins, simplices)
    columns = {"V": "vertices"} | {key: key for key in ("margin", "temperature", "supremum", "bound", "base")}
    columns |= {"R sqrt(L phi) / R": "term", "base's": "term_base"}
    lemma = {"Lemma 6": lambda row: "holds" if row["lemma6"] else "fails"}
    table(f"expressivity, L = {simplices}", columns | lemma, rows)
    write_json(json, {"simplices": simplices, "rows": rows})


def _measure(path: str, given: OnRun, temperatures: Any, json: Json) -> None:
    from simplicia.analyze.tradeoff import SAMPLES, tradeoff
    from simplicia.data import datasets
    from simplicia.evaluate.features import report_skipped
    from simplicia.evaluate.make_result import data_suffix
    from simplicia.run import load

    run = load(path, given.device or "auto")
    network, samples = given.network or "online", given.samples or SAMPLES
    name, data_dir = given.data or run.recipe.data, given.data_dir or run.recipe.data_dir
    size = datasets.decoded_size(name, run.recipe.actual_decode_size)
    train = datasets.load(name, "train", data_dir, size=size)
    test = None if train.labels is None else datasets.load(name, "test", data_dir, size=size)
    for images in (train, test):
        if images is not None:
            report_skipped(images.name, images.skipped)
    changes = {} if temperatures is None else {"temperatures": temperatures}
    result = tradeoff(run, train, test, samples=samples, network=network, **changes)
    columns: dict[str, Any] = {
        "temperature": lambda row: "base" if row["temperature"] is None else row["temperature"]
    }
    columns |= {"phi measured": "measured", "supremum": "supremum", "bound": "bound", "R": "lipschitz"}
    columns |= {"train loss": "train_loss", "test loss": "test_loss", "R sqrt(L phi)": "term"}
    title = f"Theorem 1 on {result['dataset']}: L {result['simplices']}, V {result['vertices']}"
    table(title, columns, result["rows"])
    margin = result["margin"]
    print(
        f"margin: least {margin['least']:.2g}, 1st percentile {margin['percentile_1']:.2g}, "
        f"median {margin['median']:.2g}, in units of the largest magnitude, {result['scale']:.3g}"
    )
    parts = ["bound", *data_suffix(run, train.source or train.name, train.name)]
    parts += [f"samples-{samples}"] if samples != SAMPLES else []
    parts += [f"at-{'_'.join(f'{t:g}' for t in temperatures)}"] if temperatures else []
    parts += [network] if network != "online" else []
    print(f"written to {run.write_result('-'.join(parts), result, json)}")
