"""Exports match the run: weights that other libraries load, and programs equal to ``encode``."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import simplicia
from simplicia import cli
from simplicia.data import datasets
from simplicia.errors import UserError
from simplicia.run import Run
from simplicia.settings import with_changes
from simplicia.train import recipes

SMALL = {
    "encoder": "tiny",
    "stem": "small",
    "sem.simplices": 8,
    "sem.vertices": 5,
    "options.hidden": 32,
    "image_size": 24,
}
IMAGES = datasets.load("shapes", "test").images[:5, :, 4:28, 4:28]


def untrained(tmp_path, name="byol-sem", **changes):
    """A run with initial weights, but BatchNorm statistics of a few batches."""
    torch.manual_seed(0)
    recipe = with_changes(recipes.get(name), {"data": "shapes", **SMALL, **changes})
    method = recipe.build().train()
    size = recipe.image_size
    for _ in range(3):
        method([torch.randn(8, 3, size, size) for _ in "ab"])
    state = {"step": 3, "total_steps": 9, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.25, 0.3]}
    return Run(tmp_path, recipe, method, state)


@pytest.mark.parametrize("name", ["byol", "byol-sem", "byol-sem8", "byol-embed", "byol-gumbel", "byol-vq"])
def test_exported_programs_match_encode(name, tmp_path):
    run = untrained(tmp_path, name, **({"sem.blocks": 4} if name == "byol-sem8" else {}))
    for layer in run.layers():
        path = run.export(tmp_path / f"{layer}.pt2", layer)
        extra = {"simplicia.json": ""}
        program = torch.export.load(path, extra_files=extra).module()
        for count in (1, 5):
            images = IMAGES[:count]
            assert torch.allclose(program(images.float() / 255), run.encode(images, layer), atol=1e-5), layer
        with pytest.raises(RuntimeError, match="dtype"):
            program(IMAGES[:2])  # programs take floats from 0 to 1, not pixels from 0 to 255
        meta = json.loads(extra["simplicia.json"])
        assert (meta["layer"], meta["image_size"], meta["mean"]) == (layer, 24, [0.5, 0.4, 0.3])


def test_onnx_matches_encode(tmp_path):
    import onnxruntime

    run = untrained(tmp_path)
    for layer, temperature in (("encoder", None), ("sem", None), ("sem", 0.1), ("sem", 0.0), ("codes", None)):
        path = run.export(tmp_path / "model.onnx", layer, temperature)
        session = onnxruntime.InferenceSession(path)
        for count in (1, 5):
            images = IMAGES[:count]
            (output,) = session.run([layer], {"images": (images.float() / 255).numpy()})
            expected = run.encode(images, layer, temperature)
            assert output.dtype == expected.numpy().dtype and np.allclose(output, expected, atol=1e-4)
        meta = json.loads(session.get_modelmeta().custom_metadata_map["simplicia"])
        assert meta["temperature"] == ({None: 1.0}.get(temperature, temperature) if layer == "sem" else None)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("network", ["online", "target"])
def test_torchvision_and_timm_load_the_weights(network, tmp_path):
    import timm
    import torchvision

    run = untrained(tmp_path, encoder="resnet18", stem="imagenet", image_size=64)
    run.method.target.encoder.conv1.weight.data.mul_(1.1)
    path = run.export(tmp_path / "encoder.safetensors", network=network)
    weights = load_file(path)
    theirs = torchvision.models.resnet18()
    theirs.fc = torch.nn.Identity()
    other = timm.create_model("resnet18", num_classes=0)
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    view, expected = run.view(images), run.encode(images, "encoder", network=network)
    for model in (theirs, other):
        model.load_state_dict(weights)
        with torch.no_grad():
            assert torch.allclose(model.eval()(view), expected, atol=1e-5)
    with safe_open(path, "pt") as file:
        meta = json.loads(file.metadata()["simplicia"])
    assert meta["encoder"] == "resnet18" and meta["std"] == [0.2, 0.25, 0.3] and meta["network"] == network


def test_timm_loads_an_exported_timm_encoder(tmp_path):
    import timm

    run = untrained(tmp_path, encoder="timm/resnet10t", image_size=64)
    weights = load_file(run.export(tmp_path / "encoder.safetensors"))
    timm.create_model("resnet10t", num_classes=0).load_state_dict(weights)


def test_command_prints_what_it_exports(tmp_path, capsys, fewer_shapes):
    words = "pretrain shapes-byol-sem --epochs 1 --batch-size 500 --sem.simplices 8 --byol.hidden 16 --quiet"
    assert cli.main([*words.split(), "--out", str(tmp_path / "run")]) == 0
    for name, message in (
        ("a.pt2", "images (N, 3, 32, 32) from 0 to 1 to layer sem"),
        ("b.safetensors", "tiny"),
    ):
        assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "out" / name)]) == 0
        assert message in capsys.readouterr().out and (tmp_path / "out" / name).is_file()
    program = torch.export.load(tmp_path / "out/a.pt2").module()
    images = datasets.load("shapes", "test").images[:3]
    expected = simplicia.load(tmp_path / "run", "cpu").encode(images)
    assert torch.allclose(program(images.float() / 255), expected, atol=1e-5)


def test_errors_leave_no_files(tmp_path, monkeypatch):
    run = untrained(tmp_path)
    for arguments, message in (
        (("model.pth",), "ends in '.pth'; an export ends in .safetensors, .pt2, .onnx"),
        (("a.safetensors", "sem"), "can hold the encoder's weights only; layer 'sem' takes .pt2 or .onnx"),
        (("a.pt2", "quantised"), "has no layer 'quantised'"),
        (("a.pt2", "codes", 0.5), "layer 'codes' takes none"),
    ):
        with pytest.raises(UserError, match=message):
            run.export(tmp_path / arguments[0], *arguments[1:])
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"pip install 'simplicia\[onnx\]'"):
        run.export(tmp_path / "a.onnx")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="the export cannot be written to"):
        run.export(tmp_path / "file" / "a.pt2")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
