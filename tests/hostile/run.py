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
        print(json.dumps(share(fuzz.World(options.world), options.fuzz, options.first, options.kills)))
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
    processes = []
    for calls, seed, count in shares:
        words = ["--world", world.root, "--fuzz", calls, "--first", seed, "--kills", count]
        command = [sys.executable, __file__, *map(str, words)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE))
    said = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    outcomes = [fuzz.Outcome(**outcome) for part in said for outcome in part["outcomes"]]
    killed = kills.Kills(**said[0]["kills"])
    return {
        "fuzzed_calls": len(outcomes),
        "statuses_by_category": {
            category: dict(sorted(Counter(str(o.status) for o in outcomes if o.category == category).items()))
            for category in fuzz.CATEGORIES
        },
        "kills": sum(killed.counts.values()),
        "kills_by_command": killed.counts,
        "faults": [f"seed {o.seed}: {o.fault}"[:500] for o in outcomes if o.fault is not None]
        + killed.faults,
    }


def share(world: fuzz.World, calls: int, first: int, count: int) -> dict[str, Any]:
    fuzz.warm_up()
    outcomes = fuzz.fuzz(world, range(first, first + calls))
    killed = kills.kill(world, count, first) if count else kills.Kills()
    return {"outcomes": [vars(outcome) for outcome in outcomes], "kills": vars(killed)}


if __name__ == "__main__":
    sys.exit(main())
