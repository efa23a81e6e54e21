"""The commit and the device that a result states."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from simplicia.provenance import versions

PACKAGE = Path(__file__).parents[1] / "simplicia"
CODE = "from simplicia.provenance import commit; print(commit())"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with a copy of what states the commit, and a result beside it."""
    monkeypatch.delenv("SIMPLICIA_COMMIT", raising=False)
    (tmp_path / "simplicia").mkdir()
    (tmp_path / "simplicia/__init__.py").write_text("")
    (tmp_path / "simplicia/provenance.py").write_text((PACKAGE / "provenance.py").read_text())
    (tmp_path / "result.json").write_text("[]")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "simplicia/__init__.py", "simplicia/provenance.py", "result.json")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    return tmp_path


def git(folder, *words):
    return subprocess.run(
        ["git", "-C", folder, *words], capture_output=True, text=True, check=True
    ).stdout.strip()


def stated(folder):
    command = [sys.executable, "-B", "-c", CODE]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_only_changed_code_is_dirty(repository):
    head = git(repository, "rev-parse", "--short", "HEAD")
    assert stated(repository) == head
    (repository / "result.json").write_text("[1]")
    assert stated(repository) == head
    (repository / "simplicia/__init__.py").write_text("1")
    assert stated(repository) == f"{head}-dirty"


def test_a_copy_without_a_repository_is_told(repository, monkeypatch):
    subprocess.run(["rm", "-rf", repository / ".git"], check=True)
    assert stated(repository) == "unknown"
    monkeypatch.setenv("SIMPLICIA_COMMIT", "abc1234")
    assert stated(repository) == "abc1234"


def test_a_repository_that_only_surrounds_the_package_says_nothing(repository):
    place = repository / ".venv"
    shutil.copytree(repository / "simplicia", place / "simplicia")
    (repository / ".gitignore").write_text(".venv\n")
    assert stated(place) == "unknown"


@pytest.mark.parametrize("name", ["cpu", "mps"])
def test_a_device_is_called_by_its_name(name):
    assert versions(torch.device(name))["device"].startswith(f"{name} (")
