"""simplicia probe, knn, compare, transfer, finetune, semi, robustness: measure runs."""

import json as json_format
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simplicia.cli import options
from simplicia.cli.options import POSITIVE, OutputFile, Quiet, Temperature
from simplicia.cli.tables import accuracy, decimals, table, write_json
from simplicia.cli.verbs import Settings, defaults_of, verb
from simplicia.errors import UserError, unknown

if TYPE_CHECKING:
    from simplicia.data.datasets import ImageSet
    from simplicia.run import Run

TUNED = {
    "validation %": "validation_accuracy",
    "test %": accuracy,
    "mean of classes %": "mean_class_accuracy",
}


@dataclass(kw_only=True)
class Measure(options.Images):
    """A run to measure, and the options that all measurements share."""

    run: options.RunFolder
    layer: options.Layer = None
    network: options.Network = "online"
    json: Annotated[OutputFile | None, "file for the numbers (default: in the run)"] = None

    def load(self) -> "Run":
        from simplicia.run import load

        return load(self.run, self.device)

    def labelled(self, run: "Run") -> "tuple[ImageSet, ImageSet]":
        """Training and test images with labels."""
        from simplicia.evaluate.features import load_labelled

        return load_labelled(run, self.data, self.data_dir)

    def finish(
        self, run: "Run", protocol: str, result: Any, title: str, columns: Any, rows: Any = None
    ) -> None:
        """Print the table of a result, write the result, and print where."""
        from simplicia.evaluate.make_result import result_name

        table(title, columns, rows or [result])
        print(f"written to {run.write_result(result_name(run, protocol, result), result, self.json)}")


def _chosen_preset(parser: options.Parser, words: list[str]) -> Any:
    from simplicia.evaluate.probe import preset

    return preset(parser.peek(words, "--preset", "quick"))


@verb("probe RUN", "measure the accuracy of a run by an offline linear probe", _chosen_preset)
def probe(
    given: Measure,
    settings: Settings,
    *,
    preset: Annotated[str, "quick, or the paper's cifar or imagenet"] = "quick",
    quiet: Quiet = False,
) -> None:
    """Train linear classifiers on frozen features, choose on held-out training images, and test once."""
    from simplicia.evaluate.probe import preset_details, probe, progress_bar

    how, run = settings.checked(), given.load()
    layer = run.check_layer(given.layer)
    _check_temperatures(settings, layer)
    run.network(given.network)
    train, test = given.labelled(run)
    with progress_bar(layer, how, quiet) as progress:
        result = probe(run, train, test, layer, how, given.network, progress)
    result = result.replace(**preset_details(preset, how))
    matrix = result["temperature_matrix"]
    if matrix is not None:
        titles = ["trained at", *(f"tested at {temperature:g}" for temperature in matrix["tested_at"])]
        lines = zip(matrix["trained_at"], matrix["accuracy"], strict=True)
        rows = [[temperature, *map(decimals, row)] for temperature, row in lines]
        table("test % of each probe at every temperature", titles, rows)
        print(f"best on validation images: temperature {result['temperature']:g}, test {accuracy(result)} %")
    if how.seeds > 1:
        print(f"mean of {how.seeds} seeds ± their standard deviation")
    protocol = "probe" if result["preset"] == "quick" else f"probe-{result['preset'].replace(', ', '-')}"
    title = f"offline linear probe, {layer}, {_images(result)}, {result['network']} network"
    columns = {
        "temperature": "temperature",
        "lr": lambda row: row["selected"]["lr"],
        "L1": lambda row: row["selected"]["l1"],
        "L2": lambda row: row["selected"]["l2"],
        "validation %": "validation_accuracy",
        "test %": accuracy,
        "top-5 %": "top5_accuracy",
    }
    given.finish(run, protocol, result, title, columns, result["per_temperature"])


def _images(result: Any) -> str:
    return f"{result['test_images']:,} test images of {result['dataset']}, {result['classes']} classes"


def _check_temperatures(settings: Settings, layer: str) -> None:
    if "temperatures" in settings.changes and layer != "sem":
        raise UserError(f"--temperatures applies to layer sem; layer {layer!r} takes none")


@verb("knn RUN", "measure the nearest-neighbour accuracy of a run")
def knn(
    given: Measure,
    *,
    temperature: Temperature = None,
    k: Annotated[int | None, "number of neighbours (default: 20)", POSITIVE] = None,
) -> None:
    """Classify test images by the votes of the nearest training images, weighted by cosine similarity.

    On codes, the weight is the share of codes in common.
    """
    from simplicia.evaluate.knn import knn
    from simplicia.evaluate.make_result import K

    run = given.load()
    layer = run.check_layer(given.layer)
    train, test = given.labelled(run)
    result = knn(run, train, test, layer, temperature, k or K, network=given.network)
    title = f"{result['k']} nearest neighbours, {_images(result)}, {result['network']} network"
    columns = {"layer": "layer", "temperature": "temperature", "test %": accuracy, "top-5 %": "top5_accuracy"}
    given.finish(run, "knn", result, title, columns)


@verb("compare RUN RUN …", "show the results of several runs side by side")
def compare(
    runs: Annotated[tuple[str, ...], "folder of a run"],
    *,
    json: Annotated[bool | OutputFile | None, "write JSON to PATH, or print it without a table"] = None,
) -> None:
    """Show the results of several runs side by side.

    Results share a row only if they agree in data set, layer, temperature, protocol, and online or offline.
    """
    from simplicia.evaluate.compare import compare

    comparison = compare(list(runs))
    if json is True or json == Path("-"):
        print(json_format.dumps(comparison, indent=1))
        return
    keys = ["dataset", "test_images", "when", "protocol", "variant", "network", "layer", "temperature"]
    columns = ["data", "tested", *keys[2:], *map(column, comparison["runs"])]
    rows = comparison["rows"]
    shown = [
        [*(row[key] for key in keys), *(cell and accuracy(cell) for cell in row["cells"])] for row in rows
    ]
    table("test accuracy in percent", columns, shown)
    if any("standard_deviation" in cell for row in rows for cell in row["cells"] if cell is not None):
        print("±: standard error of the test images, or the standard deviation over several seeds")
    write_json(json or None, comparison)


def column(run: dict[str, Any]) -> str:
    """The title of a run's column."""
    step, total = run["step"], run["total_steps"]
    stopped = "" if step in (None, total) else f", stopped at step {step} of {total}"
    return f"{run['path']} ({run['recipe']}, {run['epochs']} ep{stopped})"


@verb(
    "transfer RUN",
    "measure logistic regression on another data set's frozen features or codes",
    defaults_of("evaluate.transfer", "TransferSettings"),
)
def transfer(
    given: Measure, settings: Settings, *, temperature: Temperature = None, quiet: Quiet = False
) -> None:
    """Fit logistic regression on frozen features, choose its regulariser on validation images, test once.

    The default layer is codes if the run has them.
    """
    from simplicia.evaluate.transfer import default_layer, load_splits, transfer

    how, run = settings.checked(), given.load()
    layer = default_layer(run, given.layer)
    sets = load_splits(run, given.data, given.data_dir, how.validation, how.seed)
    result = transfer(run, sets, layer, temperature, how, given.network, quiet)
    if not result["converged"]:
        print("the last fit did not converge")
    title = f"transfer to {result['dataset']}, logistic regression, {layer}, {result['network']} network"
    given.finish(run, "transfer", result, title, {"regulariser": "regulariser"} | TUNED)


@verb(
    "finetune RUN",
    "train the encoder further with the labels of another data set",
    defaults_of("evaluate.finetune", "FinetuneSettings"),
)
def finetune(given: Measure, settings: Settings, *, quiet: Quiet = False) -> None:
    """Train encoder, embedder and a new classifier with labels, and test once.

    The learning rate is chosen on validation images; then training is repeated on all training images.
    Layers: sem or encoder.
    """
    from simplicia.evaluate.finetune import finetune, trainable_layer
    from simplicia.evaluate.transfer import load_splits

    how, run = settings.checked(), given.load()
    layer = trainable_layer(run, given.layer)
    sets = load_splits(run, given.data, given.data_dir, how.validation, how.seed)
    result = finetune(run, sets, layer, how, given.network, quiet)
    title = f"fine-tuned on {result['dataset']}, {layer}, {result['steps']} steps"
    given.finish(run, "finetune", result, title, {"learning rate": "lr"} | TUNED)


@verb(
    "semi RUN",
    "train the encoder further with a small share of the labels",
    defaults_of("evaluate.finetune", "SemiSettings"),
)
def semi(
    given: Measure,
    settings: Settings,
    *,
    list_: Annotated[Path | None, "file of the labelled images' names, one a line (default: drawn)"] = None,
    quiet: Quiet = False,
) -> None:
    """Fine-tune on a share of the labels, 1 % by default. Layers: sem or encoder."""
    from simplicia.evaluate.finetune import semi, trainable_layer

    how, run = settings.checked(), given.load()
    if list_ is not None and "fraction" in settings.changes:
        raise UserError("--list names the labelled images and --fraction draws them; give one of the two")
    layer = trainable_layer(run, given.layer)
    train, test = given.labelled(run)
    result = semi(run, train, test, layer, how, list_, given.network, quiet)
    title = f"{result['labelled_images']} labels of {result['dataset']}, {layer}: {result['labelled_list']}"
    columns = {"learning rate": "lr", "epochs": "epochs", "temperature": "temperature"} | TUNED
    given.finish(run, "semi", result, title, columns | {"top-5 %": "top5_accuracy"})


def _chosen_probe(parser: options.Parser, words: list[str]) -> Any:
    from simplicia.evaluate.probe import PRESETS, preset
    from simplicia.evaluate.transfer import TransferSettings

    kind = parser.peek(words, "--probe")
    if kind not in (None, "logistic", *PRESETS):
        raise unknown("probe", kind, ["logistic", *PRESETS])
    return TransferSettings() if kind == "logistic" else preset(kind or "quick")


@verb("robustness RUN", "measure a linear probe on other test sets and corrupted images", _chosen_probe)
def robustness(
    given: Measure,
    settings: Settings,
    *,
    probe: Annotated[
        str | None,
        "quick, cifar, imagenet or logistic (default: cifar or imagenet for these sets, else quick)",
    ] = None,
    temperature: Temperature = None,
    sets: Annotated[
        tuple[Path, ...],
        "ImageNet-V2, -R, -A or -C, CIFAR-10-C or -100-C: <class>/*, <corruption>/<severity>/<class>/*, "
        "or <corruption>.npy and labels.npy",
    ] = (),
    corrupt: Annotated[bool, "make fifteen corruptions of the test images"] = False,
    quiet: Quiet = False,
) -> None:
    """Train a linear probe on clean images (of --data) and test it on other sets.

    The settings are those of simplicia probe, shown with the defaults of the chosen probe, or of quick; with
    --probe logistic they are those of simplicia transfer, and the default layer is codes if the run has them.
    """
    from simplicia.evaluate.probe import preset, preset_details, preset_for
    from simplicia.evaluate.robustness import robustness
    from simplicia.evaluate.transfer import default_layer

    how, run = settings.checked(), given.load()
    if not sets and not corrupt:
        raise UserError("there is nothing to test on; give --sets FOLDER … or --corrupt")
    if temperature is not None and probe != "logistic":
        raise UserError("--temperature is for --probe logistic; did you mean --temperatures?")
    if probe is None:  # now that the run's data are known
        probe = preset_for(given.data or run.recipe.data)
        how = settings._replace(defaults=preset(probe)).checked()
    layer = default_layer(run, given.layer) if probe == "logistic" else run.check_layer(given.layer)
    _check_temperatures(settings, layer)
    train, test = given.labelled(run)
    result = robustness(
        run, train, test, list(sets), corrupt, layer, temperature, how, given.network, quiet=quiet
    )
    protocol = "robustness"
    if probe != "logistic":
        result = result.replace(**preset_details(probe, how))
        protocol = f"robustness-{result['preset'].replace(', ', '-')}"
    rows = [["clean test", None, result["test_images"], result["accuracy"]]]
    for row in result["sets"]:
        rows.append([row["set"], None, row["images"], row["accuracy"]])
        for name, accuracies in row.get("per_corruption", {}).items():
            severities = " ".join(map(decimals, accuracies))
            rows.append([f"  {name}", severities, "", sum(accuracies) / len(accuracies)])
    at = "" if result["temperature"] is None else f" at temperature {result['temperature']:g}"
    title = f"robustness, {result['dataset']}, {probe} probe on {layer}{at}, {result['network']} network"
    given.finish(run, protocol, result, title, ["set", "severities 1 to 5, %", "images", "accuracy %"], rows)
