"""docs/extend.md works as written: one file and one import each, then its commands."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from simplicia import bottlenecks, methods

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/extend.md").read_text()
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]
TRAIN = "--epochs 1 --batch-size 500 --image-size 8 --sem.simplices 8 --device cpu --quiet"
SMALLER = {  # the page's commands, but faster
    "pretrain": TRAIN,
    "sweep": f"{TRAIN} --simsiam.hidden 32 --probe-epochs 1",
    "probe": "--epochs 1 --device cpu --quiet",
    "knn": "--device cpu",
}
SCRIPT = """
import json, sys
from simplicia.cli import main

for arguments in json.load(sys.stdin):
    print("$ simplicia", *arguments, flush=True)
    if status := main(arguments):
        sys.exit(f"{arguments} exits with status {status}")
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A copy of the package with the files and imports of the page."""
    folder = tmp_path_factory.mktemp("extended")
    for name in ("simplicia", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "fixtures"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    files = re.findall(r"`(simplicia/\S+\.py)`:\n\n```python\n(.*?)```", PAGE, re.DOTALL)
    new = [path for path, _ in files if not (folder / path).exists()]
    assert len(files) == 2 * len(new) == 2 * PAGE.count("\n## A ")
    for path, code in files:
        with open(folder / path, "a") as file:
            file.write(code)
        assert path in new or code.count("\n") == 1, f"the page changes {path} by more than one line"
    return folder


def run(arguments, folder, text=""):
    environment = os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, input=text, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    return process.stdout


def test_commands_of_the_page_run(extended):
    commands = [arguments[1:] for arguments in COMMANDS if arguments[0] == "simplicia"]
    commands = [[*arguments, *SMALLER.get(arguments[0], "").split()] for arguments in commands]
    output = run(["-c", SCRIPT], extended, json.dumps(commands))
    sections = output.split("$ simplicia ")[1:]
    assert [section.splitlines()[0] for section in sections] == [" ".join(words) for words in commands]
    rows = [line.split() for line in sections[0].splitlines() if line]  # a name, and endings such as -sem8
    recipes = {row[0] + word if word.startswith("-") else word for row in rows for word in row}
    assert {"shapes-simsiam", "shapes-simsiam-sem", "cifar100-simsiam-sem8", "simsiam"} <= recipes
    assert {"shapes-byol-sphere", "byol-sphere"} <= recipes
    assert "gratings" in next(section for section in sections if section.startswith("datasets"))
    for section in sections:
        if section.startswith(("probe", "knn")):
            assert re.search(r"written to runs/\w+/results/", section), section
    assert "method: simsiam" in (extended / "runs/simsiam/recipe.yaml").read_text()
    assert "bottleneck: sphere" in (extended / "runs/sphere/recipe.yaml").read_text()
    assert "data: gratings" in (extended / "runs/gratings/recipe.yaml").read_text()
    assert len(list((extended / "sweeps/simsiam").rglob("recipe.yaml"))) >= 2


def test_the_parametrised_tests_include_and_pass_the_extensions(extended):
    pytest_commands = [arguments for arguments in COMMANDS if arguments[0] == "pytest"]
    files = sorted({word for arguments in pytest_commands for word in arguments if word.endswith(".py")})
    words = " or ".join(arguments[-1] for arguments in pytest_commands)
    output = run(["-m", "pytest", "-vv", "-p", "no:cacheprovider", *files, "-k", words], extended)
    passed = set(re.findall(r"::(\S+) PASSED", output))
    step = "test_a_step_is_finite_and_every_parameter_gets_a_gradient"
    assert {f"{step}[simsiam-{name}]" for name in [*bottlenecks.names(), "sphere"]} <= passed
    assert {f"{step}[{name}-sphere]" for name in methods.names()} <= passed
    assert {
        "test_compiles_without_a_graph_break[simsiam]",
        "test_copies_and_loaded_states_are_equal[sphere]",
    } <= passed
