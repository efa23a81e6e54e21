"""Recall of nearest neighbours against bytes an image: codes beside FAISS's ways of keeping features.

    python benchmarks/search_recall.py SET RUN DATA [--data-dir DIR] [--others PYTHON]
    python benchmarks/search_recall.py             # write figures and docs/find.md's tables again

SET names the measurement in results/search/neighbours.json, where others stay; DATA is a folder with train
and val, or a data set such as cifar100 or flowers102. Labels are used to measure only. ``--others`` names an
interpreter with faiss-cpu.

Of up to 4,000 test images: how many of the 10 nearest of each have its class. Of crops of 400 of them (40-70
% of the area, mirrored half of the time): how often the original is first, and among the first 10. Codes of
several numbers of simplices, and features of the same encoder: flat, product-quantised and as bits. Those are
trained on up to 5,000 training images.
"""

import argparse
import json
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from search_duplicates import describe

import simplicia
from simplicia.codes import bits, informative
from simplicia.data import datasets
from simplicia.report.plots import Axis, Chart, Series, save
from simplicia.result import write_json

ROOT = Path(__file__).resolve().parents[1]
RESULT, PAGE = ROOT / "results/search/neighbours.json", ROOT / "docs/find.md"
BANK, CROPS, TRAIN, NEAR = 4000, 400, 5000, 10
SCORES = {"class": "same_class_in_10", "instance": "instance_in_10"}
TITLES = {"class": "10 nearest of the same class, %", "instance": "crops whose original is in 10, %"}
FAISS = """
import json, sys
import faiss, numpy as np
faiss.omp_set_num_threads(1)
data = np.load(sys.argv[1])
bank, crops, train = data["bank"], data["crops"], data["train"]
d, rows = bank.shape[1], []
def put(name, size, index, learn=True):
    if learn:
        index.train(train)
    index.add(bank)
    near = [index.search(queries, 11)[1].tolist() for queries in (bank, crops)]
    rows.append({"name": name, "bytes": size, "near": near})
put("features, flat", 4 * d, faiss.IndexFlatIP(d), False)
for m in (8, 16, 32, 64):
    if d % m == 0:
        put("features, PQ", m, faiss.IndexPQ(d, m, 8, faiss.METRIC_INNER_PRODUCT))
for n in (64, 128, 256, 512, 1024):
    put("features, LSH", n // 8, faiss.IndexLSH(d, n, True, True))
bank, crops = bank - train.mean(0), crops - train.mean(0)
put("features, sign", d // 8, faiss.IndexLSH(d, d, False, False), False)
json.dump({"faiss": faiss.__version__, "rows": rows}, open(sys.argv[2], "w"))
"""


def some(images: datasets.ImageSet, count: int) -> datasets.ImageSet:
    """Up to ``count`` images, drawn."""
    rows = np.sort(np.random.default_rng(1).permutation(len(images))[:count])
    return datasets.part(images, torch.from_numpy(rows))


def crop(pixels: torch.Tensor, rng: np.random.Generator) -> Image.Image:
    """A random crop of an image, mirrored half of the time."""
    image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    side = round(rng.uniform(0.4, 0.7) ** 0.5 * image.width)
    left, top = rng.integers(0, image.width - side + 1, 2).tolist()
    image = image.crop((left, top, left + side, top + side))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else image


def nearest(codes: np.ndarray, queries: np.ndarray, vertices: int, proposed: int = 0) -> np.ndarray:
    """The 11 nearest rows of each query; ``proposed`` rows are compared in more than 64 simplices."""
    planes, width = bits.pack(codes, vertices), bits.bits_of(vertices)
    words = 1 if proposed else len(planes)
    packed = bits.pack(queries, vertices).T
    return np.stack([bits.nearest(planes, query, width, NEAR + 1, words, proposed)[0] for query in packed])


def scores(bank: np.ndarray, crops: np.ndarray, labels: np.ndarray, origins: np.ndarray) -> dict[str, float]:
    """From the nearest rows of bank images, which include themselves, and of crops; in percent."""
    same = [(labels[row[row != i][:NEAR]] == labels[i]).mean() for i, row in enumerate(bank)]
    found = {"same_class_in_10": np.mean(same), "instance_first": (crops[:, 0] == origins).mean()}
    found["instance_in_10"] = (crops[:, :NEAR] == origins[:, None]).any(1).mean()
    return {name: 100 * float(value) for name, value in found.items()}


def measure(run: simplicia.run.Run, data: str, data_dir: str | None, others: str | None) -> dict[str, object]:
    """The scores of every representation."""
    size = datasets.decoded_size(data, 2 * run.recipe.actual_decode_size)  # crops keep details
    train, test = (datasets.load(data, split, data_dir, size=size) for split in ("train", "test"))
    train, test = some(train, TRAIN), some(test, BANK)
    labels, rng = test.labels.numpy(), np.random.default_rng(3)
    origins = rng.permutation(len(test))[:CROPS]
    crops = [crop(test.images[i], rng) for i in origins]
    images = test.images, crops, train.images
    bank, queries, seen = (run.encode(x, "codes").numpy().astype(np.uint8) for x in images)
    vertices, total = run.sem.vertices, run.sem.simplices
    rows = []

    def put(name: str, chosen: np.ndarray) -> None:
        near = [nearest(bank[:, chosen], x[:, chosen], vertices) for x in (bank, queries)]
        used = bits.pack(bank[:1, chosen], vertices).nbytes
        rows.append({"name": name, "bytes": used, "simplices": len(chosen), **scores(*near, labels, origins)})

    for count in (64, 128, 256, 512):
        if count <= total:
            put("codes", informative.choose(bank, vertices, count))
    put("codes, simplices drawn", np.random.default_rng(0).permutation(total)[:64])
    chosen = informative.choose(bank, vertices, 256)
    everything, asked = np.concatenate([bank, seen])[:, chosen], queries[:, chosen]
    exact, fast = nearest(everything, asked, vertices)[:, :NEAR], []
    for proposed in (100, 300, 1000):
        found = nearest(everything, asked, vertices, proposed)[:, :NEAR]
        recall = np.mean([len(set(a) & set(b)) / NEAR for a, b in zip(exact, found, strict=True)])
        about = {"candidates": proposed, "images": len(everything), "recall_of_10": 100 * float(recall)}
        fast.append(about)
    result = {"images": len(test), "crops": CROPS, "curve": rows, "fast": fast, **describe(run)}
    if others:
        with tempfile.TemporaryDirectory() as name:
            given, out = Path(name) / "features.npz", Path(name) / "found.json"
            features = [
                torch.nn.functional.normalize(run.encode(x, "encoder"), dim=1).numpy() for x in images
            ]
            np.savez(given, bank=features[0], crops=features[1], train=features[2])
            subprocess.run([others, "-c", FAISS, str(given), str(out)], check=True)
            found = json.loads(out.read_text())
        result["faiss"] = found["faiss"]
        for row in found["rows"]:
            near = [np.array(x) for x in row.pop("near")]
            rows.append(row | scores(*near, labels, origins))
    return result


def tables(measured: dict[str, dict]) -> str:
    """The tables of the page: the runs, recall of codes and features, and recall of --fast."""
    lines = ["| images | encoder | simplices | trained for |", "|---|---|---|---|"]
    for data, result in measured.items():
        run = result["run"]
        frozen = ", frozen" if run.get("freeze", "none") != "none" else ""
        encoder = f"{run['encoder']}, {run['image_size']} pixels{frozen}"
        simplices = f"{run['simplices']} of {run['vertices']} vertices"
        epochs = f"{run['epochs']} epochs" + (f" of {run['images']:,} images" if "images" in run else "")
        lines.append(f"| {data}, {result['images']:,} | {encoder} | {simplices} | {epochs} |")
    head = ["representation", "bytes an image", *measured]
    lines += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    scores = {data: {(r["name"], r["bytes"]): r for r in m["curve"]} for data, m in measured.items()}
    for name, size in dict.fromkeys(key for rows in scores.values() for key in rows):
        found = [rows.get((name, size)) for rows in scores.values()]
        cells = [" / ".join(f"{row[key]:.1f}" for key in SCORES.values()) if row else "-" for row in found]
        lines.append(f"| {' | '.join([name, str(size), *cells])} |")
    head = [
        "candidates of `--fast`",
        *(f"{data}, {m['fast'][0]['images']:,}" for data, m in measured.items()),
    ]
    lines += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for rows in zip(*(m["fast"] for m in measured.values()), strict=True):
        recall = " | ".join(f"{row['recall_of_10']:.1f}" for row in rows)
        lines.append(f"| {rows[0]['candidates']:,} | {recall} |")
    return "\n".join(lines)


def draw(measured: dict[str, dict], folder: Path) -> None:
    """One figure for each score, with a panel for each data set."""
    for kind, key in SCORES.items():
        charts = []
        for data, result in measured.items():
            curves: dict[str, list[dict]] = {}
            for row in result["curve"]:
                curves.setdefault(row["name"], []).append(row)
            series = [
                Series(
                    "" if charts else name,
                    [r["bytes"] for r in rows],
                    [r[key] for r in rows],
                    i,
                    markers=True,
                )
                for i, (name, rows) in enumerate(curves.items())
            ]
            y = Axis(TITLES[kind] if not charts else "")
            charts.append(Chart(data, Axis("bytes an image", log=True), y, series, size=(3.6, 3.2)))
        save(charts, folder / f"recall-{kind}.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("set", nargs="?")
    parser.add_argument("run", nargs="?")
    parser.add_argument("data", nargs="?")
    parser.add_argument("--data-dir")
    parser.add_argument("--others", help="an interpreter with faiss-cpu")
    options = parser.parse_args()
    measured = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    if options.data:
        run = simplicia.load(options.run, "cpu")
        measured[options.set] = measure(run, options.data, options.data_dir, options.others)
        write_json(RESULT, measured)
    draw(measured, PAGE.parent)
    page = PAGE.read_text(encoding="utf-8")
    between = re.compile(r"(?<=<!-- recall -->\n).*?(?=\n<!-- end of recall -->)", re.DOTALL)
    PAGE.write_text(between.sub(lambda _: tables(measured), page), encoding="utf-8")


if __name__ == "__main__":
    main()
