"""A small share of ``make hostile`` for CI; the seeds are fixed."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.importorskip("resource", reason="limits memory and time, on POSIX only")

import fuzz
import kills


@pytest.mark.parametrize("first", range(0, 240, 60))
def test_fuzzed_calls_end_with_a_sentence(first):
    outcomes = fuzz.fuzz(60, first)
    assert [outcome for outcome in outcomes if outcome.fault] == []
    assert {outcome.status for outcome in outcomes} >= {0, 2}


def test_killed_processes_lose_nothing():
    killed = kills.kill(16)
    assert killed.faults == []
    assert killed.counts["training"] >= 8 and killed.counts["sweep"] >= 4
