"""Snippets in the README and docs run, their links resolve, and their numbers equal the stored results."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from simplicia.experiments.cifar import METHODS
from simplicia.train import recipes

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
LAYERS = ("encoder", "quantised")  # of a run with vector quantisation
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [*DOCS, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", RESULTS / "README.md"]
SNIPPETS = [
    pytest.param(code, id=f"{page.name}-{i}")
    for page in DOCS
    if page.name != "extend.md"  # test_extend.py runs it in a copy of the package
    for i, code in enumerate(re.findall(r"(?<!-->\n)```python\n(.*?)```", page.read_text(), re.DOTALL))
]


def text(path):
    """A page with every line break as a space, so that tests do not depend on how lines are wrapped."""
    return " ".join((ROOT / path).read_text().split())


def stored(path):
    """A JSON file below ``results/``."""
    return json.loads((RESULTS / path).read_text())


def curve(name):
    """The log of a 200-epoch run, one dictionary per epoch."""
    path = RESULTS / f"curves/cifar100-{name}-200-epochs-batch-256-seed-0.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def accuracy(row):
    return f"{row['accuracy']:.1f} ± {row['standard_error']:.1f}" if row else "-"


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippet_runs(code, tmp_path, monkeypatch, fewer_shapes):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})


def test_links_resolve():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_no_page_is_replaced_by_one_that_sphinx_writes():
    assert not {"search", "genindex", "py-modindex"} & {page.stem for page in DOCS}


def test_module_shows_the_stored_sizes():
    sizes = stored("bench/install.json")
    more = sizes["all_megabytes"] - sizes["module_megabytes"]
    page = text("docs/module.md")
    assert f"take {sizes['module_megabytes']:,} MB" in page and f"dependencies {more} MB more" in page


def test_archived_results_are_named_by_date_and_commit():
    for path in (RESULTS / "archive").iterdir():
        assert re.match(r"\d{4}-\d\d-\d\d-(before-)?[0-9a-f]{7}-\w+-", path.name), path.name
        date, commit = path.name[:10], re.search(r"[0-9a-f]{7}", path.name)[0]
        assert date in path.read_text() or "date" not in path.read_text(), path.name
        assert commit in path.read_text(), path.name


def test_start_shows_the_stored_demo():
    page = text("docs/start.md")
    for row in stored("demo/shapes-vicreg.json")["probes"]:
        spread = f"{row['accuracy']:.1f} ± {row['standard_deviation']:.1f}"
        assert f"| {row['model']} | {row['layer']} | {spread} | {row['knn_accuracy']:.1f} |" in page
    choice = stored("demo/choice.json")
    assert {row["protocol"] for row in choice} == {"held-out training images"}
    gains: dict[tuple[str, int], list[str]] = {}
    held_out = {(row["recipe"], row["epochs"], row["seed"]): row["accuracy"] for row in choice}
    for (recipe, epochs, seed), with_sem in sorted(held_out.items()):
        alone = recipe.removesuffix("-sem")
        if recipe != alone:
            gain = with_sem - held_out[alone, epochs, seed]
            gains.setdefault((alone.removeprefix("shapes-"), epochs), []).append(f"{gain:.1f}")
    sentences = {
        ("vicreg", 2): "After two epochs of VICReg, SEM adds {}, {}, {} and {} points with the seeds 0 to 3",
        ("barlow", 6): "after six epochs, SEM adds {}, {} and {} points to Barlow Twins",
        ("simclr", 6): "and {}, {} and {} to SimCLR",
        ("barlow", 2): "after two, {}, {} and {} to Barlow Twins",
        ("moco", 2): "with the one seed tried it takes {} from MoCo",
    }
    assert gains.keys() == sentences.keys()
    for key, words in sentences.items():
        signs = [gain.removeprefix("-") if "takes" in words else gain for gain in gains[key]]
        assert words.format(*signs) in page, key


def test_results_readme_shows_all_former_demos():
    page = text("results/README.md")
    files = sorted((RESULTS / "archive").glob("*-demo-shapes-byol.json"))
    assert len(files) == 4
    for path in files:
        base, *_, sem = json.loads(path.read_text())["probes"]
        assert (base["model"], base["layer"], sem["temperature"]) == ("BYOL", "encoder", 1.0)
        target = re.escape(str(path.relative_to(RESULTS)))
        row = rf"\| {base['accuracy']:.1f} \| {sem['accuracy']:.1f} \| \[[^]]*\]\({target}\) \|"
        assert re.search(row, page), row


def test_performance_shows_the_stored_comparison_with_libraries():
    page, readme = text("docs/performance.md"), text("README.md")
    for row in stored("bench/libraries.json"):
        speed = f"{row['ms_per_step']:.2f} | {row['times_ours']:.2f} | {row['workers']}"
        assert f"| {row['library']} {row['version']} | {speed} |" in page
        if row["library"] == "lightly":
            assert f"lightly's BYOL took {row['times_ours']:.1f} times" in readme
        if row["library"] == "solo-learn":
            assert f"solo-learn's {row['times_ours']:.1f} times" in readme


def test_frozen_shows_the_stored_times():
    page = " ".join(text("docs/frozen.md").split())
    tiny, vit = stored("bench/frozen.json")["rows"]
    of_tiny, of_vit = tiny["extraction"], vit["extraction"]
    assert (
        f"{of_tiny['images']:,} images with {of_tiny['views']} views each for {tiny['epochs']} epochs" in page
    )
    assert f"took {tiny['training_seconds']:.0f} s, after {of_tiny['seconds']:.0f} s for features" in page
    assert f"({of_tiny['images_per_s']:.0f} images/s)" in page
    assert f"computes features of {of_vit['images_per_s']:.1f} images/s" in page


def test_pretrain_shows_the_stored_speed_of_streaming():
    page, on_gpu = " ".join(text("docs/pretrain.md").split()), stored("scale/streaming-gpu.json")
    low, high = sorted(on_gpu["loader"]["images_per_s"]["streaming"])
    assert f"from {low:,.0f} to {high:,.0f} photographs" in page
    streamed, resident = (on_gpu["step"]["seconds_per_step"][name] for name in ("streamed", "resident"))
    assert f"takes {streamed:.2f} s, {streamed / resident:.2f} times as long" in page
    times = stored("scale/streaming-cpu.json")["decoding"]["cpu_ms_per_image"]
    assert f"Two crops of 224 pixels take {times['streaming, two crops of 224']:.2f} ms" in page
    assert f"included, take {times['torchvision, two views of 224']:.1f} ms" in page


def test_performance_shows_the_stored_probe_times():
    page = text("docs/performance.md")
    for row in stored("bench/probe.json"):
        epoch = row["seconds_per_epoch"]
        epochs = f"{epoch['choosing']:.2f} | {epoch['retraining']:.2f}"
        total = f"{row['whole_seconds']:.0f} | {row['whole_peak_gib']:.1f}"
        assert f"| {row['layer']} | {epochs} | {total} |" in page
    sem, encoder = (stored(f"cifar100/{name}-100.json")["results"][0] for name in ("byol-sem", "byol"))
    assert (sem["layer"], encoder["layer"]) == ("sem", "encoder")
    before = f"the probe took {sem['seconds']:.0f} s on `sem` and {encoder['seconds']:.0f} s on an encoder"
    assert before in page


def test_engine_notes_show_accuracies_with_and_without_centring():
    page = text("docs/engine-notes.md")
    for name, words in (("byol-sem-100-uncentred", "without it"), ("byol-sem-100", "with it")):
        row = stored(f"cifar100/{name}.json")["results"][0]
        assert row["layer"] == "sem" and f"{accuracy(row)} % {words} ([{name}.json]" in page


def test_performance_shows_the_stored_view_times():
    page = text("docs/performance.md")
    rows = stored("bench/views.json")
    assert {row["commit"] for row in rows} == set(re.findall(r"views.json\), commit (\w+)\)", page))
    for batch, size in ((256, 32), (128, 224)):
        by_library = {row["views"].split(",")[0]: row for row in rows if row["size"] == size}
        ms = {name: row["ms_per_view"] for name, row in by_library.items()}
        ours = f"{ms['captured']:.3f} | {ms['eager']:.2f}"
        assert f"| {batch} | {size} | {ours} | {ms['kornia']:.2f} | {ms['torchvision']:.1f} |" in page
        factor = f"{by_library['kornia']['ours_is_faster_by']:.0f}"
        if size == 32:
            assert f"takes a {factor}th of kornia's time" in page
        else:
            assert factor == "9" and "at 224 pixels a ninth" in page
    later = stored("bench/views-16-bits.json")["rows"]
    before, after = (r["ms_per_view"] for r in later if (r["views"], r["size"]) == ("captured", 224))
    assert f"took {after:.3f} ms instead of {before:.3f}" in page


def test_performance_shows_the_stored_step_times():
    page, notes = text("docs/performance.md"), text("docs/engine-notes.md")
    rows = stored("bench/step.json")
    for row in rows:
        name = f"| {row['recipe']} | {row['changes'].get('optim.momentum_bits', '32')} bits"
        speed = f"{row['ms_per_step']:.2f} | {row['images_per_s']:,.0f}"
        resources = f"{row['peak_gib']:.2f} | {row['startup_s']:.0f}"
        floor = f"{row['floor_ms']:.2f} | {row['over_floor']:.2f}"
        if row["speedup_over_eager"] is None:
            assert f"{name} | {speed} | {resources} | {floor} |" in page
        else:
            times = f"{row['ms_per_step']:.2f} | {row['speedup_over_eager']:.2f}"
            assert f"| {row['recipe']} | {row['engine']} | {times} |" in page
        kinds = "convolutions", "normalisation", "matrix products", "update", "elementwise"
        if row["process"] < 5:
            by_kind = " | ".join(f"{row['ms_of'][kind]:.2f}" for kind in kinds)
            assert f"{name} | {by_kind} |" in notes
    byol, sem = (f"{row['ms_per_step']:.2f}" for row in rows[:2])
    assert f"takes {byol} ms for BYOL and {sem} ms for BYOL + SEM" in text("README.md")


def test_engine_notes_show_the_stored_history_of_the_step():
    page = text("docs/engine-notes.md")
    files = [*(RESULTS / "archive").glob("*-bench-step.json"), RESULTS / "bench/step.json"]
    assert len(files) == 5
    for path in files:
        rows = json.loads(path.read_text())
        ms = {
            row["recipe"]: f"{row['ms_per_step']:.2f}"
            for row in reversed(rows)
            if row.get("engine") != "Step" and not row.get("changes")
        }
        times = f"| {ms['cifar100-byol']} | {ms['cifar100-byol-sem']} |"
        assert f"{times} [{rows[0]['commit']}](../{path.relative_to(ROOT)})" in page


def test_pages_on_speed_have_only_stored_times_of_variants():
    page = text("docs/performance.md") + text("docs/engine-notes.md")
    tuning = stored("bench/tuning.json")
    known = {f"{row['ms_per_step']:.3f}" for run in tuning["runs"] for row in run["rows"]}
    known |= {f"{row['ms']:g}" for row in tuning["alone"]["rows"]}
    views = stored("bench/views.json") + stored("bench/views-16-bits.json")["rows"]
    known |= {f"{row['ms_per_view']:.3f}" for row in views}
    shown = set(re.findall(r"(?<![\d.])\d+\.\d{3,4}(?!\d)", page))  # only these have three or four decimals
    assert len(shown) > 15 and shown <= known, shown - known
    fused = stored("bench/product.json")["rows"][0]["ms_per_step"]
    assert f"measured {fused:.2f} ms instead of" in page
    speeds = {f"{row['tb_per_s']:.2f}" for row in tuning["alone"]["rows"] if "tb_per_s" in row}
    shown = re.findall(r"(\d\.\d\d) TB/s", page) + re.findall(r"reaches (\d\.\d\d)", page)
    assert len(shown) == 3 and set(shown) <= speeds


def test_readme_shows_the_stored_cifar_accuracies():
    page = text("README.md")
    rows = stored("paper/table1.json")
    timed = {row["cell"]: row for row in stored("paper/equal-time.json") if row["seed"] == 0}
    assert "VICReg + SEM/8, time of 200 epochs" in timed
    for name, *_ in METHODS.values():
        cells = []
        for cell in (name, f"{name} + SEM"):
            seeds = [row for row in rows if (row["cell"], row["epochs"]) == (cell, 200)]
            values = [row["accuracy"] for row in seeds]
            error = np.std(values, ddof=1) if len(values) > 1 else seeds[0]["standard_error"]
            cells.append(f"{np.mean(values):.1f} ± {error:.1f}")
        row = timed.get(f"{name} + SEM/8, time of 200 epochs")
        cells.append("-" if row is None else f"{accuracy(row)} (SEM/8)")
        assert f"| {name} | {' | '.join(cells)} |" in page


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 800


def test_notes_on_table1_agree_with_its_cells():
    note = text("results/paper/table1.md")
    rows = stored("paper/table1.json")
    cells = {(row["cell"], row["epochs"]): row for row in rows if row["seed"] == 0}
    byol = [(cells["BYOL", epochs], cells["BYOL + SEM", epochs]) for epochs in (100, 200, 400)]
    gains = [f"{sem['accuracy'] - base['accuracy']:.1f}" for base, sem in byol]
    assert "100, 200 and 400, by {}, {} and {}".format(*gains) in note
    names = [name for name, *_ in METHODS.values()]
    pairs = {name: (cells[name, 200], cells[f"{name} + SEM", 200]) for name in names}
    added = {name: f"{sem['accuracy'] - base['accuracy']:.1f}" for name, (base, sem) in pairs.items()}
    assert "All fourteen cells are measured at 200 epochs" in note and min(map(float, added.values())) > 0
    *most, last = (f"{name} by {added[name]}" for name in names if name != "DINO")
    assert f"{', '.join(most)} and {last}, and DINO (see below) by {added['DINO']}" in note
    papers = [sem - base for _, base, sem in METHODS.values()]
    assert f"after 1000 epochs, SEM adds {min(papers):.1f} to {max(papers):.1f}" in note
    alone, with_sem = (f"{row['accuracy']:.1f}" for row in pairs["DINO"])
    assert f"{alone} without SEM and {with_sem} with it" in note
    assert f"the {added['DINO']} between the two cells" in note
    errors = {
        f"{math.hypot(base['standard_error'], sem['standard_error']):.1f}"
        for base, sem in [*byol, *pairs.values()]
    }
    assert errors == {"0.7"} and note.count("from the test images is 0.7") == 2
    downstream = [row for row in stored("paper/tau-downstream.json") if row["epochs"] == 400]
    ahead = {row["temperature"] for row in downstream if row["accuracy"] > byol[2][0]["accuracy"]}
    assert ahead == {0.0001, 0.001, 0.01, 0.1, 1.0} and "from 0.0001 to 1, and not at 10" in note
    base, sem = (row["ms_per_step"] for row in stored("bench/step.json")[:2])
    for page in (note, text("README.md")):
        assert f"takes {sem / base:.2f} times as long" in page


def test_notes_on_seeds_agree_with_the_cells():
    note = text("results/paper/table1.md")
    rows = stored("paper/table1.json")
    (base0, base1), (sem0, sem1) = (
        [row["accuracy"] for row in rows if row["cell"] == f"Barlow Twins{sem}"] for sem in ("", " + SEM")
    )
    seeds = f"{base1:.1f} after {base0:.1f}, with SEM {sem1:.1f} after {sem0:.1f}"
    assert f"{seeds}, and SEM adds {sem1 - base1:.1f} after {sem0 - base0:.1f}." in note
    moved = [abs(base1 - base0), abs(sem1 - sem0), abs(sem1 - base1 - sem0 + base0)]
    assert "moved a cell by {:.1f} and {:.1f} and the difference by {:.1f}".format(*moved) in note
    cells = {row["cell"]: row["accuracy"] for row in rows if (row["seed"], row["epochs"]) == (0, 200)}
    least = min(cells[f"{name} + SEM"] - cells[name] for name, *_ in METHODS.values())
    assert f"the least that SEM adds, {least:.1f}" in note


def test_notes_on_first_steps_agree_with_the_measurement():
    note = text("results/paper/table1.md")
    rows = stored("cifar100/first-steps.json")["rows"]
    steps = {row["recipe"].removeprefix("cifar100-"): row["relative_step"] for row in rows}
    for name in ("byol", "barlow", "vicreg"):
        assert f"{steps[name]:.3f}" == f"{steps[f'{name}-sem']:.3f}" == "0.020" and "it is 0.020 of a" in note
    ratios = {row["recipe"]: row.get("over_without_sem") for row in rows}
    simclr, moco, dino, swav = (
        f"{ratios[f'cifar100-{name}-sem']:.1f}" for name in ("simclr", "moco", "dino", "swav")
    )
    longer = f"makes it {simclr} times as long in SimCLR, {moco} times in MoCo, {dino} times in DINO"
    assert f"{longer}, and {swav} times in SwAV" in note


def test_notes_on_dinos_teacher_agree_with_the_runs():
    note = text("results/paper/table1.md")
    runs = stored("cifar100/dino-first-25-epochs.json")["runs"]
    knn = {tuple(run["changes"].items()): f"{run['knn_accuracy']:.1f}" for run in runs}
    faster, rate = ("dino.momentum", 0.99), ("optim.lr", 3.0)
    assert f"reaches {knn[()]} % with the recipe, and {knn[(faster,)]} % with BYOL's teacher" in note
    assert f"reaches {knn[(rate,)]} %, and {knn[faster, rate]} % with the faster teacher" in note
    rows = stored("paper/dino-short.json")
    cells = {row["cell"]: row for row in rows + stored("paper/table1.json")}
    slow = [cells[cell]["accuracy"] for cell in ("DINO", "DINO + SEM")]
    pair = [cells[f"{cell}, teacher 0.99"] for cell in ("DINO", "DINO + SEM")]
    fast = [row["accuracy"] for row in pair]
    assert "DINO has {:.1f} and DINO + SEM {:.1f}".format(*fast) in note
    assert f": {fast[0] - slow[0]:.1f} and {fast[1] - slow[1]:.1f} more than with the recipe" in note
    assert f"SEM then adds {fast[1] - fast[0]:.1f}, so about half of the {slow[1] - slow[0]:.1f}" in note
    assert 0.4 < (fast[1] - fast[0]) / (slow[1] - slow[0]) < 0.6


@pytest.mark.parametrize("name", ["dino", "dino-sem"])
def test_notes_on_dinos_loss_and_rank_agree_with_the_curves(name):
    lines = curve(name)
    tens = [lines[i : i + 10] for i in range(0, 200, 10)]
    losses, ranks = ([sum(x[key] for x in ten) / 10 for ten in tens] for key in ("loss", "effective_rank"))
    assert losses[-1] == min(losses) and ranks[-1] > 1.05 * ranks[0]
    assert ranks.index(min(ranks)) == (3 if name == "dino" else 0)
    assert abs(ranks[-1] - ranks[-2]) < 0.5
    note = text("results/paper/table1.md")
    assert "the loss falls to the end, and the rank rises until it levels off" in note
    assert "without SEM after a fall over the first 40 epochs" in note


@pytest.mark.parametrize("name", ["swav", "swav-sem"])
def test_notes_on_swavs_queue_agree_with_the_curves(name):
    loss = [line["loss"] for line in curve(name)]
    assert loss[50] > loss[49] > loss[52]
    assert "lower than before within three" in text("results/paper/table1.md")


def test_notes_on_coherence_agree_with_the_curves():
    rows = [row for row in stored("paper/coherence.json") if "plain linear" in row["protocol"]]
    curves = {row["cell"]: dict(zip(row["k"], row["coherence"], strict=True)) for row in rows}
    base, ica, sem = (curves[cell] for cell in ("BYOL", "BYOL, ICA", "BYOL + SEM"))
    note = text("results/paper/coherence.md")
    assert "ahead up to K=6" in note and [k for k in base if base[k] > sem[k]] == [1, 2, 3, 4, 5, 6]
    assert "fall towards 0.040" in note and f"{base[50]:.3f}" == f"{ica[50]:.3f}" == "0.040"
    assert "at 0.2 or more from K=10 on" in note and min(sem[k] for k in sem if k >= 10) >= 0.2 > sem[9]
    assert f"{4 / 99:.3f}" == "0.040"  # a superclass has 4 of the 99 other classes


def test_notes_on_coherence_over_classes_with_neighbours_agree_with_the_curves():
    plain = (row for row in stored("paper/coherence.json") if "plain linear" in row["protocol"])
    rows = {row["cell"]: row for row in plain}
    for row in rows.values():  # derived from the curve over all classes and the classes without neighbours
        pairs = zip(row["coherence"], row["isolated"], strict=True)
        derived = [100 * value / (100 - isolated) if isolated < 100 else None for value, isolated in pairs]
        assert row["coherence_connected"] == derived
        assert [row[f"connected_at_{k}"] for k in (1, 5, 20)] == [derived[k - 1] for k in (1, 5, 20)]
    base, sem = (rows[cell]["coherence_connected"] for cell in ("BYOL", "BYOL + SEM"))
    note = text("results/paper/coherence.md")
    assert sem[0] is None and all(a < b for a, b in zip(base[1:], sem[1:], strict=True))
    assert "SEM is ahead from K=2 on" in note
    left = [100 - rows[cell]["isolated"][4] for cell in ("BYOL + SEM", "BYOL")]
    assert "at K=5 it has {} such classes and the encoder {}".format(*left) in note


def interpolated(epochs):
    """BYOL's accuracy in the time of BYOL + SEM's epochs, on a logarithmic scale of epochs; and SEM's."""
    cells = {
        (row["cell"], row["epochs"]): row["accuracy"]
        for row in stored("paper/table1.json")
        if row["seed"] == 0
    }
    base_ms, sem_ms = (row["ms_per_step"] for row in stored("bench/step.json")[:2])
    known = [(math.log(n), cells["BYOL", n]) for n in (100, 200, 400)]
    return np.interp(math.log(epochs * sem_ms / base_ms), *zip(*known, strict=True)), cells[
        "BYOL + SEM", epochs
    ]


def test_notes_on_equal_time_agree_with_the_cells():
    note = text("results/paper/equal-time.md")
    cells = {row["cell"]: row for row in stored("paper/equal-time.json") if row["seed"] == 0}
    base, sem = (cells[f"{name}, time of 200 epochs"] for name in ("VICReg", "VICReg + SEM/8"))
    assert f"has {sem['accuracy']:.1f} after {sem['epochs']} epochs" in note
    assert f"VICReg {base['accuracy']:.1f} after {base['epochs']}." in note
    assert sem["epochs"] == int(base["epochs"] * sem["base_ms_per_step"] / sem["ms_per_step"])
    error = math.hypot(base["standard_error"], sem["standard_error"])
    gain = sem["accuracy"] - base["accuracy"]
    assert f"difference of {gain:.1f} is within its standard error of {error:.1f}" in note and gain < error
    bases, sems = zip(*map(interpolated, (100, 200)), strict=True)
    assert "BYOL has {:.1f} and {:.1f} in the time of".format(*bases) in note
    assert "These have {:.1f} and {:.1f}".format(*sems) in note
    ahead = [a - b for a, b in zip(bases, sems, strict=True)]
    assert "BYOL is {:.1f} and {:.1f} ahead".format(*ahead) in note
    front = text("results/paper/front.md")
    assert f"BYOL is {min(ahead):.1f} to {max(ahead):.1f} ahead of BYOL + SEM with L = 5000" in front
    assert "its difference is within the standard error" in front
    table1 = next(r for r in stored("paper/table1.json") if (r["cell"], r["epochs"]) == ("VICReg", 200))
    assert (base["run"], base["accuracy"]) == (table1["run"], table1["accuracy"])


def test_notes_on_the_bound_agree_with_the_run():
    note = text("results/paper/bound.md")
    rows = {row["temperature"]: row for row in stored("paper/bound.json") if "SEM" in row["cell"]}
    assert f"On the run the term is {rows[None]['term']:.0f} without" in note
    assert [tau for tau, row in rows.items() if row["term"] > rows[None]["term"]] == [3.0]
    assert f"tau = 3, where it is {rows[3.0]['term']:.0f}" in note
    assert rows[3.0]["lipschitz"] > 2 * rows[None]["lipschitz"]
    assert rows[3.0]["measured"] < rows[None]["measured"]
    losses = [rows[tau]["train_loss"] for tau in (10.0, 3.0, 1.0, 0.3, 0.1, 0.01)]
    terms = [rows[tau]["term"] for tau in (3.0, 1.0, 0.3, 0.1, 0.01)]
    assert losses == sorted(losses, reverse=True) and terms == sorted(terms, reverse=True)
    assert f"from {losses[0]:.2f} at tau = 10 to {losses[-1]:.5f} at 0.01" in note
    assert "from tau = 3 on the term falls with it" in note


def test_analyze_shows_the_stored_times():
    page = text("docs/analyze.md")
    for row in stored("bench/analyze.json"):
        sizes = f"{row['images']:,} | {row['fit_images']:,}"
        assert f"| {row['device']} | {sizes} | {row['seconds_total']:.0f} |" in page


def test_bottlenecks_shows_the_stored_accuracies():
    page = text("docs/bottlenecks.md")
    for row in stored("shapes/bottlenecks.json"):
        accuracies = f"{row['knn_accuracy']:.1f} | {row['untrained_knn_accuracy']:.1f}"
        assert f"| {row['bottleneck']} | {row['layer']} | {accuracies} |" in page
        assert row["knn_accuracy"] > row["untrained_knn_accuracy"]


def test_bottlenecks_shows_the_weights_of_vector_quantisation():
    page, rows = text("docs/bottlenecks.md"), stored("shapes/vq-weight.json")
    assert {row["protocol"] for row in rows} == {"kNN on held-out training images"}
    by_weight = {}
    for row in rows:
        parts = by_weight.setdefault(row["commitment"], {"vq": "- | -", "vq-shared": "- | -"})
        parts[row["bottleneck"]] = f"{row['encoder']:.1f} | {row['quantised']:.1f}"
    for weight, parts in by_weight.items():
        assert f"| {weight:g} | {parts['vq']} | {parts['vq-shared']} |" in page
    for form in ("vq", "vq-shared"):
        of_form = {row["commitment"]: row for row in rows if row["bottleneck"] == form}
        chosen = recipes.get(f"cifar100-byol-{form}").vq.commitment
        assert chosen == max(of_form, key=lambda weight: of_form[weight]["quantised"])
        assert f"{chosen:g} for `{form}`" in page
        assert all(of_form[0.25][layer] == min(r[layer] for r in of_form.values()) for layer in LAYERS)


def test_pretrain_shows_the_stored_accuracies_of_smaller_views():
    page = text("docs/pretrain.md")
    rows = stored("shapes/view-size.json")["rows"]
    assert [row["view_size"] for row in rows] == [32, 24, 32, 24]
    barlow, small_barlow, byol, small_byol = (f"{row['accuracy']:.1f} %" for row in rows)
    assert f"Barlow Twins + SEM had {barlow} on views of 32 pixels and {small_barlow} on views of 24" in page
    assert f"BYOL + SEM {byol} and {small_byol}" in page


@pytest.mark.parametrize("data", ["flowers102", "pets"])
@pytest.mark.parametrize("layer", ["encoder", "codes"])
def test_transfer_shows_the_stored_accuracies(data, layer):
    row = stored(f"transfer/byol-sem-100-{data}-{layer}.json")
    more = f"{row['mean_class_accuracy']:.1f} | {row['seconds']:.1f}"
    assert f"| {data} | {layer} | {accuracy(row)} | {more} |" in text("docs/transfer.md")


def test_scaling_shows_the_stored_plan():
    page, plan = text("docs/scaling.md"), stored("scale/plan.json")
    for check in plan["checks"]:
        assert f"| {check['measured_ms']:.2f} | {check['formula_ms']:.2f} |" in page
        assert abs(check["formula_ms"] / check["measured_ms"] - 1) < 0.05
    for recipe in plan["recipes"].values():
        assert f"{recipe['trained'] / 1e6:.0f} M trained weights" in page
        for row in recipe["gpus"]:
            times = " | ".join(f"{row[name]:.0f}" for name in ("compute_ms", "reduce_ms", "exposed_ms"))
            total = f"{row['norms_ms']:.0f} | {row['step_ms']:.0f} | {row['images_per_s']:,.0f}"
            busy = f"{row['busy_percent']:.0f} % | {row['memory_gib']:.1f}"
            start = f"| {row['gpus']} | {row['images_per_gpu']} | {row['micro_batches']} |"
            assert f"{start} {times} | {total} | {busy} |" in page
    sem = plan["recipes"]["imagenet-byol-sem"]
    for row in sem["images_per_gpu_at_64"]:
        speed = f"{row['step_ms']:.0f} | {row['images_per_s']:,.0f} | {row['busy_percent']:.0f} %"
        assert f"| {row['images_per_gpu']} | {row['batch_size']:,} | {speed} |" in page
    for full, half in zip(sem["gpus"][1:], sem["half_large"], strict=True):
        assert f"| {full['gpus']} | {full['step_ms']:.0f} | {half['step_ms']:.0f} |" in page


def test_search_shows_the_stored_numbers(tmp_path, monkeypatch):
    page = text("docs/find.md")
    speed = stored("bench/search.json")
    found, near = stored("search/duplicates.json"), stored("search/neighbours.json")
    for way in ("exact", "fast", "faiss"):
        assert f"| {speed['bytes_of_codes']:,} | {speed[way]['median_ms']:.1f} |" in page
    dedup = speed["dedup"]
    took = f"{dedup['seconds']:.0f} s and {dedup['cpu_seconds']:.0f} s of CPU time"
    assert f"Deduplicating {dedup['images']:,} images took {took}" in page
    for method in found["methods"].values():
        test = method["test"]
        kinds = " | ".join(str(count) for count in test["found_by_kind"].values())
        cells = f"{method['threshold']:g} | {test['found']} | {kinds} | {test['wrongly_joined']}"
        assert f"| {cells} |" in page
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import search_recall

    for line in search_recall.tables(near).splitlines():
        assert line in page, "run: python benchmarks/search_recall.py"
    for row in near["imagenette"]["curve"]:
        assert f"| {row['bytes']} | {row['same_class_in_10']:.1f} / {row['instance_in_10']:.1f} |" in page
    search_recall.draw(near, tmp_path)
    for drawn in tmp_path.iterdir():
        paths = drawn, ROOT / "docs" / drawn.name
        now, then = (re.findall(r">([^<>\n]+)</text>", path.read_text()) for path in paths)
        assert now == then and len(now) > 9, "run: python benchmarks/search_recall.py"
    from simplicia.codes.duplicates import DISTANCE

    ours = found["methods"]["looks and codes"]
    assert ours["threshold"] == DISTANCE
    assert ours["test"]["found"] >= 190 and ours["test"]["wrongly_joined"] <= 5


def test_reliability_shows_the_stored_time_of_the_digest():
    row = stored("bench/digest.json")
    shown = f"For {row['bytes'] / 1e9:.1f} GB of tensors it takes {row['digest_seconds']:.1f} CPU seconds"
    assert shown in text("docs/reliability.md")


def test_gallery_describes_the_stored_run():
    page = text("docs/gallery.md")
    probe = stored("cifar100/byol-sem-100.json")["results"][0]
    at = {row["temperature"]: f"{row['accuracy']:.1f} %" for row in probe["per_temperature"]}
    assert f"the temperature of pre-training, with {at[1.0]}" in page
    assert f"at 0.0001, it has {at[0.0001]}" in page and f"nearly uniform, and it has {at[10.0]}" in page
    graphs = stored("analysis/cifar100-byol-sem-100.json")["coherence"]["graphs"]
    sem, encoder = (
        [
            len(part["classes"])
            for graph in graphs
            if (graph["layer"], graph["k"]) == (layer, 5)
            for part in graph["components"]
        ]
        for layer in ("sem", "encoder")
    )
    assert f"{encoder[0]} of the 100 classes" in page and len(encoder) == 1
    assert f"{sum(sem)} classes in {len(sem)} groups of two or three" in page and set(sem) == {2, 3}
    for target in re.findall(r'href="([^"]+)"', page):
        assert (ROOT / "docs" / target).exists(), target
        assert (ROOT / "docs" / target).stat().st_size < 1.4e6


def test_gallery_describes_the_stored_run_on_photographs():
    page, run = text("docs/gallery.md"), stored("analysis/imagenette-simclr-sem-6.json")
    at = {row["temperature"]: row["accuracy"] for row in run["results"]["probe-sem"]["per_temperature"]}
    assert f"The probe has {at[1.0]:.1f} % at temperature 1, and {at[0.0]:.1f} % on codes alone" in page
    shown = {simplex["simplex"]: simplex["vertices"] for simplex in run["atlas"]["showcase"]}
    vertex = next(vertex for vertex in shown[182] if vertex["vertex"] == 7)
    kind, count = vertex["classes"][0]
    assert run["data"]["classes"][kind] == "n03888257"  # parachute
    assert f"the {vertex['fired']} test images on which it fires, {count} show parachutes" in page
    codes, encoder = (100 * layer["by_class"][0] for layer in run["retrieval"]["layers"])
    assert f"for {codes:.1f} % of the queries by codes, and for {encoder:.1f} % by the encoder's" in page
