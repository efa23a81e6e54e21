"""Every public function has a docstring with an example that runs, and type hints."""

import doctest
import importlib
import inspect
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.utils import save_image

import simplicia
from simplicia.analyze import analyze
from simplicia.codes import Index
from simplicia.data import datasets
from simplicia.evaluate import knn
from simplicia.evaluate.probe import ProbeSettings, fit

ROOT = Path(__file__).parents[1]
MODULES = ("sem", "losses", "methods", "encoders", "bottlenecks", "run", "api", "estimator", "classifier")
CLASSES = (
    "Run",
    "RunTransformer",
    "Classifier",
    "SimplicialEmbedding",
    "SimNorm",
    "Index",
)  # whose methods are public too
OTHERS = {  # modules that are not public as a whole
    "analyze": [name for names in simplicia.analyze._MODULES.values() for name in names],
    "analyze.bound": ["gap_term", "lemma6"],
    "codes": ["Index"],
    "data": ["dataset"],
    "data.datasets": ["load"],
    "data.inputs": ["pixels", "image_set"],
    "errors": ["UserError", "spoken"],
    "evaluate.compare": ["compare"],
    "evaluate.corruptions": ["corrupt", "names"],
    "evaluate.features": ["load_labelled"],
    "evaluate.finetune": ["finetune", "semi"],
    "evaluate.knn": ["knn"],
    "evaluate.probe": ["fit", "probe"],
    "evaluate.robustness": ["robustness"],
    "evaluate.transfer": ["load_splits", "transfer"],
    "experiments.sweep": ["sweep"],
    "layers": ["mlp"],
    "report": ["page", "write"],
}
INTERNAL = {"simplicia.run.classifier", "simplicia.api.train_into", "simplicia.encoders.ResNet"}
INTERNAL |= {"simplicia.losses.widen"}
INTERNAL |= {f"simplicia.classifier.{name}" for name in ("make", "read", "attach", "build", "of_run")}


def public():
    """(dotted name, function or class) of everything that is public."""
    for module in (*MODULES, *OTHERS):
        where = importlib.import_module(f"simplicia.{module}")
        names = OTHERS.get(module) or [name for name in vars(where) if not name.startswith("_")]
        for name in names:
            value = getattr(where, name)
            is_ours = str(getattr(value, "__module__", "")).startswith("simplicia")
            is_here = (
                module in ("methods", "bottlenecks", *OTHERS)
                or getattr(value, "__module__", "") == where.__name__
            )
            path = f"simplicia.{module}.{name}"
            if not (callable(value) and is_ours and is_here) or path in INTERNAL:
                continue
            if inspect.isclass(value) and name in CLASSES:
                methods = [
                    name for cls in value.__mro__ for name in vars(cls) if cls.__module__ == value.__module__
                ]
                for method in dict.fromkeys(methods):
                    if method[0] != "_" or method == "__call__":
                        member = inspect.getattr_static(value, method)
                        if inspect.isfunction(member) and method not in ("forward", "extra_repr"):
                            yield f"{path}.{method}", member
            if not inspect.isclass(value) or name in (*CLASSES, *OTHERS.get(module, [])):
                yield path, value


PUBLIC = dict(public())


@pytest.fixture(scope="module")
def globs(tmp_path_factory):
    """What examples may use: a small run with SEM, four images, and some images with labels."""
    small = {
        "epochs": 1,
        "batch_size": 500,
        "image_size": 16,
        "sem": {"simplices": 8},
        "byol": {"hidden": 16},
    }
    out = tmp_path_factory.mktemp("runs") / "shapes"
    run = simplicia.pretrain("shapes-byol-sem", out=out, quiet=True, **small)
    train, test = (
        datasets.part(datasets.load("shapes", split), torch.arange(n))
        for split, n in (("train", 600), ("test", 200))
    )
    fit(run, train, "encoder", ProbeSettings(epochs=1, lrs=(1.0,))).classifier().save()
    photos = out.parent / "photos"
    photos.mkdir()
    for i, image in enumerate(test.images[:8]):
        save_image(image / 255, photos / f"{i}.png")
    return {"run": run, "images": test.images[:4], "train": train, "test": test, "photos": photos}


def test_what_is_offered_is_checked():
    for name in simplicia.__all__:
        value = getattr(simplicia, name)
        if callable(value):
            assert any(value is known for known in PUBLIC.values()), name
    assert len(PUBLIC) > 100


def test_what_the_docs_import_is_checked():
    """Functions for readers to call; what a page on extending the package imports is for its authors."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in (page for page in pages if page.name not in ("extend.md", "reproduce.md")):
        for module, names in re.findall(r"^from (simplicia[.\w]*) import (.*)", page.read_text(), re.M):
            for name in re.findall(r"\w+", names.partition("#")[0]):
                value = getattr(importlib.import_module(module), name)
                is_checked = any(value is known for known in PUBLIC.values())
                assert is_checked or not inspect.isfunction(value), f"{page.name}: {name}"


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_function_is_documented_and_typed(name):
    function = PUBLIC[name]
    doc = inspect.getdoc(function) or ""
    assert doc and len(doc.splitlines()[0]) > 8 and ">>> " in doc, f"{name} needs an example in its docstring"
    if inspect.isclass(function):
        return
    signature = inspect.signature(function)
    untyped = [p.name for p in signature.parameters.values() if p.annotation is p.empty and p.name != "self"]
    assert not untyped, f"{name} has no type hints for {untyped}"
    assert signature.return_annotation is not signature.empty, f"{name} says no return type"


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_runs(name, globs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    function = inspect.unwrap(PUBLIC[name])
    module = importlib.import_module(function.__module__)
    names = {**vars(module), "simplicia": simplicia, "torch": torch, "np": np, "knn": knn, **globs}
    if ".report." in name:
        names["analyze"] = analyze
    if ".codes." in name:
        shutil.copytree(globs["photos"], "photos")
        names["index"] = Index.build(globs["run"], "photos", "built.index")
    (example,) = [
        test
        for test in doctest.DocTestFinder(recurse=False).find(function, name, module=False, globs=names)
        if test.examples
    ]
    lines = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    failed, attempted = runner.run(example, out=lines.append)
    assert attempted and not failed, "".join(lines)
