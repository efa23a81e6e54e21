"""The demo: the main job end to end on the built-in shapes, in minutes on two CPU cores."""

import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simplicia.api import pretrain
from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.evaluate.features import encoder_features
from simplicia.evaluate.knn import knn
from simplicia.evaluate.probe import preset, probe
from simplicia.neighbours import overlap
from simplicia.provenance import commit, versions
from simplicia.representation import represent
from simplicia.run import Run
from simplicia.sem import entropy
from simplicia.train import recipes


def demo(out: str | Path = "demo", device: str = "auto", epochs: int | None = None) -> dict[str, Any]:
    """Pre-train BYOL without and with SEM, then show a picture, the entropy, and a table of probes."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, soft_wrap=True)
    folder, start = Path(out), time.monotonic()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; --out takes a folder")
    runs = {}
    for name in ("shapes-byol", "shapes-byol-sem"):
        length = epochs or recipes.get(name).epochs
        run = pretrain(name, out=folder / name, resume=True, device=device, epochs=length)
        assert run is not None
        runs[name] = run
    base, sem = runs.values()
    train, test = datasets.load("shapes"), datasets.load("shapes", "test")

    picture = folder / "simplices.png"
    draw(sem, train, test, picture)
    console.print(f"\nwhat some simplices fire on, and nearest images by code: {picture}")

    features = encoder_features(sem, test.images)
    nats = entropy(represent(sem.network(), features, "sem"), sem.recipe.sem.vertices).mean().item()
    top = math.log(sem.recipe.sem.vertices)
    console.print(
        f"mean entropy of a simplex: {nats:.2f} nats, between 0 (one-hot) and ln V = {top:.2f} (uniform)\n"
    )

    table = Table(title="test accuracy on shapes, offline, in percent", title_justify="left", box=None)
    for column in ("pre-trained with", "measured on", "temperature", "linear probe", "kNN"):
        table.add_column(column)
    results: dict[str, Any] = {"entropy": nats, "ln_vertices": top, "probes": []}
    results |= {
        "epochs": sem.recipe.epochs,
        "seed": sem.recipe.seed,
        "commit": commit(),
        **versions(sem.device),
    }
    for label, run, layer in (
        ("BYOL", base, "encoder"),
        ("BYOL + SEM", sem, "encoder"),
        ("BYOL + SEM", sem, "sem"),
    ):
        found = probe(run, train, test, layer, preset("demo"))
        run.write_result(f"probe-{layer}", found)
        for row in found["per_temperature"] or [found.to_json()]:
            near = knn(run, train, test, layer, row["temperature"])
            tau = "-" if row["temperature"] is None else f"{row['temperature']:g}"
            probed = f"{row['accuracy']:.1f} ± {row['standard_error']:.1f}"
            table.add_row(label, layer, tau, probed, f"{near['accuracy']:.1f}")
            results["probes"].append(
                {**row, "model": label, "layer": layer, "knn_accuracy": near["accuracy"]}
            )
    console.print(table)
    results["seconds"] = time.monotonic() - start
    sem.write_result("demo", results, folder / "demo.json")
    chance, seconds = 100 / len(test.classes), results["seconds"]
    console.print(f"\nguessing gives {chance:.1f} %; {seconds:.0f} s in all; see {folder / 'demo.json'}")
    return results


def draw(run: Run, train: ImageSet, test: ImageSet, path: Path, rows: int = 6, columns: int = 10) -> None:
    """A picture: on which images some vertices fire most, and the nearest training images of some others."""
    from PIL import Image, ImageDraw

    p = run.encode(test.images, "sem").unflatten(-1, (run.recipe.sem.simplices, run.recipe.sem.vertices))
    scale, label, gap = 2, 150, 4
    side = test.images.shape[-1] * scale + gap
    height = (2 * rows + 2) * side
    canvas = Image.new("RGB", (label + columns * side + gap, height), "white")
    pen = ImageDraw.Draw(canvas)

    def row(top: int, words: str, images: Tensor) -> None:
        pen.text((6, top + side // 2 - 6), words, fill="black")
        for i, image in enumerate(images):
            tile = Image.fromarray(image.permute(1, 2, 0).numpy()).resize(
                (side - gap, side - gap), Image.Resampling.NEAREST
            )
            canvas.paste(tile, (label + i * side, top))

    pen.text((6, side // 2), "Test images on which a vertex fires most", fill="black")
    for i, (simplex, vertex) in enumerate(telling_vertices(p, rows)):
        best = p[:, simplex, vertex].topk(columns).indices
        row((i + 1) * side, f"simplex {simplex}, vertex {vertex}", test.images[best])
    middle = (rows + 1) * side
    pen.text(
        (6, middle + side // 2),
        "A test image, and the training images with most codes in common",
        fill="black",
    )
    queries = torch.linspace(0, len(test) - 1, rows).long()
    shared = overlap(p[queries].argmax(-1), run.encode(train.images, "codes"))
    for i, (query, similarity) in enumerate(zip(queries, shared, strict=True)):
        best = similarity.topk(columns - 1)
        images = torch.cat([test.images[query][None], train.images[best.indices]])
        row(middle + (i + 1) * side, f"{100 * best.values.mean():.0f} % in common", images)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.save(path)


def telling_vertices(p: Tensor, count: int) -> list[tuple[int, int]]:
    """Vertices (simplex, vertex) that fire on some images and not on others, each on images of its own."""
    spread = p.std(0) / p.mean(0).clamp_min(1e-6)  # (simplices, vertices): a selective unit has a long tail
    used = p.mean(0) > 0.2 / p.shape[-1]
    best = torch.where(used, spread, torch.zeros(())).max(1)
    chosen: list[tuple[int, int]] = []
    seen: set[int] = set()
    for simplex in best.values.argsort(descending=True).tolist():
        vertex = int(best.indices[simplex])
        images = set(p[:, simplex, vertex].topk(min(10, len(p))).indices.tolist())
        if len(images & seen) <= 2 and len(chosen) < count:  # something new to look at
            chosen.append((simplex, vertex))
            seen |= images
    return chosen
