"""The page at CIFAR-100's size: megabytes, seconds to open, milliseconds to react.

``python benchmarks/page.py [OUT.json] [PAGE.html]``: a bundle with made-up numbers of the full size (100
classes, 20 superclasses, 200 features x 12 images, graphs to K = 50, curves of 400 points), its page, and
that page in Chromium.
"""

import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from simplicia.analyze import report_data
from simplicia.analyze.class_coherence import coherence_curve, coherence_graph, describe_graph
from simplicia.analyze.study import write_thumbnails
from simplicia.data.datasets import ImageSet, load
from simplicia.errors import UserError
from simplicia.provenance import commit, versions
from simplicia.report.page import write
from simplicia.settings import as_dict
from simplicia.train import recipes

CLASSES, GROUPS, SIMPLICES, VERTICES, FEATURES, TOP = 100, 20, 5000, 13, 200, 12
GRAPHS = (1, 3, 5, 10, 20, 50)
OPEN = """() => {
  const e = performance.getEntriesByType("navigation")[0];
  return [e.domContentLoadedEventEnd, e.loadEventEnd];
}"""
# from an event to the second frame after it: what it changed has been painted by then
REACT = """async ([selector, type, count]) => {
  const spent = [];
  for (const target of [...document.querySelectorAll(selector)].slice(0, count)) {
    await new Promise(requestAnimationFrame);
    const start = performance.now();
    if (type === "input") target.value = "a";
    target.dispatchEvent(new PointerEvent(type));
    const handled = performance.now() - start;
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    spent.push([handled, performance.now() - start]);
  }
  return spent;
}"""


def bundle(folder: Path, pictures: ImageSet) -> dict:
    """An analysis as large as CIFAR-100's, of made-up numbers."""
    rng = np.random.default_rng(0)
    superclass = np.arange(CLASSES) % GROUPS
    graphs, curves = [], []
    for layer, label, width in (
        ("sem", "SEM", SIMPLICES * VERTICES),
        ("embedder", "embedder", 65_000),
        ("encoder", "encoder", 512),
    ):
        weight = torch.from_numpy(0.3 * rng.standard_normal((CLASSES, width))).float()
        for group in range(GROUPS):  # classes of one superclass have features in common
            shared = torch.from_numpy(rng.choice(width, min(width // 4, 60), replace=False))
            mine = torch.from_numpy(np.flatnonzero(superclass == group))
            weight[mine[:, None], shared] += torch.from_numpy(
                rng.exponential(1.0, (len(mine), len(shared)))
            ).float()
        coherence, isolated = coherence_curve(weight, torch.from_numpy(superclass), 50)
        row = {"layer": layer, "label": label, "temperature": 1.0, "features": width, "fit_images": 50_000}
        row |= {"train_accuracy": 80.0, "test_accuracy": 70.0, "fit_epochs": 20}
        curves.append(row | {"coherence": coherence, "isolated": isolated})
        for k in GRAPHS:
            edges, components, isolated = describe_graph(coherence_graph(weight, k))
            graph = {"layer": layer, "k": k, "file": "", "edges": edges, "components": components}
            graphs.append(graph | {"isolated": isolated})
    examples = [
        {
            "query": int(q),
            "layer": layer,
            "neighbours": rng.choice(5000, 10).tolist(),
            "similarity": rng.random(10).tolist(),
        }
        for q in rng.choice(5000, 12, replace=False)
        for layer in ("codes", "encoder")
    ]
    pictured = sorted(graphs[2]["edges"], key=lambda edge: -abs(edge[2]))
    chosen = list(dict.fromkeys([edge[1] for edge in pictured] + rng.choice(65_000, FEATURES).tolist()))[
        :FEATURES
    ]
    features = []
    for i, feature in enumerate(chosen):
        counts = sorted(rng.geometric(0.05, 8).tolist(), reverse=True)
        classes = [[int(c), n] for c, n in zip(rng.choice(CLASSES, 8, replace=False), counts, strict=True)]
        row = {"feature": feature, "simplex": feature // VERTICES, "vertex": feature % VERTICES}
        row |= {
            "score": 1 / (i + 2),
            "fired": sum(counts),
            "classes": classes,
            "superclasses": [[0, counts[0]]],
        }
        images, probabilities = rng.choice(5000, TOP, replace=False), np.sort(rng.random(TOP))[::-1]
        features.append(row | {"images": images.tolist(), "probabilities": probabilities.tolist()})
    wanted = {i for f in features for i in f["images"]} | {
        i for e in examples for i in [e["query"], *e["neighbours"]]
    }
    thumbnails = write_thumbnails(pictures, sorted(wanted), folder)
    steps = np.linspace(50, 195_000, 400).astype(int).tolist()
    keys = ("loss", "feature_std", "effective_rank", "entropy", "lr", "images_per_s")
    rows = [
        {"temperature": t, "accuracy": 70 + t, "standard_error": 0.4} for t in (0.0, 0.001, 0.01, 0.1, 1.0)
    ]
    probe = {
        "protocol": "offline linear probe",
        "layer": "sem",
        "dataset": "cifar100",
        "per_temperature": rows,
        **rows[-1],
    }
    ks = [1, 2, 5, 10, 20, 50]
    information = {"mean": 0.2, "largest": 0.4, "smallest": 0.1}
    run = {
        "name": "cifar100-byol-sem",
        "folder": "made-up",
        "recipe": as_dict(recipes.get("cifar100-byol-sem")),
    }
    run |= {"step": 195_000, "total_steps": 195_000, "finished": True, "seconds": 9000.0, "loss": 0.5}
    run |= {
        "layers": ["encoder", "embedder", "sem", "codes"],
        "simplices": SIMPLICES,
        "vertices": VERTICES,
        "temperature": 1.0,
    }
    counts = rng.integers(0, 10**6, 100).tolist()
    return {
        "run": run,
        "provenance": {**versions(torch.device("cpu")), "seconds": {}, "seconds_total": 60.0},
        "data": {"name": "cifar100", "split": "test", "images": 10_000, "fit_images": 50_000}
        | {"classes": [f"class of things {i}" for i in range(CLASSES)], "class_counts": [100] * CLASSES}
        | {"superclass": superclass.tolist(), "superclasses": [f"superclass {i}" for i in range(GROUPS)]},
        "log": {
            "train": {"step": steps} | {key: rng.random(400).tolist() for key in keys},
            "online": {"step": steps, "online_encoder_accuracy": rng.random(400).tolist()},
            "warnings": [],
        },
        "results": {"probe-sem": probe},
        "entropy": {"vertices": VERTICES, "ln2": math.log(2), "ln_vertices": math.log(VERTICES)}
        | {"edges": np.linspace(0, math.log(VERTICES), 101).tolist()}
        | {
            "curves": [
                {
                    "temperature": t,
                    "own": t == 1,
                    "images": 2000,
                    "count": sum(counts),
                    "mean": 1.0,
                    "counts": counts,
                }
                for t in (0.01, 0.1, 1.0)
            ]
        },
        "coherence": {"k": list(range(1, 51)), "curves": curves, "graphs": graphs},
        "spectrum": {
            "images": 10_000,
            "layers": [
                {
                    "layer": layer,
                    "features": 512,
                    "effective_rank": 100.0,
                    "count": 512,
                    "index": list(range(300)),
                }
                | {"values": np.sort(rng.random(300))[::-1].tolist()}
                for layer in ("encoder", "embedder", "sem")
            ],
        },
        "atlas": {"simplices": SIMPLICES, "vertices": VERTICES, "images": 10_000, "temperature": 1.0}
        | dict.fromkeys(
            ("dead_vertices", "duplicate_vertices", "constant_simplices", "duplicate_simplices"), 0
        )
        | {"class_entropy": math.log(CLASSES), "simplex_information": information, "ranked_by": "information"}
        | {"features": features},
        "retrieval": {
            "queries": 1000,
            "k": ks,
            "layers": [
                {"layer": layer, "by_class": rng.random(6).tolist(), "by_superclass": rng.random(6).tolist()}
                for layer in ("codes", "encoder")
            ],
            "chance": {"by_class": 0.01, "by_superclass": 0.05},
            "examples": examples,
        },
        "thumbnails": json.loads(json.dumps(thumbnails, default=report_data.Part.to_json)),
        "cost": {"parameters": 313_700_000, "activations": 797_000, "flops": 1.01e9},
        "notes": ["every number of this page is made up: it is for measuring the page"],
    }


def main(out: str = "results/bench/page.json", page: str | None = None) -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            pictures = load("cifar100", "test")
        except UserError:  # not on this machine: pictures that compress a little better
            pictures = load("shapes")
        found = bundle(folder, pictures)
        start = time.perf_counter()
        path = write([(report_data.Analysis.from_json(found), folder)], Path(page or folder / "page.html"))
        result = {"build_s": time.perf_counter() - start, "megabytes": path.stat().st_size / 1e6}
        result["pictures"] = {"of": pictures.name, "count": len(found["thumbnails"]["images"])}
        with sync_playwright() as driver:
            root = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=root)
            opened = []
            for _ in range(5):
                tab = browser.new_page(viewport={"width": 1280, "height": 900})
                tab.goto(path.resolve().as_uri())
                opened.append([t / 1000 for t in tab.evaluate(OPEN)])
                tab.wait_for_selector(".graph[data-still]")
                tab.close()
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            tab.goto(path.resolve().as_uri())
            result["dom_content_loaded_s"] = statistics.median(t[0] for t in opened)
            result["load_s"] = statistics.median(t[1] for t in opened)
            reactions = []
            for k in (5, 50):
                tab.select_option(".k", str(k))
                start = time.perf_counter()
                tab.wait_for_selector(".graph[data-still]", timeout=120_000)
                row = {"k": k, "nodes": tab.locator(".node").count(), "layout_s": time.perf_counter() - start}
                tab.locator(".graph").scroll_into_view_if_needed()
                for what, selector, kind in (
                    ("hover", ".node.class", "pointerenter"),
                    ("search", "input[type=search]", "input"),
                ):
                    spent = tab.evaluate(REACT, [selector, kind, 40])
                    row[f"{what}_handled_ms"] = statistics.median(s[0] for s in spent)
                    row[f"{what}_painted_ms"] = statistics.median(s[1] for s in spent)
                    row[f"{what}_slowest_painted_ms"] = max(s[1] for s in spent)
                reactions.append(row)
                print(row)
            result |= {"reactions": reactions, "chromium": browser.version, "cores": os.cpu_count()}
            browser.close()
    result |= {"commit": commit(), **versions(torch.device("cpu"))}
    print(result)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
