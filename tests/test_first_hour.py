"""A person's first hour with Simplicia, as it is typed.

Here: on a terminal, a folder without labels becomes a run, features and a report; from Python, images in
every form that people have them in are trained on and encoded. The rest of the hour is tested elsewhere:

* a folder with labels becomes a saved classifier and predictions of new images, as commands:
  ``test_classifier.py::test_the_first_hour_from_a_labelled_folder_to_predictions``
* a run is repeated from its own recipe.yaml with equal losses: on the command line
  ``cli/test_files_and_options.py::test_a_runs_own_recipe_repeats_it``, from Python
  ``test_api.py::test_a_run_repeats_from_its_recipe_file_with_equal_losses``
* one bar that leaves nothing behind, also after Ctrl-C and errors: ``cli/test_terminal.py``
* an encoder as an ``nn.Module``: ``test_api.py::test_an_encoder_may_be_a_module``
* the same pixels, whatever their form: ``data/test_inputs.py``
* the code of the README and of the docs: ``test_docs.py``
"""

import os
import re
import shlex

import numpy as np
import pytest
import torch
from PIL import Image
from terminal import in_terminal
from torch.utils.data import DataLoader, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

import simplicia

NCHW = simplicia.data.datasets.load("shapes", "test").images[:24]
NHWC = NCHW.permute(0, 2, 3, 1).contiguous().numpy()
LABELS = [i % 2 for i in range(len(NHWC))]
SMALL = {"epochs": 1, "batch_size": 8, "image_size": 16, "encoder": "tiny", "quiet": True}
SMALL |= {"sem": {"simplices": 4}, "byol": {"hidden": 16, "out": 8}}
OPTIONS = "--epochs 2 --image-size 16 --batch-size 8 --sem.simplices 4 --byol.hidden 16"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of images, and the same images in the folders of two classes."""
    root = tmp_path_factory.mktemp("data")
    for i, pixels in enumerate(NHWC):
        for name in (f"photos/{i:02}.png", f"labelled/{'ab'[LABELS[i]]}/{i:02}.png"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(root / name)
    return root


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a pseudo-terminal")
def test_an_unlabelled_folder_becomes_a_report_on_a_terminal(photos, tmp_path):
    data, out = photos / "photos", tmp_path / "run"

    def simplicia_(words):
        return in_terminal(["-m", "simplicia", *shlex.split(words)], 120)

    plan = simplicia_(f"pretrain byol-sem --data {data} {OPTIONS} --out {out} --dry-run")
    assert (plan.status, plan.is_cursor_hidden, out.exists()) == (0, False, False)
    assert plan.lines[-1] == "dry run: nothing was written" and not any("━" in line for line in plan.lines)

    trained = simplicia_(f"pretrain byol-sem --data {data} {OPTIONS} --out {out}")
    trained.check(0)
    assert trained.lines[0].startswith("byol-sem: 24 images of photos")
    text = "".join(trained.lines)  # long lines are broken
    following = re.search(r"next: simplicia (.*)", text)[1]
    following = following.replace("features.npz", str(tmp_path / "features.npz"))
    assert simplicia_(following).status == 0
    with np.load(tmp_path / "features.npz") as arrays:
        assert arrays["sem"].shape == (24, 4 * 13) and "labels" not in arrays

    report = simplicia_(f"report {out}")
    report.check(0)
    page = (out / "report.html").read_text()
    overview = re.sub("<[^>]*>", "", page[page.index('id="overview"') : page.index('id="warnings"')])
    assert "without labels" in overview and "class" not in overview


def forms(root):
    """Images in the forms that people have them in, by name."""
    folder, files = ImageFolder(root / "labelled"), sorted((root / "photos").iterdir())
    return {
        "array NHWC": NHWC,
        "array NCHW": NCHW.numpy(),
        "tensor": NCHW,
        "floats": NCHW.float() / 255,
        "grey": NHWC[..., 0],
        "paths": files,
        "names of files": list(map(str, files)),
        "PIL": [Image.open(path) for path in files],
        "torchvision": folder,
        "torchvision, transformed": ImageFolder(root / "labelled", ToTensor()),
        "torch": TensorDataset(NCHW, torch.tensor(LABELS)),
        "torch, without labels": TensorDataset(NCHW),
        "Hugging Face": hugging_face(files),
    }


def hugging_face(files):
    """A real data set of Hugging Face if it is installed, else what one offers."""
    try:
        import datasets
    except ImportError:

        class Rows(list):
            column_names, features = ("image", "label"), {}

        return Rows({"image": Image.open(f), "label": y} for f, y in zip(files, LABELS, strict=True))
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    return datasets.Dataset.from_dict({"image": list(map(str, files)), "label": LABELS}, features=features)


def test_python_trains_on_and_encodes_images_in_every_form(photos, tmp_path):
    for name, images in forms(photos).items():
        run = simplicia.pretrain("byol-sem", data=images, out=tmp_path / name, **SMALL)
        assert run.finished and run.step == 3, name
        codes = run.encode(images, "codes")
        assert codes.shape == (24, 4), name
        if name == "floats":
            assert torch.equal(codes, run.encode(DataLoader(images, batch_size=5), "codes"))
    with pytest.raises(simplicia.UserError, match=r"such as loader\.dataset"):
        simplicia.pretrain("byol-sem", data=DataLoader(NCHW), out=tmp_path / "loader", **SMALL)
