"""The index against the run it was made with, and against brute force."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import simplicia
from simplicia import cli
from simplicia.codes import Index
from simplicia.errors import UserError
from simplicia.evaluate.encode import encode


@pytest.fixture
def index(run, photos, tmp_path):
    return Index.build(run, photos, tmp_path / "photos.index", simplices=8)


def test_the_index_has_the_codes_that_encode_writes(index, run, photos, tmp_path):
    encode(run, str(photos), tmp_path / "codes.npz", ["codes"], None, "online", None, True)
    stored = np.load(tmp_path / "codes.npz")
    assert index.names == stored["files"].tolist() and len(index) == 120
    assert (index.codes() == stored["codes"][:, index.simplices]).all()
    assert len(index.simplices) == 8 and index.about.total == 16


def test_search_equals_brute_force(index, run, shapes):
    codes = index.codes()
    queries = run.encode(shapes[:5], "codes")
    for given in (queries, queries.numpy()[:, index.simplices], shapes[:5]):
        found = index.search(given, k=7)
        agree = (codes[:5, None] == codes).sum(-1)
        order = np.argsort(-agree, axis=1, kind="stable")[:, :7]
        assert (found.indices == order).all()
        assert (found.agree == np.take_along_axis(agree, order, 1)).all()
        assert found.names[0] == [index.names[i] for i in order[0]]
        assert found.distance == pytest.approx(1 - found.agree / 8)


def test_an_image_file_finds_itself_and_the_simplices_that_agree(index, photos):
    found = index.search(photos / "011.png", k=3)
    assert index.names.index("011.png") in found.indices[0] and found.agree[0, 0] == 8
    row = int(found.indices[0, 2])
    agreeing = index.agreeing(found.codes[0], row)
    assert len(agreeing) == found.agree[0, 2]
    for simplex in agreeing:
        place = index.simplices.index(simplex)
        assert index.codes()[row, place] == found.codes[0, place]


def test_filters_keep_images_with_the_vertex(index, shapes):
    codes, simplex = index.codes(), index.simplices[2]
    vertex = int(np.bincount(codes[:, 2]).argmax())
    found = index.search(shapes[:2], k=100, vertices={simplex: vertex})
    assert set(found.indices[0]) <= set(np.flatnonzero(codes[:, 2] == vertex))
    listed = index.listed({simplex: vertex}, 4)
    assert listed.indices[0].tolist() == np.flatnonzero(codes[:, 2] == vertex)[:4].tolist()


def test_a_filter_that_no_image_passes_finds_nothing(index, photos, tmp_path, capfd):
    codes, one, two = index.codes(), *index.simplices[:2]
    free = next(pair for pair in np.ndindex(5, 5) if not (codes[:, :2] == pair).all(1).any())
    page, numbers = tmp_path / "x.html", tmp_path / "x.json"
    words = ["--vertex", f"{one}:{free[0]}", "--vertex", f"{two}:{free[1]}", "--html", str(page)]
    for query in ([str(photos / "000.png")], []):
        assert cli.main(["search", str(index.path), *query, *words, "--json", str(numbers)]) == 0
        assert json.loads(numbers.read_text())["results"] == []
        assert "No image has these vertices." in page.read_text()
    with pytest.raises(UserError, match="no queries are given"):
        index.search(codes[:0])


def test_explained_vertices_are_shared_and_their_examples_have_them(index, shapes):
    found = index.search(shapes[:1], k=10)
    vertices, codes = index.explain(found.codes[0], found.indices[0].tolist()), index.codes()
    assert vertices
    for vertex in vertices:
        place = index.simplices.index(vertex.simplex)
        column = codes[:, place]
        assert (column[found.indices[0]] == vertex.vertex).sum() == vertex.neighbours
        assert (column == vertex.vertex).mean() == pytest.approx(vertex.share)
        assert all(column[index.names.index(name)] == vertex.vertex for name in vertex.examples)


def test_add_finds_new_and_changed_files_and_remove_forgets(
    index, photos, shapes, tmp_path, save_images, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    more = tmp_path / "more"
    save_images(more, shapes[:3], start=500)
    assert index.add(more) == 3 and len(index) == 123
    assert index.names[-3:] == [str(more / f"{i}.png") for i in (500, 501, 502)]
    assert index.add(more) == 0
    Image.fromarray(np.asarray(shapes[50].permute(1, 2, 0))).save(photos / "004.png")
    os.utime(photos / "004.png", ns=(1, 1))
    assert index.add(photos) == 1 and len(index) == 123
    codes = dict(zip(index.names, index.codes().tolist(), strict=True))
    assert codes["004.png"] == codes["050.png"] and codes[str(more / "500.png")] == codes["000.png"]
    for nothing in ("", "00"):  # as --remove "$UNSET"; a part of names
        with pytest.raises(UserError, match="has no image"):
            index.remove(nothing)
    before = index.codes()
    assert index.remove(["050.png", photos / "051.png", str(more)]) == 5
    assert len(Index.open(index.path)) == 118 and "050.png" not in index.names
    assert (photos / "050.png").exists()
    assert len(before) == 123
    for name, row in zip(index.names, index.codes().tolist(), strict=True):
        assert codes[name] == row


def test_an_added_index_equals_one_built_at_once(run, photos, tmp_path):
    at_once = Index.build(run, photos, tmp_path / "at-once.index", simplices=16)
    part = tmp_path / "part"
    part.mkdir()
    late = sorted(photos.iterdir())[60:]
    for path in late:
        path.rename(part / path.name)
    grown = Index.build(run, photos, tmp_path / "grown.index", simplices=16)
    for path in late:
        (part / path.name).rename(path)
    grown.add(photos)
    assert grown.names == at_once.names
    order = [grown.simplices.index(simplex) for simplex in at_once.simplices]
    assert (grown.codes()[:, order] == at_once.codes()).all()


def test_the_index_and_its_images_may_move_together(index, photos, tmp_path, shapes):
    place = tmp_path / "elsewhere"
    place.mkdir()
    shutil.move(photos, place / "photos")
    shutil.move(index.path, place / "photos.index")
    moved = Index.open(place / "photos.index")
    assert (moved.folder / moved.names[0]).exists()


def test_names_of_any_bytes(run, tmp_path, shapes, save_images):
    folder = tmp_path / "images"
    save_images(folder, shapes[:2])
    os.rename(folder / "000.png", os.fsencode(folder) + b"/\xff\n.png")
    index = Index.build(run, folder, tmp_path / "x.index")
    assert (index.folder / index.names[1]).exists()


def test_files_that_are_no_images_are_skipped(run, photos, tmp_path):
    (photos / "bad.png").write_bytes(b"nothing")
    index = Index.build(run, photos, tmp_path / "x.index")
    assert len(index) == 120 and index.skipped == [("bad.png", "not an image of a known format")]
    lone = tmp_path / "lone"
    lone.mkdir()
    shutil.move(photos / "bad.png", lone / "bad.png")
    with pytest.raises(UserError, match="none of the 1 images can be read"):
        Index.build(run, lone, tmp_path / "y.index")
    assert not (tmp_path / "y.index").exists()


def test_another_model_is_refused(index, run, run_dir, photos, tmp_path):
    other = simplicia.load(run_dir)
    with torch.no_grad():
        next(other.method.online.encoder.parameters()).add_(1e-3)
    before = index.path.read_bytes()
    for attempt in (
        lambda: Index.open(index.path, other),
        lambda: Index.build(other, photos, index.path),
    ):
        with pytest.raises(UserError, match="codes of two models do not compare"):
            attempt()
    assert index.path.read_bytes() == before
    copy = simplicia.load(run_dir)  # the same weights in another place are the same model
    assert len(Index.open(index.path, copy)) == 120


def test_work_of_another_model_is_not_mixed_in(index, run, run_dir, photos, tmp_path):
    other = simplicia.load(run_dir)
    with torch.no_grad():
        next(other.method.online.encoder.parameters()).add_(1e-3)
    out = tmp_path / "second.index"
    out.with_name("second.index.building").mkdir()
    shutil.copy(index.path, out.with_name("second.index.building") / "part-1")
    with pytest.raises(UserError, match="unfinished index of another run"):
        Index.build(other, photos, out)


@pytest.mark.parametrize("size", [0, 5, 300, -1])
def test_a_truncated_index_is_refused(size, index, capfd):
    content = index.path.read_bytes()
    index.path.write_bytes(content[:size])
    assert cli.main(["dedup", str(index.path)]) == 2
    assert "is no index, or a truncated one" in capfd.readouterr().err


def test_a_changed_header_is_refused(index, capfd):
    content = index.path.read_bytes()
    for old, new in (
        (b'"vertices\\": 5', b'"vertices\\": 9'),  # would need more bits
        (b'"version\\": 1', b'"version\\": 9'),
        (b'"total\\": 16', b'"total\\": 11'),  # fewer than the simplices that are kept
        (b'"dtype": "U64"', b'"dtype": "I64"'),
    ):
        assert old in content, old
        index.path.write_bytes(content.replace(old, new, 1))
        assert cli.main(["dedup", str(index.path)]) == 2
    index.path.write_bytes(content)
    assert cli.main(["dedup", str(index.path), "--quiet"]) == 0


def test_wrong_input_is_one_sentence(index, run, photos, tmp_path, capfd):
    path, fixture = str(index.path), str(run.path)
    kept = index.simplices[0]
    other = next(i for i in range(16) if i not in index.simplices)
    cases = {
        ("search", path): "no image is given",
        ("search", path, str(tmp_path / "none.png")): "cannot be read as an image",
        ("search", path, str(photos)): "is a folder",
        ("search", str(tmp_path / "none.index"), "x.png"): "cannot be opened",
        ("search", str(photos / "000.png"), "x.png"): "is no index",
        ("search", str(tmp_path), "x.png"): "cannot be opened",
        ("search", path, "--vertex", "18"): "such as 18:7",
        ("search", path, "--vertex", f"{kept}:5"): "there is no vertex",
        ("search", path, "--vertex", f"{other}:1"): "is none of them",
        ("search", path, "--vertex", f"{kept}:1", "--vertex", f"{kept}:2"): "none has both",
        ("search", path, "x.png", "--run", str(tmp_path / "gone")): "gone",
        ("dedup", path, "--distance", "1"): "below 1",
        ("index", fixture, "--out", path): "no images are named",
        ("index", fixture, str(photos), "--out", str(photos / "000.png")): "is no index",
        ("index", fixture, str(photos), "--out", str(tmp_path / "no/x.index")): "cannot be written",
        ("index", fixture, "--out", path, "--remove", "none.png"): "has no image 'none.png'",
        ("index", fixture, "--out", path, "--remove", *index.names): "would remove all 120",
        ("index", fixture, "--out", path, "--add", str(tmp_path / "gone")): "there is no folder",
    }
    before = index.path.read_bytes()
    for words, expected in cases.items():
        assert cli.main(list(words)) == 2, words
        error = capfd.readouterr().err
        assert expected in error and "Traceback" not in error, (words, error)
    assert index.path.read_bytes() == before
    assert not list(tmp_path.glob("*.building"))


def test_a_run_that_is_gone_can_be_named(run_dir, photos, tmp_path, capfd):
    index = Index.build(run_dir, photos, tmp_path / "x.index")
    shutil.move(run_dir, tmp_path / "moved")
    words = ["search", str(index.path), str(photos / "000.png")]
    assert cli.main(words) == 2 and "name where it is now as --run" in capfd.readouterr().err
    assert cli.main([*words, "--run", str(tmp_path / "moved")]) == 0


def test_index_search_and_json(run, photos, tmp_path, capfd):
    out, numbers = tmp_path / "photos.index", tmp_path / "numbers.json"
    words = ["index", str(run.path), str(photos), "--out", str(out), "--simplices", "8", "--quiet"]
    assert cli.main([*words, "--json", str(numbers)]) == 0
    stored = json.loads(numbers.read_text())
    assert stored["images"] == 120 and len(stored["simplices"]) == 8 and stored["model"]["run"]
    query = str(photos / "003.png")
    assert cli.main(["search", str(out), query, "--k", "4", "--fast", "--json", str(numbers)]) == 0
    stored = json.loads(numbers.read_text())
    assert len(stored["results"]) == 4 and stored["results"][0]["agree"] == 8
    assert all(len(row["simplices"]) == row["agree"] for row in stored["results"])
    assert cli.main(["index", str(run.path), "--out", str(out), "--remove", "003.png"]) == 0
    assert "removed 1 image\n" in capfd.readouterr().out
