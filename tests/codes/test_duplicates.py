"""Planted duplicates are found, others are not, and the pages show what was found."""

import json

import numpy as np
import pytest
from PIL import Image

from simplicia import cli
from simplicia.codes import Index
from simplicia.codes.duplicates import look_distances
from simplicia.codes.store import SIDE
from simplicia.report.codes_page import thumbnail

EVIL = "<script>alert(1)<\u2028script>.png"


@pytest.fixture
def scenes(tmp_path):
    """Photographs of a kind: smooth random scenes; three of them have a changed copy, one an equal one."""
    folder, rng = tmp_path / "scenes", np.random.default_rng(0)
    folder.mkdir()
    for i in range(40):
        coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        coarse.resize((160, 160), Image.Resampling.BICUBIC).save(folder / f"{i:02}.png")
    with Image.open(folder / "00.png") as image:
        image.resize((70, 70)).save(folder / "resized.png")
    with Image.open(folder / "01.png") as image:
        image.save(folder / "recompressed.jpg", quality=25)
    with Image.open(folder / "02.png") as image:
        image.crop((10, 3, 154, 147)).save(folder / EVIL)
    (folder / "equal.png").write_bytes((folder / "03.png").read_bytes())
    return folder


EXPECTED = [
    {"00.png", "resized.png"},
    {"01.png", "recompressed.jpg"},
    {"02.png", EVIL},
    {"03.png", "equal.png"},
]


def look(image):
    grey = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.asarray(grey).reshape(1, -1)


def test_looks_of_crops_are_near_and_of_others_are_far(scenes):
    with Image.open(scenes / "05.png") as image, Image.open(scenes / "06.png") as other:
        for box in ((0, 0, 144, 144), (16, 16, 160, 160), (4, 9, 156, 161)):
            assert look_distances(look(image), look(image.crop(box)))[0] < 0.02
            assert look_distances(look(image.crop(box)), look(image))[0] < 0.02
        assert look_distances(look(image), look(image))[0] == 0
        assert look_distances(look(image), look(other))[0] > 0.3
    flat, white = np.full((1, SIDE**2), 7, np.uint8), np.full((1, SIDE**2), 200, np.uint8)
    assert look_distances(flat, flat)[0] == 0 and look_distances(flat, white)[0] == 1


def test_planted_duplicates_are_found(run, scenes, tmp_path):
    index = Index.build(run, scenes, tmp_path / "x.index")
    groups = index.duplicates()
    assert sorted(sorted(group.names) for group in groups) == sorted(sorted(e) for e in EXPECTED)
    by_name = {name: group for group in groups for name in group.names}
    assert by_name["equal.png"].exact == [True, True] and by_name["equal.png"].distance == [0, 0]
    assert by_name["resized.png"].exact == [True, False]
    for group in groups:
        assert group.bytes == sorted(group.bytes, reverse=True)
        assert group.bytes == [(scenes / name).stat().st_size for name in group.names]
    assert len(index.duplicates(distance=0)) < len(groups)


def test_many_copies_are_one_group(run, scenes, tmp_path):
    for i in range(30):
        (scenes / f"copy-{i}.png").write_bytes((scenes / "09.png").read_bytes())
    groups = Index.build(run, scenes, tmp_path / "x.index").duplicates()
    assert max(len(group.names) for group in groups) == 31 and len(groups) == 5


def test_dedup_writes_json_and_a_page_and_deletes_nothing(run, scenes, tmp_path, capfd):
    out, page, numbers = tmp_path / "x.index", tmp_path / "x.html", tmp_path / "x.json"
    Index.build(run, scenes, out)
    (scenes / "resized.png").unlink()  # an image that vanished
    before = {path: path.read_bytes() for path in scenes.iterdir()}
    assert cli.main(["dedup", str(out), "--html", str(page), "--json", str(numbers)]) == 0
    assert {path: path.read_bytes() for path in scenes.iterdir()} == before
    stored = json.loads(numbers.read_text())
    assert stored["images"] == 44 and stored["copies"] == 4
    assert [set(group["names"]) for group in stored["groups"] if "equal.png" in group["names"]] == [
        EXPECTED[3]
    ]
    text = page.read_text()
    assert text.count("data:image/jpeg;base64,") == 7 and text.count("file not found") == 1
    assert "<script" not in text and "&lt;script&gt;alert(1)" in text and "\u2028" not in text
    assert "4 groups of duplicates in 44 images" in capfd.readouterr().out


def test_the_page_of_a_search_shows_results_and_their_vertices(run, scenes, tmp_path):
    index, page = Index.build(run, scenes, tmp_path / "x.index", simplices=8), tmp_path / "x.html"
    query = str(scenes / EVIL)
    assert cli.main(["search", str(index.path), query, "--k", "5", "--html", str(page)]) == 0
    text = page.read_text()
    assert text.rstrip().endswith("</html>")
    assert "5 nearest images" in text and "8 of 8 agree" in text and "What they share" in text
    assert "<script" not in text and "http" not in text.replace("http-equiv", "")
    simplex, vertex = index.simplices[0], int(index.codes()[0, 0])
    words = ["search", str(index.path), "--vertex", f"{simplex}:{vertex}", "--html", str(page)]
    assert cli.main(words) == 0
    assert f"simplex {simplex} has vertex {vertex}" in page.read_text()


def test_thumbnails_keep_the_aspect_ratio(tmp_path):
    Image.new("RGB", (400, 100), "red").save(tmp_path / "wide.png")
    import base64
    import io

    content = base64.b64decode(thumbnail(tmp_path / "wide.png").partition(",")[2])
    assert Image.open(io.BytesIO(content)).size == (128, 32)
    assert thumbnail(tmp_path / "none.png") is None
