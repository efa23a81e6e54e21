"""simplicia demo: everything end to end on the built-in shapes, in minutes on two CPU cores."""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simplicia.cli.options import Parser, positive
from simplicia.cli.tables import accuracy, decimals, table
from simplicia.cli.verbs import verb
from simplicia.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from simplicia.data.datasets import ImageSet
    from simplicia.run import Run

ROWS, COLUMNS = 6, 10  # images in each half of the picture


@verb("demo", "pre-train with and without SEM on the built-in shapes, draw and measure, in a few minutes")
def demo(parser: Parser, arguments: list[str]) -> None:
    """Pre-train BYOL with and without SEM on the built-in shapes, draw its simplices, and measure both."""
    from simplicia.api import pretrain
    from simplicia.data import datasets
    from simplicia.evaluate.features import encoder_features
    from simplicia.provenance import commit, versions
    from simplicia.representation import represent
    from simplicia.sem import entropy
    from simplicia.train import recipes

    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="FOLDER", help="(default: demo)")
    parser.add_argument("--epochs", type=positive, help="epochs of pre-training (default: the recipe's)")
    parser.add("--device")
    args = parser.parse(arguments)
    folder, start = args.out, time.monotonic()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; --out takes a folder")
    runs: list[Any] = []
    for name in ("shapes-byol", "shapes-byol-sem"):
        epochs = args.epochs or recipes.get(name).epochs
        runs.append(pretrain(name, out=folder / name, resume=True, device=args.device, epochs=epochs))
    base, sem = runs
    train, test = datasets.load("shapes"), datasets.load("shapes", "test")
    picture = folder / "simplices.png"
    draw(sem, train, test, picture)
    print(f"\nimages that some vertices fire on, and nearest images by code: {picture}")
    probabilities = represent(sem.network(), encoder_features(sem, test.images), "sem")
    nats = entropy(probabilities, sem.recipe.sem.vertices).mean().item()
    top = math.log(sem.recipe.sem.vertices)
    print(f"mean entropy of a simplex: {nats:.2f} nats, between 0 (one-hot) and ln V = {top:.2f} (uniform)\n")
    rows = _measure(base, sem, train, test)
    table(
        "test accuracy on shapes, offline, in percent",
        ["pre-trained with", "measured on", "temperature", "linear probe", "kNN"],
        [
            [row["model"], row["layer"], row["temperature"], accuracy(row), decimals(row["knn_accuracy"])]
            for row in rows
        ],
    )
    seconds = time.monotonic() - start
    result: dict[str, Any] = {"entropy": nats, "ln_vertices": top, "probes": rows, "seconds": seconds}
    result |= {"epochs": sem.recipe.epochs, "seed": sem.recipe.seed, "commit": commit()}
    sem.write_result("demo", result | versions(sem.device), folder / "demo.json")
    chance = 100 / len(test.classes)
    print(f"\nguessing gives {chance:.1f} %; {seconds:.0f} s in all; see {folder / 'demo.json'}")


def _measure(base: "Run", sem: "Run", train: "ImageSet", test: "ImageSet") -> list[dict[str, Any]]:
    """Linear probes and nearest neighbours of both runs; the probes are also stored in the runs."""
    from simplicia.evaluate.knn import knn
    from simplicia.evaluate.probe import preset, probe

    rows = []
    for label, run, layer in (
        ("BYOL", base, "encoder"),
        ("BYOL + SEM", sem, "encoder"),
        ("BYOL + SEM", sem, "sem"),
    ):
        result = probe(run, train, test, layer, preset("demo"))
        run.write_result(f"probe-{layer}", result)
        for row in result["per_temperature"] or [result.to_json()]:
            near = knn(run, train, test, layer, row["temperature"])
            rows.append({**row, "model": label, "layer": layer, "knn_accuracy": near["accuracy"]})
    return rows


def draw(run: "Run", train: "ImageSet", test: "ImageSet", path: Path) -> None:
    """Draw the images on which some vertices fire most, and the nearest training images of some others."""
    import torch
    from PIL import Image, ImageDraw

    from simplicia.analyze.atlas import Atlas
    from simplicia.neighbours import overlap

    simplices, vertices = run.recipe.sem.simplices, run.recipe.sem.vertices
    probabilities, codes = run.encode(test.images, "sem"), run.encode(test.images, "codes")
    scale, label, gap = 2, 150, 4
    side = test.images.shape[-1] * scale + gap
    canvas = Image.new("RGB", (label + COLUMNS * side + gap, (2 * ROWS + 2) * side), "white")
    pen = ImageDraw.Draw(canvas)

    def write(row: int, text: str) -> None:
        pen.text((6, row * side + side // 2 - 6), text, fill="black")

    def paste(row: int, text: str, images: "Tensor") -> None:
        write(row, text)
        for i, image in enumerate(images):
            tile = Image.fromarray(image.permute(1, 2, 0).numpy())
            tile = tile.resize((side - gap, side - gap), Image.Resampling.NEAREST)
            canvas.paste(tile, (label + i * side, row * side))

    atlas = Atlas(simplices, vertices, len(test.classes))
    atlas.add(codes, probabilities, test.labels)
    write(0, "Test images on which a vertex fires most")
    for i, feature in enumerate(atlas.ranked(ROWS)[0], 1):
        strongest = probabilities[:, feature].topk(COLUMNS).indices
        text = f"simplex {feature // vertices}, vertex {feature % vertices}"
        paste(i, text, test.images[strongest])
    write(ROWS + 1, "A test image, and the training images with most codes in common")
    queries = torch.linspace(0, len(test) - 1, ROWS).long()
    shared = overlap(codes[queries], run.encode(train.images, "codes"))
    for i, (query, similarity) in enumerate(zip(queries, shared, strict=True), ROWS + 2):
        nearest = similarity.topk(COLUMNS - 1)
        images = torch.cat([test.images[query][None], train.images[nearest.indices]])
        paste(i, f"{100 * nearest.values.mean():.0f} % in common", images)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.save(path)
