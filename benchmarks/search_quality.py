"""Duplicates and neighbours on photographs, with a run trained without labels, next to other ways.

    python benchmarks/search_quality.py RUN IMAGENETTE [--others PYTHON] [--out results/search]

IMAGENETTE has train/<class>/* and val/<class>/*; labels are used to measure only. ``--others`` names an
interpreter with faiss-cpu and ImageHash.

Duplicates: 200 images get a copy, in turns resized (to 50-80 %), recompressed (JPEG quality 20-60) or
cropped (to a random 90 % of each side). Every second training image and copies of 200 of them are the held-
out set on which each method's threshold is chosen: the one that
finds most copies and joins at most two originals to others. A copy is found if it is in a group
with its original; a group is false if it has images of several originals. Methods: looks and codes as in
``simplicia dedup``, codes alone, pHash.

Neighbours: of each validation image, how many of its 10 nearest have its class; and of 400 validation
images a strong crop (40-70 % of the area, mirrored half of the time, recompressed), how often its original
is first, and among the first 10. Codes of several numbers of simplices, and features of the same encoder:
flat, product-quantised and as bits.
"""

import argparse
import json
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
from simplicia.codes import Index, bits, duplicates, informative
from simplicia.codes.duplicates import DISTANCE
from simplicia.provenance import commit, versions
from simplicia.result import write_json

COPIES, CROPS, NEAR = 200, 400, 10
MOST_FALSE = 2  # originals that a threshold may join to others on the held-out images
PHASH = """
import sys
import imagehash, numpy as np
from PIL import Image
names = open(sys.argv[1], encoding="utf-8").read().splitlines()
np.save(sys.argv[2], np.stack([imagehash.phash(Image.open(name)).hash.ravel() for name in names]))
print(imagehash.__version__)
"""
NEIGHBOURS = """
import json, sys
import faiss, numpy as np
faiss.omp_set_num_threads(1)
data = np.load(sys.argv[1])
bank, crops, train = data["bank"], data["crops"], data["train"]
d, rows = bank.shape[1], []
center = train.mean(0)
def near(index, k=11):
    return index.search(bank, k)[1], index.search(crops, k)[1]
def put(name, size, index, learn=True):
    if learn:
        index.train(train)
    index.add(bank)
    same, instance = near(index)
    rows.append({"name": name, "bytes": size, "bank": same.tolist(), "crops": instance.tolist()})
put("features, flat", 4 * d, faiss.IndexFlatIP(d), False)
for m in (8, 16, 32, 64):
    if d % m == 0:
        put("features, PQ", m, faiss.IndexPQ(d, m, 8, faiss.METRIC_INNER_PRODUCT))
for n in (64, 128, 256, 512, 1024):
    put("features, LSH", n // 8, faiss.IndexLSH(d, n, True, True))
bank, crops = bank - center, crops - center
put("features, sign", d // 8, faiss.IndexLSH(d, d, False, False), False)
json.dump({"faiss": faiss.__version__, "rows": rows}, open(sys.argv[2], "w"))
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


def crop(file: Path, rng: np.random.Generator) -> Image.Image:
    image = Image.open(file).convert("RGB")
    side = rng.uniform(0.4, 0.7) ** 0.5
    width, height = round(side * image.width), round(side * image.height)
    left, top = (int(rng.integers(0, n + 1)) for n in (image.width - width, image.height - height))
    image = image.crop((left, top, left + width, top + height))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else image


def neighbour_scores(bank: np.ndarray, crops: np.ndarray, labels: np.ndarray, origins: np.ndarray) -> dict:
    """Scores from the nearest rows of bank images (which include themselves) and of crops."""
    same = []
    for i, row in enumerate(bank):
        others = row[row != i][:NEAR]
        same.append((labels[others] == labels[i]).mean())
    first = float((crops[:, 0] == origins).mean())
    ten = float((crops[:, :NEAR] == origins[:, None]).any(1).mean())
    scores = {"same_class_in_10": float(np.mean(same)), "instance_first": first, "instance_in_10": ten}
    return {name: 100 * value for name, value in scores.items()}


def nearest_rows(codes: np.ndarray, queries: np.ndarray, vertices: int, k: int, fast: int = 0) -> np.ndarray:
    """The k nearest rows of each query; ``fast`` images are proposed by the first 64 simplices."""
    planes, width = bits.pack(codes, vertices), bits.bits_of(vertices)
    words = 1 if fast else len(planes)
    packed = bits.pack(queries, vertices).T
    return np.stack([bits.nearest(planes, query, width, k, words, fast)[0] for query in packed])


def neighbours(run, root: Path, folder: Path, others: str | None) -> dict:
    """The curves: scores against bytes an image."""
    files = images_of(root / "val")
    names = sorted({file.parent.name for file in files})
    labels = np.array([names.index(file.parent.name) for file in files])
    rng = np.random.default_rng(3)
    origins = rng.permutation(len(files))[:CROPS]
    crops = [crop(files[i], rng) for i in origins]
    train = images_of(root / "train", 2)
    vertices = run.network().bottleneck.vertices
    codes, queries, seen = (run.encode(x, "codes").numpy().astype(np.uint8) for x in (files, crops, train))
    features = [run.encode(x, "encoder") for x in (files, crops, train)]
    rows = []
    for count in (64, 128, 256, 512):
        if count > codes.shape[1]:
            continue
        chosen = informative.choose(codes, vertices, count)
        size = bits.pack(codes[:1, chosen], vertices).nbytes
        near = [nearest_rows(codes[:, chosen], x[:, chosen], vertices, NEAR + 1) for x in (codes, queries)]
        about = {"name": "codes", "bytes": size, "simplices": count}
        rows.append(about | neighbour_scores(*near, labels, origins))
    random = np.random.default_rng(0).permutation(codes.shape[1])[:64]
    near = [nearest_rows(codes[:, random], x[:, random], vertices, NEAR + 1) for x in (codes, queries)]
    about = {"name": "codes, simplices drawn", "bytes": 32, "simplices": 64}
    rows.append(about | neighbour_scores(*near, labels, origins))
    chosen = informative.choose(codes, vertices, 256)
    everything = np.concatenate([codes, seen])[:, chosen]
    exact = nearest_rows(everything, queries[:, chosen], vertices, NEAR)
    fast = []
    for times in (10, 30, 100):
        found = nearest_rows(everything, queries[:, chosen], vertices, NEAR, times * NEAR)
        recall = np.mean([len(set(a) & set(b)) / NEAR for a, b in zip(exact, found, strict=True)])
        fast.append(
            {"candidates": times * NEAR, "images": len(everything), "recall_of_10": 100 * float(recall)}
        )
    result = {"images": len(files), "crops": CROPS, "curve": rows, "fast": fast}
    if others:
        data, out = folder / "features.npz", folder / "neighbours.json"
        unit = [torch.nn.functional.normalize(x, dim=1).numpy() for x in features]
        np.savez(data, bank=unit[0], crops=unit[1], train=unit[2])
        subprocess.run([others, "-c", NEIGHBOURS, str(data), str(out)], check=True)
        measured = json.loads(out.read_text())
        result["faiss"] = measured["faiss"]
        for row in measured["rows"]:
            near = np.array(row.pop("bank")), np.array(row.pop("crops"))
            rows.append(row | neighbour_scores(*near, labels, origins))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("imagenette", type=Path)
    parser.add_argument("--others", help="an interpreter with faiss-cpu and ImageHash")
    parser.add_argument("--only-duplicates", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results/search"))
    options = parser.parse_args()
    run, begun = simplicia.load(options.run, "cpu"), time.time()
    recipe, about = run.recipe, {"commit": commit(), **versions(torch.device("cpu"))}
    keys = "name", "method", "encoder", "image_size", "epochs", "seed"
    about["run"] = {key: getattr(recipe, key) for key in keys} | {
        "simplices": recipe.sem.simplices,
        "vertices": recipe.sem.vertices,
        "seconds": run.state["seconds"],
    }
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
        write_json(options.out / "duplicates.json", result | about)
        if not options.only_duplicates:
            near = neighbours(run, options.imagenette, folder, options.others)
            write_json(options.out / "neighbours.json", near | about)
    print(f"written to {options.out} in {time.time() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
