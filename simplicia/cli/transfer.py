"""simplicia transfer: logistic regression on another data set."""

from simplicia.cli.measure import finish, start
from simplicia.cli.options import MEASURE, Parser
from simplicia.cli.tables import accuracy, decimals
from simplicia.cli.verbs import verb


@verb("transfer RUN", "measure logistic regression on another data set's frozen features or codes")
def transfer(parser: Parser, arguments: list[str]) -> None:
    """Fit logistic regression on frozen features, choose its regulariser on validation images, test once.

    The default layer is codes if the run has them.
    """
    from simplicia.evaluate.transfer import TransferSettings, default_layer, load_splits, transfer

    parser.add(*MEASURE, "--temperature")
    args, settings, run = start(parser, arguments, TransferSettings())
    layer = default_layer(run, args.layer)
    sets = load_splits(run, args.data, args.data_dir, settings.validation, settings.seed)
    result = transfer(run, sets, layer, args.temperature, settings, args.network, args.quiet)
    if not result["converged"]:
        print("the last fit did not converge")
    finish(
        run,
        "transfer",
        result,
        args,
        f"transfer to {result['dataset']}, logistic regression, {layer}, {result['network']} network",
        ["regulariser", "validation %", "test %", "mean of classes %"],
        [
            [
                result["regulariser"],
                decimals(result["validation_accuracy"]),
                accuracy(result),
                decimals(result["mean_class_accuracy"]),
            ]
        ],
    )
