"""SHA-256 of a checkpoint against writing and reading it: ``python3 benchmarks/digest.py [--json OUT.json]``.

CPU seconds, medians of three, on one gigabyte of random weights whose files stay in memory's cache.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from simplicia.provenance import commit, versions
from simplicia.result import write_json
from simplicia.train import checkpoint

REPEATS = 3


def seconds(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(REPEATS):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return round(statistics.median(times), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    tensors = {f"layer{i}": torch.randn(25_000_000) for i in range(10)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoint.save(folder, 1, tensors, {})
        newest = folder / "step-000000001"
        step = iter(range(2, 100))
        result = {
            "bytes": (newest / checkpoint.TENSORS).stat().st_size,
            "digest_seconds": seconds(lambda: checkpoint._digest(newest / checkpoint.TENSORS)),
            "read_seconds": seconds(lambda: checkpoint.read(newest)),
            "save_seconds": seconds(lambda: checkpoint.save(folder, next(step), tensors, {}, keep=100)),
            "repeats": REPEATS,
            "commit": commit(),
            **versions(torch.device("cpu")),
        }
    print(result)
    if options.json:
        write_json(options.json, result)


if __name__ == "__main__":
    main()
