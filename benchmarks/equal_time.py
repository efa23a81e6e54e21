"""Train methods with SEM for as long as their base methods take, and probe them.

    python benchmarks/equal_time.py vicreg-sem8 byol-sem8 --json equal-time.json --minutes 15

Both training steps are timed in this process's visit to the device, one after the other. The method with SEM
then trains for ``epochs * base step / step`` epochs, and the paper's offline probe measures it. Compare its
accuracy with the base method's at ``--epochs`` (`results/paper/table1.json`). After each arm the file is
written, and no arm starts with too little of ``--minutes`` left.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

START = time.monotonic()


def simplicia(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "simplicia", *words], check=True)


def step_ms(recipe: str, folder: Path) -> float:
    """Milliseconds of a recipe's training step."""
    out = folder / f"step-{recipe}.json"
    if not out.exists():
        simplicia("bench", "step", recipe, "--engines", "auto", "--json", str(out))
    return float(json.loads(out.read_text())[0]["ms_per_step"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("arms", nargs="+", help="recipes without the data set's name, such as vicreg-sem8")
    parser.add_argument("--data", default="cifar100")
    parser.add_argument("--epochs", type=int, default=200, help="of the base method")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--preset", default="cifar", help="of the probe")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    rows: list[dict[str, object]] = []
    needed = 0.0
    for arm in options.arms:
        if time.monotonic() - START + needed > 60 * options.minutes:
            print(f"{arm}: not enough of {options.minutes:g} minutes is left")
            continue
        began = time.monotonic()
        base, recipe = f"{options.data}-{arm.split('-')[0]}", f"{options.data}-{arm}"
        base_ms, ms = step_ms(base, folder), step_ms(recipe, folder)
        epochs = int(options.epochs * base_ms / ms)
        run, probed = folder / arm, folder / f"probe-{arm}.json"
        trained = time.monotonic()
        simplicia("pretrain", recipe, "--epochs", str(epochs), "--seed", str(options.seed), "--out", str(run))
        trained = time.monotonic() - trained
        simplicia("probe", str(run), "--preset", options.preset, "--json", str(probed))
        probe = json.loads(probed.read_text())
        omitted = ("per_temperature", "grid", "epochs")
        rows.append(
            {key: value for key, value in probe.items() if key not in omitted}
            | {"recipe": recipe, "epochs": epochs, "seed": options.seed, "ms_per_step": ms}
            | {"base": base, "base_epochs": options.epochs, "base_ms_per_step": base_ms}
            | {"training_seconds_with_startup": trained}
        )
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
        print(f"{recipe}: {epochs} epochs, {probe['accuracy']:.2f} %", flush=True)
        needed = 1.15 * (time.monotonic() - began)


if __name__ == "__main__":
    main()
