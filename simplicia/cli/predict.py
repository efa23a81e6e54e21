"""simplicia predict: classify images with a classifier that probe, finetune or semi saved."""

from pathlib import Path
from typing import Annotated

from simplicia.cli.tables import Column, echo, table
from simplicia.cli.verbs import POSITIVE, Device, OutputFile, Quiet, verb
from simplicia.progress import plural

SHOWN = 20  # rows of the table


@verb("predict CLASSIFIER IMAGES")
def predict(
    classifier: Annotated[str, "file that probe, finetune or semi saved, or a run with one"],
    images: Annotated[str, "folder of images, or an image"],
    *,
    out: Annotated[OutputFile | None, "file to write, .csv or .json (default: none)"] = None,
    top: Annotated[int, "classes to write for each image", POSITIVE] = 5,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Classify images: simplicia predict runs/a/results/probe-sem.safetensors photos/ --out predictions.csv.

    Each row has an image's file, its class and probability, and the next most probable classes.
    """
    from simplicia.evaluate.features import report_skipped
    from simplicia.evaluate.predict import check_output, write
    from simplicia.evaluate.predict import predict as predict_folder
    from simplicia.run import load_classifier

    if out is not None:
        check_output(out)
    loaded = load_classifier(classifier, device)
    image_set, rows = predict_folder(loaded, Path(images), top, quiet)
    columns: list[Column] = ["file", "class", ("probability", lambda row: f"{row['probability']:.3f}")]
    more = f", the first {SHOWN}" if len(rows) > SHOWN else ""
    how = f"{loaded.about.kind} on {loaded.about.layer}"
    table(f"{plural(len(rows), 'image')} by {how}{more}", columns, rows[:SHOWN])
    report_skipped(images, image_set.skipped)
    if out is not None:
        echo(f"written to {write(out, rows)}")
