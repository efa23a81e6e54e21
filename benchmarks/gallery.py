"""The page of a CIFAR-100 run in the gallery, from its stored analysis, its probes and the data set's images.

    python benchmarks/gallery.py --data-dir DATA --out docs/gallery/cifar100.html

The run's weights are not kept, so its thumbnails are cut again from the test images that the analysis names.
"""

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from simplicia.analyze.report_data import read
from simplicia.analyze.study import write_thumbnails
from simplicia.data import datasets
from simplicia.report import write

RESULTS = Path(__file__).parents[1] / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    stored = json.loads((RESULTS / "analysis/cifar100-byol-sem-100.json").read_text())
    probes = json.loads((RESULTS / "cifar100/byol-sem-100.json").read_text())["results"]
    stored["results"] = {f"probe-{row['layer']}-{i}": row for i, row in enumerate(probes)}
    images = datasets.load("cifar100", "test", options.data_dir)
    tiles = {int(index): tile["label"] for index, tile in stored["thumbnails"]["images"].items()}
    if any(int(images.labels[index]) != label for index, label in tiles.items()):
        raise SystemExit("the labels of the images are not those of the analysis")
    with tempfile.TemporaryDirectory() as folder:
        stored["thumbnails"] = asdict(write_thumbnails(images, list(tiles), Path(folder)))
        Path(folder, "analysis.json").write_text(json.dumps(stored))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        print(write([(read(Path(folder)), Path(folder))], options.out))


if __name__ == "__main__":
    main()
