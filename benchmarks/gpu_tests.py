"""Run the tests marked ``gpu`` in concurrent processes and write results/gpu-tests.json: ``make gpu-test``.

Most of the time goes to compilers that keep one core busy, so each process (shard) runs every n-th test.
Fails if a test fails, a process crashes or no test passes. Set SIMPLICIA_COMMIT for a copy without its
repository.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))


class Shard:
    """A pytest plugin that runs every n-th of the selected tests and writes the outcomes after each."""

    def __init__(self, index: int, count: int, json_path: Path) -> None:
        self.index, self.count, self.json_path = index, count, json_path
        self.outcomes: dict[str, Any] = {"passed": 0, "skipped": 0, "failures": [], "left": []}

    @pytest.hookimpl(trylast=True)  # after -m selects
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = items[self.index :: self.count]
        self.outcomes["left"] = [item.nodeid for item in items]
        self.write()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.outcomes["left"].remove(nodeid)
        self.write()

    def write(self) -> None:
        new = self.json_path.with_suffix(".new")  # it may be killed
        new.write_text(json.dumps(self.outcomes))
        new.replace(self.json_path)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:  # in setup or teardown too
            self.outcomes["failures"].append(report.nodeid)
            print(f"\n{report.nodeid}\n{report.longreprtext}", flush=True)  # pytest waits for the last test
        elif report.skipped or report.when == "call":
            self.outcomes[report.outcome] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.outcomes["failures"].append(report.nodeid)


def run_shard(index: int, count: int, mark: str, files: list[str], json_path: Path) -> int:
    """Run the tests of one shard in this process; writes its outcomes."""
    shard = Shard(index, count, json_path)
    status = pytest.main(["-m", mark, "-p", "no:cacheprovider", "--durations=10", *files], plugins=[shard])
    shard.outcomes["left"] = []  # none runs after an import error
    shard.write()
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else int(status)  # fewer tests than shards


def run_shards(count: int, mark: str, files: list[str], minutes: float) -> dict[str, Any]:
    """Run all shards at once; returns the sum of their outcomes. After ``minutes`` they are killed."""
    deadline = time.monotonic() + 60 * minutes
    threads = str(max(1, (os.cpu_count() or 1) // count))
    environment = os.environ | {
        "OMP_NUM_THREADS": threads,
        "TORCHINDUCTOR_COMPILE_THREADS": threads,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    passed, skipped, failures = 0, 0, set()
    with tempfile.TemporaryDirectory() as name:
        shards = []
        for i in range(count):
            log, outcomes = Path(name, f"{i}.log"), Path(name, f"{i}.json")
            command = [sys.executable, __file__, "--shards", str(count), "--shard", str(i), "--mark", mark]
            with log.open("w") as output:
                process = subprocess.Popen(
                    [*command, "--json", str(outcomes), *files], stdout=output, stderr=output, env=environment
                )
            shards.append((process, log, outcomes))
        for i, (process, log, outcomes) in enumerate(shards):
            try:
                status = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                status = None
            result = json.loads(outcomes.read_text()) if outcomes.exists() else {}
            passed, skipped = passed + result.get("passed", 0), skipped + result.get("skipped", 0)
            failures.update(result.get("failures", ()))  # a file that cannot be imported fails in all shards
            left = result.get("left", [])
            at = f" in {left[0]}, with {len(left) - 1} more to run" if left else ""
            if status is None:
                failures.add(f"shard {i} was not done after {minutes:g} minutes{at}")
            elif status and (left or not result.get("failures")):
                failures.add(f"shard {i} ended with status {status}{at}")
            print(f"---- shard {i}: exit status {status}\n{log.read_text()}", flush=True)
    return {"passed": passed, "failed": len(failures), "skipped": skipped, "failures": sorted(failures)}


def gpu_test_files() -> list[str]:
    """The files with tests for a GPU: others may import packages that this machine lacks."""
    marks = "mark.gpu", "mark.kernels"
    files = (ROOT / "tests").rglob("test_*.py")
    return sorted(str(f) for f in files if any(mark in f.read_text() for mark in marks))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="test files (default: all with tests for a GPU)")
    parser.add_argument("--json", type=Path, default=ROOT / "results/gpu-tests.json")
    parser.add_argument("--shards", type=int, default=8, help="concurrent processes")
    parser.add_argument("--minutes", type=float, default=10.0, help="then processes are killed")
    parser.add_argument("--mark", default="gpu", help="run the tests that match this expression of marks")
    parser.add_argument("--shard", type=int, help=argparse.SUPPRESS)  # run only this one, in this process
    options = parser.parse_args(arguments)
    if options.shard is not None:
        return run_shard(options.shard, options.shards, options.mark, options.files, options.json)

    import torch  # not in a shard, where pytest imports it with the tests

    from simplicia.files import atomic_write
    from simplicia.provenance import commit, versions

    has_gpu = torch.cuda.is_available()
    if options.mark == "gpu" and not has_gpu:
        print("no GPU is visible; run make gpu-test on a machine with one", file=sys.stderr)
        return 2
    started = time.perf_counter()
    files = options.files or gpu_test_files()
    outcomes = run_shards(options.shards, options.mark, files, options.minutes)
    result = {
        "commit": commit(),
        **outcomes,
        "seconds": round(time.perf_counter() - started, 1),
        **versions(torch.device("cuda" if has_gpu else "cpu")),
    }
    with atomic_write(options.json) as temporary:
        temporary.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return int(outcomes["failed"] > 0 or not outcomes["passed"])


if __name__ == "__main__":
    sys.exit(main())
