"""The commit and the device that a result states."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from simplicia.provenance import versions

PACKAGE = Path(__file__).parents[1] / "simplicia"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with a copy of provenance.py and a result file."""
    monkeypatch.delenv("SIMPLICIA_COMMIT", raising=False)
    (tmp_path / "simplicia").mkdir()
    (tmp_path / "simplicia/__init__.py").write_text("")
    (tmp_path / "simplicia/provenance.py").write_text((PACKAGE / "provenance.py").read_text())
    (tmp_path / "result.json").write_text("[]")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "simplicia/__init__.py", "simplicia/provenance.py", "result.json")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    return tmp_path


def git(folder, *arguments):
    return subprocess.run(
        ["git", "-C", folder, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def stated(folder):
    """The commit according to the copy of provenance.py in a folder."""
    spec = importlib.util.spec_from_file_location("copied_provenance", folder / "simplicia/provenance.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.commit()


def test_only_changed_code_is_dirty(repository):
    head = git(repository, "rev-parse", "--short", "HEAD")
    assert stated(repository) == head
    (repository / "result.json").write_text("[1]")
    assert stated(repository) == head
    (repository / "simplicia/__init__.py").write_text("1")
    assert stated(repository) == f"{head}-dirty"


def test_a_copy_without_a_repository_reads_the_environment(repository, monkeypatch):
    subprocess.run(["rm", "-rf", repository / ".git"], check=True)
    assert stated(repository) == "unknown"
    monkeypatch.setenv("SIMPLICIA_COMMIT", "abc1234")
    assert stated(repository) == "abc1234"


def test_a_repository_that_ignores_the_package_has_no_say(repository):
    environment = repository / ".venv"
    shutil.copytree(repository / "simplicia", environment / "simplicia")
    (repository / ".gitignore").write_text(".venv\n")
    assert stated(environment) == "unknown"


@pytest.mark.parametrize("name", ["cpu", "mps"])
def test_versions_name_the_device(name):
    assert versions(torch.device(name))["device"].startswith(f"{name} (")
