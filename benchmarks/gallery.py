"""A page of the gallery, from a stored analysis and the images of its data set.

    python benchmarks/gallery.py imagenette --data-dir DATA    # writes docs/gallery/imagenette.html

The runs' weights are not kept, so the thumbnails are cut again from the test images that the analysis names.
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

ROOT = Path(__file__).parents[1]
PAGES = {  # a data set: its analysis, and probes that are stored elsewhere
    "cifar100": ("analysis/cifar100-byol-sem-100.json", "cifar100/byol-sem-100.json"),
    "imagenette": ("analysis/imagenette-simclr-sem-6.json", None),
}
THUMBNAIL = 36  # pixels, of photographs: larger ones make a large page
IMAGENETTE = ["tench", "English springer", "cassette player", "chain saw", "church"]
IMAGENETTE += ["French horn", "garbage truck", "gas pump", "golf ball", "parachute"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", choices=PAGES)
    parser.add_argument("--data-dir", required=True)
    options = parser.parse_args()
    analysis, probes = PAGES[options.data]
    stored = json.loads((ROOT / "results" / analysis).read_text())
    if probes:
        rows = json.loads((ROOT / "results" / probes).read_text())["results"]
        stored["results"] = {f"probe-{row['layer']}-{i}": row for i, row in enumerate(rows)}
    size = datasets.decoded_size(options.data, THUMBNAIL)
    images = datasets.load(options.data, "test", options.data_dir, size=size)
    if options.data == "imagenette":
        stored["data"]["classes"] = IMAGENETTE  # in place of WordNet's identifiers
    tiles = {int(index): tile["label"] for index, tile in stored["thumbnails"]["images"].items()}
    if any(int(images.labels[index]) != label for index, label in tiles.items()):
        raise SystemExit("the labels of the images are not those of the analysis")
    with tempfile.TemporaryDirectory() as folder:
        stored["thumbnails"] = asdict(write_thumbnails(images, list(tiles), Path(folder)))
        Path(folder, "analysis.json").write_text(json.dumps(stored))
        page = ROOT / "docs/gallery" / f"{options.data}.html"
        print(write([(read(Path(folder)), Path(folder))], page))


if __name__ == "__main__":
    main()
