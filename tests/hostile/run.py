"""Fuzz and kill: ``make hostile``, which writes results/hostile.json.

python tests/hostile/run.py --fuzz 10000 --kills 300 --json results/hostile.json
python tests/hostile/run.py --seed 4711          # repeat one fuzzed call, and show what it printed
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

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
    parser.add_argument("--kill", type=int, help=argparse.SUPPRESS)  # only that, for the process that does it
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.seed is not None:
        (outcome,) = fuzz.fuzz(1, options.seed)
        print(outcome)
        return int(outcome.fault is not None)
    if options.kill is not None:
        print(json.dumps(vars(kills.kill(options.kill, options.first) if options.kill else kills.Kills())))
        return 0
    begun = shown = time.monotonic()

    def report(outcome: fuzz.Outcome) -> None:
        nonlocal shown
        if outcome.fault is not None or time.monotonic() > shown + 15:
            shown = time.monotonic()
            print(f"seed {outcome.seed}: {outcome.fault or 'no fault'!a}", flush=True)

    # kills and calls at the same time; a pool of processes would have threads, which must not be forked
    killer = subprocess.Popen(
        [sys.executable, __file__, "--kill", str(options.kills), "--first", str(options.first)],
        stdout=subprocess.PIPE,
    )
    outcomes = fuzz.fuzz(options.fuzz, options.first, report) if options.fuzz else []
    killed = kills.Kills(**json.loads(killer.communicate()[0].splitlines()[-1]))
    calls = {
        category: dict(sorted(Counter(str(o.status) for o in outcomes if o.category == category).items()))
        for category in fuzz.CATEGORIES
    }
    faults = [f"seed {o.seed}: {o.fault}"[:500] for o in outcomes if o.fault is not None] + killed.faults
    result = {
        "fuzzed_calls": len(outcomes),
        "statuses_by_category": calls,
        "kills": sum(killed.counts.values()),
        "kills_by_command": killed.counts,
        "faults": faults,
        "seconds": round(time.monotonic() - begun, 1),
        "commit": commit(),
        **versions(torch.device("cpu")),
    }
    print(json.dumps(result, indent=1))
    if options.json:
        write_json(options.json, result)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
