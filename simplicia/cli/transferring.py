"""Verbs that take a run elsewhere: transfer, finetune, semi, robustness."""

from typing import Any

from simplicia.cli.options import Parser, add_settings, amount, measuring
from simplicia.cli.tables import table


def transfer(arguments: list[str]) -> None:
    from simplicia.evaluate.transfer import TransferSettings, default_layer, load_splits, transfer

    parser = measuring(
        "transfer",
        "Logistic regression on frozen features, its regulariser chosen on validation images, tested once.",
        layer="codes if the run has them, else what it was trained with",
    )
    parser.add_argument("--temperature", type=amount, help="of layer sem (default: the run's own)")
    given, settings, run = _opened(parser, TransferSettings(), arguments)
    layer = default_layer(run, given["layer"])
    sets = load_splits(run, given["data"], given["data_dir"], settings.validation, settings.seed)
    found = transfer(run, sets, layer, given["temperature"], settings, given["network"], given["quiet"])
    table(
        f"transfer to {found['dataset']}, logistic regression, {layer}, {found['network']} network",
        ["regulariser", "validation %", "test %", "mean of classes %"],
        [[f"{found['regulariser']:.3g}", *_numbers(found)]],
    )
    if not found["converged"]:
        print("the last fit did not converge")
    _write(run, "transfer", found, given["json"])


def finetune(arguments: list[str]) -> None:
    from simplicia.evaluate.finetune import FinetuneSettings, finetune, trainable_layer
    from simplicia.evaluate.transfer import load_splits

    parser = measuring(
        "finetune",
        "Encoder, embedder and a new classifier trained on with labels; the rate is chosen on validation "
        "images, the training repeated on all, and tested once. Layer: sem or encoder.",
    )
    given, settings, run = _opened(parser, FinetuneSettings(), arguments)
    layer = trainable_layer(run, given["layer"])
    sets = load_splits(run, given["data"], given["data_dir"], settings.validation, settings.seed)
    found = finetune(run, sets, layer, settings, given["network"], given["quiet"])
    table(
        f"fine-tuned on {found['dataset']}, {layer}, {found['steps']} steps",
        ["rate", "validation %", "test %", "mean of classes %"],
        [[f"{found['lr']:.3g}", *_numbers(found)]],
    )
    _write(run, "finetune", found, given["json"])


def semi(arguments: list[str]) -> None:
    from pathlib import Path

    from simplicia.errors import UserError
    from simplicia.evaluate.features import load_labelled
    from simplicia.evaluate.finetune import trainable_layer
    from simplicia.evaluate.semi import SemiSettings, semi

    parser = measuring("semi", "Fine-tuning on a share of the labels: 1 % by default. Layer: sem or encoder.")
    parser.add_argument(
        "--list", metavar="FILE", help="the labelled images, a name a line (default: drawn, class by class)"
    )
    given, settings, run = _opened(parser, SemiSettings(), arguments)
    if given["list"] is not None and given["fraction"] is not None:
        raise UserError("--list names the labelled images and --fraction draws them; give one of the two")
    layer = trainable_layer(run, given["layer"])
    names = None if given["list"] is None else Path(given["list"])
    train, test = load_labelled(run, given["data"], given["data_dir"])
    found = semi(run, train, test, layer, settings, names, given["network"], given["quiet"])
    tau = "-" if found["temperature"] is None else f"{found['temperature']:g}"
    table(
        f"{found['labelled_images']} labels of {found['dataset']}, {layer}: {found['labelled_list']}",
        ["rate", "epochs", "temperature", "validation %", "test %", "mean of classes %", "top-5 %"],
        [
            [
                f"{found['lr']:.3g}",
                str(found["epochs"]),
                tau,
                *_numbers(found),
                f"{found['top5_accuracy']:.1f}" if "top5_accuracy" in found else "-",
            ]
        ],
    )
    _write(run, "semi", found, given["json"])


def robustness(arguments: list[str]) -> None:
    from pathlib import Path

    from simplicia.errors import UserError, unknown
    from simplicia.evaluate.features import load_labelled
    from simplicia.evaluate.make_result import changed_settings
    from simplicia.evaluate.probe import PRESETS, preset, preset_for, preset_label
    from simplicia.evaluate.robustness import robustness
    from simplicia.evaluate.transfer import TransferSettings, default_layer
    from simplicia.settings import with_changes

    first = Parser("robustness RUN", add_help=False)
    first.add_argument("--probe")
    kind = first.parse_known_args(arguments)[0].probe
    if kind not in (None, "logistic", *PRESETS):
        raise unknown("probe", kind, ["logistic", *PRESETS])
    parser = measuring(
        "robustness",
        "A linear probe trained on clean images (of --data) and tested on other sets. Settings are those of "
        "simplicia probe, shown with the defaults of the probe that is named, or of quick; with --probe "
        "logistic those of simplicia transfer, and as there the layer is codes if the run has them.",
    )
    parser.add_argument(
        "--probe",
        help="quick, cifar, imagenet or logistic (default: cifar or imagenet for these sets, else quick)",
    )
    if kind == "logistic":
        parser.add_argument("--temperature", type=amount, help="of layer sem (default: the run's own)")
    parser.add_argument(
        "--sets",
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="ImageNet-V2, -R, -A or -C, CIFAR-10-C or -100-C: <class>/*, <corruption>/<severity>/<class>/*, "
        "or <corruption>.npy and labels.npy",
    )
    parser.add_argument("--corrupt", action="store_true", help="make fifteen corruptions of the test images")
    defaults: Any = TransferSettings() if kind == "logistic" else preset(kind or "quick")
    given, settings, run = _opened(parser, defaults, arguments)
    if not given["sets"] and not given["corrupt"]:
        raise UserError("there is nothing to test on; give --sets FOLDER … or --corrupt")
    if kind is None:  # now that the run's data are known
        kind = preset_for(given["data"] or run.recipe.data)
        changes = {name: given[name] for name in vars(settings) if given[name] is not None}
        settings = with_changes(preset(kind), changes)
    layer = default_layer(run, given["layer"]) if kind == "logistic" else run.check_layer(given["layer"])
    if given.get("temperatures") is not None and layer != "sem":
        raise UserError(f"--temperatures are of layer sem; layer {layer!r} takes none")
    train, test = load_labelled(run, given["data"], given["data_dir"])
    others = [Path(path) for path in given["sets"]]
    words = layer, given.get("temperature"), settings, given["network"]
    found = robustness(run, train, test, others, given["corrupt"], *words, quiet=given["quiet"])
    protocol = "robustness"
    if kind != "logistic":
        changes = changed_settings(settings, preset(kind))
        found = found.replace(preset=preset_label(kind, settings), changed=changes)
        protocol = f"robustness-{found['preset'].replace(', ', '-')}"
    rows = [["clean test", "-", str(found["test_images"]), f"{found['accuracy']:.1f}"]]
    for row in found["sets"]:
        rows.append([row["set"], "-", str(row["images"]), f"{row['accuracy']:.1f}"])
        for name, accuracies in row.get("per_corruption", {}).items():
            rows.append(
                [f"  {name}", " ".join(f"{a:.1f}" for a in accuracies), "", f"{sum(accuracies) / 5:.1f}"]
            )
    tau = "" if found["temperature"] is None else f" at temperature {found['temperature']:g}"
    which = f"{kind} probe on {layer}{tau}"
    title = f"robustness, {found['dataset']}, {which}, {found['network']} network"
    table(title, ["set", "severities 1 to 5, %", "images", "accuracy %"], rows)
    _write(run, protocol, found, given["json"])


def _numbers(found: Any) -> list[str]:
    return [
        f"{found['validation_accuracy']:.1f}",
        f"{found['accuracy']:.1f} ± {found['standard_error']:.1f}",
        f"{found['mean_class_accuracy']:.1f}",
    ]


def _write(run: Any, protocol: str, found: Any, path: str | None) -> None:
    from simplicia.evaluate.make_result import result_name

    print(f"written to {run.write_result(result_name(run, protocol, found), found, path)}")


def _opened(parser: Any, defaults: Any, arguments: list[str]) -> tuple[dict[str, Any], Any, Any]:
    """What was given, settings with it, and the run; wrong values are told before anything is loaded."""
    from simplicia.run import load
    from simplicia.settings import with_changes

    parser.add_argument("--quiet", action="store_true", help="no progress")
    setters = add_settings(parser, defaults)
    given = vars(parser.parse(arguments))
    settings = with_changes(defaults, {k: given[k] for k in setters if given[k] is not None})
    settings.validate()
    return given, settings, load(given["run"], given["device"])
