"""simplicia report: one HTML page of runs."""

from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from simplicia.cli.options import Parser, output_file, positive
from simplicia.cli.verbs import verb
from simplicia.errors import UserError

if TYPE_CHECKING:
    from simplicia.analyze.report_data import Analysis


@verb("report RUN [RUN …]", "write one HTML page about a run, or about several")
def report(parser: Parser, arguments: list[str]) -> None:
    """Write one HTML page about runs: curves, probes, entropy, coherence graph, atlas, retrieval."""
    from simplicia.report.page import write

    parser.add("runs", help="folder of a run or of an analysis; several share figures")
    parser.add_argument(
        "--out",
        type=output_file,
        metavar="FILE",
        help="page to write (default: RUN/report.html, with --data RUN/report-NAME.html, of several runs "
        "compare.html)",
    )
    parser.add("--data", "--data-dir", "--device")
    parser.add_argument(
        "--images",
        type=positive,
        help="largest number of images (default: that of the last analysis, or 10000)",
    )
    args = parser.parse(arguments)
    if args.out and args.out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"out is {str(args.out)!r}; the page is HTML, so its name must end in .html")
    analyses = [_analysis(Path(path), args) for path in args.runs]
    # analysis-NAME is about other images than the run's, and so is report-NAME.html
    suffix = analyses[0][1].name.removeprefix("analysis") if args.data else ""
    single = Path(args.runs[0]) / f"report{suffix}.html"
    path = write(analyses, args.out or ("compare.html" if len(analyses) > 1 else single))
    print(f"written to {path} ({path.stat().st_size / 1e6:.1f} MB)")


def _analysis(path: Path, args: Namespace) -> "tuple[Analysis, Path]":
    """The analysis of a run, measured first if it is missing or outdated, or an analysis without its run."""
    from simplicia.analyze.report_data import read
    from simplicia.analyze.study import analyze, folder_of
    from simplicia.run import load

    for folder in () if (path / "checkpoint").is_dir() else (path, path / "analysis"):
        analysis = read(folder)
        if analysis is not None:
            if args.data or args.images:
                raise UserError(f"{folder} is an analysis without its run; --data and --images need the run")
            return analysis, folder
    if not (path / "recipe.yaml").is_file():
        raise UserError(
            f"{path} is neither a run (there is no recipe.yaml) nor an analysis (there is no readable "
            "analysis.json); give the folder that pretrain or analyze wrote"
        )
    run, before = load(path, args.device), None
    with suppress(UserError):  # an incomplete one is measured again
        before = read(folder_of(run, args.data))
    asked = before.asked if before else None
    if asked is None:
        return analyze(run, args.data, args.data_dir, args.images or 10_000)
    images = args.images or asked.images
    return analyze(run, args.data or asked.data, args.data_dir, images, asked.fit_images, asked.temperature)
