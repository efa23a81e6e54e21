"""simplicia analyze: look inside runs."""

from typing import Any

from simplicia.cli.options import Parser, positive
from simplicia.cli.tables import decimals, table
from simplicia.cli.verbs import verb
from simplicia.errors import UserError


@verb(
    "analyze RUN [RUN …]", "analyse entropy, coherence, spectrum, the images of each simplex, and retrieval"
)
def analyze(parser: Parser, arguments: list[str]) -> None:
    """Analyse entropy, coherence, spectrum, the images each simplex fires on, and retrieval."""
    from simplicia.analyze.study import analyze
    from simplicia.report.figures import write_figures
    from simplicia.run import load
    from simplicia.train.checkpoint import newest_of

    parser.add("runs", help="folder of a run; several share figures")
    parser.add("--data", "--data-dir", "--temperature", "--device")
    parser.add_argument(
        "--images", type=positive, default=10_000, help="largest number of images (default: 10000)"
    )
    parser.add_argument(
        "--fit-images",
        type=positive,
        help="training images for the linear classifiers (default: all; on a CPU 5000)",
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help="folder for the analysis of one run (default: RUN/analysis, with --data RUN/analysis-NAME)",
    )
    parser.add_argument("--figures", metavar="FOLDER", help="folder for figures as SVG, PNG and CSV")
    parser.add_argument("--again", action="store_true", help="repeat an analysis of the same checkpoint")
    args = parser.parse(arguments)
    if args.out and len(args.runs) > 1:
        raise UserError(f"--out is for one run, and {len(args.runs)} were given; leave it out")
    for path in args.runs:  # before the first analysis, which takes minutes
        newest_of(path)
    limits = args.images, args.fit_images, args.temperature
    analyses = []
    for path in args.runs:
        run = load(path, args.device)
        analysis, folder = analyze(run, args.data, args.data_dir, *limits, args.out, again=args.again)
        data = analysis["data"]
        title = f"{analysis['run']['name']}, {data['images']} {data['split']} images of {data['name']}"
        table(title, ["", ""], _rows(analysis))
        for note in analysis["notes"]:
            print(f"note: {note}")
        print(f"written to {folder}")
        analyses.append(analysis)
    if args.figures:
        print(f"{len(write_figures(analyses, args.figures))} files written to {args.figures}")


def _rows(analysis: Any) -> list[list[str]]:
    rows = []
    for curve in (analysis["entropy"] or {"curves": []})["curves"]:
        top = analysis["entropy"]["ln_vertices"]
        rows.append([f"entropy at {curve['temperature']:g}", f"{curve['mean']:.3f} of {top:.3f} nats"])
    for layer in analysis["spectrum"]["layers"]:
        rank = f"{layer['effective_rank']:.1f} of {layer['features']}"
        rows.append([f"effective rank, {layer['layer']}", rank])
    for curve in (analysis["coherence"] or {"curves": []})["curves"]:
        values = curve["coherence"] or []
        if values:
            at = " ".join(decimals(values[k - 1], 3) for k in (1, 5, 20) if k <= len(values))
            rows.append([f"coherence at K = 1, 5, 20, {curve['label']}", at])
    if atlas := analysis["atlas"]:
        simplices = atlas["simplices"]
        rows.append(["dead vertices", f"{atlas['dead_vertices']} of {simplices * atlas['vertices']}"])
        rows.append(["duplicate simplices", f"{atlas['duplicate_simplices']} of {simplices}"])
    for layer in (analysis["retrieval"] or {"layers": []})["layers"]:
        if layer["by_class"]:
            precision = decimals(layer["by_class"][0], 3)
            rows.append([f"precision of the nearest image, {layer['layer']}", precision])
    return rows
