"""BYOL with every bottleneck on the built-in shapes, against the same network untrained, by kNN.

    python benchmarks/bottlenecks.py [--only vq vq-shared] [--json results/shapes/bottlenecks.json]

About a minute and a half for each on two CPU cores. Rows of other bottlenecks in the file stay.
"""

import argparse
import json
import tempfile
from pathlib import Path

from simplicia import bottlenecks, pretrain
from simplicia.evaluate.features import load_labelled
from simplicia.evaluate.knn import knn
from simplicia.provenance import commit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=bottlenecks.names(), default=bottlenecks.names())
    parser.add_argument("--json", type=Path, default=Path("results/shapes/bottlenecks.json"))
    options = parser.parse_args()
    out, at = options.json, commit()
    stored = json.loads(out.read_text()) if out.exists() else []
    rows = [row for row in stored if row["bottleneck"] not in options.only]
    for name in options.only:
        recipe = "shapes-byol" if name == "none" else f"shapes-byol-{name}"
        with tempfile.TemporaryDirectory() as folder:
            run = pretrain(recipe, out=f"{folder}/trained", quiet=True)
            # no rate, so that only BatchNorm's statistics move: the network as it was drawn
            still = {"optim.lr": 0.0, "optim.warmup_lr": 0.0, "optim.min_lr": 0.0}
            fresh = pretrain(recipe, out=f"{folder}/fresh", quiet=True, epochs=1, **still)
            for layer in ("encoder", *({run.check_layer(None)} - {"encoder"})):
                trained, untrained = (knn(r, *load_labelled(r), layer)["accuracy"] for r in (run, fresh))
                row = {"bottleneck": name, "recipe": recipe, "epochs": run.recipe.epochs, "layer": layer}
                rows.append(row | {"knn_accuracy": trained, "untrained_knn_accuracy": untrained})
                rows[-1] |= {"seconds": run.state["seconds"], "seed": run.recipe.seed, "commit": at}
                print(f"{name:7} {layer:10} {trained:5.1f} untrained {untrained:5.1f}", flush=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(sorted(rows, key=lambda row: row["bottleneck"]), indent=1) + "\n")


if __name__ == "__main__":
    main()
