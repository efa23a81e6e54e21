"""Verbs that measure a run or use it: probe, knn, encode."""

import sys

from simplicia.options import Parser, add_settings, measuring, positive, temperature
from simplicia.show import table


def probe(arguments: list[str]) -> None:
    from simplicia.evaluate.features import labelled
    from simplicia.evaluate.probe import ProbeSettings, probe
    from simplicia.run import load
    from simplicia.train.settings import with_changes

    parser = measuring("probe", "Offline linear probe, chosen on held-out training images, tested once.")
    setters = add_settings(parser, ProbeSettings())
    given = vars(parser.parse(arguments))
    settings = with_changes(ProbeSettings(), {k: given[k] for k in setters if given[k] is not None})
    run = load(given["run"], given["device"])
    layer = run.check_layer(given["layer"])
    train, test = labelled(run, given["data"], given["data_dir"])
    found = probe(run, train, test, layer, settings, given["network"])
    rows = found["per_temperature"] or [found]
    table(
        f"offline linear probe, {found['layer']}, {found['dataset']}, {found['network']} network",
        ["temperature", "lr", "L1", "validation %", "test %"],
        [
            [
                "-" if row["temperature"] is None else f"{row['temperature']:g}",
                f"{row['lr']:g}",
                f"{row['l1']:g}",
                f"{row['validation_accuracy']:.1f}",
                f"{row['accuracy']:.1f} ± {row['standard_error']:.1f}",
            ]
            for row in rows
        ],
    )
    if len(rows) > 1:
        print(f"chosen on validation: temperature {found['temperature']:g}, test {found['accuracy']:.1f} %")
    print(f"written to {run.write_result(f'probe-{layer}', found, given['json'])}")


def knn(arguments: list[str]) -> None:
    from simplicia.evaluate.features import labelled
    from simplicia.evaluate.knn import knn
    from simplicia.run import load

    parser = measuring(
        "knn", "Votes of the nearest training images, weighted by cosine (on codes: by overlap)."
    )
    parser.add_argument("--temperature", type=temperature, help="of SEM (default: the run's own)")
    parser.add_argument("--k", type=positive, default=20)
    given = parser.parse(arguments)
    run = load(given.run, given.device)
    layer = run.check_layer(given.layer)
    train, test = labelled(run, given.data, given.data_dir)
    found = knn(run, train, test, layer, given.temperature, given.k, network=given.network)
    tau = "-" if found["temperature"] is None else f"{found['temperature']:g}"
    table(
        f"{given.k} nearest neighbours, {found['dataset']}, {found['network']} network",
        ["layer", "temperature", "test %"],
        [[layer, tau, f"{found['accuracy']:.1f} ± {found['standard_error']:.1f}"]],
    )
    print(f"written to {run.write_result(f'knn-{layer}', found, given.json)}")


def encode(arguments: list[str]) -> None:
    from simplicia.run import load

    parser = Parser(
        "encode RUN IMAGES", description="Representations of images, with their file names, as .npz."
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("images", metavar="IMAGES", help="a folder of images, or one image")
    parser.add_argument("--out", required=True, metavar="FILE.npz")
    parser.add_argument("--layer", help="encoder, embedder, sem, codes, … (default: sem if trained with it)")
    parser.add_argument("--temperature", type=temperature, help="of SEM (default: the run's own)")
    parser.add_argument("--network", default="online", help="online or target (default: online)")
    parser.add_argument("--device", default="auto")
    given = parser.parse(arguments)
    run = load(given.run, given.device)
    layer = run.check_layer(given.layer)
    from simplicia.evaluate.encode import encode

    count, skipped, path = encode(run, given.images, given.out, layer, given.temperature, given.network)
    print(f"{count} images, layer {layer}, written to {path}")
    for name, reason in skipped[:5]:
        print(f"skipped {name}: {reason}", file=sys.stderr)
    if len(skipped) > 5:
        print(f"… and {len(skipped) - 5} more", file=sys.stderr)
