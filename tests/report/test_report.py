"""The page as text: numbers equal the analysis, data is escaped, and untrusted folders are safe."""

import json
import math
import re
import shutil
import tomllib
from dataclasses import replace
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import simplicia.report
from simplicia.analyze.report_data import Analysis
from simplicia.analyze.study import _originals
from simplicia.cli import main
from simplicia.data.datasets import read_all
from simplicia.report.page import embedded, page
from simplicia.report.plots import Axis
from simplicia.report.plots.svg import Scale
from simplicia.report.summary import summarise
from simplicia.report.tables import readable


class Tables(HTMLParser):
    """{table's id: [(row's heading, [exact values, None for a cell without one])]}"""

    def __init__(self, text):
        super().__init__()
        self.tables, self.row, self.inside = {}, None, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs, self.inside = dict(attrs), None
        if tag == "table":
            self.rows = self.tables.setdefault(attrs["id"], [])
        if tag == "th" and attrs.get("scope") == "row":
            self.row, self.inside = ["", []], "heading"
            self.rows.append(self.row)
        if tag == "td":
            self.row[1].append(float(attrs["data-value"]) if "data-value" in attrs else None)

    def handle_data(self, data):
        if self.inside == "heading":
            self.row[0] += data

    def handle_endtag(self, tag):
        self.inside = None

    def __getitem__(self, name):
        return dict(self.tables[f"table-{name}"])


def analysis(folder):
    return json.loads((folder / "analysis/analysis.json").read_text())


def page_of(*pairs):
    return page([(Analysis.from_json(stored), folder) for stored, folder in pairs])


def data_of(text):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', text)[1])


def test_tables_hold_the_exact_numbers(runs):
    stored, tables = analysis(runs["sem"]), Tables((runs["sem"] / "report.html").read_text())
    results = stored["results"]
    offline = tables["offline"]
    assert offline["linear probe of the simplices, on shapes"] == [results["probe-sem"]["accuracy"]]
    assert offline["linear probe of the encoder, on shapes"] == [results["probe-encoder"]["accuracy"]]
    knn = next(values for words, values in offline.items() if "kNN" in words)
    assert knn == [results["knn-codes"]["accuracy"]] and len(offline) == 3
    assert tables["online-last"] == {"online, encoder": [8 + 1 / 3], "online, kNN": [14.0]}
    expected = {
        f"{row['temperature']:g}": [row["accuracy"]] for row in results["probe-sem"]["per_temperature"]
    }
    assert len(expected) == 3 and tables["temperatures"] == expected
    assert tables["ranks"] == {
        r["layer"].replace("sem", "simplices"): [r["effective_rank"]] for r in stored["spectrum"]["layers"]
    }
    classifiers = {f"offline, {c['label']}": [c["test_accuracy"]] for c in stored["coherence"]["curves"]}
    assert tables["classifiers"] == classifiers
    assert tables["simplices"]["dead vertices"] == [stored["atlas"]["dead_vertices"]]
    assert tables["cost"]["training"] == [stored["run"]["seconds"]]
    assert tables["settings"]["steps"] == [stored["run"]["step"]]


def test_charts_hold_the_exact_numbers(runs):
    stored, shown = analysis(runs["sem"]), data_of((runs["sem"] / "report.html").read_text())
    charts = {name: {s["name"]: s for s in c["series"]} for name, c in shown["charts"].items()}
    (loss,) = charts["training-loss"].values()
    assert (loss["x"], loss["y"]) == (stored["log"]["train"]["step"], stored["log"]["train"]["loss"])
    for curve in stored["coherence"]["curves"]:
        assert charts["coherence"][curve["label"]]["y"] == curve["coherence"]
    for curve in stored["entropy"]["curves"]:
        line = next(
            s
            for name, s in charts["entropy"].items()
            if f"{curve['temperature']:g}" in name.split(",")[0].split()
        )
        assert [share * curve["count"] for share in line["y"]] == pytest.approx(
            [n for n in curve["counts"] if n]
        )
    for layer in stored["retrieval"]["layers"]:
        line = charts["retrieval-by_class"][layer["layer"]]
        assert (line["x"], line["y"]) == (stored["retrieval"]["k"], layer["by_class"])
    assert shown["runs"][0]["atlas"]["features"] == stored["atlas"]["features"]
    assert shown["runs"][0]["coherence"]["graphs"] == stored["coherence"]["graphs"]


def test_two_runs_have_a_column_and_a_line_each(runs):
    folders = [runs["sem"] / "analysis", runs["base"] / "analysis"]
    text = page_of(*((analysis(folder.parent), folder) for folder in folders))
    tables, charts = Tables(text), data_of(text)["charts"]
    sem, base = (analysis(folder.parent) for folder in folders)
    assert tables["settings"]["steps"] == [sem["run"]["step"], base["run"]["step"]]
    assert tables["offline"]["linear probe of the simplices, on shapes"] == [
        sem["results"]["probe-sem"]["accuracy"],
        None,
    ]
    ranks = tables["ranks"]
    assert None not in ranks["encoder"] and ranks["simplices"][1] is None
    names = {line["name"] for line in charts["spectrum"]["series"]}
    assert {"shapes-byol-sem, encoder", "shapes-byol, encoder", "shapes-byol-sem, simplices"} <= names
    assert text.count('role="tab"') == 2


def test_runs_with_the_same_name_have_distinct_labels(runs):
    folder = runs["sem"] / "analysis"
    stored = analysis(runs["sem"])
    twin = {**stored, "run": {**stored["run"], "folder": "other"}}
    text = page_of((stored, folder), (twin, folder))
    assert "shapes-byol-sem (sem)" in text and "shapes-byol-sem (other)" in text
    assert "2. shapes-byol-sem (sem)" in page_of((stored, folder), (stored, folder))


def test_the_page_contains_no_paths_of_its_author(runs):
    folder, stored = runs["sem"] / "analysis", analysis(runs["sem"])
    recipe = {
        **stored["run"]["recipe"],
        "data": "/home/lovelace/secret/birds",
        "data_dir": "/srv/lovelace/sets",
    }
    results = {"knn-sem": {"protocol": "kNN", "accuracy": 50.0, "data": recipe["data"], "pretrain_step": 1}}
    text = page_of(({**stored, "run": {**stored["run"], "recipe": recipe}, "results": results}, folder))
    assert "lovelace" not in text and "secret" not in text
    assert "of an earlier checkpoint, step 1" in text and stored["run"]["step"] != 1
    assert "&#34;data&#34;: &#34;birds&#34;" in text and "&#34;data_dir&#34;: &#34;sets&#34;" in text


def test_sections_that_do_not_apply_are_replaced_by_a_note(runs):
    base = (runs["base"] / "report.html").read_text()
    assert 'id="entropy"' not in base and 'class="atlas"' not in base and "Without SEM" in base
    assert 'class="graph"' in base and "unfinished: step 1 of 9" in base
    unlabelled = (runs["unlabelled"] / "report.html").read_text()
    assert 'id="coherence"' not in unlabelled and 'class="graph"' not in unlabelled
    assert 'class="atlas"' in unlabelled and "have no labels" in unlabelled


def test_the_page_has_no_external_links_and_data_is_escaped(runs):
    text = (runs["unlabelled"] / "report.html").read_text()
    assert "&lt;b&gt;a test of warnings" in text and "<b>a test" not in text
    assert "<i>" not in text and "\\u003ci\\u003e" in text  # file names
    for target in re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"'\s>)]*)""", text):
        assert target.startswith(("#", "data:")), target
    assert "default-src 'none'" in text.replace("&#39;", "'")


words = st.text(max_size=12) | st.sampled_from(["</script>", "<!--", "&lt;", "\u2028"])
nested = st.recursive(words | st.integers(), lambda x: st.lists(x) | st.dictionaries(words, x), max_leaves=5)


@given(nested)
def test_embedded_json_equals_the_data_and_cannot_close_its_element(data):
    text = embedded(data)
    assert json.loads(text) == data
    assert not set(text) & set("<>&\u2028\u2029")


def test_report_from_an_analysis_without_its_run(runs, tmp_path, capsys):
    shutil.copytree(runs["sem"] / "analysis", tmp_path / "brought")
    assert main(["report", str(tmp_path / "brought")]) == 0
    assert (tmp_path / "brought/report.html").read_text() == (runs["sem"] / "report.html").read_text()
    assert main(["report", str(tmp_path / "brought"), "--images", "10"]) == 2
    assert "need the run" in capsys.readouterr().err


def test_report_reuses_a_matching_analysis_and_rereads_results(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs["base"], run)
    before = analysis(run)
    result = {"protocol": "offline linear probe", "layer": "encoder", "dataset": "shapes", "accuracy": 12.345}
    (run / "results").mkdir()
    (run / "results/probe-encoder.json").write_text(json.dumps(result))
    assert main(["report", str(run), "--device", "cpu", "--out", str(tmp_path / "a.html")]) == 0
    assert Tables((tmp_path / "a.html").read_text())["offline"] == {
        "linear probe of the encoder, on shapes": [12.345]
    }
    assert analysis(run)["provenance"] == before["provenance"] and analysis(run)["data"]["images"] == 300
    assert main(["report", str(run), "--device", "cpu", "--images", "100"]) == 0
    assert analysis(run)["data"]["images"] == 100 and Tables((run / "report.html").read_text())["settings"][
        "analysed images"
    ] == [100]


@pytest.mark.parametrize("name", ["../secret.jpg", "thumbnails-7.jpg", "thumbnails-8.jpg"])
def test_an_untrusted_analysis_cannot_embed_other_files(runs, tmp_path, name):
    secret = b"\xff\xd8\xff a secret"
    (tmp_path / "secret.jpg").write_bytes(secret)
    folder = tmp_path / "brought"
    shutil.copytree(runs["sem"] / "analysis", folder)
    (folder / "thumbnails-7.jpg").symlink_to(tmp_path / "secret.jpg")
    (folder / "thumbnails-8.jpg").write_bytes(b"<svg onload=alert(1)>")
    stored = json.loads((folder / "analysis.json").read_text())
    stored["thumbnails"]["sheets"][0]["file"] = name
    text = page_of((stored, folder))
    assert "/9j/" not in text and "a sheet of images is missing" in text
    assert "base64," not in text


def _paths(value, path=()):
    """Paths to values that can be missing or of another type, to a depth of four."""
    if len(path) < 4 and isinstance(value, dict | list):
        for key in list(value)[:12] if isinstance(value, dict) else range(min(1, len(value))):
            yield (*path, key)
            yield from _paths(value[key], (*path, key))


@given(st.data())
def test_a_damaged_analysis_gives_a_page_or_an_error(runs, data):
    stored = analysis(runs["sem"])
    *above, last = data.draw(st.sampled_from(list(_paths(stored))))
    within = stored
    for key in above:
        within = within[key]
    wrong = data.draw(st.sampled_from(["missing", None, "<script>", [], {}, -1, float("nan"), 10**400]))
    if wrong == "missing" and isinstance(within, dict):
        del within[last]
    else:
        within[last] = wrong
    try:
        assert page_of((stored, runs["sem"] / "analysis")).count("<script>") == 1  # the page's own
    except ValueError as error:
        assert str(error)


def test_user_errors_are_one_line(runs, tmp_path, capsys):
    def error(*words):
        assert main(["report", *map(str, words)]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line

    assert "neither a run" in error(tmp_path)
    assert "neither a run" in error(tmp_path / "nowhere")
    stored = analysis(runs["sem"])
    del stored["spectrum"]
    (tmp_path / "analysis.json").write_text(json.dumps(stored))
    assert "is incomplete: it lacks spectrum" in error(tmp_path)
    assert "not the path of a file" in error(runs["sem"], "--out", tmp_path)
    assert "its name must end in .html" in error(runs["sem"], "--out", tmp_path / "page.pdf")
    (tmp_path / "file").write_text("")
    assert "cannot be written" in error(runs["sem"] / "analysis", "--out", tmp_path / "file/page.html")


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.booleans())
def test_a_scale_keeps_order_and_bounds(values, log):
    scale = Scale(Axis(log=log), values, 64, 458)
    positions = [scale(value) for value in sorted(values)]
    assert positions == sorted(positions)
    assert all(64 <= position <= 458 for position in positions)
    assert all(63.9 <= at <= 458.1 for at, _ in scale.ticks())


def test_positions_on_a_scale():
    scale = Scale(Axis(log=True), [0.01, 1.0], 0, 200)
    assert [scale(v) for v in (0.01, 0.1, 1.0)] == [0, 100, 200]
    assert [text for _, text in scale.ticks()] == ["0.01", "0.1", "1"]
    scale = Scale(Axis(log=True), [0.0, 0.1, 1.0], 0, 200)  # 0 is drawn a decade below the smallest value
    assert [scale(v) for v in (0.0, 0.1, 1.0)] == [0, 100, 200]
    assert [text for _, text in scale.ticks()] == ["0", "0.1", "1"]
    scale = Scale(Axis(), [1.0, 12.0], 0, 200)  # steps have no fractions
    assert [text for _, text in scale.ticks()] == ["5", "10"]
    scale = Scale(Axis(), [0.0, math.log(13)], 0, 100)
    assert scale(math.log(13) / 2) == 50
    assert [text for _, text in scale.ticks()] == ["0", "1", "2"]


def test_files_of_the_page_are_packaged():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["simplicia"]
    folder = Path(simplicia.report.__file__).parent
    needed = [f"report/{path.name}" for path in folder.iterdir() if path.suffix in (".js", ".css", ".j2")]
    assert len(needed) == 5
    assert all(any(fnmatch(name, pattern) for pattern in patterns) for name in needed)


def overview(analysis):
    return summarise(Analysis.from_json(analysis))


def test_the_first_screen_has_the_best_probe_and_knn_and_six_simplices(runs):
    stored = analysis(runs["sem"])
    results, summary = stored["results"], overview(stored)
    best = max(results["probe-sem"]["accuracy"], results["probe-encoder"]["accuracy"])
    headlines = {name: cell.value for name, cell in summary.headlines}
    assert headlines["accuracy"] == best and headlines["kNN accuracy"] == results["knn-codes"]["accuracy"]
    information = [row["information"] for row in stored["atlas"]["best_simplices"]]
    assert [s["number"] for s in summary.simplices] == [
        row["simplex"] for row in stored["atlas"]["best_simplices"][:6]
    ]
    assert information == sorted(information, reverse=True)
    for simplex in summary.simplices:
        fired = [vertex["fired"] for vertex in simplex["vertices"]]
        assert fired == sorted(fired, reverse=True) and min(fired) > 0
        assert all(vertex["images"] and vertex["names"] for vertex in simplex["vertices"])
    text = (runs["sem"] / "report.html").read_text()
    pictures = sum(len(vertex["images"]) for s in summary.simplices for vertex in s["vertices"])
    section = text[text.index('id="overview"') : text.index('id="accuracy"')]
    assert section.count('class="thumb ') == pictures
    assert text.index('id="overview"') < text.index('id="results"') < text.index('id="settings"')


def test_health_is_a_sentence_for_each_problem(runs):
    stored = analysis(runs["sem"])
    assert (True, "Features did not collapse.") in overview(stored).health
    for layer in stored["spectrum"]["layers"]:
        layer["effective_rank"] = 1.2
    stored["atlas"] |= {"constant_simplices": 3, "dead_vertices": 0}
    stored["run"]["finished"] = False
    health = dict(reversed(row) for row in overview(stored).health)
    assert health["Features collapsed: different images have nearly equal features."] is False
    assert health["25 % of the simplices give every image the same code."] is False
    assert health["All vertices are used."] is True
    assert any(text.startswith("Training is unfinished") and not fine for text, fine in health.items())


def test_an_unlabelled_run_speaks_of_images_and_clusters(runs):
    text = (runs["unlabelled"] / "report.html").read_text()
    section = text[text.index('id="overview"') : text.index('id="warnings"')]
    words = re.sub("<[^>]*>", "", section)
    assert "without labels" in words and "cluster" in words and "class" not in words
    assert "Find a feature" in text and "about the class" not in text


def test_one_point_draws_no_line_and_the_spectrum_ends_at_rounding_errors(runs):
    stored = analysis(runs["sem"])
    stored["log"]["online"] = {"step": [5], "online_knn_accuracy": [12.5]}
    layer = stored["spectrum"]["layers"][0]
    layer |= {"values": [1.0, 1e-3, 1e-13, 0.0], "index": [0, 1, 2, 3]}
    charts = data_of(page_of((stored, runs["sem"] / "analysis")))["charts"]
    assert "online" not in charts
    line = next(s for s in charts["spectrum"]["series"] if s["name"] == layer["layer"])
    assert line["y"] == [1.0, 1e-3]


def test_dates_and_precisions_are_readable(runs):
    stored = analysis(runs["sem"])
    stored["provenance"]["date"] = "2026-11-18T23:59:10+02:00"
    text = page_of((stored, runs["sem"] / "analysis"))
    assert "18 November 2026, 21:59 UTC" in text and "32-bit" in text
    assert readable("yesterday") == "yesterday"


def test_thumbnails_show_the_original_files_where_the_run_sees_smaller_ones(tmp_path):
    Image.effect_noise((96, 96), 90).convert("RGB").save(tmp_path / "a.png")
    small = read_all(tmp_path, 16)
    assert _originals(replace(small, source=str(tmp_path)), [0]).shape[2:] == (64, 64)
    (tmp_path / "a.png").unlink()
    assert _originals(replace(small, source=str(tmp_path)), [0]).shape[2:] == (16, 16)
