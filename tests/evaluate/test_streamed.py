"""Evaluations of streamed images equal those of decoded ones, in little memory."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import simplicia
from simplicia.cli import main
from simplicia.data import packing
from simplicia.errors import UserError
from simplicia.evaluate import encode as encoding
from simplicia.evaluate import features
from simplicia.evaluate.encode import encode
from simplicia.evaluate.features import encoder_features, load_labelled
from simplicia.evaluate.knn import knn
from simplicia.evaluate.probe import ProbeSettings, probe

SMALL = {
    "epochs": 1, "batch_size": 8, "image_size": 16, "sem.simplices": 8, "encoder": "tiny", "stem": "small",
    "quiet": True, "options": {"hidden": 32, "out": 16},
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.delenv("SIMPLICIA_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    for i in range(60):
        noise = np.random.default_rng(i).integers(0, 256, (5, 6, 3), dtype=np.uint8)
        path = folder / ("train" if i % 3 else "val") / "ab"[i % 2] / f"{i:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise).resize((40, 32), Image.Resampling.BICUBIC).save(path)
    return folder


@pytest.fixture
def run(tmp_path, photos):
    return simplicia.pretrain(
        "byol-sem", data=str(photos), data_device="stream", out=tmp_path / "run", **SMALL
    )


def test_streamed_features_probes_and_neighbours_equal_those_in_memory(run, monkeypatch):
    streamed, decoded = load_labelled(run), load_labelled(replace(run.recipe, data_device="host"))
    assert streamed[0].streamed and not decoded[0].streamed
    expected = encoder_features(run, decoded[0].images)
    assert (encoder_features(run, streamed[0].images) - expected).abs().max() < 0.05 * expected.abs().max()
    quick = ProbeSettings(epochs=2, augment=True)
    for layer in ("sem", "codes"):
        first, other = (knn(run, *sets, layer, k=5).accuracy for sets in (streamed, decoded))
        assert abs(first - other) <= 10
    assert probe(run, *streamed, "encoder", quick).accuracy >= 0
    monkeypatch.setattr(features, "MAPPED_BYTES", 0)
    run.features.clear()
    mapped = encoder_features(run, streamed[0].images)
    assert mapped.dtype == torch.half
    assert (mapped.float() - expected).abs().max() < 0.05 * expected.abs().max()
    run.features.clear()
    assert abs(knn(run, *streamed, "codes", k=5).accuracy - first) <= 10
    assert probe(run, *streamed, "sem", ProbeSettings(epochs=2)).accuracy >= 0


@pytest.mark.parametrize("mapped", [False, True])
def test_encode_streams_and_leaves_unreadable_images_out(tmp_path, run, photos, monkeypatch, mapped):
    if mapped:
        monkeypatch.setattr(encoding, "MAPPED_BYTES", 0)
    out, place = tmp_path / "out.npz", photos / "train"
    count, layers, skipped = encode(run, str(place), out, ("codes", "sem"), None, "online", None, True)
    assert (count, layers, skipped) == (40, ["codes", "sem"], [])
    expected = dict(np.load(out))
    assert expected["codes"].dtype == np.uint8 and expected["sem"].shape == (40, 8 * 13)
    files = [str(place / file) for file in expected["files"]]
    assert np.abs(run.encode(files).numpy() - expected["sem"]).max() < 0.1
    for folder in (place, place / "a", place / "b"):  # as if nothing had happened there lately
        os.utime(folder, ns=(10**18, 10**18))
    encode(run, str(place), out, ("codes",), None, "online", None, True)
    (place / "b" / "07.jpg").write_bytes(b"no image")
    for reason in ("has changed since it was indexed", "not an image of a known format"):
        count, _, skipped = encode(run, str(place), out, ("sem",), None, "online", None, True)
        assert count == 39 and skipped == [("b/07.jpg", reason)]
    some = np.load(out)
    kept = expected["files"] != "b/07.jpg"
    assert (some["files"] == expected["files"][kept]).all() and np.allclose(
        some["sem"], expected["sem"][kept]
    )
    assert sorted(path.name for path in tmp_path.glob("*.npz")) == ["out.npz"]


def test_features_that_fill_the_disk_are_refused_with_an_alternative(tmp_path, run, photos, monkeypatch):
    monkeypatch.setattr(encoding, "MAPPED_BYTES", 0)
    monkeypatch.setattr(encoding.shutil, "disk_usage", lambda path: type("", (), {"free": 10_000}))
    with pytest.raises(UserError, match=r"layer 'sem' of 40 images takes .* layer codes takes far less"):
        encode(run, str(photos / "train"), tmp_path / "out.npz", None, None, "online", None, True)
    count, _, _ = encode(
        run, str(photos / "train"), tmp_path / "out.npz", ["codes"], None, "online", None, True
    )
    assert count == 40


def test_packed_images_are_encoded_and_measured(tmp_path, run, photos, capsys):
    packing.pack(photos, tmp_path / "packed", size=32)
    words = [str(run.path), str(tmp_path / "packed" / "train"), "--out", str(tmp_path / "out.npz"), "--quiet"]
    assert main(["encode", *words, "--layer", "codes"]) == 0
    assert np.load(tmp_path / "out.npz")["codes"].shape == (40, 8)
    given = [str(run.path), "--data", str(tmp_path / "packed")]
    assert main(["knn", *given]) == 0
    assert main(["transfer", *given, "--regularisers", "2", "--quiet"]) == 0
    assert main(["finetune", *given, "--steps", "1", "--lrs", "0.1", "--quiet"]) == 0
    assert main(["analyze", *given, "--images", "20", "--fit-images", "30"]) == 0
    assert main(["robustness", *given, "--corrupt", "--epochs", "1", "--quiet"]) == 0
    assert main(["encode", str(run.path), str(tmp_path / "packed"), *words[2:]]) == 2
    assert "one of its splits" in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simplicia.data.decoding.free_memory", lambda: 10_000)
        assert main(["finetune", *given, "--steps", "1"]) == 2
    assert "take 0.0 GB once decoded, more than half of the free memory" in capsys.readouterr().err
