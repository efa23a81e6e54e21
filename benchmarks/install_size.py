"""What the module alone needs, and what the package installs: megabytes of wheels, seconds of imports.

    python benchmarks/install_size.py --json results/bench/install.json

Sizes are those of the installed files of each package and all it requires, without extras.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import torch
from packaging.requirements import Requirement

from simplicia.provenance import commit, versions

ROOT = Path(__file__).parents[1]


def closure(names: list[str]) -> set[str]:
    """The packages and everything they require here."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in found:
            continue
        try:
            required = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        found.add(name)
        parsed = map(Requirement, required)
        todo += [r.name for r in parsed if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def megabytes(names: set[str]) -> float:
    """The size of the packages' files."""
    files = [file.locate() for name in names for file in distribution(name).files or []]
    return sum(Path(file).stat().st_size for file in files if Path(file).is_file()) / 1e6


def seconds(code: str, repeats: int = 5) -> float:
    """The median time of a fresh Python that runs the code."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    text = (ROOT / "pyproject.toml").read_text()
    listed = re.search(r"\ndependencies = \[(.*?)\n\]", text, re.DOTALL)
    assert listed is not None
    names = [Requirement(line).name for line in re.findall(r'"(.*?)"', listed[1])]
    module, everything = closure(["torch"]), closure(names)
    result = {
        "module_megabytes": round(megabytes(module)),
        "all_megabytes": round(megabytes(everything)),
        "packages": {name: round(megabytes({name}), 1) for name in sorted(everything - module)},
        "seconds": {
            "import torch": seconds("import torch"),
            "import SimplicialEmbedding": seconds("from simplicia import SimplicialEmbedding"),
        },
        "commit": commit(),
        **versions(torch.device("cpu")),
    }
    path = parser.parse_args().json
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
