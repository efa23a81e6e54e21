"""Time the training steps of two checkouts in turns on one device, and write their ratio.

    python benchmarks/step_ratio.py OLD_CHECKOUT . --json results/bench/step-ratio.json

Each recipe is timed by ``simplicia bench step`` in the old checkout, then in the new one. ``--warm-up`` times
nothing and fills the compiler's cache, all recipes at once; run it first. Set SIMPLICIA_COMMIT_OLD and
SIMPLICIA_COMMIT for copies without their repository.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RECIPES = ("cifar100-byol", "cifar100-byol-sem")


def start(root: Path, commit: str | None, recipe: str, steps: int, out: Path) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(root)}
    if commit:
        environment["SIMPLICIA_COMMIT"] = commit
    words = ["bench", "step", recipe, "--engines", "auto", "--steps", str(steps), "--json", str(out)]
    return subprocess.Popen([sys.executable, "-m", "simplicia", *words], env=environment, cwd=root)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warm-up", action="store_true", help="only fill the compiler's cache")
    parser.add_argument("--json", type=Path, help="rewritten after each round of a recipe")
    options = parser.parse_args()
    roots = {"old": options.old.resolve(), "new": options.new.resolve()}
    commits = {"old": os.environ.get("SIMPLICIA_COMMIT_OLD"), "new": os.environ.get("SIMPLICIA_COMMIT")}
    out = Path(tempfile.mkdtemp()) / "step.json"
    if options.warm_up:
        running = [
            start(root, None, recipe, 5, out.with_name(f"{name}-{recipe}.json"))
            for name, root in roots.items()
            for recipe in options.recipes
        ]
        return max(process.wait() for process in running)
    times: dict[str, dict[str, list[float]]] = {r: {name: [] for name in roots} for r in options.recipes}
    rows: dict[str, dict[str, object]] = {}
    for _ in range(options.rounds):
        for recipe in options.recipes:
            for name, root in roots.items():
                if start(root, commits[name], recipe, options.steps, out).wait():
                    return 1
                row = json.loads(out.read_text())[0]
                times[recipe][name].append(row["ms_per_step"])
                about = {key: row[key] for key in ("engine", "device", "torch", "python", "date", "seed")}
                rows.setdefault(recipe, {"recipe": recipe}).update(about, **{f"{name}_commit": row["commit"]})
            medians = {name: statistics.median(values) for name, values in times[recipe].items()}
            rows[recipe] |= {f"{name}_ms": values for name, values in times[recipe].items()}
            rows[recipe]["ratio"] = medians["new"] / medians["old"]
            print(f"{recipe}: {medians['old']:.3f} -> {medians['new']:.3f} ms", flush=True)
            if options.json:
                options.json.write_text(json.dumps(list(rows.values()), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
