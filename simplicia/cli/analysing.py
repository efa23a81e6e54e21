"""The verb that looks inside runs: analyze."""

from typing import Any

from simplicia.cli.options import Parser, amount, positive
from simplicia.cli.tables import table
from simplicia.errors import UserError


def analyze(arguments: list[str]) -> None:
    parser = Parser(
        "analyze RUN [RUN …]",
        description="Entropy, coherence, spectrum, what simplices fire on, and retrieval, as a small folder.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="the folder of a run; several share figures")
    parser.add_argument("--data", help="a data set or folder (default: the run's own)")
    parser.add_argument("--data-dir", help="where standard data sets lie (default: as in the run)")
    parser.add_argument("--images", type=positive, default=10_000, help="at most so many (default: 10000)")
    parser.add_argument(
        "--fit-images",
        type=positive,
        help="training images that the linear classifiers see (default: all; on a CPU 5000)",
    )
    parser.add_argument("--temperature", type=amount, help="of SEM (default: the run's own)")
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help="where it goes, of one run (default: RUN/analysis, of other images RUN/analysis-NAME)",
    )
    parser.add_argument("--figures", metavar="FOLDER", help="every figure as SVG, PNG and CSV goes here")
    parser.add_argument("--again", action="store_true", help="do again what was done for this checkpoint")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: auto)")
    given = parser.parse(arguments)
    if given.out and len(given.runs) > 1:
        raise UserError(f"--out is for one run, and {len(given.runs)} were given; leave it out")
    from simplicia.analyze.study import analyze
    from simplicia.run import load
    from simplicia.train.checkpoint import newest_of

    for path in given.runs:  # before the first is looked at
        newest_of(path)
    found = []
    for path in given.runs:
        run = load(path, given.device)
        analysis, folder = analyze(
            run,
            given.data,
            given.data_dir,
            given.images,
            given.fit_images,
            given.temperature,
            given.out,
            again=given.again,
        )
        _show(analysis)
        print(f"written to {folder}")
        found.append(analysis)
    if given.figures:
        from simplicia.report.figures import write_figures

        print(f"{len(write_figures(found, given.figures))} files written to {given.figures}")


def _show(found: Any) -> None:
    data = found["data"]
    rows = []
    for curve in (found["entropy"] or {"curves": []})["curves"]:
        top = found["entropy"]["ln_vertices"]
        rows.append([f"entropy at {curve['temperature']:g}", f"{curve['mean']:.3f} of {top:.3f} nats"])
    for layer in found["spectrum"]["layers"]:
        rank = f"{layer['effective_rank']:.1f} of {layer['features']}"
        rows.append([f"effective rank, {layer['layer']}", rank])
    for curve in (found["coherence"] or {"curves": []})["curves"]:
        if curve["coherence"]:
            at = [f"{curve['coherence'][k - 1]:.3f}" for k in (1, 5, 20) if k <= len(curve["coherence"])]
            rows.append([f"coherence at K = 1, 5, 20, {curve['label']}", " ".join(at)])
    if found["atlas"]:
        atlas = found["atlas"]
        total = atlas["simplices"] * atlas["vertices"]
        rows.append(["dead vertices", f"{atlas['dead_vertices']} of {total}"])
        rows.append(["simplices like another", f"{atlas['duplicate_simplices']} of {atlas['simplices']}"])
    for layer in (found["retrieval"] or {"layers": []})["layers"]:
        if layer["by_class"]:
            rows.append([f"precision of the nearest image, {layer['layer']}", f"{layer['by_class'][0]:.3f}"])
    name = found["run"]["name"]
    table(f"{name}, {data['images']} {data['split']} images of {data['name']}", ["", ""], rows)
    for note in found["notes"]:
        print(f"note: {note}")
