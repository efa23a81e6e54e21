"""The method and length of the demo, chosen on held-out training images of the built-in shapes.

    python benchmarks/demo_choice.py --json results/demo/choice.json

Each method is trained on nine tenths of the training images, without and with SEM, for several seeds; a row
has the accuracy of the linear probe and of kNN on the last tenth. No test image is read. The file is written
after each run, and its rows are kept.
"""

import argparse
import itertools
import json
import tempfile
from pathlib import Path

from simplicia import pretrain
from simplicia.data import datasets
from simplicia.evaluate.knn import knn
from simplicia.evaluate.probe import preset, probe
from simplicia.provenance import commit, versions

METHODS = ("vicreg", "barlow", "simclr", "moco", "swav", "dino", "byol")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    rows = json.loads(options.json.read_text()) if options.json.exists() else []
    known = {(row["recipe"], row["epochs"], row["seed"]) for row in rows}
    for seed, method, sem in itertools.product(options.seeds, options.methods, ("", "-sem")):
        recipe = f"shapes-{method}{sem}"
        if (recipe, options.epochs, seed) in known:
            continue
        layer = "sem" if sem else "encoder"
        changes = {"epochs": options.epochs, "seed": seed, "holdout": 0.1}
        with tempfile.TemporaryDirectory() as folder:
            run = pretrain(recipe, out=f"{folder}/run", quiet=True, **changes)
            train, held_out = datasets.split(datasets.load("shapes", "train"), run.recipe.holdout)
            result = probe(run, train, held_out, layer, preset("demo"))
            temperature = result.to_json().get("temperature")
            near = knn(run, train, held_out, layer, temperature)["accuracy"]
        row = {"recipe": recipe, "layer": layer, "temperature": temperature, "accuracy": result.accuracy}
        row |= {"knn_accuracy": near, "images": len(held_out), "protocol": "held-out training images"}
        row |= {"epochs": options.epochs, "seed": seed, "seconds": run.state["seconds"]}
        rows.append(row | {"commit": commit(), **versions(run.device)})
        print(f"{recipe:20} seed {seed}: probe {row['accuracy']:.1f}, kNN {near:.1f}", flush=True)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
