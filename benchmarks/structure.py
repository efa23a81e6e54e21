"""Measure the structure of the package: files, lines, functions up to the first loss, start-up time.

    python benchmarks/structure.py [--root CHECKOUT] [--json results/structure.json]

``--root`` measures another checkout with the same interpreter, so two commits can be compared. The traversal
counts the package's own functions, and the files they are in, that run between the call of
``simplicia.pretrain`` and the first line of the run's log; functions that run while a module is imported do
not count.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

SOURCES = (".py", ".js", ".css", ".j2")
TRAVERSAL = """
import sys, json, tempfile
from pathlib import Path
root = sys.argv[1]
import simplicia
package = str(Path(simplicia.__file__).parent)
assert package.startswith(root), package
out = Path(tempfile.mkdtemp()) / "run"
log, seen = out / "log.jsonl", set()

class Logged(BaseException):
    pass

def watch(frame, event, argument):
    code = frame.f_code
    if not code.co_filename.startswith(package):
        return None
    if code.co_name == "<module>":  # what runs at import is not part of the path
        return None
    outer = frame.f_back
    while outer is not None and outer.f_code.co_filename.startswith(package):
        if outer.f_code.co_name == "<module>":
            return None
        outer = outer.f_back
    if not code.co_name.startswith("<"):  # comprehensions belong to the function around them
        seen.add((code.co_filename, code.co_qualname))
    if log.exists() and '"loss"' in log.read_text():
        raise Logged
    return None

sys.setprofile(lambda frame, event, argument: watch(frame, event, argument) if event == "call" else None)
try:
    simplicia.pretrain("shapes-byol-sem", out=out, device="cpu", quiet=True, epochs=1, log_every=1)
except Logged:
    pass
finally:
    sys.setprofile(None)
files = sorted({str(Path(f).relative_to(package)) for f, _ in seen})
names = sorted(f"{Path(f).relative_to(package)}:{n}" for f, n in seen)
print(json.dumps({"functions": len(seen), "files": len(files), "names": names}))
"""


def lines(root: Path) -> dict[str, int]:
    """Lines of each folder of the package, kernels and JavaScript included."""
    found: Counter[str] = Counter()
    package = root / "simplicia"
    for path in package.rglob("*"):
        if path.suffix in SOURCES:
            parts = path.relative_to(package).parts
            found[parts[0] if len(parts) > 1 else "."] += len(path.read_text().splitlines())
    return dict(sorted(found.items()))


def seconds(root: Path, *command: str, repeats: int = 5) -> float:
    """The fastest of several runs of a command."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, *command], env=_environment(root), cwd=root, check=True, capture_output=True
        )
        times.append(time.perf_counter() - start)
    return min(times)


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}


def measure(root: Path) -> dict[str, object]:
    """All of the above for a checkout."""
    command = [sys.executable, "-c", TRAVERSAL, str(root)]
    done = subprocess.run(
        command, env=_environment(root), cwd=root, check=True, stdout=subprocess.PIPE, text=True
    )
    traversal = json.loads(done.stdout.splitlines()[-1])
    commit = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    by_folder = lines(root)
    sources = [p for p in (root / "simplicia").rglob("*") if p.suffix in SOURCES]
    torch_alone = seconds(root, "-c", "import torch")
    everything = "import torch; from simplicia import *"
    return {
        "commit": commit,
        "files": len(sources),
        "lines": sum(by_folder.values()),
        "lines_by_folder": by_folder,
        "files_in_train": len(list((root / "simplicia/train").glob("*.py"))),
        "functions_to_first_loss": traversal["functions"],
        "files_to_first_loss": traversal["files"],
        "import_seconds_beyond_torch": round(seconds(root, "-c", everything) - torch_alone, 3),
        "help_seconds": round(seconds(root, "-m", "simplicia", "--help"), 3),
        "python": sys.version.split()[0],
        "traversal": traversal["names"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--json", type=Path, help="where the numbers go, under the key of their commit")
    parser.add_argument("--test-seconds", type=float, help="how long `make test` took, to be kept with them")
    given = parser.parse_args()
    found = measure(given.root.resolve())
    if given.test_seconds is not None:
        found["test_seconds"] = given.test_seconds
    print(json.dumps({k: v for k, v in found.items() if k != "traversal"}, indent=1))
    if given.json is not None:
        rows = json.loads(given.json.read_text()) if given.json.exists() else []
        rows = [row for row in rows if row["commit"] != found["commit"]] + [found]
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
