"""Frozen encoders: features computed once, resumable; runs that load, resume and share like others."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import simplicia
from simplicia import UserError, cli
from simplicia.data import datasets
from simplicia.errors import Interrupted
from simplicia.evaluate.knn import knn
from simplicia.train import checkpoint

RECIPE = {
    "freeze": "encoder",
    "sem.simplices": 8,
    "options.hidden": 128,
    "frozen_views": 8,
    "batch_size": 100,
    "views.brightness": 0.6,
    "views.contrast": 0.6,
    "views.hue": 0.5,
    "views.crop_scale": (0.4, 1.0),
    "optim.name": "sgd",
    "optim.lr": 1.0,
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run whose encoder is frozen in others."""
    options = {"epochs": 2, "batch_size": 64, "options.hidden": 64, "quiet": True, "device": "cpu"}
    return simplicia.pretrain("shapes-simclr", out=tmp_path_factory.mktemp("runs") / "source", **options)


@pytest.fixture(scope="module")
def weights(source, tmp_path_factory):
    return source.export(tmp_path_factory.mktemp("weights") / "encoder.safetensors")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder, shapes = tmp_path_factory.mktemp("data") / "photos", datasets.load("shapes")
    folder.mkdir()
    for i, image in enumerate(shapes.images[:300]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{i}.png")
    return folder


def train(photos, weights, out, **changes):
    options = {"encoder_weights": str(weights), **RECIPE, **changes}
    return simplicia.pretrain("simclr-sem", data=str(photos), out=out, quiet=True, device="cpu", **options)


@pytest.fixture(scope="module")
def run(photos, weights, tmp_path_factory):
    return train(photos, weights, tmp_path_factory.mktemp("runs") / "a", epochs=100)


def accuracy(run):
    shapes = datasets.load("shapes")
    bank = datasets.part(shapes, torch.arange(1000, 2000))
    return knn(run, bank, datasets.load("shapes", "test"), "codes").accuracy


def test_codes_beat_those_of_an_untrained_embedder(run):
    untrained = simplicia.load(run.path, "cpu")
    torch.manual_seed(0)
    embedder = run.recipe.trunk()[1].train()
    embedder.norm.momentum = None  # statistics of one batch
    with torch.no_grad():
        embedder(run.encode(datasets.load("shapes").images[1000:2000], "encoder"))
    untrained.method.online.bottleneck = embedder.eval()
    assert accuracy(run) > accuracy(untrained) + 5  # seen: 63.2 and 51.8 %


def test_weights_decide_encoder_size_and_normalisation(run, source, weights):
    assert (run.recipe.encoder, run.recipe.stem, run.recipe.image_size) == ("tiny", "small", 32)
    for key in ("mean", "std"):
        assert list(run.state[key]) == pytest.approx(source.state[key])
    stored, file = load_file(weights), load_file(run.path / checkpoint.FROZEN)
    for network in (run.method.online.encoder.state_dict(), stored):
        assert all(torch.equal(network[key], file[key]) for key in file) and network.keys() == file.keys()
    images = datasets.load("shapes", "test").images[:5]
    assert torch.equal(run.encode(images, "encoder"), source.encode(images, "encoder"))
    tensors, state = checkpoint.read(checkpoint.latest(run.path / "checkpoint"))
    assert not any("encoder" in key for key in tensors)
    assert state["extraction"]["computed"] == 300 and state["extraction"]["images_per_s"] > 0


def test_resuming_gives_the_same_weights_without_the_file(run, photos, weights, tmp_path):
    copy = shutil.copy(weights, tmp_path / "gone.safetensors")
    with pytest.raises(Interrupted):
        train(photos, copy, tmp_path / "b", epochs=100, deadline=time.monotonic())
    assert not simplicia.load(tmp_path / "b", "cpu").finished
    copy.unlink()
    again = simplicia.pretrain("simclr-sem", out=tmp_path / "b", resume=True, quiet=True, device="cpu")
    one, two = run.method.state_dict(), again.method.state_dict()
    assert again.finished and all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_a_killed_extraction_goes_on_with_the_same_features(source, tmp_path, monkeypatch):
    """The second process finds the parts of the first; its features equal those of a third one."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SIMPLICIA_CACHE", str(folder))
    words = f"pretrain byol-sem --data digits --freeze encoder --init {source.path} --epochs 1 --quiet"
    words += " --sem.simplices 4 --byol.hidden 8 --device cpu --frozen-views 2 --out"
    words = words.split()
    process = subprocess.Popen([sys.executable, "-m", "simplicia", *words, str(tmp_path / "a")])
    while process.poll() is None and not list(folder.glob("*/part-*.npy")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    parts = list(folder.glob("*/part-*.npy"))
    assert 1 <= len(parts) <= 7
    first = np.load(next(folder.glob("*/part-000000000.npy")))
    assert cli.main([*words, str(tmp_path / "a")]) == 0
    (features,) = folder.glob("*/features.npy")
    about = json.loads(features.with_name("extraction.json").read_text())
    assert about["computed"] == about["images"] - 256 * len(parts) and not list(folder.glob("*/part-*.npy"))
    stored = np.load(features)
    assert stored.shape == (about["images"], 2, 128) and np.array_equal(stored[:256], first)
    monkeypatch.setenv("SIMPLICIA_CACHE", "")
    assert cli.main([*words, str(tmp_path / "b")]) == 0
    (straight,) = tmp_path.glob("b/.features/*/features.npy")
    assert np.array_equal(np.load(straight), stored)


FULL = "mount -t tmpfs -o size=2m tmpfs {cache} && exec {command}"


@pytest.mark.skipif(not shutil.which("unshare"), reason="mounts a small disk")
def test_a_disk_with_room_for_the_parts_only_is_one_sentence(source, tmp_path):
    """Writing to a mapped file on a full disk would end the process with a bus error."""
    cache = tmp_path / "cache"
    cache.mkdir()
    if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(cache)]).returncode:
        pytest.skip("this machine lets nobody mount a disk")
    words = f"pretrain byol-sem --data digits --freeze encoder --init {source.path} --epochs 1 --quiet"
    words += f" --sem.simplices 4 --byol.hidden 8 --device cpu --frozen-views 2 --out {tmp_path / 'a'}"
    command = FULL.format(cache=cache, command=f"{sys.executable} -m simplicia {words}")
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command],
        env=os.environ | {"SIMPLICIA_CACHE": str(cache)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert "features cannot be written" in done.stderr and "No space left" in done.stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("extraction.json", b"{"),
        ("extraction.json", b"3"),
        ("features.npy", b""),
        ("features.npy", b"\x80\x04."),
        ("features.npy", None),
    ],
)
def test_damaged_features_are_computed_again(name, content, photos, weights, tmp_path, monkeypatch):
    monkeypatch.setenv("SIMPLICIA_CACHE", str(tmp_path / "cache"))
    first = train(photos, weights, tmp_path / "a", epochs=1, frozen_views=2)
    (file,) = (tmp_path / "cache").glob(f"*.features/{name}")
    file.write_bytes(file.read_bytes()[:-100] if content is None else content)
    second = train(photos, weights, tmp_path / "b", epochs=1, frozen_views=2)
    assert second.state["extraction"]["computed"] == 300 and second.state["loss"] == first.state["loss"]


def test_a_frozen_run_probes_starts_others_and_is_shared(run, photos, tmp_path):
    shared = simplicia.from_pretrained(run.save_pretrained(tmp_path / "model"), "cpu")
    images = datasets.load("shapes", "test").images[:5]
    assert torch.equal(shared.encode(images, "codes"), run.encode(images, "codes"))
    assert cli.main(["knn", str(run.path), "--data", "shapes", "--json", str(tmp_path / "knn.json")]) == 0
    recipe = {"init": str(run.path), "encoder": "tiny", "stem": "small", "image_size": 32, "epochs": 1}
    options = {**recipe, "sem.simplices": 8, "options.hidden": 8, "quiet": True, "device": "cpu"}
    simplicia.pretrain("byol-sem", data=str(photos), out=tmp_path / "b", **options)


def test_overwriting_takes_the_new_encoder(photos, weights, tmp_path):
    tensors = {k: v * 0.5 if v.is_floating_point() else v for k, v in load_file(weights).items()}
    save_file(tensors, tmp_path / "other.safetensors")
    train(photos, weights, tmp_path / "a", epochs=1)
    options = {"encoder": "tiny", "stem": "small", "image_size": 32, "overwrite": True}
    run = train(photos, tmp_path / "other.safetensors", tmp_path / "a", epochs=1, **options)
    own = run.method.online.encoder.state_dict()
    assert all(torch.equal(own[key], value) for key, value in tensors.items())


def test_streamed_images_give_features(photos, weights, tmp_path):
    run = train(photos, weights, tmp_path / "a", epochs=1, data_device="stream", frozen_views=2)
    assert run.finished and run.state["streamed"] and run.state["extraction"]["computed"] == 300
    again = simplicia.pretrain("simclr-sem", out=run.path, resume=True, quiet=True, device="cpu")
    assert again.finished


@pytest.mark.parametrize("method", ["moco", "dino", "swav", "vicreg", "barlow", "byol"])
def test_every_method_trains_on_features(method, photos, weights, tmp_path):
    options = {k: v for k, v in RECIPE.items() if not k.startswith("optim")}
    options |= {"encoder_weights": str(weights), "data": str(photos), "out": tmp_path / "a", "epochs": 1}
    if method in ("moco", "swav"):
        options["options"] = {"queue": 200, "hidden": 16}
    run = simplicia.pretrain(f"{method}-sem", quiet=True, device="cpu", **options)
    assert run.finished and run.encode(datasets.load("shapes").images[:2], "codes").shape == (2, 8)


def test_timm_encoders_take_timms_files_strictly(photos, tmp_path):
    import timm

    torch.manual_seed(0)
    vit = timm.create_model("vit_tiny_patch16_224", img_size=48)  # with its classifier
    save_file(vit.state_dict(), tmp_path / "vit.safetensors")
    options = {"epochs": 1, "encoder": "vit_tiny_patch16_224", "image_size": 32, "frozen_views": 2}
    run = train(photos, tmp_path / "vit.safetensors", tmp_path / "run", **options)
    there, here = vit.state_dict(), run.method.online.encoder.model.state_dict()
    assert torch.equal(there["blocks.3.attn.qkv.weight"], here["blocks.3.attn.qkv.weight"])
    assert here["pos_embed"].shape == (1, 5, 192)  # resampled by timm
    assert run.state["mean"] == [0.5, 0.5, 0.5]
    save_file({k: v for k, v in there.items() if k != "norm.weight"}, tmp_path / "less.safetensors")
    with pytest.raises(UserError, match=r"it lacks 'norm.weight'"):
        train(photos, tmp_path / "less.safetensors", tmp_path / "b", **options)


def test_wrong_input_is_one_sentence(photos, weights, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    no_file = {"encoder_weights": None}
    for changes, words in (
        ({"encoder_weights": "gone.safetensors"}, "must be a .safetensors file"),
        ({"encoder_weights": str(tmp_path / "broken.safetensors")}, "cannot be read as safetensors"),
        ({"encoder": "resnet18", "image_size": 32}, "does not fit this model"),
        ({**no_file, "encoder": "tiny"}, "has no pretrained weights to freeze"),
        (
            {**no_file, "encoder": "vit_small_patch14_dinov2.lvd142m", "image_size": 28},
            "cannot be fetched from the hub",
        ),
        ({"online_every": 1}, "training sees no images"),
        ({"freeze": "none"}, "add freeze='encoder'"),
        ({"encoder": torch.nn.Flatten()}, "a module from Python"),
        ({"processes": 2}, "a frozen encoder trains in one"),
        ({"engine": "captured"}, "the encoder is frozen"),
        ({"frozen_views": 1}, "at least 2"),
        ({"dry_run": True}, "a dry run writes nothing"),
    ):
        with pytest.raises(UserError, match=words) as error:
            train(photos, weights, tmp_path / "a", epochs=1, **changes)
        assert "\n" not in str(error.value)
