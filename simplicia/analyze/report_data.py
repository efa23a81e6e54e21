"""All analyses of a run, as a small folder from which pages and figures are made.

``RUN/analysis/`` holds

* ``analysis.json``, described below. Numbers are finite or null. Names (of classes, files, runs) are as the
  data has them: whoever shows them must escape them.
* ``thumbnails-I.jpg``: sheets of square tiles, the images that ``analysis.json`` refers to.
* ``weights.safetensors``: for each linear classifier ``LAYER.index`` (classes, up to 50) int32 and
  ``LAYER.value``, its weights of largest magnitude, largest first.
* ``graph-LAYER-K.graphml``: the graphs of ``coherence.graphs``.

analysis.json (a "?" says: null where it does not apply, such as without SEM, labels or superclasses; an image
is named by its index in the split, as a string where it is a key; a feature is simplex * vertices + vertex)::

    format        1
    asked         what the analysis depends on: equal means nothing is to be done again
    run           name, folder, recipe {…}, step, total_steps, finished, seconds, loss, layers [name],
                  simplices?, vertices?, temperature?
    provenance    simplicia, torch, python, device, date; seconds {stage: seconds}; seconds_total
    data          name, split, images, fit_images, classes [name], class_counts? [images per class],
                  superclass? [index per class], superclasses [name]
    log           train {step [..], loss [..], effective_rank [..], …: one list per figure of log.jsonl, null
                  where a line lacks it}, online {step [..], online_encoder_accuracy [..], …},
                  warnings [{step, words}]; at most 400 points
    results       {file name without .json: its content}
    entropy?      vertices, ln2, ln_vertices, edges [bins + 1],
                  curves [{temperature, own, images, count, mean, counts [bins]}]
    coherence?    k [1..], curves [{layer, label, temperature?, features, train_accuracy, test_accuracy,
                  fit_images, fit_epochs, coherence? [per k], isolated? [per k: classes without neighbours]}],
                  graphs [{layer, k, file, edges [[class, feature, weight]],
                  components [{classes [..], features [..]}], isolated [class]}]
                  (coherence and isolated are null for data without superclasses)
    spectrum      images, layers [{layer, features, effective_rank, count, index [..], values [..]}]
                  values: singular values of the covariance, high to low: at most 300 of count, at index
    atlas?        simplices, vertices, images, temperature, dead_vertices, duplicate_vertices,
                  constant_simplices, duplicate_simplices, duplicate_groups [[simplex]], used_vertices
                  [simplices with 0..V used vertices], class_entropy?, simplex_information? {mean, largest,
                  smallest}, best_simplices [{simplex, information, fired [V]}], ranked_by ("information" |
                  "contrast"), features [{feature, simplex, vertex, score, fired, classes [[class, count]],
                  superclasses [[superclass, count]], images [index], probabilities [..]}]
    retrieval?    queries, k [..], layers [{layer, by_class [..], by_superclass? [..]}], chance {by_class,
                  by_superclass?}, examples [{query, layer, neighbours [index], similarity [..]}]
                  (by_class, by_superclass and chance are null without labels)
    thumbnails    tile (pixels), sheets [{file, width, height}], images {index: {sheet, x, y, label?, file?}}
    cost?         parameters, activations, flops
    notes         [sentence]
"""

import json
from pathlib import Path
from typing import Any

from simplicia.analyze import summary
from simplicia.analyze.study import Study
from simplicia.data import datasets
from simplicia.data.folder import fingerprint
from simplicia.errors import UserError
from simplicia.evaluate.make_result import data_suffix
from simplicia.files import atomic_write
from simplicia.run import Run

FORMAT = 1
FIT_ON_CPU = 5000  # training images: minutes rather than an hour for 65,000 features


def analyze(
    run: Run,
    data: str | None = None,
    data_dir: str | None = None,
    images: int = 10_000,
    fit_images: int | None = None,
    temperature: float | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    again: bool = False,
) -> tuple[dict[str, Any], Path]:
    """All analyses of a run's test images (of its training images where there are no others).

    ``images`` bounds how many are looked at, ``fit_images`` how many training images the linear classifiers
    see (by default all; on a CPU 5,000). Returns what ``analysis.json`` holds, and the
    folder. An analysis that is there is done again only if the checkpoint or what is asked for is another.
    """
    run = run.in_64_bits()
    of = datasets.identity(data or run.recipe.data)
    folder = Path(out) if out is not None else folder_of(run, data)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; --out takes a folder")
    fit_images = fit_images or (FIT_ON_CPU if run.device.type == "cpu" else 10**9)
    asked = {
        "step": run.step,
        "trained_seconds": run.state["seconds"],
        "data": of,
        "files": None,
        "images": images,
        "fit_images": fit_images,
        "temperature": temperature,
    }
    if of not in datasets.IN_MEMORY:
        place, before = datasets.root(of, data_dir or run.recipe.data_dir), read(folder) or {}
        # what is gone cannot have changed
        asked["files"] = before.get("asked", {}).get("files") if place is None else fingerprint(place)
    about = summary.of_run(run)
    found = None if again else read(folder, asked)
    if found is None:
        found = Study(run, folder, data, data_dir, images, fit_images, temperature, quiet).all()
    # what is cheap, and may have been measured since, is always as it is now
    found |= {"format": FORMAT, "asked": asked, **about}
    write(found, folder / "analysis.json")
    return found, folder


def folder_of(run: Run, data: str | None) -> Path:
    """Where a run's analysis lies: "analysis", and of other images than its own "analysis-NAME"."""
    of = datasets.identity(data or run.recipe.data)
    words = data_suffix(run, of, of if of in datasets.names() else Path(of).name)
    return run.path / "-".join(["analysis", *words])


def read(folder: Path, asked: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """The analysis in a folder; None if there is none, or one of something else than ``asked``."""
    try:
        found = json.loads((folder / "analysis.json").read_text())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        return None
    before = found.get("asked")
    known = {"files": None, **before} if isinstance(before, dict) else None  # older ones have no files
    return found if asked is None or known == asked else None


def write(found: dict[str, Any], path: Path) -> None:
    """JSON in which a number that is not finite is null: browsers read nothing else."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(summary.finite(found), allow_nan=False, separators=(",", ":")) + "\n"
        with atomic_write(path) as temporary:
            temporary.write_text(text)
    except OSError as error:
        raise UserError(f"the analysis cannot be written to {path}: {error.strerror}") from error
