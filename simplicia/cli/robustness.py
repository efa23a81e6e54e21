"""simplicia robustness: a linear probe on shifted and corrupted test images."""

from pathlib import Path
from typing import Any

from simplicia.cli.measure import finish, start
from simplicia.cli.options import MEASURE, Parser
from simplicia.cli.tables import decimals
from simplicia.cli.verbs import verb
from simplicia.errors import UserError, unknown


@verb("robustness RUN", "measure a linear probe on other test sets and corrupted images")
def robustness(parser: Parser, arguments: list[str]) -> None:
    """Train a linear probe on clean images (of --data) and test it on other sets.

    The settings are those of simplicia probe, shown with the defaults of the chosen probe, or of quick; with
    --probe logistic they are those of simplicia transfer, and the default layer is codes if the run has them.
    """
    from simplicia.evaluate.features import load_labelled
    from simplicia.evaluate.make_result import changed_settings
    from simplicia.evaluate.probe import PRESETS, preset, preset_for, preset_label
    from simplicia.evaluate.robustness import robustness
    from simplicia.evaluate.transfer import TransferSettings, default_layer
    from simplicia.settings import with_changes

    kind = parser.peek(arguments, "--probe")
    if kind not in (None, "logistic", *PRESETS):
        raise unknown("probe", kind, ["logistic", *PRESETS])
    parser.add(*MEASURE)
    parser.add_argument(
        "--probe",
        help="quick, cifar, imagenet or logistic (default: cifar or imagenet for these sets, else quick)",
    )
    if kind == "logistic":
        parser.add("--temperature")
    parser.add_argument(
        "--sets",
        nargs="+",
        type=Path,
        default=[],
        metavar="FOLDER",
        help="ImageNet-V2, -R, -A or -C, CIFAR-10-C or -100-C: <class>/*, <corruption>/<severity>/<class>/*, "
        "or <corruption>.npy and labels.npy",
    )
    parser.add_argument("--corrupt", action="store_true", help="make fifteen corruptions of the test images")
    defaults: Any = TransferSettings() if kind == "logistic" else preset(kind or "quick")
    args, settings, run = start(parser, arguments, defaults)
    if not args.sets and not args.corrupt:
        raise UserError("there is nothing to test on; give --sets FOLDER … or --corrupt")
    if kind is None:  # now that the run's data are known
        kind = preset_for(args.data or run.recipe.data)
        settings = with_changes(preset(kind), parser.changes(args))
    layer = default_layer(run, args.layer) if kind == "logistic" else run.check_layer(args.layer)
    if getattr(args, "temperatures", None) is not None and layer != "sem":
        raise UserError(f"--temperatures applies to layer sem; layer {layer!r} takes none")
    temperature = args.temperature if kind == "logistic" else None
    train, test = load_labelled(run, args.data, args.data_dir)
    result = robustness(
        run,
        train,
        test,
        args.sets,
        args.corrupt,
        layer,
        temperature,
        settings,
        args.network,
        quiet=args.quiet,
    )
    protocol = "robustness"
    if kind != "logistic":
        changes = changed_settings(settings, preset(kind))
        result = result.replace(preset=preset_label(kind, settings), changed=changes)
        protocol = f"robustness-{result['preset'].replace(', ', '-')}"
    rows = [["clean test", None, result["test_images"], decimals(result["accuracy"])]]
    for row in result["sets"]:
        rows.append([row["set"], None, row["images"], decimals(row["accuracy"])])
        for name, accuracies in row.get("per_corruption", {}).items():
            severities = " ".join(map(decimals, accuracies))
            rows.append([f"  {name}", severities, "", decimals(sum(accuracies) / len(accuracies))])
    at = "" if result["temperature"] is None else f" at temperature {result['temperature']:g}"
    title = f"robustness, {result['dataset']}, {kind} probe on {layer}{at}, {result['network']} network"
    finish(run, protocol, result, args, title, ["set", "severities 1 to 5, %", "images", "accuracy %"], rows)
