"""An analysis: from a run to its folder, with and without SEM, labels and superclasses."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import simplicia
from simplicia.analyze import analyze
from simplicia.analyze.class_coherence import fit_linear
from simplicia.analyze.report_data import Analysis, Log, read_results
from simplicia.cli import main
from simplicia.data.datasets import load
from simplicia.report.figures import write_figures
from simplicia.run import Run
from simplicia.settings import with_changes
from simplicia.train import checkpoint, recipes
from simplicia.train.recipe import write_yaml

SMALL = {
    "epochs": 1,
    "image_size": 16,
    "batch_size": 500,
    "log_every": 2,
    "options": {"hidden": 16, "out": 8},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("analyze")
    sem = simplicia.pretrain(
        "shapes-byol-sem", out=root / "sem", quiet=True, **SMALL, **{"sem.simplices": 12}
    )
    # the run without SEM needs no training
    recipe = with_changes(recipes.get("shapes-byol"), {"options": SMALL["options"]})
    (root / "base").mkdir()
    write_yaml(recipe, root / "base/recipe.yaml")
    tensors = {f"method.{key}": value for key, value in recipe.build().state_dict().items()}
    state = {"total_steps": 1, "seconds": 1.0, "loss": 1.0, "mean": [0.5] * 3, "std": [0.2] * 3}
    checkpoint.save(root / "base/checkpoint", 1, tensors, state)
    return sem, simplicia.load(root / "base", "cpu")


QUICK = ("--images", "300", "--fit-images", "500", "--device", "cpu")


def strict(path):
    """Parse JSON as strictly as a browser."""

    def refuse(word):
        raise ValueError(word)

    return json.loads(path.read_text(), parse_constant=refuse)


@pytest.fixture(scope="module")
def analysed(runs):
    assert main(["analyze", str(runs[0].path), str(runs[1].path), *QUICK]) == 0
    return [strict(run.path / "analysis/analysis.json") for run in runs]


def test_a_sem_run_has_everything(runs, analysed):
    run, analysis = runs[0], analysed[0]
    folder = run.path / "analysis"
    assert analysis["run"]["step"] == run.step and analysis["run"]["recipe"]["sem"]["simplices"] == 12
    data = analysis["data"]
    assert (data["images"], data["fit_images"], len(data["classes"]), data["split"]) == (300, 500, 20, "test")
    assert sum(data["class_counts"]) == 300
    assert analysis["log"]["train"]["step"] == [1, 2, 4, 6, 8, 10] and analysis["log"]["online"] == {}

    own = next(c for c in analysis["entropy"]["curves"] if c["own"])
    assert own["count"] == 300 * 12 == sum(own["counts"])

    curves = {c["layer"]: c for c in analysis["coherence"]["curves"]}
    assert {"sem", "embedder", "encoder"} <= set(curves)
    assert len(curves["sem"]["coherence"]) == 50 and min(curves["sem"]["coherence"]) >= 0
    stored = load_file(folder / "weights.safetensors")
    assert stored["sem.index"].shape == stored["sem.value"].shape == (20, 50)
    magnitude = stored["sem.value"].abs()
    assert (magnitude.diff(dim=1) <= 0).all()
    graph = next(g for g in analysis["coherence"]["graphs"] if g["layer"] == "sem" and g["k"] == 5)
    top = {(i, int(j)) for i in range(20) for j in stored["sem.index"][i, :5]}
    assert {(i, j) for i, j, _ in graph["edges"]} <= top and (folder / graph["file"]).is_file()
    linked = {i for part in graph["components"] for i in part["classes"]}
    assert linked | set(graph["isolated"]) == set(range(20)) and linked.isdisjoint(graph["isolated"])

    assert {layer["layer"]: layer["features"] for layer in analysis["spectrum"]["layers"]} == {
        "encoder": 128,
        "embedder": 156,
        "sem": 156,
    }
    assert [layer["layer"] for layer in analysis["retrieval"]["layers"]] == ["codes", "encoder"]
    assert analysis["retrieval"]["k"][0] == 1 and len(analysis["retrieval"]["examples"]) == 24


def test_the_atlas_names_the_right_images(runs, analysed):
    run, analysis = runs[0], analysed[0]
    test = load("shapes", "test")
    row = analysis["atlas"]["features"][0]
    p = run.encode(test.images[row["images"]], "sem")[:, row["feature"]]
    np.testing.assert_allclose(p, row["probabilities"], rtol=1e-4)
    assert row["probabilities"] == sorted(row["probabilities"], reverse=True)
    assert row["feature"] == row["simplex"] * 13 + row["vertex"]
    assert sum(count for _, count in row["superclasses"]) == row["fired"] or len(row["superclasses"]) == 5
    scores = [row["score"] for row in analysis["atlas"]["features"]]
    assert scores == sorted(scores, reverse=True)


def test_thumbnails_are_the_images(runs, analysed):
    test, shown = load("shapes", "test"), analysed[0]["thumbnails"]
    folder = runs[0].path / "analysis"
    sheets = [np.asarray(Image.open(folder / sheet["file"])) for sheet in shown["sheets"]]
    asked = {str(i) for row in analysed[0]["atlas"]["features"] for i in row["images"]}
    asked |= {
        str(i) for row in analysed[0]["retrieval"]["examples"] for i in [row["query"], *row["neighbours"]]
    }
    assert set(shown["images"]) == asked
    for index, thumbnail in list(shown["images"].items())[::20]:
        x, y, tile = thumbnail["x"], thumbnail["y"], shown["tile"]
        pixels = sheets[thumbnail["sheet"]][y : y + tile, x : x + tile].astype(float)
        original = test.images[int(index)].permute(1, 2, 0).numpy().astype(float)
        assert abs(pixels - original).mean() < 12  # JPEG
        assert thumbnail["label"] == int(test.labels[int(index)])


def test_a_run_without_sem_lacks_only_the_parts_of_sem(analysed):
    analysis = analysed[1]
    assert analysis["atlas"] is None and analysis["entropy"] is None
    assert [layer["layer"] for layer in analysis["spectrum"]["layers"]] == ["encoder"]
    assert [layer["layer"] for layer in analysis["retrieval"]["layers"]] == ["encoder"]
    assert "encoder" in {c["layer"] for c in analysis["coherence"]["curves"]}


def test_an_up_to_date_analysis_is_not_repeated(runs, analysed, capsys):
    path = runs[0].path / "analysis/analysis.json"
    runs[0].write_result("knn-sem", {"protocol": "kNN", "loss": float("nan"), "name": "</script>"})
    assert main(["analyze", str(runs[0].path), *QUICK]) == 0
    analysis = strict(path)
    assert analysis["provenance"] == analysed[0]["provenance"]  # the analysis is the same, the result is new
    result = {"protocol": "kNN", "loss": None, "name": "</script>"}
    assert result.items() <= analysis["results"]["knn-sem"].items()
    assert main(["analyze", str(runs[0].path), *QUICK, "--again"]) == 0
    again = strict(path)
    assert again["provenance"] != analysis["provenance"] and again["atlas"] == analysis["atlas"]
    assert "written to" in capsys.readouterr().out


def test_figures_of_several_runs(runs, analysed, tmp_path):
    rows = [{"temperature": tau, "accuracy": 5.0, "standard_error": 1.0} for tau in (0.0, 1.0)]
    runs[0].write_result("probe-cifar-sem", {"protocol": "probe", "per_temperature": rows})
    paths = [str(run.path) for run in runs]
    assert main(["analyze", *paths, *QUICK, "--figures", str(tmp_path)]) == 0
    names = {path.stem for path in tmp_path.iterdir()}
    expected = {
        "entropy",
        "coherence",
        "spectrum",
        "retrieval-by_class",
        "temperature",
        "training-loss",
        "graph-sem-1",
    }
    assert expected <= names
    for name in expected:
        assert Image.open(tmp_path / f"{name}.png").size[0] > 300
        assert (tmp_path / f"{name}.svg").read_text().rstrip().endswith("</svg>")
    rows = list(csv.DictReader((tmp_path / "coherence.csv").open()))
    curve = next(c for c in analysed[1]["coherence"]["curves"] if c["layer"] == "encoder")
    mine = [float(row["coherence"]) for row in rows if row["series"] == "shapes-byol, encoder"]
    assert mine == curve["coherence"]


def test_an_analysis_of_other_images_has_its_own_folder(runs, analysed, tmp_path):
    own = (runs[0].path / "analysis/analysis.json").read_bytes()
    for i, image in enumerate(load("shapes", "test").images[:12]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{i}.png")
    analysis, folder = analyze(runs[0], data=str(tmp_path), quiet=True)
    assert folder.parent == runs[0].path and folder.name.startswith(f"analysis-{tmp_path.name}-")
    assert analysis["data"]["images"] == 12 and (runs[0].path / "analysis/analysis.json").read_bytes() == own
    assert analyze(runs[0], data=str(tmp_path), quiet=True)[0]["provenance"] == analysis["provenance"]


def test_a_page_of_other_images_keeps_the_options_of_their_analysis(runs, analysed, tmp_path):
    root = folder_of_images(tmp_path / "data", ["a", "b"])
    path = runs[0].path
    (path / "report.html").write_text("the run's own")
    assert main(["analyze", str(path), "--data", str(root), "--images", "5", "--device", "cpu"]) == 0
    assert main(["report", str(path), "--data", str(root), "--device", "cpu"]) == 0
    (page,) = path.glob("report-data-*.html")
    assert (path / "report.html").read_text() == "the run's own" and page.stat().st_size > 10_000
    analysis = strict(path / page.stem.replace("report", "analysis") / "analysis.json")
    assert analysis["asked"]["images"] == 5


def test_a_run_trained_without_softmax_has_no_training_temperature(tmp_path):
    changes = {"bottleneck": "embed", "sem.simplices": 6, "options": SMALL["options"]}
    recipe = with_changes(recipes.get("shapes-byol"), changes)
    state = {"step": 1, "total_steps": 1, "seconds": 1.0, "loss": 1.0, "mean": [0.5] * 3, "std": [0.2] * 3}
    run = Run(tmp_path, recipe, recipe.build(), state)
    analysis, _ = analyze(run, images=40, fit_images=60, quiet=True)
    assert (analysis["run"]["simplices"], analysis["run"]["temperature"]) == (6, None)
    assert len(analysis["entropy"]["curves"]) > 2 and not any(c["own"] for c in analysis["entropy"]["curves"])


def folder_of_images(root, names):
    generator = np.random.default_rng(0)
    for name in names:
        (root / name).mkdir(parents=True)
        for i in range(6):
            pixels = generator.integers(0, 256, (40, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i} <img onerror='x'>.png")
    return root


def test_class_names_with_markup_are_harmless(runs, tmp_path):
    names = ["<script>alert(1)<", 'a "quoted" $x_1$ & b']
    root = folder_of_images(tmp_path / "data", names)
    analysis, folder = analyze(runs[0], data=str(root), out=tmp_path / "out", quiet=True)
    assert sorted(analysis["data"]["classes"]) == sorted(names)
    assert analysis["coherence"]["curves"][0]["coherence"] is None  # a folder has no superclasses
    again = strict(folder / "analysis.json")
    files = [thumbnail["file"] for thumbnail in again["thumbnails"]["images"].values()]
    assert files and all(file.endswith("<img onerror='x'>.png") for file in files)
    write_figures([Analysis.from_json(again)], tmp_path / "figures")
    assert "<script>" not in (tmp_path / "figures/graph-sem.svg").read_text()


def test_an_analysis_is_repeated_when_its_folder_of_images_changes(runs, tmp_path, monkeypatch):
    """Another folder of the same name, or new files in the same folder."""
    for parent, names in (("A", ["a", "b"]), ("B", ["c", "d"])):
        folder_of_images(tmp_path / parent / "photos", names)

    def classes(parent):
        monkeypatch.chdir(tmp_path / parent)
        analysis, _ = analyze(runs[0], data="photos", out=tmp_path / "out", quiet=True)
        return analysis["data"]["classes"], analysis["provenance"]

    first, second = classes("A"), classes("B")
    assert (first[0], second[0]) == (["a", "b"], ["c", "d"]) and classes("B") == second
    folder_of_images(tmp_path / "B/photos", ["e"])
    assert classes("B")[0] == ["c", "d", "e"]


def test_an_analysis_is_repeated_when_files_of_a_named_set_change(runs, tmp_path):
    """Another data directory, or new files in it."""
    for parent, names in (("A", ["a", "b"]), ("B", ["c", "d"])):
        for part in ("train", "val"):
            folder_of_images(tmp_path / parent / "imagenette2" / part, names)

    def analysed(parent):
        analysis, _ = analyze(runs[0], "imagenette", str(tmp_path / parent), out=tmp_path / "out", quiet=True)
        return analysis["data"]["classes"], analysis["data"]["images"], analysis["provenance"]

    first, second = analysed("A"), analysed("B")
    assert first[:2] == (["a", "b"], 12) and second[:2] == (["c", "d"], 12) and analysed("B") == second
    shutil.copy(*(tmp_path / "B/imagenette2/val/c" / name for name in ("0 <img onerror='x'>.png", "7.png")))
    assert analysed("B")[1] == 13


def test_an_interrupted_analysis_is_repeated(runs, tmp_path, monkeypatch):
    arguments = {"fit_images": 100, "out": tmp_path / "out", "quiet": True}
    first, folder = analyze(runs[0], images=40, **arguments)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("simplicia.analyze.study.write_thumbnails", interrupted)
        with pytest.raises(KeyboardInterrupt):
            analyze(runs[0], images=20, **arguments)
    again, _ = analyze(runs[0], images=40, **arguments)
    assert again["provenance"] != first["provenance"] and list(folder.glob("thumbnails-*.jpg"))


def test_test_images_without_labels(runs, tmp_path):
    root = folder_of_images(tmp_path / "data/train", ["a", "b"]).parent
    folder_of_images(tmp_path / "flat", ["one"])
    (tmp_path / "flat/one").rename(root / "test")
    (root / "test/broken.png").write_bytes(b"no image")
    analysis, _ = analyze(runs[0], data=str(root), out=tmp_path / "out", quiet=True)
    assert (
        analysis["coherence"] is None
        and analysis["data"]["split"] == "test"
        and analysis["data"]["images"] == 6
    )
    assert "1 file could not be read" in analysis["notes"][0] and "no labels" in analysis["notes"][1]


def test_an_analysis_outlives_its_images(runs, tmp_path):
    root = folder_of_images(tmp_path / "data", ["a", "b"])
    first, _ = analyze(runs[0], data=str(root), out=tmp_path / "out", quiet=True)
    root.rename(tmp_path / "gone")
    again, _ = analyze(runs[0], data=str(root), out=tmp_path / "out", quiet=True)
    assert again["provenance"] == first["provenance"]


def test_images_without_labels(runs, tmp_path):
    root = folder_of_images(tmp_path / "data", ["one"])
    flat = tmp_path / "flat"
    (root / "one").rename(flat)
    analysis, folder = analyze(runs[0], data=str(flat), out=tmp_path / "out", quiet=True)
    assert analysis["coherence"] is None and analysis["atlas"]["ranked_by"] == "contrast"
    assert analysis["retrieval"]["chance"] is None and analysis["retrieval"]["layers"][0]["by_class"] is None
    assert analysis["data"]["split"] == "train" and "no labels" in analysis["notes"][0]
    assert strict(folder / "analysis.json")["entropy"]["curves"]


def test_user_errors_exit_with_status_2_and_a_message(runs, tmp_path, capsys):
    assert main(["analyze", *[str(run.path) for run in runs], "--out", str(tmp_path)]) == 2
    assert "--out is for one run" in capsys.readouterr().err
    before = {path: path.stat().st_mtime_ns for path in runs[0].path.rglob("*")}
    assert main(["analyze", str(runs[0].path), str(tmp_path / "nowhere"), "--again"]) == 2
    assert "nowhere is not a run" in capsys.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in runs[0].path.rglob("*")}
    (tmp_path / "file").write_text("")
    assert main(["analyze", str(runs[0].path), *QUICK, "--out", str(tmp_path / "file")]) == 2
    assert "is a file" in capsys.readouterr().err
    assert main(["analyze", str(tmp_path)]) == 2


def test_curves_hold_numbers_alone(tmp_path):
    lines = [{"step": i, "loss": loss} for i, loss in enumerate([1.5, "<b>", {"a": 1}, 10**400, 2.5])]
    lines.append({"step": 10**400, "loss": 1.0})
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert Log.of(tmp_path / "log.jsonl").train == {
        "step": [0, 1, 2, 3, 4],
        "loss": [1.5, None, None, None, 2.5],
    }


def test_truncated_logs_and_malformed_results_are_read(tmp_path):
    log = tmp_path / "log.jsonl"
    lines = [json.dumps({"step": i, "loss": i / 2, "effective_rank": 1.5}) for i in range(1000)]
    lines += [json.dumps({"step": i, "online_knn_accuracy": i}) for i in (5, 10)]
    log.write_text("\n".join([*lines, '{"step": 1000, "warning": "<b>"}', '{"step": 10', "[]", "7"]))
    analysis = Log.of(log)
    assert len(analysis["train"]["step"]) == 400
    assert analysis["train"]["step"][0] == 0 and analysis["train"]["step"][-1] == 999
    assert analysis["online"] == {"step": [5, 10], "online_knn_accuracy": [5, 10]}
    assert [(w.step, w.words) for w in analysis.warnings] == [(1000, "<b>")]
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "words.json").write_text('{"protocol": "mine", "temperature": "0.1"}')
    (tmp_path / "row.json").write_text('{"protocol": "mine", "per_temperature": [{"accuracy": 1}]}')
    (tmp_path / "good.json").write_text('{"protocol": "mine", "temperature": 0.1}')
    results = read_results(tmp_path)
    assert list(results) == ["good"] and results["good"]["temperature"] == 0.1


def test_linear_classifiers_do_not_depend_on_the_scale_and_mean_of_a_layer():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    x = 2 * torch.eye(5)[labels] + torch.randn(300, 5, generator=generator)
    near, far = (fit_linear(layer, x, labels, 3, 30) for layer in (lambda h: h, lambda h: 10 * h + 50))
    assert near.accuracy(x, labels) > 70
    assert far.accuracy(x, labels) == pytest.approx(near.accuracy(x, labels), abs=2)
    torch.testing.assert_close(far.weight * 10, near.weight, rtol=1e-2, atol=1e-2)
    # the three features that distinguish the classes carry the weight
    assert near.weight.abs()[:3].min() > 0 and (near.weight.argmax(0) == torch.arange(3)).all()
