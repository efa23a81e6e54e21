"""Results as files: a cell measured again replaces itself, all others stay, whoever else writes."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simplicia.errors import UserError
from simplicia.experiments import store

ROW = st.fixed_dictionaries(
    {"cell": st.sampled_from("abc"), "seed": st.integers(0, 2), "epochs": st.integers(1, 2)}
)


@given(st.lists(st.lists(ROW, max_size=4), max_size=5))
def test_the_newest_of_each_cell_stays(tmp_path_factory, batches):
    path = tmp_path_factory.mktemp("store") / "other" / "x.json"
    newest, number = {}, 0
    for batch in batches:
        rows = [row | {"accuracy": (number := number + 1)} for row in batch]
        store.put(path, rows)
        newest |= {(row["cell"], row["seed"], row["epochs"]): row for row in rows}
    found = store.read(path)
    assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, newest.values()))
    assert [p.name for p in path.parent.glob("*")] == (["x.json"] if batches else [])


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    path = tmp_path / "x.json"
    program = (
        "import sys; from pathlib import Path; from simplicia.experiments import store\n"
        "for i in range(40): store.put(Path(sys.argv[1]), [{'cell': sys.argv[2], 'seed': i}])"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(path), name]) for name in "ab"]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    assert sorted((row["cell"], row["seed"]) for row in store.read(path)) == [
        (name, i) for name in "ab" for i in range(40)
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("{", "{}", "[1]", '[{"accuracy": 1}]', "\xff", '[{"cell": 1}]', '[{"cell": null}]'),
        *('[{"cell": "a", "accuracy": "x"}]', '[{"cell": "a", "device": []}]', '[{"cell": "a", "seed": {}}]'),
        *('[{"cell": "a", "flops": NaN}]', '[{"cell": "a", "failed": null}]', '[{"cell": "a", "probe": 1}]'),
    ],
)
def test_a_file_of_another_kind_is_told_and_left(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"x\.json"):
        store.put(path, [{"cell": "a"}])
    assert path.read_text(encoding="latin-1") == text


def test_a_failure_is_mended_by_its_own_cell_and_by_no_other(tmp_path):
    path = tmp_path / "x.json"
    failed = {"cell": "BYOL", "run": "r", "protocol": "failed", "failed": "no"}
    store.put(path, [failed])
    store.put(path, [{"cell": "BYOL, ICA", "run": "r"}])  # a cell of its own, not a part of the first
    assert [row["cell"] for row in store.read(path)] == ["BYOL", "BYOL, ICA"]
    store.put(path, [{"cell": "BYOL, tau=1", "part": "tau=1", "run": "r"}])
    assert [row["cell"] for row in store.read(path)] == ["BYOL, ICA", "BYOL, tau=1"]
