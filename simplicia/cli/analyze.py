"""simplicia analyze, report: look inside runs."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from simplicia.cli.tables import decimals, echo, load_run, table
from simplicia.cli.verbs import POSITIVE, Images, OutputFile, Quiet, Temperature, verb
from simplicia.errors import UserError
from simplicia.progress import plural

if TYPE_CHECKING:
    from simplicia.analyze.report_data import Analysis


@verb("analyze RUN [RUN …]")
def analyze(
    runs: Annotated[tuple[str, ...], "folder of a run; several share figures"],
    given: Images,
    *,
    temperature: Temperature = None,
    images: Annotated[int, "largest number of images", POSITIVE] = 10_000,
    fit_images: Annotated[int | None, "most images to fit on (default: 100000; CPU: 5000)", POSITIVE] = None,
    out: Annotated[str | None, "folder, for one run (default: analysis or analysis-NAME in RUN)"] = None,
    figures: Annotated[str | None, "folder for figures as SVG, PNG and CSV"] = None,
    again: Annotated[bool, "repeat an analysis of the same checkpoint"] = False,
    quiet: Quiet = False,
) -> None:
    """Analyse entropy, coherence, spectrum, the images of each simplex, and retrieval."""
    from simplicia.analyze.study import analyze
    from simplicia.report.figures import write_figures
    from simplicia.train.checkpoint import newest_of

    if out and len(runs) > 1:
        raise UserError(f"--out is for one run, and {len(runs)} were given; leave it out")
    for path in runs:  # before the first analysis, which takes minutes
        newest_of(path)
    analyses = []
    for path in runs:
        limits = images, fit_images, temperature
        run = load_run(path, given.device)
        analysis, folder = analyze(run, given.data, given.data_dir, *limits, out, quiet, again)
        images_read = plural(analysis.data.images, f"{analysis.data.split} image")
        title = f"{analysis.run.name}, {images_read} of {analysis.data.name}"
        table(title, ["", ""], _rows(analysis))
        for note in analysis.notes:
            echo(f"note: {note}")
        echo(f"written to {folder}")
        analyses.append(analysis)
    if figures:
        echo(f"{plural(len(write_figures(analyses, figures)), 'file')} written to {figures}")


def _rows(analysis: "Analysis") -> Iterator[list[str]]:
    if entropy := analysis.entropy:
        for nats in entropy.curves:
            yield [f"entropy at {nats.temperature:g}", f"{nats.mean:.3f} of {entropy.ln_vertices:.3f} nats"]
    for layer in analysis.spectrum.layers:
        rank = f"{layer.effective_rank:.1f} of {layer.features}"
        yield [f"effective rank, {layer.layer}", rank]
    for curve in analysis.coherence.curves if analysis.coherence else ():
        if values := curve.coherence:
            at = " ".join(decimals(values[k - 1], 3) for k in (1, 5, 20) if k <= len(values))
            yield [f"coherence at K = 1, 5, 20, {curve.label}", at]
    if atlas := analysis.atlas:
        yield ["dead vertices", f"{atlas.dead_vertices} of {atlas.simplices * atlas.vertices}"]
        yield ["duplicate simplices", f"{atlas.duplicate_simplices} of {atlas.simplices}"]
    for nearest in analysis.retrieval.layers if analysis.retrieval else ():
        if nearest.by_class:
            yield [f"precision of the nearest image, {nearest.layer}", decimals(nearest.by_class[0], 3)]


@verb("report RUN [RUN …]")
def report(
    runs: Annotated[tuple[str, ...], "folder of a run or of an analysis; several share figures"],
    given: Images,
    *,
    out: Annotated[OutputFile | None, "page (default: report.html or report-NAME.html in RUN)"] = None,
    images: Annotated[int | None, "most images (default: as analysed last, or 10000)", POSITIVE] = None,
    quiet: Quiet = False,
) -> None:
    """Write one HTML page about a run, or about several.

    It shows training curves, probes, entropy, the coherence graph, the atlas of simplices, and retrieval.
    """
    from simplicia.report.page import write

    if out and out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"out is {str(out)!r}; the page is HTML, so its name must end in .html")
    analyses = [_analysis(Path(path), given, images, quiet) for path in runs]
    # analysis-NAME is about other images than the run's, and so is report-NAME.html
    suffix = analyses[0][1].name.removeprefix("analysis") if given.data else ""
    single = Path(runs[0]) / f"report{suffix}.html"
    path = write(analyses, out or ("compare.html" if len(analyses) > 1 else single))
    echo(f"written to {path} ({path.stat().st_size / 1e6:.1f} MB)")


def _analysis(path: Path, given: Images, images: int | None, quiet: bool) -> "tuple[Analysis, Path]":
    """The analysis of a run, measured first if it is missing or outdated, or an analysis without its run."""
    from simplicia.analyze.report_data import read
    from simplicia.analyze.study import analyze, folder_of

    for folder in () if (path / "checkpoint").is_dir() else (path, path / "analysis"):
        if (analysis := read(folder)) is not None:
            if given.data or images:
                raise UserError(f"{folder} is an analysis without its run; --data and --images need the run")
            return analysis, folder
    if not (path / "recipe.yaml").is_file():
        raise UserError(
            f"{path} is neither a run (there is no recipe.yaml) nor an analysis (there is no readable "
            "analysis.json); give the folder that pretrain or analyze wrote"
        )
    run, before = load_run(path, given.device), None
    with suppress(UserError):  # an incomplete one is measured again
        before = read(folder_of(run, given.data))
    if before is None or before.asked is None:
        return analyze(run, given.data, given.data_dir, images or 10_000, quiet=quiet)
    limits = images or before.asked.images, before.asked.fit_images, before.asked.temperature
    return analyze(run, given.data or before.asked.data, given.data_dir, *limits, quiet=quiet)
