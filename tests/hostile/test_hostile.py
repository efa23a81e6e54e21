"""A small share of ``make hostile`` for CI; the seeds are fixed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(os.name != "posix", reason="limits memory and time as only POSIX can")
def test_fuzzed_calls_and_killed_processes(tmp_path):
    """In a process without threads, since it forks one for each call."""
    script, out = Path(__file__).with_name("run.py"), tmp_path / "result.json"
    command = [sys.executable, str(script), "--fuzz", "120", "--kills", "8", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    result = json.loads(out.read_text())
    assert result["faults"] == [] and done.returncode == 0, done.stdout + done.stderr
    assert result["fuzzed_calls"] == 120 and result["kills"] >= 8
    statuses = result["statuses_by_category"]
    assert len(statuses) == 14 and all(counts for counts in statuses.values())
