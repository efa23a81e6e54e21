"""Atomic writes: complete or absent, and never through a symbolic link."""

import os
import stat
import subprocess
import sys

import pytest

from simplicia import files
from simplicia.errors import printable
from simplicia.progress import say


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), files.atomic_write(path) as temporary:
        temporary.write_text("new")
        raise ZeroDivisionError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_temporary_files_have_unique_names_and_symbolic_links_are_not_followed(tmp_path, monkeypatch):
    path, victim = tmp_path / "a.json", tmp_path / "victim"
    names = []
    for _ in range(2):
        with files.atomic_write(path) as temporary:
            names.append(temporary.name)
            temporary.write_text("new")
    assert names[0] != names[1] and path.read_text() == "new"
    monkeypatch.setattr(files.secrets, "token_hex", lambda n: "guessed")
    with files.atomic_write(path) as temporary:
        temporary.write_text("newer")
    temporary.symlink_to(victim)
    with pytest.raises(FileExistsError), files.atomic_write(path) as temporary:
        temporary.write_text("through the link")
    assert not victim.exists() and path.read_text() == "newer"


@pytest.mark.skipif(os.name != "posix", reason="needs a pipe with a name")
def test_a_pipe_is_written_to_and_never_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        files.write_file(pipe, b"content", "the result")
        assert reader.communicate(timeout=60)[0] == b"content"
    with pytest.raises(OSError, match="a device or a pipe"), files.atomic_write(pipe):
        pass
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_files_have_the_permissions_that_the_umask_leaves(tmp_path):
    before = os.umask(0o027)
    try:
        files.write_file(tmp_path / "a", b"x", "a")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_leftovers_of_killed_processes_are_removed_by_the_next_write(tmp_path):
    code = """
import os, sys
from pathlib import Path
from simplicia.files import atomic_write
with atomic_write(Path(sys.argv[1])) as temporary:
    os._exit(9)
"""
    path = tmp_path / "a.json"
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert len(list(tmp_path.iterdir())) == 1 and not path.exists()
    files.write_file(path, b"x", "a")
    assert list(tmp_path.iterdir()) == [path]


def test_names_at_the_limit_of_the_file_system_can_be_written(tmp_path):
    path = tmp_path / ("x" * 250)
    files.write_file(path, b"x", "a")
    assert path.read_bytes() == b"x"


@pytest.mark.parametrize(
    "name", ["\x1b]0;PWN\x07x\nsimplicia: all is well.png", "a\u202egpj.exe", "\udcff", "\x9b31m"]
)
def test_names_are_escaped_before_they_reach_a_terminal(name, capfd):
    say([f"skipped {name}"])
    printed = capfd.readouterr().err
    assert printed.startswith("skipped ") and printed.count("\n") == 1
    assert all(c == "\n" or c.isprintable() for c in printed)


def test_printable_keeps_ordinary_text():
    assert printable("Größe 25 µm, 写真 – ok") == "Größe 25 µm, 写真 – ok"
