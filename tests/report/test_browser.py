"""The page in a real browser: it is interactive, makes no requests, and shows names as text."""

import json
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from simplicia.analyze.report_data import Analysis
from simplicia.codes import Index
from simplicia.data.datasets import load
from simplicia.report.codes_page import write_search
from simplicia.report.page import write

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)
FIXTURE = Path(__file__).parents[1] / "fixtures/v0.1/run"
EVIL = "<script>alert(1)</script>"
QUOTED = "\"quoted' & <b>"
BREAKING = "</script><img src=x onerror=alert(1)>\u2028"


@pytest.fixture(scope="module")
def browser():
    if BROWSER is None:
        pytest.skip("no browser: install Chromium (apt-get install chromium) to test the page in it")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = driver.chromium.launch(executable_path=BROWSER, args=root)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser):
    """Open pages; afterwards, check for requests, dialogs, console messages and errors."""
    problems, contexts = [], []

    def open_page(path, **options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(8000)
        url = path.resolve().as_uri()
        page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on(
            "request",
            lambda r: (
                problems.append(f"request: {r.url[:80]}") if not r.url.startswith((url, "data:")) else None
            ),
        )
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def test_a_search_shows_examples_side_by_side_and_a_list_has_no_bars(visit, tmp_path):
    (tmp_path / "photos").mkdir()
    for i, image in enumerate(load("shapes", "test").images[:60]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"photos/{EVIL[:8]}{i}.png")
    index = Index.build(FIXTURE, tmp_path / "photos", tmp_path / "photos.index")
    query = index.folder / index.names[0]
    found = index.search([query], k=9)
    shared = index.explain(found.codes[0], found.indices[0].tolist())
    page = visit(write_search(index, query, found, shared, {}, tmp_path / "search.html"))
    rows = page.locator(".shared")
    assert rows.count() == len(shared) > 1
    for i, vertex in enumerate(shared):
        boxes = [figure.bounding_box() for figure in rows.nth(i).locator("figure").all()]
        assert len(boxes) == len(vertex.examples) and len({box["y"] for box in boxes}) == 1
        assert rows.nth(i).locator("h3").bounding_box()["y"] < boxes[0]["y"]
    filters = {shared[0].simplex: shared[0].vertex}
    page = visit(write_search(index, None, index.listed(filters, 3), [], filters, tmp_path / "list.html"))
    assert page.locator("h2").all_inner_texts() == [f"3 of {len(index.having(filters))} images"]
    assert page.locator("figure").count() == 3 and page.locator(".agree").count() == 0


def analysis(folder):
    return json.loads((folder / "analysis/analysis.json").read_text())


def settled(page):
    """Wait until the graph's layout has settled, and return the graph."""
    page.wait_for_selector(".panel:not([hidden]) .graph[data-still]")
    return page.locator(".panel:not([hidden]) .graph")


def center(node):
    box = node.locator("circle").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def values(locator):
    return [float(value) for value in locator.evaluate_all("all => all.map(e => e.dataset.value)")]


def linked(stored):
    """The index, features and name of a class in the first graph."""
    graph = next(g for g in stored["coherence"]["graphs"] if g["k"] == 5)
    index = graph["edges"][0][0]
    return index, {f for c, f, _ in graph["edges"] if c == index}, stored["data"]["classes"][index]


def test_the_graph_reacts_to_the_mouse(runs, visit):
    page, stored = visit(runs["sem"] / "report.html"), analysis(runs["sem"])
    graph = settled(page)
    index, features, name = linked(stored)
    first = next(g for g in stored["coherence"]["graphs"] if g["k"] == 5)
    edges = [(c, f) for c, f, _ in first["edges"]]
    node = graph.locator(f'[data-kind=class][data-index="{index}"]')
    graph.scroll_into_view_if_needed()
    node.locator("circle").hover()
    indices = "all => all.map(e => Number(e.dataset.index))"
    assert set(graph.locator(".feature.near").evaluate_all(indices)) == features
    assert set(graph.locator(".class.near").evaluate_all(indices)) == {c for c, f in edges if f in features}
    assert graph.locator(".lit").get_attribute("d").count("M") == sum(f in features for _, f in edges)
    page.mouse.move(5, 5)
    assert graph.locator(".near").count() == 0

    x, y = center(node)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y + 40, steps=3)
    page.mouse.up()
    moved = center(node)
    assert abs(moved[0] - x - 60) < 3 and abs(moved[1] - y - 40) < 3
    assert page.locator(".choice").inner_text() == ""  # dragging is not choosing

    node.locator("circle").click()
    assert page.locator(".choice").inner_text() == name
    count = sum(any(c == index for c, _ in f["classes"]) for f in stored["atlas"]["features"])
    assert page.locator(".filter").inner_text().startswith(f"{count} of {len(stored['atlas']['features'])} ")


def test_layers_and_k_choose_the_graph_and_its_components_are_listed(runs, visit):
    page, stored = visit(runs["sem"] / "report.html"), analysis(runs["sem"])
    for layer, k in (("encoder", 3), ("sem", 10)):
        page.select_option(".layer", layer)
        page.select_option(".k", str(k))
        wanted = next(g for g in stored["coherence"]["graphs"] if (g["layer"], g["k"]) == (layer, k))
        nodes = {("class", c) for c, _, _ in wanted["edges"]} | {
            ("feature", f) for _, f, _ in wanted["edges"]
        }
        assert settled(page).locator(".node").count() == len(nodes)
        listed = page.locator(".parts [data-class]").evaluate_all(
            "all => all.map(e => Number(e.dataset.class))"
        )
        assert sorted(listed) == list(range(20))
        assert page.locator(".parts h4").count() == len(wanted["components"]) + bool(wanted["isolated"])
    # a feature of the encoder is not the simplices' feature of the same number
    page.select_option(".layer", "encoder")
    node = settled(page).locator(".node.feature").first
    node.dispatch_event("pointerdown", {"pointerId": 1})
    node.dispatch_event("pointerup", {"pointerId": 1})
    assert page.locator(".choice").inner_text().startswith("feature ") and page.locator(".card").count() == 0
    assert "not one of the simplices" in page.locator(".filter").inner_text()


def test_search_finds_a_class_and_its_features_and_their_images(runs, visit):
    page, stored = visit(runs["sem"] / "report.html"), analysis(runs["sem"])
    settled(page)
    rows = stored["atlas"]["features"]
    index = rows[0]["classes"][0][0]
    name = stored["data"]["classes"][index]
    suggestions = page.locator(".search datalist option").evaluate_all("all => all.map(e => e.value)")
    assert name in suggestions
    page.fill("input[type=search]", "no such thing")
    page.keyboard.press("Enter")
    assert page.locator(".choice").inner_text() == "" and page.locator("input:invalid").count() == 1
    page.fill("input[type=search]", name)
    page.keyboard.press("Enter")
    assert page.locator(".choice").inner_text() == name
    assert page.evaluate("document.activeElement.classList.contains('graph')")

    share = {f["feature"]: dict(map(tuple, f["classes"])).get(index, 0) / f["fired"] for f in rows}
    shown = page.locator(".card").evaluate_all("all => all.map(e => Number(e.dataset.feature))")
    assert shown and all(share[f] > 0 for f in shown)
    assert [share[f] for f in shown] == sorted((share[f] for f in shown), reverse=True)

    feature = next(f for f in rows if f["feature"] == shown[0])
    card = page.locator(".card").first
    assert values(card.locator(".score [data-value]")) == [feature["score"], feature["fired"]]
    assert values(card.locator(".amount")) == [n for _, n in feature["classes"][:4]]
    card.locator("button").click()
    dialog = page.locator("dialog[open]")
    assert f"simplex {feature['simplex']}, vertex {feature['vertex']}" in dialog.inner_text()
    assert dialog.locator(".thumb").count() == len(feature["images"])
    assert values(dialog.locator(".shown [data-value]")) == feature["probabilities"]
    thumb = dialog.locator(".thumb").first
    where = stored["thumbnails"]["images"][str(feature["images"][0])]
    style = thumb.evaluate(
        "e => [getComputedStyle(e).backgroundPosition, getComputedStyle(e).backgroundImage.slice(0, 27)]"
    )
    scale = 128 / stored["thumbnails"]["tile"]
    assert style == [f"{-where['x'] * scale:g}px {-where['y'] * scale:g}px", 'url("data:image/jpeg;base64']
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0

    page.fill("input[type=search]", str(rows[5]["feature"]))
    page.keyboard.press("Enter")
    assert page.locator(".card").evaluate_all("all => all.map(e => Number(e.dataset.feature))") == [
        rows[5]["feature"]
    ]
    page.click(".clear")
    assert page.locator(".card").count() == 24
    page.click(".more")
    assert page.locator(".card").count() == min(48, len(rows))


def test_everything_works_with_the_keyboard(runs, visit):
    page, stored = visit(runs["sem"] / "report.html"), analysis(runs["sem"])
    graph = settled(page)
    graph.focus()
    page.keyboard.press("ArrowRight")
    first = page.locator(".choice").inner_text()
    page.keyboard.press("ArrowRight")
    assert first and page.locator(".choice").inner_text() != first
    page.keyboard.press("Enter")
    assert graph.locator(".chosen").count() == 1
    page.keyboard.press("Escape")
    assert graph.locator(".chosen, .near").count() == 0 and page.locator(".choice").inner_text() == ""

    page.locator(".card button").first.focus()
    page.keyboard.press("Enter")
    title = page.locator("#large-title")
    before = title.inner_text()
    page.keyboard.press("ArrowRight")
    assert title.inner_text() != before
    page.keyboard.press("Escape")

    chart = page.locator("[data-chart=training-loss]")
    chart.locator("> svg").focus()
    page.keyboard.press("End")
    log = stored["log"]["train"]
    assert values(chart.locator(".readout [data-value]")) == [log["step"][-1], log["loss"][-1]]
    page.keyboard.press("ArrowLeft")
    assert values(chart.locator(".readout [data-value]")) == [log["step"][-2], log["loss"][-2]]
    chart.locator("summary").press("Enter")
    chart.locator(".numbers table").wait_for()
    assert values(chart.locator(".numbers td [data-value]")) == log["loss"]

    page.locator("#theme").focus()
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.keyboard.press("Enter")
    dark = page.evaluate(background)
    page.keyboard.press("Enter")
    assert dark != light == page.evaluate(background)


def test_charts_show_the_values_under_the_mouse(runs, visit):
    page, stored = visit(runs["sem"] / "report.html"), analysis(runs["sem"])
    chart = page.locator("[data-chart=retrieval-by_class]")
    chart.scroll_into_view_if_needed()
    box = chart.locator("> svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.14, box["y"] + box["height"] / 2)
    first = [layer["by_class"][0] for layer in stored["retrieval"]["layers"]]
    assert values(chart.locator(".readout [data-value]")) == [1, *first]


def test_no_horizontal_scrolling_on_a_phone_in_dark_mode(runs, visit):
    page = visit(runs["sem"] / "report.html", viewport={"width": 390, "height": 800}, color_scheme="dark")
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    red, *_ = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert red < 64


def test_the_navigation_shows_on_a_phone_that_there_is_more(runs, visit):
    page = visit(runs["sem"] / "report.html", viewport={"width": 390, "height": 800})
    mask = "getComputedStyle(document.querySelector('nav')).maskImage"
    assert page.evaluate("document.querySelector('nav').scrollWidth") > 390
    assert "linear-gradient" in page.evaluate(mask)
    page = visit(runs["sem"] / "report.html")
    assert page.evaluate(mask) == "none"


def test_a_class_that_shares_no_feature_says_so(runs, visit, tmp_path):
    stored = analysis(runs["sem"])
    for graph in stored["coherence"]["graphs"]:
        graph["edges"] = [edge for edge in graph["edges"] if edge[0] != 0]
    page = visit(write([(Analysis.from_json(stored), runs["sem"] / "analysis")], tmp_path / "page.html"))
    settled(page)
    page.locator(".search input").fill(stored["data"]["classes"][0])
    page.keyboard.press("Enter")
    assert "none of its 5 features is shared with another class" in page.locator(".choice").text_content()
    assert 0 < page.locator(".choice").bounding_box()["y"] < 800  # the answer is in sight


def test_the_first_screen_shows_all_of_the_best_simplices(runs, visit):
    page = visit(runs["sem"] / "report.html")
    best = page.locator(".best > li")
    assert best.count() == 6
    assert page.evaluate("document.querySelector('.best').getBoundingClientRect().bottom") <= 900


def test_a_chart_without_a_neighbour_has_its_numbers_there(runs, visit):
    page = visit(runs["sem"] / "report.html")
    assert page.locator("#training .chart").count() % 2 == 1
    chart = page.locator("[data-chart=online]")
    chart.locator(".numbers table").wait_for()
    assert values(chart.locator(".numbers td [data-value]"))[:2] == [6.25, 12.5]
    drawing, numbers = (chart.locator(part).bounding_box() for part in ("> svg", ".numbers"))
    assert numbers["x"] > drawing["x"] + drawing["width"] and numbers["y"] < drawing["y"]
    assert page.locator(".numbers[open]").count() == 1
    page = visit(runs["sem"] / "report.html", viewport={"width": 390, "height": 800})
    assert page.locator(".numbers[open]").count() == 0


def test_print_is_light_and_hides_interactive_elements(runs, visit):
    page = visit(runs["sem"] / "report.html", color_scheme="dark")
    page.click("#theme")
    page.click("#theme")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color.match(/\\d+/g).every((c) => c < 64)")
    assert not any(
        page.locator(s).first.is_visible() for s in ("nav", "#theme", ".search", ".more", ".readout")
    )
    assert (
        page.locator("[data-chart=training-loss] > svg").is_visible()
        and page.locator(".card").first.is_visible()
    )


def test_reduced_motion_lays_out_the_graph_without_animation(runs, visit):
    page = visit(runs["sem"] / "report.html", reduced_motion="reduce")
    graph = settled(page)
    first = graph.locator(".node").first
    where = first.get_attribute("transform")
    page.wait_for_timeout(100)
    assert first.get_attribute("transform") == where


def test_pages_without_sem_without_labels_and_of_two_runs(runs, visit, tmp_path):
    page = visit(runs["base"] / "report.html")
    assert settled(page).locator(".class").count() > 0 and page.locator(".card").count() == 0
    page = visit(runs["unlabelled"] / "report.html")
    assert page.locator(".card").count() == 24 and page.locator(".graph").count() == 0
    examples = analysis(runs["unlabelled"])["retrieval"]["examples"]
    assert page.locator(".examples .row").count() == len(examples) > 2
    similarity = [value for row in examples for value in row["similarity"]]
    assert values(page.locator(".examples [data-value]")) == similarity
    assert "<i>" in page.locator(".thumb").first.get_attribute("aria-label")

    pair = [(Analysis.from_json(analysis(runs[name])), runs[name] / "analysis") for name in ("sem", "base")]
    page = visit(write(pair, tmp_path / "compare.html"))
    settled(page)
    page.locator("[role=tab]").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".panel:not([hidden])").get_attribute("data-run") == "1"
    assert settled(page).locator(".class").count() > 0
    assert page.locator("[data-chart=spectrum] .legend li").count() == 4


def test_names_that_look_like_markup_are_shown_as_text(runs, visit, tmp_path):
    folder = tmp_path / "evil"
    shutil.copytree(runs["sem"] / "analysis", folder)
    stored = json.loads((folder / "analysis.json").read_text())
    index, _, _ = linked(stored)
    stored["data"]["classes"] = [EVIL, QUOTED, BREAKING, *stored["data"]["classes"][3:]]
    stored["data"]["classes"][index] = EVIL
    stored["data"]["superclasses"][0] = BREAKING
    stored["run"]["name"] = stored["run"]["folder"] = f"run {EVIL}"
    stored["run"]["recipe"]["data"] = QUOTED
    stored["notes"] = [EVIL, BREAKING, "a file called \udcff"]
    stored["results"] = {BREAKING: {"accuracy": 1.0, "protocol": EVIL, "layer": QUOTED}}
    for curve in stored["coherence"]["curves"]:
        curve["label"] = EVIL
    for image in stored["thumbnails"]["images"].values():
        image["file"] = BREAKING
    page = visit(write([(Analysis.from_json(stored), folder)], tmp_path / "evil.html"))
    graph = settled(page)
    assert page.locator("h1").inner_text() == f"run {EVIL}"
    assert EVIL in page.locator("#warnings").inner_text()
    node = graph.locator(f'[data-kind=class][data-index="{index}"]')
    assert node.locator(".name").text_content() == EVIL
    page.fill("input[type=search]", EVIL)
    page.keyboard.press("Enter")
    assert page.locator(".choice").inner_text() == EVIL and EVIL in page.locator(".filter").inner_text()
    page.click(".clear")
    page.locator(".card button").first.click()
    assert page.locator("dialog .thumb").first.get_attribute("aria-label").count(BREAKING) == 1
    assert page.locator("main script, main img, dialog script, dialog img").count() == 0
