"""Every Python snippet of the README and the docs runs as it stands."""

import math
import re
from pathlib import Path

import pytest

from simplicia.experiments.cifar import METHODS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [
    pytest.param(code, id=f"{page.name}-{i}")
    for page in PAGES
    for i, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippet(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readmes_numbers_are_those_of_the_stored_demo():
    import json

    found = json.loads((ROOT / "results/demo/shapes-byol.json").read_text())
    rows = []
    for row in found["probes"]:
        tau = "-" if row["temperature"] is None else f"{row['temperature']:g}"
        accuracy = f"{row['accuracy']:.1f} ± {row['standard_error']:.1f}"
        rows.append(f"| {row['model']} | {row['layer']} | {tau} | {accuracy} | {row['knn_accuracy']:.1f} |")
    assert "\n".join(rows) in (ROOT / "README.md").read_text(), "\n".join(rows)


def test_libraries_and_probes_on_the_performance_page_are_the_stored_ones():
    import json

    bench, page = ROOT / "results/bench", (ROOT / "docs/performance.md").read_text()
    readme = " ".join((ROOT / "README.md").read_text().split())
    for row in json.loads((bench / "libraries.json").read_text()):
        speed = f"{row['ms_per_step']:.2f} | {row['times_ours']:.2f} | {row['workers']}"
        assert f"| {row['library']} {row['version']} | {speed} |" in page
        if row["library"] == "lightly":
            assert f"lightly's BYOL took {row['times_ours']:.1f} times" in readme
        if row["library"] == "solo-learn":
            assert f"solo-learn's {row['times_ours']:.1f} times" in readme
    for row in json.loads((bench / "probe.json").read_text()):
        epoch = row["seconds_per_epoch"]
        each = f"{epoch['choosing']:.2f} | {epoch['retraining']:.2f}"
        whole = f"{row['whole_seconds']:.0f} | {row['whole_peak_gib']:.1f}"
        assert f"| {row['layer']} | {each} | {whole} |" in page
    before = {}
    for layer, name in (("sem", "byol-sem"), ("encoder", "byol")):
        stored = json.loads((ROOT / f"results/cifar100/{name}-100-third.json").read_text())["results"][0]
        assert stored["layer"] == layer
        before[layer] = stored["seconds"]
    told = f"the probe took {before['sem']:.0f} s on `sem` and {before['encoder']:.0f} s on an encoder"
    assert told in " ".join(page.split())
    for name in ("plain", "third"):
        found = json.loads((ROOT / f"results/cifar100/byol-sem-100-{name}.json").read_text())["results"][0]
        told = f"{found['accuracy']:.1f} ± {found['standard_error']:.1f} %"
        assert found["layer"] == "sem" and told in page


def test_views_on_the_performance_page_are_the_stored_ones():
    import json

    page = " ".join((ROOT / "docs/performance.md").read_text().split())
    rows = json.loads((ROOT / "results/bench/views.json").read_text())
    assert {row["commit"] for row in rows} == set(re.findall(r"views.json\), commit (\w+)\)", page))
    for batch, size in ((256, 32), (128, 224)):
        found = {row["views"].split(",")[0]: row for row in rows if row["size"] == size}
        ms = {name: row["ms_per_view"] for name, row in found.items()}
        ours = f"{ms['captured']:.3f} | {ms['eager']:.2f}"
        assert f"| {batch} | {size} | {ours} | {ms['kornia']:.2f} | {ms['torchvision']:.1f} |" in page
        if size == 32:
            assert f"takes a {found['kornia']['ours_is_faster_by']:.0f}th of kornia's time" in page
        else:
            assert f"{found['kornia']['ours_is_faster_by']:.0f}" == "9" and "at 224 pixels a ninth" in page
    later = json.loads((ROOT / "results/bench/views-16-bits.json").read_text())["rows"]
    before, after = (r["ms_per_view"] for r in later if (r["views"], r["size"]) == ("captured", 224))
    assert f"took {after:.3f} ms instead of {before:.3f}" in page


def test_the_performance_pages_numbers_are_the_stored_ones():
    import json

    bench, page = ROOT / "results/bench", " ".join((ROOT / "docs/performance.md").read_text().split())
    stored = {path.name: json.loads(path.read_text()) for path in bench.glob("step*.json")}
    for row in stored["step.json"]:
        name = f"| {row['recipe']} | {row['changes'].get('optim.momentum_bits', '32')} bits"
        speed = f"{row['ms_per_step']:.2f} | {row['images_per_s']:,.0f}"
        took = f"{row['peak_gib']:.2f} | {row['startup_s']:.0f}"
        floor = f"{row['floor_ms']:.2f} | {row['over_floor']:.2f}"
        if row["speedup_over_eager"] is None:
            assert f"{name} | {speed} | {took} | {floor} |" in page
        else:
            times = f"{row['ms_per_step']:.2f} | {row['speedup_over_eager']:.2f}"
            assert f"| {row['recipe']} | {row['engine']} | {times} |" in page
        kinds = "convolutions", "normalisation", "matrix products", "update", "elementwise"
        if row["process"] < 5:
            spent = " | ".join(f"{row['ms_of'][kind]:.2f}" for kind in kinds)
            assert f"{name} | {spent} |" in page
    for file, rows in stored.items():
        by_recipe = {
            row["recipe"]: f"{row['ms_per_step']:.2f}"
            for row in reversed(rows)
            if row.get("engine") != "Step" and not row.get("changes")
        }
        both = by_recipe["cifar100-byol"], by_recipe["cifar100-byol-sem"]
        assert f"| {both[0]} | {both[1]} | [{file}]" in page
    # every time in the text with more than two digits behind the point, and no other, is one of the variants'
    tuning = json.loads((bench / "tuning.json").read_text())
    known = {f"{row['ms_per_step']:.3f}" for run in tuning["runs"] for row in run["rows"]}
    known |= {f"{row['ms']:g}" for row in tuning["alone"]["rows"]}
    views = json.loads((bench / "views.json").read_text())
    views += json.loads((bench / "views-16-bits.json").read_text())["rows"]
    known |= {f"{row['ms_per_view']:.3f}" for row in views}
    told = set(re.findall(r"(?<![\d.])\d+\.\d{3,4}(?!\d)", page))
    assert len(told) > 15 and told <= known, told - known
    inside = json.loads((bench / "product.json").read_text())["rows"][0]["ms_per_step"]
    assert f"measured {inside:.2f} ms instead of" in page
    byol, sem = (f"{row['ms_per_step']:.2f}" for row in stored["step.json"][:2])
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"takes {byol} ms for BYOL and {sem} ms for BYOL + SEM" in readme
    speeds = {f"{row['tb_per_s']:.2f}" for row in tuning["alone"]["rows"] if "tb_per_s" in row}
    shown = re.findall(r"(\d\.\d\d) TB/s", page) + re.findall(r"reaches (\d\.\d\d)", page)
    assert len(shown) == 3 and set(shown) <= speeds


def test_the_readmes_cifar_numbers_are_the_stored_ones():
    import json

    page = (ROOT / "README.md").read_text()
    found = json.loads((ROOT / "results/cifar100/byol-sem-100-second.json").read_text())["results"]
    row = next(r for r in found if r["layer"] == "sem")
    assert f"ended at {row['accuracy']:.1f} ± {row['standard_error']:.1f}" in page
    rows = json.loads((ROOT / "results/paper/table1.json").read_text())
    cells = {(row["cell"], row["epochs"]): row for row in rows if row["seed"] == 0}
    for epochs in sorted({epochs for cell, epochs in cells if cell.startswith("BYOL")}):
        shown = [cells.get((cell, epochs)) for cell in ("BYOL", "BYOL + SEM")]
        words = [f"{r['accuracy']:.1f} ± {r['standard_error']:.1f}" if r else "-" for r in shown]
        seconds = f"{shown[1]['seconds']:.0f}" if shown[1] else "-"
        assert f"| {epochs} epochs | {' | '.join(words)} | {seconds}" in page
    for name, base, sem in METHODS.values():
        shown = [cells.get((cell, 200)) for cell in (name, f"{name} + SEM")]
        words = [f"{r['accuracy']:.1f} ± {r['standard_error']:.1f}" if r else "-" for r in shown]
        assert f"| {name} | {' | '.join(words)} | {base:.1f} | {sem:.1f} |" in page
    again = [row for row in rows if row["seed"] == 1]
    words = [f"{row['accuracy']:.1f} ± {row['standard_error']:.1f}" for row in again]
    assert [row["cell"] for row in again] == ["Barlow Twins", "Barlow Twins + SEM"]
    assert f"Barlow Twins with another seed has {' and '.join(words)}" in " ".join(page.split())
    (codes,) = (
        row
        for row in json.loads((ROOT / "results/paper/hard-discretisation.json").read_text())
        if (row["layer"], row["epochs"]) == ("codes", 400)
    )
    told = f"the run of 400 epochs has {codes['accuracy']:.1f} ± {codes['standard_error']:.1f}."
    assert told in " ".join(page.split())


def test_what_is_said_of_table1_is_so():
    import json

    said = " ".join((ROOT / "results/paper/table1.md").read_text().split())
    rows = json.loads((ROOT / "results/paper/table1.json").read_text())
    cells = {(row["cell"], row["epochs"]): row for row in rows if row["seed"] == 0}
    pairs = [(cells["BYOL", epochs], cells["BYOL + SEM", epochs]) for epochs in (100, 200, 400)]
    first, second, third = (f"{sem['accuracy'] - base['accuracy']:.1f}" for base, sem in pairs)
    assert f"100, 200 and 400, by {first}, {second} and {third}" in said
    names = [name for name, *_ in METHODS.values()]
    others = {name: (cells[name, 200], cells[f"{name} + SEM", 200]) for name in names}
    added = {name: f"{sem['accuracy'] - base['accuracy']:.1f}" for name, (base, sem) in others.items()}
    assert "All fourteen cells are measured at 200 epochs" in said and min(map(float, added.values())) > 0
    *most, last = (f"{name} by {added[name]}" for name in names if name != "DINO")
    assert f"{', '.join(most)} and {last}, and DINO, of which more below, by {added['DINO']}" in said
    papers = [sem - base for _, base, sem in METHODS.values()]
    assert f"after 1000 epochs, it is {min(papers):.1f} to {max(papers):.1f}" in said
    alone, with_sem = (f"{row['accuracy']:.1f}" for row in others["DINO"])
    assert f"{alone} without SEM and {with_sem} with it" in said
    assert f"the {added['DINO']} between the two cells" in said
    again = [[row for row in rows if row["cell"] == f"Barlow Twins{sem}"] for sem in ("", " + SEM")]
    (base0, base1), (sem0, sem1) = ([row["accuracy"] for row in cells] for cells in again)
    told = f"{base1:.1f} after {base0:.1f}, with SEM {sem1:.1f} after {sem0:.1f}"
    assert f"{told}, and SEM adds {sem1 - base1:.1f} after {sem0 - base0:.1f}." in said
    moved = [abs(base1 - base0), abs(sem1 - sem0), abs(sem1 - base1 - sem0 + base0)]
    told = "moved a cell by {:.1f} and {:.1f} and the difference by {:.1f}".format(*moved)
    assert told in said and f"the least that SEM adds, {min(added.values(), key=float)}" in said
    pairs += others.values()
    errors = {f"{math.hypot(base['standard_error'], sem['standard_error']):.1f}" for base, sem in pairs}
    assert errors == {"0.7"} and "from the test images is 0.7" in said
    found = json.loads((ROOT / "results/paper/tau-downstream.json").read_text())
    ahead = {
        r["temperature"] for r in found if r["epochs"] == 400 and r["accuracy"] > pairs[2][0]["accuracy"]
    }
    assert ahead == {0.0001, 0.001, 0.01, 0.1, 1.0} and "from 0.0001 to 1, and not at 10" in said
    base, sem = (row["ms_per_step"] for row in json.loads((ROOT / "results/bench/step.json").read_text())[:2])
    for page in (said, (ROOT / "README.md").read_text()):
        assert f"takes {sem / base:.2f} times as long" in " ".join(page.split())


def test_what_is_said_of_first_steps_is_so():
    import json

    said = " ".join((ROOT / "results/paper/table1.md").read_text().split())
    rows = json.loads((ROOT / "results/cifar100/first-steps.json").read_text())["rows"]
    steps = {row["recipe"].removeprefix("cifar100-"): row["relative_step"] for row in rows}
    for name in ("byol", "barlow", "vicreg"):
        assert f"{steps[name]:.3f}" == f"{steps[f'{name}-sem']:.3f}" == "0.020" and "it is 0.020 of a" in said
    longer = {row["recipe"]: row.get("over_without_sem") for row in rows}
    simclr, moco, dino = (f"{longer[f'cifar100-{n}-sem']:.1f}" for n in ("simclr", "moco", "dino"))
    told = f"makes it {simclr} times as long in SimCLR, {moco} times in MoCo, {dino} times in DINO"
    assert f"{told}, and {longer['cifar100-swav-sem']:.1f} times in SwAV" in said


def test_what_is_said_of_dinos_teacher_is_so():
    import json

    said = " ".join((ROOT / "results/paper/table1.md").read_text().split())
    runs = json.loads((ROOT / "results/cifar100/dino-first-25-epochs.json").read_text())["runs"]
    found = {tuple(run["changes"].items()): f"{run['knn_accuracy']:.1f}" for run in runs}
    faster, rate = ("dino.momentum", 0.99), ("optim.lr", 3.0)
    assert f"finds {found[()]} % by the recipe, and {found[(faster,)]} % with BYOL's teacher" in said
    assert f"finds {found[(rate,)]} %, and {found[faster, rate]} % with the faster teacher" in said
    rows = json.loads((ROOT / "results/paper/dino-short.json").read_text())
    cells = {row["cell"]: row for row in rows + json.loads((ROOT / "results/paper/table1.json").read_text())}
    slow = [cells[cell]["accuracy"] for cell in ("DINO", "DINO + SEM")]
    pair = [cells[f"{cell}, teacher 0.99"] for cell in ("DINO", "DINO + SEM")]
    fast = [row["accuracy"] for row in pair]
    assert "DINO has {:.1f} and DINO + SEM {:.1f}".format(*fast) in said
    assert f": {fast[0] - slow[0]:.1f} and {fast[1] - slow[1]:.1f} more than by the recipe" in said
    assert f"SEM adds {fast[1] - fast[0]:.1f} then, so about half of the {slow[1] - slow[0]:.1f}" in said
    assert 0.4 < (fast[1] - fast[0]) / (slow[1] - slow[0]) < 0.6
    words = [f"{row['accuracy']:.1f} ± {row['standard_error']:.1f}" for row in pair]
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"DINO has {words[0]} and DINO + SEM {words[1]}." in readme


@pytest.mark.parametrize("name", ["dino", "dino-sem"])
def test_what_is_said_of_dinos_curves_is_so(name):
    import json

    curve = ROOT / f"results/curves/cifar100-{name}-200-epochs-batch-256-seed-0.jsonl"
    lines = [json.loads(line) for line in curve.read_text().splitlines()]
    tens = [lines[i : i + 10] for i in range(0, 200, 10)]
    losses, ranks = ([sum(x[key] for x in ten) / 10 for ten in tens] for key in ("loss", "effective_rank"))
    assert losses[-1] == min(losses) and ranks[-1] > 1.05 * ranks[0]
    assert ranks.index(min(ranks)) == (3 if name == "dino" else 0)
    assert abs(ranks[-1] - ranks[-2]) < 0.5


@pytest.mark.parametrize("name", ["swav", "swav-sem"])
def test_what_is_said_of_swavs_queue_is_so(name):
    import json

    curve = ROOT / f"results/curves/cifar100-{name}-200-epochs-batch-256-seed-0.jsonl"
    loss = [json.loads(line)["loss"] for line in curve.read_text().splitlines()]
    assert loss[50] > loss[49] > loss[52] and "lower than before within three" in " ".join(
        (ROOT / "results/paper/table1.md").read_text().split()
    )


def test_what_is_said_of_coherence_is_so():
    import json

    rows = json.loads((ROOT / "results/paper/coherence.json").read_text())
    curves = {row["cell"]: dict(zip(row["k"], row["coherence"], strict=True)) for row in rows}
    base, parts, sem = (curves[cell] for cell in ("BYOL", "BYOL, ICA", "BYOL + SEM"))
    said = " ".join((ROOT / "results/paper/coherence.md").read_text().split())
    assert "ahead up to K=6" in said and [k for k in base if base[k] > sem[k]] == [1, 2, 3, 4, 5, 6]
    assert "fall towards 0.040" in said and f"{base[50]:.3f}" == f"{parts[50]:.3f}" == "0.040"
    assert "at 0.2 or more from K=10 on" in said and min(sem[k] for k in sem if k >= 10) >= 0.2 > sem[9]
    assert f"{4 / 99:.3f}" == "0.040"  # 4 of the 99 other classes are of a class's superclass


def test_the_readme_states_the_earlier_demos_as_stored():
    import json

    page = " ".join((ROOT / "README.md").read_text().split())
    for name in ("earlier", "second", "third"):
        found = json.loads((ROOT / f"results/demo/shapes-byol-{name}.json").read_text())["probes"]
        base, *_, sem = (row["accuracy"] for row in found)
        assert f"{base:.1f} for BYOL's encoder and {sem:.1f} for SEM at temperature 1" in page


def test_the_analyses_times_are_the_stored_ones():
    import json

    page = (ROOT / "docs/analyze.md").read_text()
    for row in json.loads((ROOT / "results/bench/analyze.json").read_text()):
        sizes = f"{row['images']:,} | {row['fit_images']:,}"
        assert f"| {row['device']} | {sizes} | {row['seconds_total']:.0f} |" in page


def test_the_bottlenecks_accuracies_are_the_stored_ones():
    import json

    page = (ROOT / "docs/bottlenecks.md").read_text()
    for row in json.loads((ROOT / "results/shapes/bottlenecks.json").read_text()):
        accuracies = f"{row['knn_accuracy']:.1f} | {row['untrained_knn_accuracy']:.1f}"
        assert f"| {row['bottleneck']} | {row['layer']} | {accuracies} |" in page
        assert row["knn_accuracy"] > row["untrained_knn_accuracy"]


def test_what_is_said_of_smaller_views_is_so():
    import json

    said = " ".join((ROOT / "docs/pretrain.md").read_text().split())
    rows = json.loads((ROOT / "results/shapes/view-size.json").read_text())["rows"]
    barlow, small, byol, small_byol = (f"{row['accuracy']:.1f} %" for row in rows)
    assert [row["view_size"] for row in rows] == [32, 24, 32, 24]
    assert f"Barlow Twins + SEM had {barlow} on views of 32 pixels and {small} on views of 24" in said
    assert f"BYOL + SEM {byol} and {small_byol}" in said


def test_the_transfer_pages_numbers_are_the_stored_ones():
    import json

    page = (ROOT / "docs/transfer.md").read_text()
    for data in ("flowers102", "pets"):
        for layer in ("encoder", "codes"):
            path = ROOT / f"results/transfer/byol-sem-100-third-{data}-{layer}.json"
            found = json.loads(path.read_text())
            accuracy = f"{found['accuracy']:.1f} ± {found['standard_error']:.1f}"
            more = f"{found['mean_class_accuracy']:.1f} | {found['seconds']:.1f}"
            assert f"| {data} | {layer} | {accuracy} | {more} |" in page
