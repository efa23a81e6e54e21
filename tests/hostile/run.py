"""Fuzz and kill: ``make hostile``, which writes results/hostile.json.

python tests/hostile/run.py --fuzz 10000 --kills 300 --json results/hostile.json
python tests/hostile/run.py --seed 4711          # repeat one fuzzed call, and show what it printed
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import fuzz
import kills
import torch

from simplicia.provenance import commit, versions
from simplicia.result import write_json


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fuzz", type=int, default=0, help="number of fuzzed calls")
    parser.add_argument("--first", type=int, default=0, help="seed of the first call, and of the kills")
    parser.add_argument("--kills", type=int, default=0, help="number of killed processes")
    parser.add_argument("--seed", type=int, help="repeat the fuzzed call of this seed")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--world", type=Path, help=argparse.SUPPRESS)  # of a process that does a share
    options = parser.parse_args()
    if options.world is not None:
        share(fuzz.World(options.world), options.fuzz, options.first, options.kills)
        return 0
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        world = fuzz.make_world(Path(name))
        if options.seed is not None:
            (outcome,) = fuzz.fuzz(world, range(options.seed, options.seed + 1))
            print(outcome)
            return int(outcome.fault is not None)
        result = both(world, options)
    result |= {
        "seconds": round(time.monotonic() - begun, 1),
        "commit": commit(),
        **versions(torch.device("cpu")),
    }
    print(json.dumps(result, indent=1))
    if options.json:
        write_json(options.json, result)
    return int(bool(result["faults"]))


def both(world: fuzz.World, options: argparse.Namespace) -> dict[str, Any]:
    """Kills and calls at the same time, each in processes without threads, which must not be forked."""
    half, first = options.fuzz // 2, options.first
    shares = [(0, first, options.kills), (half, first, 0), (options.fuzz - half, first + half, 0)]
    processes, files = [], [world.root / f"share-{i}" for i in range(len(shares))]
    for (calls, seed, count), file in zip(shares, files, strict=True):
        words = ["--world", world.root, "--fuzz", calls, "--first", seed, "--kills", count]
        command = [sys.executable, __file__, *map(str, words)]
        with file.open("w") as output:
            processes.append(subprocess.Popen(command, stdout=output))
    for process in processes:
        process.wait()
    said = [list(map(json.loads, file.read_text().splitlines())) for file in files]
    outcomes = [fuzz.Outcome(**line["outcome"]) for lines in said for line in lines if "outcome" in line]
    killed = kills.Kills(**next((line["kills"] for line in said[0] if "kills" in line), {}))
    unfinished = [
        f"the calls from seed {seed} on ended with status {process.returncode} after {len(lines)}"
        for process, lines, (_, seed, _) in zip(processes, said, shares, strict=True)
        if process.returncode
    ]
    return {
        "fuzzed_calls": len(outcomes),
        "statuses_by_category": {
            category: dict(sorted(Counter(str(o.status) for o in outcomes if o.category == category).items()))
            for category in fuzz.CATEGORIES
        },
        "kills": sum(killed.counts.values()),
        "kills_by_command": killed.counts,
        "faults": [f"seed {o.seed}: {o.fault}"[:500] for o in outcomes if o.fault is not None]
        + killed.faults
        + unfinished,
    }


def share(world: fuzz.World, calls: int, first: int, count: int) -> None:
    """Print each outcome as a line of JSON, so that nothing is lost if a later call fails."""
    fuzz.warm_up()
    for outcome in fuzz.fuzz(world, range(first, first + calls)):
        print(json.dumps({"outcome": vars(outcome)}), flush=True)
    if count:
        print(json.dumps({"kills": vars(kills.kill(world, count, first))}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
