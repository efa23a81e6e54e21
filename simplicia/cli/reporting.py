"""The verb that makes a page of runs: report."""

from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from simplicia.cli.options import Parser, positive, target
from simplicia.errors import UserError

if TYPE_CHECKING:
    from simplicia.analyze.report_data import Analysis


def report(arguments: list[str]) -> None:
    parser = Parser(
        "report RUN [RUN …]",
        description="One HTML file to look at runs with: curves, probes, entropy, graph, atlas, retrieval.",
    )
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="the folder of a run, or of an analysis; several share figures"
    )
    parser.add_argument(
        "--out",
        type=target,
        metavar="FILE",
        help="where the page goes (default: RUN/report.html, of other data RUN/report-NAME.html; of several "
        "runs compare.html)",
    )
    parser.add_argument("--data", help="a data set or folder to look at (default: the run's own)")
    parser.add_argument("--data-dir", help="where standard data sets lie (default: as in the run)")
    parser.add_argument(
        "--images", type=positive, help="at most so many (default: as analysed before, or 10000)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: auto)")
    given = parser.parse(arguments)
    if given.out and Path(given.out).suffix.lower() not in (".html", ".htm"):
        raise UserError(f"out is {given.out!r}; a page is HTML, so its name must end in .html")
    analyses = [_analysis(Path(path), given) for path in given.runs]
    from simplicia.report.page import write

    (_, first), *others = analyses
    # analysis-NAME is of other images than the run's own, and so is report-NAME.html
    about = first.name.removeprefix("analysis") if given.data else ""
    one = Path(given.runs[0]) / f"report{about}.html"
    path = write(analyses, given.out or ("compare.html" if others else one))
    print(f"written to {path} ({path.stat().st_size / 1e6:.1f} MB)")


def _analysis(path: Path, given: Namespace) -> "tuple[Analysis, Path]":
    """The analysis of a run, measured first if it is missing or outdated, or an analysis without its run."""
    from simplicia.analyze.report_data import read
    from simplicia.analyze.study import analyze, folder_of

    alone = not (path / "checkpoint").is_dir()
    for folder in (path, path / "analysis") if alone else ():
        analysis = read(folder)
        if analysis is not None:
            if given.data or given.images:
                raise UserError(f"{folder} is an analysis without its run; --data and --images need the run")
            return analysis, folder
    if not (path / "recipe.yaml").is_file():
        raise UserError(
            f"{path} is neither a run (there is no recipe.yaml) nor an analysis (there is no readable "
            "analysis.json); give the folder that pretrain or analyze wrote"
        )
    from simplicia.run import load

    run, before = load(path, given.device), None
    with suppress(UserError):  # an incomplete one is measured again
        before = read(folder_of(run, given.data))
    asked = before.asked if before else None
    if asked is None:
        return analyze(run, given.data, given.data_dir, given.images or 10_000)
    images = given.images or asked.images
    return analyze(run, given.data or asked.data, given.data_dir, images, asked.fit_images, asked.temperature)
