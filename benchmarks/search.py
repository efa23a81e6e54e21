"""Search and deduplicate drawn codes, next to FAISS's flat binary index of as many bytes.

    python benchmarks/search.py [--faiss PYTHON] [--json results/bench/search.json]

The codes are drawn, 256 simplices of 13 vertices, and time does not depend on what they mean;
`search_recall.py` measures recall. ``--faiss`` names an interpreter that has faiss-cpu; both sides then
search in turn, one query at a time, each with two threads at most.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np
import torch

from simplicia.codes import Index, store
from simplicia.codes.store import About, Model, Table
from simplicia.provenance import commit, versions
from simplicia.result import write_json

SIMPLICES, VERTICES, K = 256, 13, 20
FAISS = """
import json, sys, time
import faiss, numpy as np
faiss.omp_set_num_threads(2)
rows, queries = np.load(sys.argv[1], mmap_mode="r"), np.load(sys.argv[2])
index = faiss.IndexBinaryFlat(8 * rows.shape[1])
index.add(np.ascontiguousarray(rows))
print("ready", faiss.__version__, flush=True)
for line in sys.stdin:
    i = int(line)
    start = time.perf_counter()
    if i < 0:
        index.search(queries, 20)
    else:
        index.search(queries[i : i + 1], 20)
    print(time.perf_counter() - start, flush=True)
"""


def draw(path: Path, count: int) -> Index:
    """Write an index of drawn codes and looks."""
    rng = np.random.default_rng(0)
    model = Model("", "drawn", 32, "none")
    about = About(store.VERSION, model, ".", SIMPLICES, VERTICES, simplices=list(range(SIMPLICES)))
    parts = []
    for start in range(0, count, 50_000):
        n = min(50_000, count - start)
        # of every 50, a pair differs in half of the simplices, and looks correlate by about a half
        group = np.arange(n) // 50
        own, shared = (rng.integers(0, VERTICES, (m, SIMPLICES), np.uint8) for m in (n, n // 50 + 1))
        codes = np.where(rng.random((n, SIMPLICES), np.float32) < 0.3, own, shared[group])
        own, shared = (rng.integers(0, 128, (m, store.SIDE**2), np.uint8) for m in (n, n // 50 + 1))
        looks = own + shared[group]
        content = rng.integers(0, 256, (n, 16), np.uint8)
        arrays = {"stamps": np.zeros((n, 2), np.int64), "content": content}
        names = [f"{i:07}.jpg" for i in range(start, start + n)]
        parts.append(Table.of(about, names, codes, looks=looks, **arrays))
    store.write(path, about, [(part, np.arange(len(part)), None) for part in parts])
    return Index.open(path)


def milliseconds(seconds: list[float]) -> dict[str, float]:
    return {"median_ms": 1e3 * float(np.median(seconds)), "most_ms": 1e3 * max(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--dedup-images", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--faiss", help="an interpreter with faiss-cpu")
    parser.add_argument("--json", default="results/bench/search.json")
    options = parser.parse_args()
    measured = commit()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        index = draw(folder / "drawn.index", options.images)
        codes = index.codes(slice(0, options.queries))
        codes[:, ::3] = (codes[:, ::3] + 1) % VERTICES  # queries that no image equals
        result = {
            "images": options.images,
            "simplices": SIMPLICES,
            "vertices": VERTICES,
            "k": K,
            "queries": options.queries,
            "bytes_of_codes": index._table.codes.nbytes,
            "bytes_of_the_file": index.path.stat().st_size,
        }
        times: dict[str, list[float]] = {"exact": [], "fast": [], "faiss": []}
        process = None
        if options.faiss:
            rows = np.ascontiguousarray(index._table.codes.T).view(np.uint8)
            np.save(folder / "rows.npy", rows)
            np.save(folder / "queries.npy", rows[: options.queries])
            del rows
            command = [options.faiss, "-c", FAISS, str(folder / "rows.npy"), str(folder / "queries.npy")]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            result["faiss_version"] = process.stdout.readline().split()[1]
        same = 0
        index.search(codes[:1], K)  # the first one reads the file
        for i in range(options.queries):  # in turn: other work on the machine slows both sides down
            begun = time.perf_counter()
            exact = index.search(codes[i : i + 1], K)
            times["exact"].append(time.perf_counter() - begun)
            begun = time.perf_counter()
            fast = index.search(codes[i : i + 1], K, exact=False)
            times["fast"].append(time.perf_counter() - begun)
            same += int(exact.indices[0, 0] == fast.indices[0, 0] == i)
            if process is not None:
                process.stdin.write(f"{i}\n")
                process.stdin.flush()
                times["faiss"].append(float(process.stdout.readline()))
        result["found_first_by_both"] = same
        result |= {name: milliseconds(seconds) for name, seconds in times.items() if seconds}
        if process is not None:
            process.stdin.write("-1\n")
            process.stdin.flush()
            result["faiss"]["all_queries_at_once_ms_a_query"] = (
                1e3 * float(process.stdout.readline()) / options.queries
            )
            process.stdin.close()
            process.wait()
        del index
        small = draw(folder / "small.index", options.dedup_images)
        begun, busy = time.perf_counter(), time.process_time()
        groups = small.duplicates()
        result["dedup"] = {
            "images": options.dedup_images,
            "seconds": time.perf_counter() - begun,
            "cpu_seconds": time.process_time() - busy,
            "groups": len(groups),
        }
    result["cores"], result["load_average"] = os.cpu_count(), os.getloadavg()[0]
    result |= {**versions(torch.device("cpu")), "numpy": np.__version__, "commit": measured}
    write_json(Path(options.json), result)
    print(json.dumps(result, indent=1), file=sys.stdout)


if __name__ == "__main__":
    main()
