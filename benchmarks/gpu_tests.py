"""Run every test marked ``gpu`` and write what came of it to results/gpu-tests.json: ``make gpu-test``.

Exits with pytest's status, and with 1 where no GPU test ran: a suite that skips itself must not look green.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from simplicia.provenance import commit, versions

ROOT = Path(__file__).parents[1]


class Counter:
    """A pytest plugin that counts outcomes and keeps the names of what failed."""

    def __init__(self) -> None:
        self.passed, self.skipped, self.failures = 0, 0, []  # type: int, int, list[str]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failures.append(report.nodeid)
        elif report.skipped:
            self.skipped += 1
        elif report.when == "call":
            self.passed += 1


def main(output: Path) -> int:
    counter, start = Counter(), time.monotonic()
    status = int(pytest.main(["-m", "gpu", "-q", "-p", "no:cacheprovider", str(ROOT / "tests")], [counter]))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    result = {
        "commit": commit(),
        "passed": counter.passed,
        "failed": len(counter.failures),
        "skipped": counter.skipped,
        "failures": counter.failures,
        "seconds": round(time.monotonic() - start, 1),
        **versions(device),
    }
    output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return status if counter.passed else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results" / "gpu-tests.json"))
