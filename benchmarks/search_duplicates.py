"""Planted duplicates among photographs, with a run trained without labels, beside pHash.

    python benchmarks/search_duplicates.py RUN IMAGENETTE [--others PYTHON]

IMAGENETTE has train/<class>/* and val/<class>/*; labels are not used. ``--others`` names an interpreter with
ImageHash. The result is results/search/duplicates.json, or what ``--json`` names.

200 images get a copy, in turns resized (to 50-80 %), recompressed (JPEG quality 20-60) or cropped (to a
random 90 % of each side). Every second training image and copies of 200 of them are the held-out set on which
each method's threshold is chosen: the one that finds most copies and joins at most two originals to others. A
copy is found if it is in a group with its original; a group is false if it has images of several originals.
Methods: looks and codes as in ``simplicia dedup``, codes alone, pHash.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import simplicia
from simplicia.codes import Index, bits, duplicates
from simplicia.codes.duplicates import DISTANCE
from simplicia.provenance import commit, versions
from simplicia.result import write_json

COPIES = 200
MOST_FALSE = 2  # originals that a threshold may join to others on the held-out images
PHASH = """
import sys
import imagehash, numpy as np
from PIL import Image
names = open(sys.argv[1], encoding="utf-8").read().splitlines()
np.save(sys.argv[2], np.stack([imagehash.phash(Image.open(name)).hash.ravel() for name in names]))
print(imagehash.__version__)
"""


def images_of(folder: Path, step: int = 1) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())[::step]


def plant(files: list[Path], folder: Path, seed: int) -> None:
    """Copy files to ``folder``, numbered, and changed copies of some to ``folder/planted``."""
    (folder / "planted").mkdir(parents=True)
    for i, file in enumerate(files):
        shutil.copy(file, folder / f"{i:05}{file.suffix}")
    rng = np.random.default_rng(seed)
    for n, i in enumerate(rng.permutation(len(files))[:COPIES].tolist()):
        image = Image.open(files[i]).convert("RGB")
        kind, size = ("resized", "recompressed", "cropped")[n % 3], image.size
        stem = folder / "planted" / f"{i:05}-{kind}"
        if kind == "resized":
            scale = rng.uniform(0.5, 0.8)
            image.resize((round(size[0] * scale), round(size[1] * scale))).save(f"{stem}.png")
        elif kind == "recompressed":
            image.save(f"{stem}.jpg", quality=int(rng.integers(20, 60)))
        else:
            width, height = round(0.9 * size[0]), round(0.9 * size[1])
            left, top = rng.integers(0, size[0] - width + 1), rng.integers(0, size[1] - height + 1)
            image.crop((left, top, left + width, top + height)).save(f"{stem}.jpg", quality=90)


def origin(name: str) -> str:
    return name.removeprefix("planted/")[:5]


def score(names: list[str], groups: Iterable[Iterable[int]]) -> dict[str, object]:
    """How many copies are found, by kind, and the false groups."""
    found = dict.fromkeys(("resized", "recompressed", "cropped"), 0)
    false, joined = [], 0
    for group in groups:
        members = [names[row] for row in group]
        originals = {name[:5] for name in members if not name.startswith("planted/")}
        for name in members:
            if name.startswith("planted/") and origin(name) in originals:
                found[name.partition("-")[2].partition(".")[0]] += 1
        if wrong := len(set(map(origin, members))) - 1:
            false.append(members[:10])
            joined += wrong  # one group of everything would be one false group only
    counts = {"found_by_kind": found, "false_groups": len(false), "wrongly_joined": joined}
    return {"found": sum(found.values()), **counts, "false": false[:10]}


def at_each_threshold(
    names: list[str], pairs: np.ndarray, distance: np.ndarray, steps: list[float]
) -> list[dict]:
    """The score of each threshold on distances of pairs (2, n)."""
    rows = []
    for most in steps:
        near = pairs[:, distance <= most]
        rows.append({"threshold": most, **score(names, duplicates._components(len(names), *near))})
    return rows


def choose(rows: list[dict]) -> float:
    """The threshold that finds most copies with few false groups; the smallest such."""
    allowed = [row for row in rows if row["wrongly_joined"] <= MOST_FALSE] or rows[:1]
    return max(allowed, key=lambda row: (row["found"], -row["threshold"]))["threshold"]


def near_pairs(codes: np.ndarray, vertices: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """All pairs (2, n) that differ in at most ``most`` simplices, or bits, and in how many."""
    planes, found = bits.pack(codes, vertices), []
    for i in range(len(codes)):
        differ = bits.differing(planes[:, i + 1 :], planes[:, i], bits.bits_of(vertices))
        j = np.flatnonzero(differ <= most)
        found.append(np.stack([np.full_like(j, i), j + i + 1, differ[j]]))
    table = np.concatenate(found, 1)
    return table[:2], table[2]


def find_duplicates(
    index: Index, folder: Path, others: str | None
) -> tuple[dict[str, list[dict]], dict[str, str]]:
    """Scores of every method at every threshold, and versions."""
    names, versions_used = index.names, {}
    first, second, _ = duplicates._proposed(index._table, True)
    looks = duplicates.look_distances(index._table.looks[first], index._table.looks[second])
    steps = [round(0.005 * i, 3) for i in range(1, 25)]
    rows = {"looks and codes": at_each_threshold(names, np.stack([first, second]), looks, steps)}
    pairs, differ = near_pairs(index.codes(), index.about.vertices, 100)
    rows["codes alone"] = at_each_threshold(names, pairs, differ, list(range(2, 101, 7)))
    if others:
        lists, hashes = folder / "files.txt", folder / "phash.npy"
        lists.write_text("\n".join(str(index.folder / name) for name in names), encoding="utf-8")
        output = subprocess.check_output([others, "-c", PHASH, str(lists), str(hashes)], text=True)
        versions_used["imagehash"] = output.strip()
        pairs, differ = near_pairs(np.load(hashes).astype(np.uint8), 2, 24)
        rows["pHash"] = at_each_threshold(names, pairs, differ, list(range(0, 25, 2)))
    return rows, versions_used


def describe(run: simplicia.run.Run) -> dict[str, object]:
    """What a result says about the run it was measured with, and about the versions."""
    recipe = run.recipe
    keys = "name", "method", "encoder", "freeze", "image_size", "epochs", "seed"
    about = {key: getattr(recipe, key) for key in keys} | {"steps": run.step, "seconds": run.state["seconds"]}
    about |= {"simplices": recipe.sem.simplices, "vertices": recipe.sem.vertices}
    about |= {"images": run.state["images"]}
    return {"run": about, "commit": commit(), **versions(torch.device("cpu"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("imagenette", type=Path)
    parser.add_argument("--others", help="an interpreter with ImageHash")
    parser.add_argument("--json", type=Path, default=Path("results/search/duplicates.json"))
    options = parser.parse_args()
    run, begun = simplicia.load(options.run, "cpu"), time.time()
    about = describe(run)
    with tempfile.TemporaryDirectory() as name:
        folder, result = Path(name), {"copies": COPIES, "methods": {}}
        measured = {}
        for part, seed in (("held-out", 7), ("test", 1)):
            split = "train" if part == "held-out" else "val"
            plant(images_of(options.imagenette / split, 2 if split == "train" else 1), folder / part, seed)
            start = time.perf_counter()
            index = Index.build(run, folder / part, folder / f"{part}.index")
            result |= {f"{split}_images": len(index), f"{split}_index_seconds": time.perf_counter() - start}
            measured[part], used = find_duplicates(index, folder, options.others)
            about |= used
        for method, rows in measured["held-out"].items():
            threshold = choose(rows)
            test = next(row for row in measured["test"][method] if row["threshold"] == threshold)
            held_out = next(row for row in rows if row["threshold"] == threshold)
            curve = [
                [row[key] for key in ("threshold", "found", "false_groups", "wrongly_joined")]
                for row in measured["test"][method]
            ]
            result["methods"][method] = {
                "threshold": threshold,
                "test": test,
                "held_out": held_out,
                "curve": curve,
            }
        groups = Index.open(folder / "test.index").duplicates()
        default = score(Index.open(folder / "test.index").names, [group.rows for group in groups])
        result["default"] = {"threshold": DISTANCE, "test": default}
        write_json(options.json, result | about)
    print(f"written to {options.json} in {time.time() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
