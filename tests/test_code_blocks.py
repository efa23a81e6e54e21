"""Shell blocks of the README and the docs run as they are written, in a folder with the files they name.

Lengths are shortened. A block after ``<!-- not run: reason -->`` is only parsed: its verbs and options exist.
Python blocks are run by test_docs.py.
"""

import contextlib
import importlib
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import simplicia
from simplicia import cli
from simplicia.cli.main import MODULES
from simplicia.cli.verbs import VERBS
from simplicia.data import datasets

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- not run: (?P<reason>[^>]+) -->\n)?```(sh|bash)\n(?P<code>.*?)```", re.DOTALL)
# test_extend.py runs the blocks of extend.md in a copy of the package
PAGES = [ROOT / "README.md", *(p for p in sorted((ROOT / "docs").glob("*.md")) if p.stem != "extend")]
BLOCKS = [
    pytest.param(block["code"], block["reason"], id=f"{page.stem}-{i}")
    for page in PAGES
    for i, block in enumerate(BLOCK.finditer(page.read_text()))
]
SMALL = "--epochs 1 --image-size 16 --encoder tiny --sem.simplices 8 --batch-size 8 --quiet"
SHORT = {  # added to a verb's words, where the block does not say it
    "pretrain": SMALL,
    "probe": "--epochs 2 --seeds 1",
    "finetune": "--steps 2",
    "semi": "--epochs 1",
    "analyze": "--images 50 --fit-images 100",
    "report": "--images 50",
    "sweep": f"{SMALL} --trials 2",
}


def commands(code):
    """The words of each ``simplicia`` command of a block."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line.partition(";")[0], comments=True)
        if "simplicia" in words and not words[0].startswith("#"):
            end = words.index(">") if ">" in words else len(words)
            yield words[words.index("simplicia") + 1 : end]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Runs, images and folders with the names that the blocks use."""
    folder = tmp_path_factory.mktemp("workspace")
    shapes = datasets.load("shapes", "test")

    def write(path, image):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / path)

    for i, image in enumerate(shapes.images[:24]):
        write(f"photos/{'old/' if i > 20 else ''}{'abcdefghijklmnopqrstuvwxyz'[i]}.jpg", image)
        write(f"more/{i}.png", shapes.images[100 + i])
    for i, image in enumerate(shapes.images[:60]):
        write(f"labelled/{'train' if i < 40 else 'test'}/{'cat' if i % 2 else 'dog'}/{i}.png", image)
    write("query.jpg", shapes.images[3])
    small: dict[str, Any] = {
        "data": "labelled",
        "encoder": "tiny",
        "epochs": 1,
        "batch_size": 8,
        "quiet": True,
    }
    with contextlib.chdir(folder):  # so that the runs find their images in copies of the folder
        run = simplicia.pretrain("byol-sem", image_size=16, sem={"simplices": 32}, out="runs/a", **small)
        simplicia.pretrain("byol", image_size=16, out="runs/b", **small)
    for name in ("c", "mine", "large"):
        shutil.copytree(folder / "runs/a", folder / f"runs/{name}")
    shutil.copytree(folder / "labelled", folder / "other")
    run.export(folder / "encoder.safetensors")
    return folder


def parse(words):
    """Parse a command without running it."""
    for module in MODULES.split():
        importlib.import_module(f"simplicia.cli.{module}")
    verb, *rest = words
    parser, _, _ = VERBS[verb].parser(list(rest))
    return parser.parse(rest)


@pytest.mark.parametrize(("code", "reason"), [block for block in BLOCKS if block.values[1]])
def test_blocks_that_cannot_run_here_are_valid(code, reason):
    for words in commands(code):
        parse(words)


@pytest.mark.parametrize(("code", "reason"), [block for block in BLOCKS if not block.values[1]])
def test_block_runs(code, reason, workspace, tmp_path, monkeypatch, capsys):
    shutil.copytree(workspace, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    for words in commands(code):
        given = parse(words)
        if words[0] == "pretrain":
            shutil.rmtree(given["out"] or f"runs/{words[1]}", ignore_errors=True)
        short = [] if "analysis-from" in " ".join(words) else shlex.split(SHORT.get(words[0], ""))
        for option, value in zip(short[::2], [*short[1::2], None], strict=False):
            if option not in words:
                words += [option] if value is None else [option, value]
        status = cli.main(words)
        printed = capsys.readouterr()
        assert status == 0, f"simplicia {shlex.join(words)}: {printed.err}"
        if words[0] == "recipes" and "mine.yaml" in code:
            Path("mine.yaml").write_text(printed.out)
        if Path("runs/a/analysis").exists():
            shutil.copytree("runs/a/analysis", "analysis-from-another-machine", dirs_exist_ok=True)
