"""Run every test marked ``gpu`` and write results/gpu-tests.json: ``make gpu-test`` on a machine with a GPU.

Fails if a test fails or if none ran. Set SIMPLICIA_COMMIT for a copy without its repository.
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from simplicia.files import atomic_write
from simplicia.provenance import commit, versions

ROOT = Path(__file__).parents[1]


class Outcomes:
    """A pytest plugin that counts outcomes and remembers what failed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(passed=0, failed=0, skipped=0)
        self.failures: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:  # in setup or teardown too
            self.failures.append(report.nodeid)
        if report.when == "call" or report.failed or report.skipped:
            self.counts[report.outcome] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.counts["failed"] += 1
            self.failures.append(report.nodeid)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=ROOT / "results/gpu-tests.json")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU is visible; run make gpu-test on a machine with one", file=sys.stderr)
        return 2
    marks = "mark.gpu", "mark.kernels"  # other files may import packages that this machine lacks
    files = [f for f in (ROOT / "tests").rglob("test_*.py") if any(mark in f.read_text() for mark in marks)]
    outcomes = Outcomes()
    started = time.perf_counter()
    options = ["-m", "gpu", "-p", "no:cacheprovider", "--durations=10"]
    status = pytest.main([*options, *map(str, sorted(files))], plugins=[outcomes])
    result = {
        "commit": commit(),
        **outcomes.counts,
        "failures": outcomes.failures,
        "seconds": round(time.perf_counter() - started, 1),
        **versions(torch.device("cuda")),
    }
    with atomic_write(arguments.json) as temporary:
        temporary.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return int(status != 0 or outcomes.counts["failed"] > 0 or not outcomes.counts["passed"])


if __name__ == "__main__":
    sys.exit(main())
