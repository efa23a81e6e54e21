"""Figures show stored results: a point for a number, a line for a series."""

import json
import re
from pathlib import Path

import pytest

from simplicia import cli
from simplicia.errors import UserError
from simplicia.experiments import EXPERIMENTS, figures, get
from simplicia.experiments.store import CellResult

ROOT = Path(__file__).resolve().parents[2]


def row(cell, epochs=100, **fields):
    return {"cell": cell, "epochs": epochs, "seed": 0, **fields}


def lines(experiment, rows):
    rows = [CellResult.from_json(row) for row in rows]
    chart = figures.line_chart(experiment, experiment.figure, rows)
    return {series.name: list(zip(series.x, series.y, strict=True)) for series in chart.series}


def test_a_line_for_each_series_with_the_mean_of_seeds():
    rows = [row(f"{word}, L={n}", accuracy=float(n)) for n in (50, 10) for word in ("SEM", "Embed")]
    rows += [row("SEM, L=10", accuracy=20.0) | {"seed": 1}, row("SEM, L=100", failed="no", accuracy=None)]
    drawn = lines(get("emb-scale"), rows)
    assert drawn == {"SEM": [(10, 15.0), (50, 50.0)], "Embed": [(10, 10.0), (50, 50.0)]}
    longer = lines(get("emb-scale"), [*rows, row("SEM, L=10", 200, accuracy=30.0)])
    assert longer["SEM, 200 epochs"] == [(10, 30.0)] and "SEM, 100 epochs" in longer


def test_equal_time_is_a_line_over_seconds():
    cells = ("BYOL + SEM/8, time of 100 epochs", 80, 120.0), ("BYOL + SEM/8, time of 200 epochs", 163, 240.0)
    rows = [row(cell, epochs, accuracy=60.0, step_seconds=seconds) for cell, epochs, seconds in cells]
    assert lines(get("equal-time"), rows) == {"BYOL + SEM/8": [(120.0, 60.0), (240.0, 60.0)]}


def test_a_cell_may_be_a_curve_or_a_histogram():
    (curve,) = lines(get("coherence"), [row("BYOL, ICA", k=[1, 2], coherence=[0.5, 0.25])]).items()
    assert curve == ("BYOL, ICA", [(1, 0.5), (2, 0.25)])
    drawn = lines(get("entropy"), [row("tau_p=1", edges=[0.0, 1.0, 2.0], counts=[3, 4])])
    assert drawn == {"tau_p=1": [(0.5, 3), (1.5, 4)]}
    widths = [
        row("RN-50 x2 BYOL + SEM", flops=2e9, accuracy=70.0),
        row("RN-18 BYOL + SEM", flops=1e9, accuracy=60.0),
    ]
    assert lines(get("encoder-scaling"), widths) == {"BYOL + SEM": [(1e9, 60.0), (2e9, 70.0)]}


def test_line_names_state_how_they_differ():
    measured = {"batch_size": 256, "probe": "cifar", "accuracy": 60.0}
    one = row("SEM, L=10", **measured)
    rows = [one, one | {"probe": "cifar-1-epochs", "accuracy": 50.0}, one | {"batch_size": 100}]
    assert lines(get("emb-scale"), rows) == {
        "SEM, batch 256, probe cifar": [(10, 60.0)],
        "SEM, batch 256, probe cifar-1-epochs": [(10, 50.0)],
        "SEM, batch 100, probe cifar": [(10, 60.0)],
    }


def test_logarithmic_axes_show_index_and_temperature_zero():
    (line,) = lines(get("spectrum"), [row("RN-18 SEM, L=5000", index=[0, 9], values=[4.0, 1.0])]).values()
    assert line == [(1, 4.0), (10, 1.0)]
    rows = [row(f"RN-18 L=5000, tau_d={t:g}", accuracy=50 + t) for t in (0, 0.1, 1)]
    experiment = get("tau-downstream")
    rows = [CellResult.from_json(row) for row in rows]
    chart = figures.line_chart(experiment, experiment.figure, rows)
    assert chart.x.log and not chart.y.log and chart.series[0].x == [0, 0.1, 1]


def test_figure_draws_only_the_selected_cells(tmp_path, capsys):
    (tmp_path / "other").mkdir()
    measured = {"k": [1, 2], "coherence": [0.5, 0.4], "pretrained_on": "digits", "batch_size": 100}
    rows = [row(cell, **measured) for cell in ("BYOL", "BYOL, ICA")]
    (tmp_path / "other" / "coherence.json").write_text(json.dumps(rows))
    target = tmp_path / "c.svg"
    words = ["reproduce", "coherence", "--results", str(tmp_path), "--figure", str(target), "--data"]
    assert cli.main([*words, "digits", "--only", "=byol"]) == 0
    assert ">BYOL<" in target.read_text() and ">BYOL, ICA<" not in target.read_text()
    for other in (["shapes"], ["digits", "--batch-size", "17"]):
        assert cli.main([*words, *other]) == 2
        assert "nothing that coherence draws has been measured yet" in capsys.readouterr().err


SERIES = [e.name for e in EXPERIMENTS.values() if e.figure and not e.figure.field]


@pytest.mark.parametrize(
    "name", sorted({*SERIES} - {"tau-downstream", "bound"})
)  # whose cells have several rows
def test_cell_names_give_distinct_positions(name):
    experiment = get(name)
    matches = [re.search(experiment.figure.cell, c.name) for c in experiment.cells]
    points = {(m[1], c.name.replace(m[0], "")) for m, c in zip(matches, experiment.cells, strict=True)}
    assert len(points) == len(experiment.cells)


def test_figure_option_draws_results(tmp_path, capsys):
    results, target = tmp_path / "results", tmp_path / "figures" / "tau.svg"
    (results / "paper").mkdir(parents=True)
    rows = [row(f"RN-18 L=5000, tau_d={t:g}", accuracy=50 + t, experiment="tau-downstream") for t in (0.1, 1)]
    (results / "paper" / "tau-downstream.json").write_text(json.dumps(rows))
    words = ["reproduce", "tau-downstream", "--results", str(results), "--figure"]
    assert cli.main([*words, str(target)]) == 0 and target.read_text().count("<svg") == 1
    assert ">RN-18 L=5000<" in target.read_text() and "drawn to" in capsys.readouterr().out
    for last, message in (
        ([str(tmp_path / "a.doc")], "its name must end in .svg, .png or .pdf"),
        ([str(target), "--epochs", "7"], "nothing that tau-downstream draws has been measured yet"),
    ):
        assert cli.main([*words, *last]) == 2 and message in capsys.readouterr().err
    assert cli.main(["reproduce", "speedrun", "--figure", str(target)]) == 2
    assert "speedrun is a table" in capsys.readouterr().err


def test_pairs_are_drawn_at_the_budget_with_most_of_them(tmp_path):
    (tmp_path / "paper").mkdir()
    cells = {"BYOL": 61.0, "BYOL + SEM": 63.0, "MoCo": 66.0, "MoCo + SEM": 64.0, "SwAV + SEM": 77.0}
    rows = [row(cell, accuracy=accuracy, paper=accuracy + 20) for cell, accuracy in cells.items()]
    rows += [row(f"BYOL{sem}", accuracy=accuracy, seed=1) for sem, accuracy in (("", 62.0), (" + SEM", 65.0))]
    rows += [row(f"BYOL{sem}", 400, accuracy=accuracy) for sem, accuracy in (("", 71.0), (" + SEM", 72.0))]
    (tmp_path / "paper" / "table1.json").write_text(json.dumps(rows))
    target = tmp_path / "table1.svg"
    words = ["reproduce", "table1", "--results", str(tmp_path), "--figure", str(target)]
    assert cli.main(words) == 0
    numbers = re.findall(r">(\d\d\.\d)<", target.read_text())
    assert numbers == ["66.0", "64.0", "86.0", "84.0", "61.5", "64.0", "81.0", "83.0"]
    assert "100 epochs, mean if several seeds" in target.read_text()
    first = target.read_bytes()
    assert cli.main(words) == 0 and target.read_bytes() == first
    assert cli.main([*words, "--epochs", "400"]) == 0
    assert ">71.0<" in target.read_text() and ">61.5<" not in target.read_text()


def test_readme_figure_is_up_to_date(tmp_path):
    drawn = tmp_path / "table1.svg"
    assert cli.main(["reproduce", "table1", "--results", str(ROOT / "results"), "--figure", str(drawn)]) == 0
    now, then = (re.findall(r">([^<>\n]+)</text>", p.read_text()) for p in (drawn, ROOT / "docs/table1.svg"))
    assert now == then and len(now) > 28, "run: simplicia reproduce table1 --figure docs/table1.svg"


@pytest.mark.parametrize(
    "damage", [{"k": [1]}, {"k": ["1", 2]}, {"k": 3}, {"coherence": 0.5}, {"k": {"a": 1}}]
)
def test_damaged_curve_is_reported(damage, tmp_path):
    damaged = CellResult.from_json(row("BYOL, ICA", **{"k": [1, 2], "coherence": [0.5, 0.25, 0.1]} | damage))
    with pytest.raises(UserError, match="'BYOL, ICA' cannot be drawn: k and coherence must be numbers"):
        figures.draw(get("coherence"), [damaged], tmp_path / "figure.svg")
