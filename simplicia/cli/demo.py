"""simplicia demo: everything end to end on the built-in shapes, in minutes on two CPU cores."""

import math
import shlex
import signal
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import simplicia
from simplicia.cli.tables import Column, accuracy, decimals, echo, table
from simplicia.cli.verbs import POSITIVE, Device, Words, verb
from simplicia.errors import Interrupted, UserError
from simplicia.files import atomic_write
from simplicia.result import over_seeds

if TYPE_CHECKING:
    from simplicia.analyze.atlas import Atlas
    from simplicia.data.datasets import ImageSet
    from simplicia.run import Run

ROWS, COLUMNS = 6, 10  # images in each half of the picture
METHOD, NAME, EPOCHS, SEEDS = (
    "vicreg",
    "VICReg",
    2,
    3,
)  # gain on held-out training images: results/demo/choice.json


@verb("demo")
def demo(
    words: Words,
    *,
    out: Annotated[Path, "folder to write"] = Path("demo"),
    epochs: Annotated[int, "epochs of pre-training", POSITIVE] = EPOCHS,
    seeds: Annotated[int, "trainings of each, with the seeds 0, 1, …", POSITIVE] = SEEDS,
    device: Device = "auto",
) -> None:
    """Pre-train with and without SEM on the built-in shapes, draw and measure, in a few minutes.

    After a stop, the same command continues.
    """
    again = f"continue with: simplicia {shlex.join(['demo', *words])}"
    try:
        _demo(out, epochs, seeds, device)
    except Interrupted as stop:
        raise Interrupted(f"{str(stop).split(';')[0]}; {again}", stop.signal) from None
    except KeyboardInterrupt as stop:  # between the trainings
        word, number = ("terminated", signal.SIGTERM) if stop.args else ("interrupted", signal.SIGINT)
        raise Interrupted(f"{word}; {again}", number) from None


def _demo(out: Path, epochs: int, seeds: int, device: str) -> None:
    from simplicia.analyze import analyze
    from simplicia.data import datasets
    from simplicia.provenance import commit, versions
    from simplicia.report import write

    start = time.monotonic()
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; --out takes a folder")
    alone, with_sem = (
        [
            simplicia.pretrain(
                name, out=out / f"{name}-seed-{seed}", resume=True, device=device, epochs=epochs, seed=seed
            )
            for seed in range(seeds)
        ]
        for name in (f"shapes-{METHOD}", f"shapes-{METHOD}-sem")
    )
    sem = with_sem[0]
    train, test = datasets.load("shapes"), datasets.load("shapes", "test")
    atlas = draw(sem, train, test, out / "simplices.png")
    rows = _measure(NAME, alone, "encoder", train, test)
    rows += _measure(f"{NAME} + SEM", with_sem, "sem", train, test)
    page = write([analyze(sem, images=len(test), fit_images=len(test))], out / "report.html")

    columns: list[Column] = ["simplex", "vertex", "images with it", "most common class", "of these %"]
    table("what some codes stand for, on test images", columns, _meanings(atlas, test.classes))
    columns = [("pre-trained with", "model"), ("measured on", "layer")]
    columns += [("linear probe", accuracy), ("kNN", lambda row: decimals(row["knn_accuracy"]))]
    print()
    spread = f", mean of {seeds} seeds ± their standard deviation" if seeds > 1 else ""
    table(f"test accuracy on shapes, offline, in percent{spread}", columns, rows)
    seconds, vertices = time.monotonic() - start, sem.recipe.sem.vertices
    nats, top = simplicia.entropy(sem.encode(test.images), vertices).mean().item(), math.log(vertices)
    result: dict[str, Any] = {"entropy": nats, "ln_vertices": top, "probes": rows, "seconds": seconds}
    result |= {"epochs": epochs, "seeds": list(range(seeds)), "commit": commit()}
    sem.write_result("demo", result | versions(sem.device), out / "demo.json")
    chance = 100 / len(test.classes)
    echo(f"Guessing gives {chance:.0f} %. {seconds:.0f} s in all.")
    print()
    echo(f"look: {page} and {out / 'simplices.png'}")
    echo(f"next: simplicia pretrain {METHOD}-sem --data PHOTOS --out runs/mine")
    echo("      simplicia index runs/mine PHOTOS --out photos.index, then search and dedup")


def _meanings(atlas: "Atlas", classes: tuple[str, ...]) -> list[list[Any]]:
    """For the most informative vertices: how many images they fire on, and the most common class."""
    rows: list[list[Any]] = []
    for feature in atlas.ranked(ROWS)[0]:
        simplex, vertex = divmod(feature, atlas.shape[1])
        counts = atlas.table[simplex, vertex]
        share = 100 * counts.max().item() / counts.sum().item()
        rows.append([simplex, vertex, int(counts.sum()), classes[int(counts.argmax())], share])
    return rows


def _measure(
    model: str, runs: "list[Run]", layer: str, train: "ImageSet", test: "ImageSet"
) -> list[dict[str, Any]]:
    """Linear probes, which are also stored in the runs, and nearest neighbours: means over the runs.

    Of simplices: at the temperature that held-out training images choose, and codes alone (temperature 0).
    """
    from simplicia.evaluate.knn import knn
    from simplicia.evaluate.probe import preset, probe

    measured: dict[
        str, list[tuple[float | None, float, float]]
    ] = {}  # temperature, probe and kNN of each run
    for run in runs:
        result = probe(run, train, test, layer, preset("demo"), quiet=False)
        run.write_result(f"probe-{layer}", result)
        tried = {
            row["temperature"]: row["accuracy"] for row in result["per_temperature"] or [result.to_json()]
        }
        for name, temperature in ((layer, result.temperature), ("codes", 0.0)):
            if temperature in tried:
                near = knn(run, train, test, layer, temperature)["accuracy"]
                measured.setdefault(name, []).append((temperature, tried[temperature], near))
    rows = []
    for name, values in measured.items():
        temperatures, probes, nearest = zip(*values, strict=True)
        over = over_seeds([round(accuracy * len(test) / 100) for accuracy in probes], len(test))
        rows.append({"model": model, "layer": name, "temperatures": temperatures, **over})
        rows[-1]["knn_accuracy"] = statistics.mean(nearest)
    return rows


def draw(run: "Run", train: "ImageSet", test: "ImageSet", path: Path) -> "Atlas":
    """Draw the images on which some vertices fire most, and the nearest training images of some others.

    Return how often each vertex fires on each class.
    """
    import torch
    from matplotlib.figure import Figure
    from torchvision.utils import make_grid

    from simplicia.analyze.atlas import Atlas
    from simplicia.neighbours import overlap

    vertices = run.recipe.sem.vertices
    probabilities, codes = run.encode(test.images, "sem"), run.encode(test.images, "codes")
    atlas = Atlas(run.recipe.sem.simplices, vertices, len(test.classes))
    atlas.add(codes, probabilities, test.labels)
    rows = []  # a label and its images
    for feature in atlas.ranked(ROWS)[0]:
        strongest = probabilities[:, feature].topk(COLUMNS).indices
        rows.append((f"simplex {feature // vertices}, vertex {feature % vertices}", test.images[strongest]))
    queries = torch.linspace(0, len(test) - 1, ROWS).long()
    shared = overlap(codes[queries], run.encode(train.images, "codes"))
    for query, similarity in zip(queries, shared, strict=True):
        nearest = similarity.topk(COLUMNS - 1)
        images = torch.cat([test.images[query][None], train.images[nearest.indices]])
        rows.append((f"{100 * nearest.values.mean():.0f} % in common", images))
    all_axes = Figure(figsize=(8, 10), layout="constrained").subplots(2 * ROWS)
    for axes, (label, images) in zip(all_axes, rows, strict=True):
        axes.imshow(make_grid(images, COLUMNS, pad_value=255).permute(1, 2, 0).numpy())
        axes.set(xticks=[], yticks=[], frame_on=False)
        axes.set_ylabel(label, rotation=0, ha="right", va="center")
    all_axes[0].set_title("Test images on which a vertex fires most")
    all_axes[ROWS].set_title("A test image, and the training images with most codes in common")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        all_axes[0].figure.savefig(temporary, dpi=100, format="png", bbox_inches="tight")
    return atlas
