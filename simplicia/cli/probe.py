"""simplicia probe: the offline linear probe."""

from simplicia.cli.measure import finish, images, start
from simplicia.cli.options import MEASURE, Parser
from simplicia.cli.tables import accuracy, decimals, table
from simplicia.cli.verbs import verb
from simplicia.errors import UserError


@verb("probe RUN", "measure the accuracy of a run by an offline linear probe")
def probe(parser: Parser, arguments: list[str]) -> None:
    """Train linear classifiers on frozen features, choose on held-out training images, and test once."""
    from simplicia.evaluate.features import load_labelled
    from simplicia.evaluate.make_result import changed_settings
    from simplicia.evaluate.probe import preset, preset_label, probe, progress_bar

    chosen = parser.peek(arguments, "--preset", "quick")
    parser.add(*MEASURE)
    parser.add_argument("--preset", help="quick, or the paper's cifar or imagenet (default: quick)")
    args, settings, run = start(parser, arguments, preset(chosen))
    layer = run.check_layer(args.layer)
    if args.temperatures is not None and layer != "sem":
        raise UserError(f"--temperatures applies to layer sem; layer {layer!r} takes none")
    run.network(args.network)
    train, test = load_labelled(run, args.data, args.data_dir)
    with progress_bar(layer, settings, args.quiet) as progress:
        result = probe(run, train, test, layer, settings, args.network, progress)
    changes = changed_settings(settings, preset(chosen))
    result = result.replace(preset=preset_label(chosen, settings), changed=changes)
    matrix = result["temperature_matrix"]
    if matrix is not None:
        table(
            "test % of each probe at every temperature",
            ["trained at", *(f"tested at {temperature:g}" for temperature in matrix["tested_at"])],
            [
                [temperature, *map(decimals, row)]
                for temperature, row in zip(matrix["trained_at"], matrix["accuracy"], strict=True)
            ],
        )
        print(f"best on validation images: temperature {result['temperature']:g}, test {accuracy(result)} %")
    if settings.seeds > 1:
        print(f"mean of {settings.seeds} seeds ± their standard deviation")
    finish(
        run,
        "probe" if result["preset"] == "quick" else f"probe-{result['preset'].replace(', ', '-')}",
        result,
        args,
        f"offline linear probe, {layer}, {images(result)}, {result['network']} network",
        ["temperature", "lr", "L1", "L2", "validation %", "test %", "top-5 %"],
        [
            [
                row["temperature"],
                *(row["selected"][name] for name in ("lr", "l1", "l2")),
                decimals(row["validation_accuracy"]),
                accuracy(row),
                decimals(row.get("top5_accuracy")),
            ]
            for row in result["per_temperature"] or [result]
        ],
    )
