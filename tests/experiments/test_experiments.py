"""The declared experiments: the paper's numbers, their runs, and what they cost."""

import dataclasses
import inspect
import itertools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simplicia.errors import UserError
from simplicia.evaluate.probe import preset
from simplicia.experiments import EXPERIMENTS, get
from simplicia.experiments.budget import Budgets
from simplicia.experiments.cifar import METHODS
from simplicia.experiments.experiment import Cell, plan
from simplicia.experiments.measures import MEASURES

RESULTS = Path(__file__).parents[2] / "results"
EXTRA = """equal-time embed-control gain elsewhere dino-short dino-scout centred learning-rate speedrun
speedrun-cifar10"""  # not in the paper
NAMES = """table1 emb-scale hard-discretisation cost tau-pretrain tau-downstream L-sweep V-sweep entropy
spectrum embedder-bn embedder-type role-of-pretraining encoder-scaling imagenet-scaling robustness transfer
semi-supervised coherence bound"""
BUDGETS = Budgets(RESULTS / "bench/step.json")
CELLS = [(e, cell) for e in EXPERIMENTS.values() for cell in e.cells]
TRAINED = [(e, cell) for e, cell in CELLS if cell.recipe is not None]


def cell(experiment, name):
    return next(c for c in get(experiment).cells if c.name == name)


def test_every_table_and_figure_is_registered():
    assert sorted(EXPERIMENTS) == sorted(f"{NAMES} {EXTRA} paper-budget".split())
    assert all(not c.in_paper and c.paper is None for name in EXTRA.split() for c in get(name).cells)
    with pytest.raises(UserError, match="did you mean 'table1'"):
        get("tabel1")


@pytest.mark.parametrize(
    ("experiment", "numbers"),
    [
        (
            "table1",
            "65.8 69.5 69.3 71.0 70.7 73.9 70.7 73.0 64.6 67.7 66.8 69.2 68.5 71.4",
        ),
        ("hard-discretisation", "70.7 48.6 65.6 73.2 73.9"),
        ("embedder-bn", "67.2 57.9 68.3 73.9"),
        ("embedder-type", "63.0 73.9 65.0"),
        ("role-of-pretraining", "74.2 69.8 72.3 77.3"),
        ("cost", "70.7 73.9 73.3 74.3 77.4 76.6"),
        ("imagenet-scaling", "71.9 74.1"),
        ("robustness", "71.9 59.2 18.8 39.5 1.65 74.1 61.2 22.1 43.4 2.53"),
        (
            "transfer",
            "74.2 74.7 91.8 93.5 74.9 78.6 60.9 62.1 72.2 71.9 88.9 91.5 "
            "83.1 84.7 97.2 97.2 83.6 85.6 59.1 63.3 69.2 71.3 85.4 91.7",
        ),
        ("semi-supervised", "51.6 78.0 56.7 81.0 67.5 88.9 69.9 90.0"),
    ],
)
def test_the_papers_numbers(experiment, numbers):
    papers = [c.paper for c in get(experiment).cells if c.paper is not None]
    values = itertools.chain(*(p.values() if isinstance(p, dict) else [p] for p in papers))
    assert list(values) == [float(number) for number in numbers.split()]


def test_measures_accept_the_options_of_their_cells():
    grid = {"cifar100": preset("cifar").temperatures, "imagenet": preset("imagenet").temperatures}
    grid["cifar10"] = grid["cifar100"]
    for experiment, c in CELLS:
        inspect.signature(MEASURES[c.measure]).bind(None, **c.options)
        wanted = c.options.get("temperature")
        assert wanted in (None, *grid[experiment.data]), (experiment.name, c.name)
    assert len({(e.name, c.name) for e, c in CELLS}) == len(CELLS)


@pytest.mark.parametrize("data", ["cifar100", "cifar10", "shapes"])
def test_equal_runs_share_a_folder_and_others_do_not(data):
    seen = {}
    for _, c in TRAINED:
        run = plan(c, data, seed=3, epochs=20)
        model = json.dumps(dataclasses.asdict(run.recipe), sort_keys=True)
        assert seen.setdefault(run.folder, model) == model, run.folder
        assert len(run.folder.encode()) < 200
    assert len(set(seen.values())) == len(seen)


@given(
    st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(2, 6)),
    st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(2, 6)),
)
def test_seed_epochs_and_batch_make_another_run(one, other):
    folders = [plan(Cell("SEM"), "shapes", *run[:2], batch_size=run[2]).folder for run in (one, other)]
    assert (folders[0] == folders[1]) == (one == other)


def test_experiments_share_table1s_runs():
    folder = plan(cell("table1", "BYOL + SEM"), "cifar100").folder
    for experiment, name in (
        ("entropy", "tau_p=1"),
        ("spectrum", "RN-18 SEM, L=5000"),
        ("coherence", "BYOL + SEM"),
        ("tau-downstream", "RN-18 L=5000"),
        ("hard-discretisation", "BYOL + SEM, tau_d=0"),
        ("hard-discretisation", "BYOL + SEM, tau_d=0.0001"),
        ("hard-discretisation", "BYOL + SEM, tau_d=0.1"),
        ("L-sweep", "L=5000, f_base"),
        ("V-sweep", "V=13, f_SEM"),
        ("embedder-bn", "BatchNorm, weight decay 1e-05"),
        ("embedder-type", "linear"),
        ("encoder-scaling", "RN-18 BYOL + SEM"),
        ("cost", "resnet18 BYOL + SEM, accuracy"),
        ("bound", "BYOL + SEM"),
    ):
        assert plan(cell(experiment, name), "cifar100").folder == folder, (experiment, name)


def test_cells_may_set_their_own_epochs():
    for name in ("DINO", "DINO + SEM"):  # the recipe's teacher: the run of Table 1
        short = plan(cell("dino-short", f"{name}, as in Table 1"), "cifar100")
        assert short.folder == plan(cell("table1", name), "cifar100", epochs=200).folder
    assert {plan(c, "cifar100").recipe.epochs for c in get("centred").cells} == {200}
    assert not get("centred").mixes_epochs and not get("table1").mixes_epochs
    speedrun = get("speedrun")
    assert speedrun.mixes_epochs
    assert {plan(c, "cifar100").recipe.epochs for c in speedrun.cells} == {80, 100, 325, 385, 440}
    assert {plan(c, "cifar100", epochs=2).recipe.epochs for c in speedrun.cells} == {2}
    plans = {p.folder: p for p in (plan(c, "cifar100") for c in speedrun.cells)}.values()
    milliseconds = sum(BUDGETS.step_ms(p) * p.recipe.epochs * 195 for p in plans)
    assert BUDGETS.of(speedrun).hours == pytest.approx(milliseconds / 3.6e6)
    short = {p.folder: p for p in (plan(c, "cifar100", epochs=10) for c in speedrun.cells)}.values()
    short = sum(BUDGETS.step_ms(p) * 10 * 195 for p in short)
    assert BUDGETS.of(speedrun, 10).hours == pytest.approx(short / 3.6e6)


def test_equal_time_pairs_every_method_with_cheaper_forms_of_sem():
    cells = {c.name: c for c in get("equal-time").cells}
    pairs = [c for c in cells.values() if c.baseline is not None]
    assert all(cells[c.baseline].recipe == c.as_long_as for c in pairs)
    at_200 = [c.name.split(",")[0] for c in pairs if c.name.endswith(", time of 200 epochs")]
    assert {name.split(" + ")[0] for name in at_200} == {name for name, *_ in METHODS.values()}
    for method in ("BYOL", "VICReg"):
        forms = [name.split(" + ")[1] for name in at_200 if name.startswith(method)]
        assert forms == ["SEM", "SEM/8", "SEM/16", "SEM/32", "SEM"]
        wide = plan(cells[f"{method} + SEM/32, L=4992, time of 200 epochs"], "cifar100").recipe
        assert (wide.sem.blocks, wide.sem.simplices * wide.sem.vertices % 32) == (32, 0)
    sem8 = cells["BYOL + SEM/8, time of 200 epochs"]
    assert plan(sem8, "cifar100", share=0.75).recipe.epochs == 150
    assert plan(sem8, "cifar100", epochs=1, share=0.75).recipe.epochs == 1
    of_bases = sum(
        BUDGETS.step_ms(plan(cells[c.baseline], "cifar100")) * 195 * c.changes["epochs"] for c in pairs
    )
    bases = {c.baseline for c in pairs}
    of_bases += sum(
        BUDGETS.step_ms(plan(cells[name], "cifar100")) * 195 * cells[name].changes["epochs"] for name in bases
    )
    assert BUDGETS.of(get("equal-time")).hours == pytest.approx(of_bases / 3.6e6)


def test_controls_have_what_they_control():
    uncentred = plan(cell("centred", "MoCo + SEM, p"), "cifar100").recipe
    assert not uncentred.sem.centred and uncentred.epochs == 200
    for name, times in (("SimCLR", 3), ("MoCo", 15)):
        slow, fast = (
            plan(cell("learning-rate", n), "cifar100").recipe for n in (name, f"{name}, rate x{times}")
        )
        assert fast.optim.lr == pytest.approx(times * slow.optim.lr) and fast.bottleneck == "none"
    wide = plan(cell("embed-control", "BYOL + Embed, embedder"), "cifar100").recipe
    assert (wide.bottleneck, wide.sem.simplices, wide.epochs) == ("embed", 5000, 200)
    scouts = get("dino-scout").cells
    assert all(c.changes["holdout"] > 0 and c.measure == "holdout" for c in scouts)
    assert {c.recipe for c in scouts} == {"dino", "dino-sem"}


def test_a_folder_of_images_is_data_too(tmp_path):
    first, second = tmp_path / "a" / "photos", tmp_path / "b" / "photos"
    plans = [plan(Cell("SEM", cifar_changes={"encoder": "resnet50"}), str(path)) for path in (first, second)]
    assert {p.name for p in plans} == {"byol-sem"} and plans[0].recipe.encoder == "auto"
    assert plans[0].folder != plans[1].folder and "photos" in plans[0].folder


def test_sets_without_recipes_have_separate_runs():
    folders = {data: plan(Cell("SEM"), data).folder for data in ("digits", "flowers102", "pets", "shapes")}
    assert len(set(folders.values())) == 4 and all(data in folder for data, folder in folders.items())
    assert folders["shapes"].count("shapes") == 1


@pytest.mark.parametrize("data", ["imagenet", "cifar100", "shapes", "digits"])
def test_imagenet_cells_keep_imagenet_settings_on_any_data(data):
    for experiment in (e for e in EXPERIMENTS.values() if e.data == "imagenet"):
        for c in experiment.cells:
            recipe = plan(c, data).recipe
            optim = recipe.optim
            assert recipe.encoder.startswith("resnet50")
            assert (optim.lr, optim.weight_decay, optim.eta) == (0.4, 1e-6, 0.001)
            sem = recipe.sem
            sizes = sem.simplices, sem.vertices, sem.temperature, sem.second_temperature
            assert recipe.bottleneck == "none" or sizes == (5000, 21, 0.16, 0.04)
            large = (
                recipe.image_size,
                recipe.stem,
                recipe.batch_size,
                recipe.accumulation_steps(),
                recipe.views.blur,
            )
            assert (large == (224, "imagenet", 4096, 16, (1.0, 0.1))) is (data == "imagenet")


def test_imagenet_runs_are_those_of_its_recipes():
    folders = {plan(c, "imagenet").folder for c in get("transfer").cells}
    words = "200-epochs-batch-4096-seed-0"
    assert folders == {f"imagenet-byol-{words}", f"imagenet-byol-sem-{words}"}
    wide = {plan(c, "imagenet").folder for c in get("imagenet-scaling").cells}
    assert folders < wide and f"imagenet-byol-{words}-encoder-resnet50x2" in wide


def test_select_cells_by_name():
    table1 = get("table1")
    assert [c.name for c in table1.select(["byol"])] == ["BYOL", "BYOL + SEM"]
    assert [c.name for c in table1.select(["=byol", "=MoCo + SEM"])] == ["MoCo + SEM", "BYOL"]
    assert len(table1.select([])) == 14 and len(table1.select(["sem"])) == 7
    with pytest.raises(UserError, match="no cell of table1 has boyl in its name; they are 'SimCLR'"):
        table1.select(["boyl"])


def test_budget_of_timed_steps():
    rows = json.loads((RESULTS / "bench/step.json").read_text())
    assert {row["device"] for row in rows} == {"NVIDIA H200"}
    budget = BUDGETS.of(get("bound"), epochs=10)
    step = BUDGETS.step_times["cifar100-byol-sem"]
    fastest = min(r["ms_per_step"] for r in rows if r["recipe"] == "cifar100-byol-sem" and not r["changes"])
    assert budget.runs == 1 and budget.timed and step == fastest
    assert budget.hours == pytest.approx(step * 10 * 195 / 3.6e6)
    with torch.device("meta"):
        parameters = list(plan(cell("bound", "BYOL + SEM"), "cifar100").recipe.build().parameters())
    floats = sum(p.numel() * (2 if p.requires_grad else 1) for p in parameters)  # with momentum
    assert budget.disk == pytest.approx(4 * floats / 1e9)


def test_other_budgets_are_estimates_or_unknown(tmp_path):
    small, large = (plan(cell("table1", name), "cifar100") for name in ("BYOL", "BYOL + SEM"))
    wide = plan(cell("encoder-scaling", "RN-50 x2 BYOL"), "cifar100")
    assert BUDGETS.step_ms(small) < BUDGETS.step_ms(large) < BUDGETS.step_ms(wide)
    other = dataclasses.replace(large, recipe=dataclasses.replace(large.recipe, log_every=51))
    assert not BUDGETS.is_timed(other)  # the estimate of a timed model is close to its time
    assert BUDGETS.step_ms(other) == pytest.approx(BUDGETS.step_ms(large), rel=0.25)
    assert not BUDGETS.of(get("entropy")).timed
    assert BUDGETS.of(get("robustness")).hours is None
    (tmp_path / "step.json").write_text('[{"recipe": 1}]')
    for path in (tmp_path / "missing.json", tmp_path / "step.json"):
        assert Budgets(path).of(get("bound"), 10).hours is None
