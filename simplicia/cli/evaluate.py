"""simplicia probe, knn, compare, transfer, finetune, semi, robustness: measure runs."""

import json as json_format
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simplicia.cli import verbs
from simplicia.cli.tables import Column, accuracy, decimals, echo, load_run, table, write_json
from simplicia.cli.verbs import POSITIVE, OutputFile, Quiet, Settings, Temperature, verb
from simplicia.errors import UserError, unknown
from simplicia.progress import plural

if TYPE_CHECKING:
    from simplicia.classifier import Classifier
    from simplicia.data.datasets import ImageSet
    from simplicia.run import Run

SHARED = "layer data data_dir device json network quiet"  # options that --help shows
ClassifierFile = Annotated[
    OutputFile | None, "file for the trained classifier (default: in the run, unless --json is given)"
]
TEST, TOP5 = ("test %", accuracy), ("top-5 %", "top5_accuracy")
VALIDATION = ("validation %", "validation_accuracy")
TUNED: list[Column] = [VALIDATION, TEST, ("mean of classes %", "mean_class_accuracy")]


@dataclass(kw_only=True)
class Measure(verbs.Images):
    """A run to measure, and the options that all measurements share."""

    run: verbs.RunFolder
    layer: verbs.Layer = None
    network: verbs.Network = "online"
    json: Annotated[OutputFile | None, "file for the numbers (default: in the run)"] = None
    quiet: Quiet = False

    def labelled(self, run: "Run") -> "tuple[ImageSet, ImageSet]":
        """Training and test images with labels."""
        from simplicia.evaluate.features import load_labelled

        return load_labelled(run, self.data, self.data_dir)

    def finish(
        self,
        run: "Run",
        verb: str,
        result: Any,
        title: str,
        columns: Any,
        rows: Any = None,
        trained: "list[Classifier] | None" = None,
        file: Path | None = None,
        note: str = "",
    ) -> None:
        """Print the table of a result with a note, write it and the classifier it trained, and say where."""
        from simplicia.evaluate.make_result import result_name

        table(title, columns, rows or [result])
        if note:
            echo(note)
        name = result_name(run, verb, result)
        echo(f"written to {run.write_result(name, result, self.json)}")
        for classifier in [] if self.json is not None and file is None else trained or []:
            path = classifier.save(file or run.path / "results" / f"{name}.safetensors")
            echo(f"the classifier is {path}; simplicia predict {shlex.quote(str(path))} PHOTOS uses it")


def _chosen_preset(parser: verbs.Parser, words: list[str]) -> Any:
    from simplicia.evaluate.probe import preset

    return preset(parser.peek(words, "--preset", "quick"))


@verb("probe RUN", _chosen_preset, f"{SHARED} preset epochs seeds temperatures classifier")
def probe(
    given: Measure,
    settings: Settings,
    *,
    preset: Annotated[str, "quick, or the paper's cifar or imagenet"] = "quick",
    classifier: ClassifierFile = None,
) -> None:
    """Measure the accuracy of a run by an offline linear probe.

    Linear classifiers are trained on frozen features, chosen on held-out training images, and tested once.
    """
    from simplicia.evaluate.probe import preset_details, probe

    how, run = settings.checked(), load_run(given.run, given.device)
    layer = run.check_layer(given.layer)
    _check_temperatures(settings, layer)
    run.network(given.network)
    train, test = given.labelled(run)
    trained: list[Classifier] = []
    result = probe(run, train, test, layer, how, given.network, given.quiet, trained.append)
    result = result.replace(**preset_details(preset, how))
    note = ""
    if (matrix := result["temperature_matrix"]) is not None:
        titles = ["trained at", *(f"tested at {temperature:g}" for temperature in matrix["tested_at"])]
        lines = zip(matrix["trained_at"], matrix["accuracy"], strict=True)
        rows = [[temperature, *map(decimals, row)] for temperature, row in lines]
        table("test % of each probe at every temperature", titles, rows)
        note = f"best on validation images: temperature {result['temperature']:g}, test {accuracy(result)} %"
    if how.seeds > 1:
        echo(f"mean of {how.seeds} seeds ± their standard deviation")
    protocol = "probe" if result["preset"] == "quick" else f"probe-{result['preset'].replace(', ', '-')}"
    title = f"offline linear probe, {layer}, {_images(result)}, {result['network']} network"
    chosen = [{**row, **row["selected"]} for row in result["per_temperature"] or [result.to_json()]]
    columns = ["temperature", "lr", ("L1", "l1"), ("L2", "l2"), VALIDATION, TEST, TOP5]
    given.finish(run, protocol, result, title, columns, chosen, trained, classifier, note)


def _images(result: Any) -> str:
    tested, classes = plural(result["test_images"], "test image"), plural(result["classes"], "class")
    return f"{tested} of {result['dataset']}, {classes}"


def _check_temperatures(settings: Settings, layer: str) -> None:
    if "temperatures" in settings.changes and layer != "sem":
        raise UserError(f"--temperatures applies to layer sem; layer {layer!r} takes none")


@verb("knn RUN")
def knn(
    given: Measure,
    *,
    temperature: Temperature = None,
    k: Annotated[int | None, "number of neighbours (default: 20)", POSITIVE] = None,
) -> None:
    """Measure the nearest-neighbour accuracy of a run.

    The nearest training images vote, weighted by cosine similarity, or on codes by the share in common.
    """
    from simplicia.evaluate.knn import knn
    from simplicia.evaluate.make_result import K

    run = load_run(given.run, given.device)
    layer = run.check_layer(given.layer)
    result = knn(run, *given.labelled(run), layer, temperature, k or K, network=given.network)
    title = f"{plural(result['k'], 'nearest neighbour')}, {_images(result)}, {result['network']} network"
    given.finish(run, "knn", result, title, ["layer", "temperature", TEST, TOP5])


@verb("compare RUN RUN …")
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
    columns: list[Column] = [("data", "dataset"), ("tested", "test_images"), "when", "protocol", "variant"]
    columns += ["network", "layer", "temperature"]
    for i, run in enumerate(comparison["runs"]):
        columns.append((column(run), lambda row, i=i: row["cells"][i] and accuracy(row["cells"][i])))
    table("test accuracy in percent", columns, comparison["rows"])
    if any("standard_deviation" in cell for row in comparison["rows"] for cell in row["cells"] if cell):
        echo("±: standard error of the test images, or the standard deviation over several seeds")
    write_json(json or None, comparison)


def column(run: dict[str, Any]) -> str:
    """The title of a run's column."""
    step, total = run["step"], run["total_steps"]
    stopped = "" if step in (None, total) else f", stopped at step {step} of {total}"
    return f"{run['path']} ({run['recipe']}, {run['epochs']} ep{stopped})"


@dataclass(kw_only=True)
class MeasureCodes(Measure):
    layer: Annotated[str | None, "encoder, embedder, sem or codes (default: codes if the run has them)"] = (
        None
    )


@verb("transfer RUN", "evaluate.transfer:TransferSettings", f"{SHARED} temperature")
def transfer(given: MeasureCodes, settings: Settings, *, temperature: Temperature = None) -> None:
    """Measure logistic regression on another data set's frozen features or codes.

    Its regulariser is chosen on validation images.
    """
    from simplicia.evaluate.transfer import default_layer, load_splits, transfer

    how, run = settings.checked(), load_run(given.run, given.device)
    layer = default_layer(run, given.layer)
    sets = load_splits(run, given.data, given.data_dir, how.validation, how.seed)
    result = transfer(run, sets, layer, temperature, how, given.network, given.quiet)
    if not result["converged"]:
        echo("the last fit did not converge")
    title = f"transfer to {result['dataset']}, logistic regression, {layer}, {result['network']} network"
    given.finish(run, "transfer", result, title, ["regulariser", *TUNED])


@dataclass(kw_only=True)
class MeasureTrained(Measure):
    layer: Annotated[str | None, "sem or encoder (default: sem if the run has it)"] = None


@verb("finetune RUN", "evaluate.finetune:FinetuneSettings", f"{SHARED} lrs epochs steps classifier")
def finetune(given: MeasureTrained, settings: Settings, *, classifier: ClassifierFile = None) -> None:
    """Train the encoder further with the labels of another data set.

    Embedder and a new classifier are trained too. The learning rate is chosen on validation images; then
    training is repeated on all training images.
    """
    from simplicia.evaluate.finetune import finetune, trainable_layer
    from simplicia.evaluate.transfer import load_splits

    how, run = settings.checked(), load_run(given.run, given.device)
    layer = trainable_layer(run, given.layer)
    sets = load_splits(run, given.data, given.data_dir, how.validation, how.seed)
    trained: list[Classifier] = []
    result = finetune(run, sets, layer, how, given.network, given.quiet, trained.append)
    title = f"fine-tuned on {result['dataset']}, {layer}, {plural(result['steps'], 'step')}"
    columns: list[Column] = [("learning rate", "lr"), *TUNED]
    given.finish(run, "finetune", result, title, columns, None, trained, classifier)


@verb("semi RUN", "evaluate.finetune:SemiSettings", f"{SHARED} fraction list_ lrs epochs classifier")
def semi(
    given: MeasureTrained,
    settings: Settings,
    *,
    list_: Annotated[Path | None, "file of the labelled images' names, one a line (default: drawn)"] = None,
    classifier: ClassifierFile = None,
) -> None:
    """Train the encoder further with a small share of the labels.

    The share is 1 % by default.
    """
    from simplicia.evaluate.finetune import semi, trainable_layer

    how, run = settings.checked(), load_run(given.run, given.device)
    if list_ is not None and "fraction" in settings.changes:
        raise UserError("--list names the labelled images and --fraction draws them; give one of the two")
    layer = trainable_layer(run, given.layer)
    trained: list[Classifier] = []
    result = semi(run, *given.labelled(run), layer, how, list_, given.network, given.quiet, trained.append)
    labels = plural(result["labelled_images"], "label")
    title = f"{labels} of {result['dataset']}, {layer}: {result['labelled_list']}"
    columns = [("learning rate", "lr"), "epochs", "temperature", *TUNED, TOP5]
    given.finish(run, "semi", result, title, columns, None, trained, classifier)


def _chosen_probe(parser: verbs.Parser, words: list[str]) -> Any:
    from simplicia.evaluate.probe import PRESETS, preset
    from simplicia.evaluate.transfer import TransferSettings

    kind = parser.peek(words, "--probe", "quick")
    if kind not in ("logistic", *PRESETS):
        raise unknown("probe", kind, ["logistic", *PRESETS])
    return TransferSettings() if kind == "logistic" else preset(kind)


@verb("robustness RUN", _chosen_probe, f"{SHARED} probe sets corrupt temperature epochs")
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
) -> None:
    """Measure a linear probe on other test sets and corrupted images.

    It is trained on clean images (of --data). The settings are those of simplicia probe, shown with the
    defaults of the chosen probe, or of quick; with --probe logistic they are those of simplicia transfer, and
    the default layer is codes if the run has them.
    """
    from simplicia.evaluate.probe import preset, preset_details, preset_for
    from simplicia.evaluate.robustness import robustness
    from simplicia.evaluate.transfer import default_layer

    how, run = settings.checked(), load_run(given.run, given.device)
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
    how_to = layer, temperature, how, given.network, given.quiet
    result = robustness(run, train, test, list(sets), corrupt, *how_to)
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
