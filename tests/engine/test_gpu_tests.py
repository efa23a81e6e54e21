"""benchmarks/gpu_tests.py runs tests in concurrent processes and sums their outcomes; here without a GPU."""

import json
import runpy
from pathlib import Path

import pytest

main = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/gpu_tests.py"))["main"]
PASSING = """
import os, pathlib, pytest

@pytest.mark.chosen
@pytest.mark.parametrize("number", range(5))
def test_writes_its_process(number):
    pathlib.Path(__file__).with_name(f"{number}.pid").write_text(str(os.getpid()))

@pytest.mark.chosen
def test_skips():
    pytest.skip("")

def test_not_chosen():
    assert False
"""
MARK = "import os, pytest\npytestmark = pytest.mark.chosen\n"


def run(folder, content, *words):
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = chosen")
    file = folder / "test_small.py"
    file.write_text(content)
    result = folder / "result.json"
    status = main(["--shards", "2", "--mark", "chosen", "--json", str(result), *words, str(file)])
    return status, json.loads(result.read_text())


def test_shards_run_each_chosen_test_once(tmp_path):
    status, result = run(tmp_path, PASSING)
    assert status == 0 and result["failures"] == []
    assert (result["passed"], result["failed"], result["skipped"]) == (5, 0, 1)
    assert {"commit", "seconds", "device", "torch", "python"} <= result.keys()
    pids = [(tmp_path / f"{number}.pid").read_text() for number in range(5)]
    assert len(set(pids)) == 2 and pids[0] == pids[2] == pids[4] and pids[1] == pids[3]


@pytest.mark.parametrize(
    ("content", "passed", "failures"),
    [
        ("def test_a(): pass\ndef test_b(): assert False", 1, ["test_small.py::test_b"]),
        (
            "def test_a(): pass\ndef test_b(): os._exit(7)",
            1,
            ["shard 1 ended with status 7 in test_small.py::test_b, with 0 more to run"],
        ),
        (
            "def test_a(): assert False\ndef test_b(): pass\ndef test_c(): os._exit(7)\n"
            "def test_d(): pass\ndef test_e(): pass",
            2,
            [
                "shard 0 ended with status 7 in test_small.py::test_c, with 1 more to run",
                "test_small.py::test_a",
            ],
        ),
        ("def test_a(): pass\nimport missing_module", 0, ["test_small.py"]),
        ("@pytest.mark.skip\ndef test_a(): pass", 0, []),
        ("", 0, []),
    ],
    ids=["failure", "crash", "crash after a failure", "import error", "all skipped", "no tests"],
)
def test_failures_crashes_and_an_empty_selection_exit_with_1(tmp_path, content, passed, failures):
    status, result = run(tmp_path, MARK + content)
    assert (status, result["passed"], result["failures"]) == (1, passed, failures)
    assert result["failed"] == len(failures)


def test_without_a_gpu_the_script_exits_with_2(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main([]) == 2
    assert "no GPU is visible" in capsys.readouterr().err


def test_processes_that_are_not_done_in_time_are_killed_and_counted_as_failures(tmp_path):
    content = f"{MARK}import time\ndef test_a(): pass\ndef test_b(): time.sleep(60)\n"
    content += "def test_c(): assert False"
    status, result = run(tmp_path, content, "--minutes", "0.15")
    assert status == 1 and result["passed"] == 1
    assert result["failures"] == [
        "shard 1 was not done after 0.15 minutes in test_small.py::test_b, with 0 more to run",
        "test_small.py::test_c",
    ]
