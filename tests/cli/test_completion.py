"""Completion in real shells; zsh and fish where they are installed."""

import contextlib
import shutil
import subprocess

import pytest

from simplicia import cli
from simplicia.train import recipes

COMPLETE = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _simplicia; echo "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion")

    def write(shell):
        with open(path / shell, "w") as file, contextlib.redirect_stdout(file):
            assert cli.main(["completion", shell]) == 0
        return path / shell

    return write


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("simplicia in", ["index"]),
        ("simplicia pretrain --optim.lr", ["--optim.lr", "--optim.lr-per-epoch"]),
        ("simplicia sweep shapes-byol-", [n for n in recipes.names() if n.startswith("shapes-byol-")]),
        ("simplicia knn --opt", []),  # an option of another verb
        ("simplicia pretrain --views.jitter", ["--views.jitter-prob"]),  # and not its old name
    ],
)
def test_bash_completes(script, words, expected):
    code = COMPLETE.format(script=script("bash"), words=words)
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == sorted(expected) and done.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_load_their_script(script, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, script(shell)], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_an_unknown_shell_is_refused(capsys):
    assert cli.main(["completion", "ksh"]) == 2
    assert "choose from 'bash', 'zsh', 'fish'" in capsys.readouterr().err
