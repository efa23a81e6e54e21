"""What ``simplicial`` costs beside a bare softmax, both ways: ``python benchmarks/sem.py [OUT.json]``."""

import json
import statistics
import sys
import time
from pathlib import Path

import torch

from simplicia import simplicial
from simplicia.provenance import commit, versions


def seconds(function, x, grad):
    x.grad = None
    start = time.perf_counter()
    function(x).backward(grad)
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main(out: str = "results/bench/sem.json") -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = []
    for batch, simplices, vertices in ((64, 5000, 13), (256, 5000, 13), (256, 512, 8), (32, 64, 1024)):
        x = torch.randn(batch, simplices * vertices, device=device, requires_grad=True)
        grad = torch.randn_like(x)
        variants = {
            "softmax": lambda x, v=vertices: torch.softmax(x.unflatten(-1, (-1, v)), -1).flatten(-2),
            "temperature 1": lambda x, v=vertices: simplicial(x, v),
            "temperature 0.5": lambda x, v=vertices: simplicial(x, v, 0.5),
        }
        times: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(21):  # taking turns, so that all meet the same machine
            for name, function in variants.items():
                times[name].append(seconds(function, x, grad))
        median = {name: statistics.median(t) for name, t in times.items()}
        row = {
            "batch": batch,
            "simplices": simplices,
            "vertices": vertices,
            "softmax_ms": 1e3 * median["softmax"],
        }
        row |= {f"ratio at {name}": t / median["softmax"] for name, t in median.items() if name != "softmax"}
        rows.append(row)
        print(row)
    result = {"rows": rows, "threads": torch.get_num_threads(), "commit": commit(), **versions(device)}
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
