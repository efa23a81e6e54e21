"""Markdown from stored results alone; the page in docs is generated from the files in results."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simplicia import cli
from simplicia.experiments import get, tables
from simplicia.experiments.page import page
from simplicia.experiments.store import CellResult
from simplicia.result import packed, paired_error, unpacked

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"\d[\d,]*\.\d+(?:e[+-]\d+)?")


def row(**changes):
    return {
        "experiment": "table1",
        "cell": "BYOL",
        "pretrained_on": "cifar100",
        "encoder": "resnet18",
        "epochs": 200,
        "batch_size": 256,
        "seed": 0,
        "accuracy": 61.26,
        "standard_error": 0.49,
        "paper": 70.7,
        "protocol": "offline linear probe",
        "probe": "cifar",
        "seconds": 300.4,
        "probe_seconds": 120.0,
        "device": "a GPU",
        **changes,
    }


def markdown(experiment, rows, link=None):
    return tables.markdown(experiment, [CellResult.from_json(row) for row in rows], link)


def numbers(value):
    """All numbers in a JSON value, also those in its texts."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers(item)
    elif isinstance(value, str):
        yield from (float(text.replace(",", "")) for text in NUMBER.findall(value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def unfounded(text, known):
    """Numbers with a decimal point that equal no known number at that rounding."""
    missing = []
    for word in set(NUMBER.findall(text)):
        mantissa, e, _ = word.replace(",", "").partition("e")
        decimals = len(mantissa.partition(".")[2])
        form = f".{decimals}e" if e else f".{decimals}f"
        if not any(f"{value:{form}}" == word.replace(",", "") for value in known):
            missing.append(word)
    return missing


def test_table_shows_the_papers_number_and_ours_under_the_budget():
    sem = row(cell="BYOL + SEM", accuracy=64.0, paper=73.9, seconds=500.0, temperature=0.1)
    text = markdown(get("table1"), [sem, row()])
    assert text.splitlines()[:6] == [
        "**Seven methods without and with SEM; offline linear probe, settings: cifar; encoder: resnet18; "
        "pre-training: 200 epochs on cifar100, batch 256, a GPU, 300 to 500 s each; measuring: 120 s; "
        "±: standard error of the test images.**",
        "",
        "| cell | paper, % | ours, % | temperature |",
        "|---|---|---|---|",
        "| BYOL | 70.7 | 61.3 ± 0.5 | - |",
        "| BYOL + SEM | 73.9 | 64.0 ± 0.5 | 0.1 |",
    ]


def test_each_budget_has_a_table_and_each_seed_a_row():
    rows = [row(epochs=10), row(), row(seed=1, accuracy=62.0), row(pretrained_on="shapes", paper=None)]
    _, first, second, third = markdown(get("table1"), rows).split("\n**")
    assert "| seed |" in first and "| BYOL | 70.7 | 62.0 ± 0.5 | 1 |" in first
    assert first.endswith("| BYOL, mean of 2 seeds | 70.7 | 61.6 ± 0.5 | - |\n")
    assert "standard error of the test images, of a mean the standard deviation of its seeds" in first
    assert "standard error of the test images." in second
    assert " 10 epochs" in second and "seed" not in second
    assert "on shapes" in third and "paper" not in third


def test_overview_of_several_budgets_comes_first():
    long, sem = row(accuracy=62.0, seed=1), row(cell="BYOL + SEM", paper=73.9, epochs=10, accuracy=50.0)
    failed = row(cell="BYOL + SEM", failed="no", accuracy=None)
    rows = [row(epochs=10, accuracy=48.9), sem, failed, row(), long]
    assert markdown(get("table1"), rows, "r.json").splitlines()[:6] == [
        "**Seven methods without and with SEM, by epochs of pre-training on cifar100; "
        "offline linear probe, settings: cifar; in percent; mean if several seeds.**",
        "",
        "| cell | 10 epochs | 200 epochs | paper, 1000 epochs |",
        "|---|---|---|---|",
        "| [BYOL](r.json) | 48.9 | 61.6 | 70.7 |",
        "| [BYOL + SEM](r.json) | 50.0 | - | 73.9 |",
    ]
    assert "in percent.**" in markdown(get("table1"), [row(), row(epochs=10)])


def test_cells_that_set_their_epochs_share_a_table(tmp_path):
    common = {"experiment": "speedrun", "paper": None}
    long = row(**common, cell="VICReg", epochs=100, seconds=120.0)
    short = row(**common, cell="Barlow Twins", epochs=80, seconds=90.4, probe_seconds=None)
    text = markdown(get("speedrun"), [long, short])
    assert text.count("| cell |") == 1 and "80 to 100 epochs on cifar100" in text
    assert "| Barlow Twins | 61.3 ± 0.5 | 80 | 90 |" in text
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "speedrun.json").write_text(json.dumps([long, short]))
    assert "speedrun (13 of 15 cells)," in page(tmp_path, tmp_path / "page.md")


def test_note_shared_by_all_rows_is_in_the_caption():
    noted = row(note="on a shared GPU")
    alike = markdown(get("table1"), [noted, noted | {"cell": "BYOL + SEM"}])
    assert alike.count("on a shared GPU") == 1 and "; on a shared GPU.**\n" in alike
    assert "| on a shared GPU |" in markdown(get("table1"), [noted, row(cell="BYOL + SEM")])


def test_table_marks_figure_only_cells_and_failures():
    curve = row(experiment="emb-scale", cell="SEM, L=10", paper=None)
    assert "| SEM, L=10 | figure only | 61.3 ± 0.5 |" in markdown(get("emb-scale"), [curve])
    own = row(experiment="tau-downstream", cell="RN-18 L=5000, tau_d=1", paper=None)
    assert "| RN-18 L=5000, tau_d=1 | not in the paper | 61.3 ± 0.5 |" in markdown(
        get("tau-downstream"), [own]
    )
    failed = row(failed="the loss became nan", protocol="diverged", accuracy=None)
    assert "| BYOL | 70.7 | diverged |" in markdown(get("table1"), [failed])
    assert "| BYOL | 70.7 | failed |" in markdown(get("table1"), [failed | {"protocol": "failed"}])


def test_names_are_escaped():
    text = markdown(get("table1"), [row(cell="a | b <script>[x](y)", device="x\n\n# y")], "r.json")
    assert "[a \\| b &lt;script>\\[x\\](y)](r.json)" in text and "\n# y" not in text


def test_page_without_results(tmp_path, capsys):
    target = tmp_path / "docs" / "results.md"
    words = ["reproduce", "--results", str(tmp_path / "results"), "--page", str(target)]
    assert cli.main(words) == 2 and "there is no folder of results" in capsys.readouterr().err
    assert not target.exists()
    (tmp_path / "results").mkdir()
    assert cli.main(words) == 0 and "written to" in capsys.readouterr().out
    assert target.read_text().count("Nothing has been measured yet.") == 2


def test_page_separates_the_papers_protocol_from_others(tmp_path):
    results, target = tmp_path / "results", tmp_path / "docs" / "results.md"
    for folder, accuracy in (("paper", 61.26), ("other", 33.33)):
        (results / folder).mkdir(parents=True)
        (results / folder / "table1.json").write_text(json.dumps([row(accuracy=accuracy)]))
    (results / "paper" / "table1.md").write_text("A note: 61.3 % is what it is.\n")
    text = page(results, target)
    first, second = text.split("## On other data, or by other rules")
    assert "[BYOL](../results/paper/table1.json) | 70.7 | 61.3" in first and "A note: 61.3 %" in first
    assert "### Not measured yet\n\ntable1 (13 of 14 cells at 200 epochs), emb-scale, " in first
    for words in ("padding 1", "p - 1/V", "at every step"):
        assert words in first
    assert "[BYOL](../results/other/table1.json) | 70.7 | 33.3" in second and "A note" not in second


def test_page_opens_with_a_summary(tmp_path):
    (tmp_path / "paper").mkdir()
    short = {"paper": None, "seed": 0}
    timed = row(experiment="equal-time", cell="BYOL, time of 200 epochs", **short)
    files = {
        "table1": [row(), row(cell="BYOL + SEM", accuracy=64.0, paper=73.9), row(seed=1, accuracy=62.0)],
        "equal-time": [timed, timed | {"cell": "BYOL + SEM/8, time of 200 epochs", "epochs": 163}],
        "hard-discretisation": [row(epochs=100, accuracy=55.55), row(epochs=400, accuracy=66.66)],
        "paper-budget": [row(cell="SwAV", paper=64.6, accuracy=64.0, epochs=1000)],
        "centred": [row(cell="MoCo + SEM, p", **short), row(cell="MoCo + SEM, p", seed=1, accuracy=62.26)],
    }
    for name, cells in files.items():
        (tmp_path / "paper" / f"{name}.json").write_text(json.dumps(cells))
    (tmp_path / "paper" / "front.md").write_text("In short.\n")
    text = page(tmp_path, tmp_path / "page.md")
    first = text[: text.index("## On the paper's data")]
    assert first.index("## At a glance\n\nIn short.\n\n**Seven methods") < first.index("**Controls.**")
    assert (
        "| [BYOL](paper/table1.json) | 61.3 ± 0.5 | 64.0 ± 0.5 | +2.7 ± 0.7 | unpaired | 0 | 70.7 | 73.9 |"
        in first
    )
    assert "61.3 ± 0.5 | 61.3 ± 0.5 | +0.0 ± 0.7 | unpaired | 200 and 163 | 0 |" in first
    assert "| centred | [MoCo + SEM, p](paper/centred.json) | 61.8 ± 0.7 | - | 200 | 0, 1 |" in first
    assert "66.7 ± 0.5" in first and "55.6 ± 0.5" not in first  # the longest training of a cell
    assert "| paper-budget | [SwAV](paper/paper-budget.json) | 64.0 ± 0.5 | 64.6 | 1000 | 0 |" in first
    assert "| `reproduce centred` | 5 | unknown |" in first
    assert "| `reproduce table1 --only byol vicreg --epochs 200 --seeds 1 2` | 3 | unknown |" in first
    times = [
        {"recipe": f"cifar100-{name}", "changes": {}, "ms_per_step": 10.0} for name in ("byol", "simclr")
    ]
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "step.json").write_text(json.dumps(times))
    (line,) = (x for x in page(tmp_path, tmp_path / "page.md").splitlines() if "reproduce dino-scout" in x)
    assert int(line.split("|")[-2].replace(",", "")) > 0


def test_page_lists_missing_cells_at_the_most_common_budget(tmp_path):
    target = tmp_path / "a page" / "results.md"
    (tmp_path / "my results" / "paper").mkdir(parents=True)
    failed = row(cell="MoCo", epochs=500, failed="no", accuracy=None)
    rows = [row(), row(cell="BYOL + SEM"), row(cell="SimCLR", epochs=400), failed]
    (tmp_path / "my results" / "paper" / "table1.json").write_text(json.dumps(rows))
    text = page(tmp_path / "my results", target)
    assert "table1 (12 of 14 cells at 200 epochs), " in text
    assert "[BYOL](../my%20results/paper/table1.json)" in text


def test_damaged_results_are_an_error_of_one_line(tmp_path, capsys):
    (tmp_path / "paper").mkdir()
    words = ["reproduce", "--results", str(tmp_path), "--page", str(tmp_path / "page.md")]
    file = tmp_path / "paper" / "table1.json"
    file.write_text(json.dumps([row(accuracy=[1])]))
    assert cli.main(words) == 2
    assert "table1.json is damaged: in object 1, accuracy is '[1]'" in capsys.readouterr().err
    file.write_text(json.dumps([row()]))
    file.with_suffix(".md").write_bytes(b"\xff")
    assert cli.main(words) == 2 and "table1.md cannot be read as text" in capsys.readouterr().err
    assert not (tmp_path / "page.md").exists()


@pytest.mark.parametrize(("text", "wrong"), [("61.3 and 0.5", []), ("61.2", ["61.2"]), ("6.1e+01", [])])
def test_unfounded_finds_numbers_that_were_not_measured(text, wrong):
    assert unfounded(text, list(numbers([row()]))) == wrong


def test_page_in_docs_is_up_to_date():
    target = ROOT / "docs" / "results.md"
    assert page(ROOT / "results", target) == target.read_text(encoding="utf-8"), (
        "run: simplicia reproduce --page docs/results.md"
    )


def test_every_number_of_the_page_was_measured():
    files = [json.loads(path.read_text()) for path in (ROOT / "results").rglob("*.json")]
    seeds = [
        values
        for folder in ("paper", "other")
        for path in (ROOT / "results" / folder).glob("*.json")
        for derived in (over_seeds, added_by_sem)
        for values in derived(json.loads(path.read_text()))
    ]
    note = (ROOT / "results/paper/equal-time.md").read_text()  # tests/test_docs.py derives its numbers
    assert (
        unfounded((ROOT / "docs/results.md").read_text().replace(note, ""), {*numbers(files), *seeds}) == []
    )


def added_by_sem(rows):
    """What each cell adds to its baseline, each seed and their mean, with the error of one; means of both."""
    rows = [row for row in rows if row.get("accuracy") is not None]
    groups = {}
    for cell in get(rows[0]["experiment"]).cells if rows else ():
        keys = ["pretrained_on", "batch_size", "protocol", "probe", "part"]
        keys += [] if cell.as_long_as else ["epochs"]
        for a in rows:
            for b in rows:
                part = f", {b['part']}" if b.get("part") else ""
                pair = (a["cell"], b["cell"]) == (f"{cell.baseline}{part}", f"{cell.name}{part}")
                if pair and all(a.get(k) == b.get(k) for k in (*keys, "seed")):
                    groups.setdefault((b["cell"], *(b.get(k) for k in keys)), []).append((a, b))
    for pairs in groups.values():
        values = [b["accuracy"] - a["accuracy"] for a, b in pairs]
        yield from (*values, np.mean(values))
        yield np.mean([error_of_difference(a, b) for a, b in pairs])
        for arm in zip(*pairs, strict=True):
            accuracies = [row["accuracy"] for row in arm]
            yield from (np.mean(accuracies), np.std(accuracies, ddof=1) if len(arm) > 1 else 0)
        a, b = pairs[0]
        if a.get("paper") is not None and b.get("paper") is not None:
            yield b["paper"] - a["paper"]


def error_of_difference(a, b):
    """Paired where both say which test images are correct."""
    if a.get("correct_images") and b.get("correct_images") and a["dataset"] == b["dataset"]:
        one, two = (np.array(unpacked(row["correct_images"]), float) for row in (a, b))
        return 100 * (two - one).std() / len(one) ** 0.5
    return (a["standard_error"] ** 2 + b["standard_error"] ** 2) ** 0.5


def test_table_of_accuracy_gained_by_sem():
    sem = {"cell": "BYOL + SEM", "paper": 73.9, "accuracy": 63.0}
    text = markdown(get("table1"), [row(), row(**sem), row(cell="MoCo"), row(**sem, epochs=100)])
    overview, added, *_ = text.split("\n\n**")
    assert "by epochs" in overview and added.startswith("Seven methods without and with SEM: what SEM adds")
    assert text.count("± 0.7") == 1
    assert "| BYOL + SEM | 200 | +1.7 ± 0.7 | unpaired | +3.2 | 0: +1.7 |" in text
    second = [row(seed=1, accuracy=62.0), row(**sem | {"accuracy": 62.4}, seed=1), row(seed=2)]
    text = markdown(get("table1"), [row(), row(**sem), *second])
    assert "| BYOL + SEM | 200 | +1.1 ± 0.7 | unpaired | +3.2 | 0: +1.7, 1: +0.4 |" in text
    other = {"pretrained_on": "shapes", "paper": None}
    assert "| +1.7 ± 0.7 | unpaired | - | 0: +1.7 |" in markdown(
        get("table1"), [row(**other), row(**sem | other)]
    )
    assert "adds" not in markdown(get("table1"), [row(), row(**sem, epochs=100)])


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_paired_error_is_that_of_the_mean_of_differences(correct):
    one, two = ([pair[i] for pair in correct] for i in (0, 1))
    assert unpacked(packed(one)) == one
    moved = np.array(two, float) - np.array(one, float)
    expected = 100 * moved.std() / len(moved) ** 0.5
    assert paired_error(packed(one), packed(two)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    "damage", [None, 3, "bits", {}, {"images": 3}, {"images": 3, "bits": "!"}, {"images": 99, "bits": "AA=="}]
)
def test_damaged_correct_images_leave_differences_unpaired(damage):
    assert unpacked(damage) is None and paired_error(packed([True] * 3), damage) is None
    sem = row(cell="BYOL + SEM", accuracy=63.0, correct_images=damage)
    assert "| unpaired |" in markdown(get("table1"), [row(correct_images=packed([True] * 3)), sem])


def test_differences_on_the_same_images_have_a_paired_error():
    right = {"correct_images": packed([True, False] * 50), "dataset": "cifar100"}
    sem = row(cell="BYOL + SEM", accuracy=63.0, **right)
    assert "| +1.7 ± 0.0 | paired |" in markdown(get("table1"), [row(**right), sem])
    elsewhere = sem | {"dataset": "pets"}
    assert "| unpaired |" in markdown(get("table1"), [row(**right), elsewhere])


def test_differences_at_equal_time_pair_runs_of_different_epochs():
    base = row(experiment="equal-time", cell="BYOL, time of 200 epochs", paper=None)
    sem = base | {"cell": "BYOL + SEM/8, time of 200 epochs", "epochs": 163, "accuracy": 63.0}
    text = markdown(get("equal-time"), [base, sem])
    assert "| BYOL + SEM/8, time of 200 epochs | 163 | +1.7 ± 0.7 | unpaired | - | 0: +1.7 |" in text


def over_seeds(rows):
    """Means and standard deviations of the accuracies of rows that differ in their seed alone."""
    keys = "cell", "pretrained_on", "epochs", "batch_size", "device", "protocol", "probe"
    cells = {}
    for row in rows:
        if row.get("accuracy") is not None:
            cells.setdefault(tuple(row.get(key) for key in keys), []).append(row["accuracy"])
    for values in (values for values in cells.values() if len(values) > 1):
        mean = sum(values) / len(values)
        yield mean
        yield (sum((x - mean) ** 2 for x in values) / (len(values) - 1)) ** 0.5


def test_means_of_seeds_are_derived_independently():
    rows = [row(), row(seed=1, accuracy=62.0)]
    text = markdown(get("table1"), rows)
    assert unfounded(text, set(numbers(rows))) == ["61.6"]
    assert unfounded(text, {*numbers(rows), *over_seeds(rows)}) == []


def test_results_may_lack_what_tables_state(tmp_path, capsys):
    """Only the cell is needed; what a row does not say is unknown on the page."""
    cells = row(seed=1), row(cell="BYOL + SEM", accuracy=64.0), row(epochs=100), row()
    (tmp_path / "paper").mkdir()
    for lacking in ({key} for key in (*row(), "all")):
        kept = [{k: v for k, v in cell.items() if k == "cell" or k not in lacking} for cell in cells]
        kept = [{"cell": "BYOL"}] if lacking == {"all"} else [*kept, row(epochs=50)]
        (tmp_path / "paper" / "table1.json").write_text(json.dumps(kept))
        file = tmp_path / "page.md"
        assert cli.main(["reproduce", "--results", str(tmp_path), "--page", str(file)]) == 0
        text = file.read_text()
        assert "None" not in text and " 0 epochs" not in text, lacking
    assert "unknown protocol" in text
