"""Results as files: a cell measured again replaces itself, all others stay, also with several writers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simplicia.errors import UserError
from simplicia.experiments import store
from simplicia.experiments.store import CellResult

RESULTS = Path(__file__).parents[2] / "results"
CELL = st.builds(CellResult, st.sampled_from("abc"), seed=st.integers(0, 2), epochs=st.integers(1, 2))


@settings(max_examples=25)
@given(st.lists(st.lists(CELL, max_size=4), max_size=5))
def test_put_keeps_the_newest_result_of_each_cell(tmp_path_factory, batches):
    path = tmp_path_factory.mktemp("store") / "other" / "x.json"
    newest, number = {}, 0
    for batch in batches:
        results = [result.replace(accuracy=(number := number + 1)) for result in batch]
        store.put(path, results)
        newest |= {(r.cell, r.seed, r.epochs): r for r in results}
    assert sorted(store.read(path), key=repr) == sorted(newest.values(), key=repr)
    assert [p.name for p in path.parent.glob("*")] == (["x.json"] if batches else [])


def test_concurrent_writers_lose_nothing(tmp_path):
    path = tmp_path / "x.json"
    program = (
        "import sys; from pathlib import Path; from simplicia.experiments.store import CellResult, put\n"
        "for i in range(40): put(Path(sys.argv[1]), [CellResult(sys.argv[2], seed=i)])"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(path), name]) for name in "ab"]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    assert sorted((row.cell, row.seed) for row in store.read(path)) == [
        (name, i) for name in "ab" for i in range(40)
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as results"),
        ("\xff", "cannot be read as results"),
        ("{}", "must be a list of objects"),
        ("[1]", "damaged: in object 1, it is a int, not an object"),
        ('[{"cell": "a"}, {"accuracy": 1}]', "damaged: in object 2, it lacks cell"),
        ('[{"cell": 1}]', "cell is '1'"),
        ('[{"cell": null}]', "cell is 'None'"),
        ('[{"cell": "a", "accuracy": "x"}]', "accuracy is 'x'"),
        ('[{"cell": "a", "device": []}]', "device is"),
        ('[{"cell": "a", "seed": {}}]', "seed is"),
        ('[{"cell": "a", "flops": NaN}]', "flops is 'nan'"),
        ('[{"cell": "a", "probe": 1}]', "probe is '1'"),
    ],
)
def test_damaged_file_is_reported_and_left_alone(tmp_path, text, message):
    path = tmp_path / "x.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"x\.json") as error:
        store.put(path, [CellResult("a")])
    assert message in str(error.value)
    assert path.read_text(encoding="latin-1") == text


@pytest.mark.parametrize("file", sorted(RESULTS.glob("[op]*/*.json")), ids=lambda path: path.stem)
def test_results_of_0_1_are_read_and_merged(file, tmp_path):
    before = json.loads(file.read_text())
    copy = tmp_path / "x.json"
    copy.write_text(file.read_text())
    store.put(copy, [CellResult("a new cell")])
    *after, new = json.loads(copy.read_text())
    assert [{key: row.get(key) for key in old} for old, row in zip(before, after, strict=True)] == before
    assert new["cell"] == "a new cell" and new["accuracy"] is None and "failed" not in new


def test_failure_is_superseded_by_its_own_cell_only(tmp_path):
    path = tmp_path / "x.json"
    store.put(path, [CellResult("BYOL", run="r", protocol="failed", failed="no")])
    store.put(path, [CellResult("BYOL, ICA", run="r")])  # another cell, not a part of the first
    assert [row.cell for row in store.read(path)] == ["BYOL", "BYOL, ICA"]
    store.put(path, [CellResult("BYOL, tau=1", part="tau=1", run="r")])
    assert [row.cell for row in store.read(path)] == ["BYOL, ICA", "BYOL, tau=1"]
