"""Verbs that take a run elsewhere: transfer, finetune, semi, robustness."""

from typing import Any

from simplicia.options import add_settings, measuring, temperature
from simplicia.show import table


def transfer(arguments: list[str]) -> None:
    from simplicia.evaluate.transfer import TransferSettings, default_layer, splits, transfer
    from simplicia.run import load

    parser = measuring(
        "transfer",
        "Logistic regression on frozen features, its regulariser chosen on validation images, tested once. "
        "Layer: codes if the run has them, else encoder.",
    )
    parser.add_argument("--temperature", type=temperature, help="of layer sem (default: the run's own)")
    given, settings = _settings(parser, TransferSettings(), arguments)
    run = load(given["run"], given["device"])
    layer = default_layer(run, given["layer"])
    sets = splits(run, given["data"], given["data_dir"], settings.validation, settings.seed)
    found = transfer(run, sets, layer, given["temperature"], settings, given["network"], quiet=False)
    table(
        f"transfer to {found['dataset']}, logistic regression, {layer}, {found['network']} network",
        ["regulariser", "validation %", "test %", "mean of classes %"],
        [
            [
                f"{found['regulariser']:.3g}",
                f"{found['validation_accuracy']:.1f}",
                f"{found['accuracy']:.1f} ± {found['standard_error']:.1f}",
                f"{found['mean_class_accuracy']:.1f}",
            ]
        ],
    )
    if not found["converged"]:
        print("the last fit did not converge")
    path = run.write_result(f"transfer-{found['dataset']}-{layer}", found, given["json"])
    print(f"written to {path}")


def _settings(parser: Any, defaults: Any, arguments: list[str]) -> tuple[dict[str, Any], Any]:
    """What was given, and settings with it; wrong values are told before anything is loaded."""
    from simplicia.train.settings import with_changes

    setters = add_settings(parser, defaults)
    given = vars(parser.parse(arguments))
    settings = with_changes(defaults, {k: given[k] for k in setters if given[k] is not None})
    settings.validate()
    return given, settings
