"""Classify the images of a folder, and write their classes as CSV or JSON."""

import csv
import io
import json
from contextlib import closing
from pathlib import Path
from typing import Any

from simplicia.classifier import Classifier
from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.files import write_file
from simplicia.progress import Progress

Row = dict[str, Any]
SUFFIXES = (".csv", ".json")


def predict(
    classifier: Classifier, images: Path, top: int = 5, quiet: bool = True
) -> tuple[ImageSet, list[Row]]:
    """The images of a folder, and for each its file and its ``top`` classes with their probabilities."""
    if top < 1:
        raise UserError(f"top is {top}; it must be at least 1")
    image_set, rows = datasets.read_all(images, classifier.about.decode_size), []
    with closing(Progress("classifying", len(image_set), 0, quiet)) as bar:
        for start in range(0, len(image_set), 256):
            probabilities = classifier.predict_proba(image_set.images[start : start + 256])
            for file, row in zip(image_set.files[start:], probabilities, strict=False):
                best = row.argsort(kind="stable")[::-1][:top]
                guesses = [{"class": str(classifier.classes_[i]), "probability": float(row[i])} for i in best]
                rows.append({"file": file, **guesses[0], "top": guesses})
            bar.update(len(rows))
    return image_set, rows


def check_output(path: Path) -> None:
    """Raise a UserError unless predictions can be written to a path."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"--out is {str(path)!r}; it must end in {' or '.join(SUFFIXES)}")


def write(path: Path, rows: list[Row]) -> Path:
    """Write predictions; a row of a CSV file has the further classes after the first."""
    if path.suffix == ".json":
        return write_file(path, (json.dumps(rows, indent=1) + "\n").encode(), "the predictions")
    text = io.StringIO()
    count = len(rows[0]["top"])
    names = [f"{name}_{i + 1}" if i else name for i in range(count) for name in ("class", "probability")]
    writer = csv.writer(text)
    writer.writerow(["file", *names])
    for row in rows:
        cells = (cell for guess in row["top"] for cell in (guess["class"], f"{guess['probability']:.6f}"))
        writer.writerow([row["file"], *cells])
    return write_file(path, text.getvalue().encode(errors="surrogateescape"), "the predictions")
