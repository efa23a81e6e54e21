"""The benchmarks run and write provenance with their numbers; no test asserts a time."""

import json
import math
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from simplicia import cli
from simplicia.cli.bench.parts import SMALL, bench_sem, bench_views
from simplicia.cli.bench.step import REACHED, floor_ms, kind_of
from simplicia.cli.tables import cell
from simplicia.settings import with_changes
from simplicia.train import recipes

PROVENANCE = {"device", "torch", "commit", "date"}


def test_bench_step_writes_the_numbers_of_its_table(tmp_path, capsys):
    path = tmp_path / "step.json"
    arguments = ["bench", "step", "--steps", "5", "--device", "cpu", "shapes-simclr", "--json", str(path)]
    assert cli.main(arguments) == 0
    (row,) = json.loads(path.read_text())
    assert row.keys() >= PROVENANCE | {"recipe", "ms_per_step", "images_per_s", "peak_gib", "batch_size"}
    assert (
        row["speedup_over_eager"] == 1 and row["images_per_s"] == 1e3 * row["batch_size"] / row["ms_per_step"]
    )
    assert cell(row["ms_per_step"]) in capsys.readouterr().out


def test_bench_views_and_sem_have_provenance():
    (views,) = bench_views("cpu", rounds=1, shapes=((4, 16),))
    assert views.keys() >= PROVENANCE and views["ms_per_view"] > 0
    rows = bench_sem("cpu", rounds=1)
    assert len(rows) == 4 and all(row.keys() >= PROVENANCE and row["softmax_ms"] > 0 for row in rows)


def test_bench_probe_writes_the_numbers_of_its_table(tmp_path, capsys):
    path = tmp_path / "probe.json"
    assert cli.main(["bench", "probe", "--device", "cpu", "--json", str(path)]) == 0
    (row,), output = json.loads(path.read_text()), capsys.readouterr().out
    assert row.keys() >= PROVENANCE and row["images"] == SMALL["images"] and row["probes"] == 36
    assert "small sizes" in output and cell(row["whole_seconds"]) in output
    assert row["precision"] == "float32" and row["peak_gib"] is None
    per_epoch = row["seconds_per_epoch"]["choosing"] + row["seconds_per_epoch"]["retraining"]
    assert row["whole_seconds"] == pytest.approx(row["seconds"] + 97 * per_epoch)


def test_missing_libraries_are_skipped_with_a_sentence(tmp_path, capsys, monkeypatch):
    for name in ("lightly", "solo"):
        monkeypatch.setitem(sys.modules, name, None)
    path = tmp_path / "libraries.json"
    script = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "libraries.py"))
    script["main"](["--steps", "5", "--batch-size", "2", "--device", "cpu", "--out", str(path)])
    (row,), output = json.loads(path.read_text()), capsys.readouterr().out
    assert row.keys() >= PROVENANCE | {"version", "workers"} and row["library"] == "simplicia"
    assert row["times_ours"] == 1 and row["batch_size"] == 2 and f"{row['ms_per_step']:.2f} ms" in output
    assert "lightly is skipped, since" in output and "solo-learn is skipped, since" in output


def test_trainings_are_timed_alone_and_together(tmp_path):
    path = tmp_path / "together.json"
    script = Path(__file__).parents[2] / "benchmarks" / "together.py"
    words = ["shapes-simclr", "shapes-byol", "--seconds", "0.1", "--json", str(path)]
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(path.read_text())
    assert [row["recipe"] for row in result["rows"]] == words[:2] and result["mps"] is False
    assert result["share"] == pytest.approx(
        sum(row["images_per_s_beside"] / row["images_per_s_alone"] for row in result["rows"])
    )


def test_a_library_is_timed_from_end_to_end_without_its_warm_up():
    script = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "libraries.py"))
    assert script["WARM_UP"] == 5 and script["per_step"]([0, 90, 91, 190, 200, 202, 205, 212]) == 3


def test_bench_refuses_unknown_engines_and_unused_recipes(capsys):
    assert cli.main(["bench", "sem", "shapes-byol"]) == 2
    assert "takes no recipe" in capsys.readouterr().err
    assert cli.main(["bench", "step", "--device", "cpu", "--engines", "captive"]) == 2
    assert "did you mean 'captured'" in capsys.readouterr().err


def test_kernels_are_sorted_by_kind():
    names = {
        "move": "update",
        "gradient_apply": "normalisation",
        "sm90_xmma_wgrad_indexed_implicit_gemm_bf16bf16": "convolutions",
        "nvjet_sm90_tst_128x128_64x6": "matrix products",
        "triton_red_fused_mean": "reductions",
        "triton_poi_fused_relu": "elementwise",
        "Memset (Unknown)": "other",
    }
    assert {name: kind_of(name) for name in names} == names


def test_the_floor_of_a_step(monkeypatch):
    """The estimates of docs/engine-notes.md, made by hand: 5.3 and 9.5 ms."""
    base, sem, plain = (recipes.get(f"cifar100-{name}") for name in ("byol", "byol-sem", "simclr"))
    assert floor_ms(base, "NVIDIA H200") == pytest.approx(5.3, rel=0.05)
    assert floor_ms(sem, "NVIDIA H200") == pytest.approx(9.5, rel=0.05)
    assert floor_ms(base, "an unknown device") is None
    monkeypatch.setitem(REACHED, "teraflop", (1e15, math.inf))  # a TFLOP takes 1 ms, memory no time
    assert floor_ms(base, "teraflop") == pytest.approx(2.3, rel=0.02)
    assert floor_ms(plain, "teraflop") < 0.76 * floor_ms(base, "teraflop")  # without a target network
    monkeypatch.setitem(REACHED, "byte", (math.inf, 1e3))  # a byte takes 1 ms, computing no time
    half = with_changes(sem, {"optim.momentum_bits": "16"})
    with torch.device("meta"):
        model = sem.build()
    weights = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert floor_ms(sem, "byte") - floor_ms(half, "byte") == 4 * weights
