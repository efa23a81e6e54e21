"""Folders of images: layouts, links, and files that cannot be read."""

import os
import struct
import warnings
import zlib
from pathlib import Path

import pytest
import torch
from PIL import Image

from simplicia.data import datasets, folder
from simplicia.data.datasets import load, validation
from simplicia.errors import UserError


def save_image(path, colour=(200, 30, 90), size=(40, 40), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path, **options)
    return path


def empty_png(width, height) -> bytes:
    """A PNG with a header and no pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_class_folders_give_labels_and_a_held_out_test_split(tmp_path):
    for name, count in (("zebra", 20), ("ant", 30), ("Bee", 10)):
        for i in range(count):
            save_image(tmp_path / "set" / name / ("deep/er" if i % 2 else "") / f"{i:02}.png", (i, count, 0))
    (tmp_path / "set" / "empty").mkdir()
    train, test = load(tmp_path / "set"), load(str(tmp_path / "set"), "test")
    assert train.name == "set" and train.classes == test.classes == ("Bee", "ant", "zebra")
    assert train.labels.bincount().tolist() == [9, 27, 18] and test.labels.bincount().tolist() == [1, 3, 2]
    assert not set(train.files) & set(test.files) and len({*train.files, *test.files}) == 60
    for images in (train, test):
        for image, label, file in zip(images.images, images.labels, images.files, strict=True):
            assert file.split("/")[0] == images.classes[label] and image[0, 0, 0] == int(file[-6:-4])
    assert load(tmp_path / "set", "test").files == test.files
    assert train.images.shape[1:] == (3, 32, 32) and train.labels.dtype == torch.int64


def test_images_without_class_folders_have_no_labels_and_no_test_split(tmp_path):
    for name in ("b.PNG", "a.JpEg", "c.tiff", ".hidden.png", "notes.txt", ".cache/d.png"):
        save_image(tmp_path / name, format="JPEG" if name.startswith("a") else "PNG")
    images = load(tmp_path)
    assert images.files == ("a.JpEg", "b.PNG", "c.tiff") and images.labels is None and images.classes == ()
    with pytest.raises(UserError, match="neither classes nor a test folder"):
        load(tmp_path, "test")
    save_image(tmp_path / "cats" / "d.png")  # mixed with folders: still without labels
    assert load(tmp_path).files[-1] == "cats/d.png" and load(tmp_path).labels is None


@pytest.mark.parametrize("held", ["test", "val", "valid", "validation"])
def test_split_folders_share_class_numbers(tmp_path, held):
    for name in ("a", "b", "c"):
        save_image(tmp_path / "train" / name / "1.png")
    save_image(tmp_path / held / "c" / "2.png")
    save_image(tmp_path / "annotations" / "3.png")
    train, test = load(tmp_path), load(tmp_path, "test")
    assert train.files == ("train/a/1.png", "train/b/1.png", "train/c/1.png")
    assert test.files == (f"{held}/c/2.png",)
    assert test.labels.tolist() == [2] and test.classes == ("a", "b", "c")  # as in training


def test_test_precedes_val_and_train_can_be_a_class(tmp_path):
    for path in ("both/train/x/1.png", "both/val/x/2.png", "both/test/x/3.png", "vehicles/train/1.png",
                 "vehicles/train/2.png", "vehicles/bus/3.png", "vehicles/bus/4.png",
                 "alone/train/x/1.png", "alone/train/x/2.png"):  # fmt: skip
        save_image(tmp_path / path)
    assert load(tmp_path / "both", "test").files == ("test/x/3.png",)
    assert load(tmp_path / "vehicles").classes == ("bus", "train")
    assert load(tmp_path / "alone").classes == ("x",) and len(load(tmp_path / "alone", "test")) == 1


@pytest.mark.parametrize(
    "names", [("Train", "Test", "Val"), ("TRAIN", "TEST", "VALID"), ("training", "testing", "Validation")]
)
def test_split_names_match_in_any_case(tmp_path, names):
    train, test, val = names
    for name in names:
        for kind in "xy":
            save_image(tmp_path / name / kind / "1.png")
    assert load(tmp_path).files == (f"{train}/x/1.png", f"{train}/y/1.png")
    assert load(tmp_path, "test").files == (f"{test}/x/1.png", f"{test}/y/1.png")
    assert validation(tmp_path).files == (f"{val}/x/1.png", f"{val}/y/1.png")


def test_linked_splits_and_val_used_as_test_is_not_validation(tmp_path):
    for name in ("linked", "empty"):
        for split in ("train", "val"):
            save_image(tmp_path / name / split / "x" / f"{split}.png")
    save_image(tmp_path / "elsewhere" / "x" / "test.png")
    (tmp_path / "linked" / "test").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "empty" / "test").mkdir()
    assert load(tmp_path / "linked", "test").files == ("test/x/test.png",)
    assert validation(tmp_path / "linked").files == ("val/x/val.png",)
    assert load(tmp_path / "empty", "test").files == ("val/x/val.png",)
    assert validation(tmp_path / "empty") is None


def test_links_to_classes_are_followed_but_never_in_circles(tmp_path):
    for i in range(2):
        save_image(tmp_path / "elsewhere" / f"{i}.png")
        save_image(tmp_path / "set" / "a" / f"{i}.png")
    (tmp_path / "set" / "b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set" / "a" / "loop").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "all").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "up").symlink_to(tmp_path)
    (tmp_path / "elsewhere" / "deeper").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "a" / "file.png").symlink_to(tmp_path / "elsewhere" / "1.png")
    sets = [load(tmp_path / "set", split) for split in ("train", "test")]
    files = sorted(file for images in sets for file in images.files)
    assert files == ["a/0.png", "a/1.png", "a/file.png", "b/0.png", "b/1.png"]
    assert sets[0].classes == ("a", "b")
    assert [path for path, reason in sets[0].skipped if "not followed" in reason] == ["a/loop", "all", "up"]


def test_run_directories_are_ignored_and_unsupported_formats_reported(tmp_path, monkeypatch):
    for name in ("a/1.png", "a/2.jfif", "b/3.jpg", "b/4.png", "runs/x/analysis/thumbnails.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20)).save(tmp_path / name, "JPEG" if "png" not in name else "PNG")
    (tmp_path / "runs/x/recipe.yaml").write_text("name: x\n")
    for name in ("a/5.HEIC", "notes.txt"):
        (tmp_path / name).write_text("?")
    listing, test, _ = folder.layout(tmp_path)
    assert test is None and {name for _, name in listing.entries} == {"a", "b"} and len(listing.files) == 4
    assert [(path.name, why.split()[0]) for path, why in listing.skipped] == [("5.HEIC", ".heic")]
    monkeypatch.chdir(tmp_path)
    assert sorted(datasets.read_all(Path("."), 8).files) == ["a/1.png", "a/2.jfif", "b/3.jpg", "b/4.png"]


def test_a_folder_of_links_only(tmp_path):
    for name in "ab":
        for i in range(2):
            save_image(tmp_path / "whole" / name / f"{i}.png")
        (tmp_path / "part").mkdir(exist_ok=True)
        (tmp_path / "part" / name).symlink_to(tmp_path / "whole" / name)
    assert load(tmp_path / "part").classes == ("a", "b") and not load(tmp_path / "part").skipped


def test_a_registered_name_precedes_a_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_image(tmp_path / "digits" / "1.png")
    save_image(tmp_path / "mine" / "1.png")
    assert len(load("digits", "test")) > 300
    assert len(load("./digits")) == len(load("mine")) == 1


@pytest.mark.parametrize(
    "side, size", [(8, 32), (63, 32), (64, 64), (100, 96), (127, 96), (200, 128), (500, 224)]
)
def test_default_size_follows_the_median_image(tmp_path, side, size):
    for i in range(3):
        save_image(tmp_path / f"{i}.png", size=(side, side + 50))
    save_image(tmp_path / "odd.png", size=(9, 9))
    (tmp_path / "broken.png").write_bytes(b"")
    assert load(tmp_path).images.shape[1:] == (3, size, size)
    assert load(tmp_path, size=48).images.shape[1:] == (3, 48, 48)


def test_unreadable_files_are_skipped_and_listed(tmp_path):
    complete = save_image(tmp_path / "whole.jpg", size=(300, 300)).read_bytes()
    (tmp_path / "cut.jpg").write_bytes(complete[: len(complete) // 2])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.gif").write_text("not an image")
    (tmp_path / "script.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n")
    (tmp_path / "bomb.png").write_bytes(empty_png(60_000, 60_000))
    (tmp_path / "large.png").write_bytes(empty_png(10_000, 10_000))
    calls = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about the large image
        images = load(tmp_path, progress=lambda *call: calls.append(call))
    assert images.files == ("whole.jpg",) and images.images.shape == (1, 3, 224, 224)
    assert [path for path, _ in images.skipped] == [
        "bomb.png", "cut.jpg", "empty.png", "large.png", "script.jpg", "text.gif",
    ]  # fmt: skip
    assert all(reason for _, reason in images.skipped)
    assert calls == [(i, 7) for i in range(1, 8)]


def test_unreadable_images_do_not_shift_labels(tmp_path):
    for i in range(20):
        save_image(tmp_path / "ab"[i % 2] / f"{i:02}.png", (i % 2 * 100, 0, 0))
    for name in ("a/02.png", "b/07.png"):
        (tmp_path / name).write_bytes(b"broken")
    images = [load(tmp_path, split) for split in ("train", "test")]
    assert sum(map(len, images)) == 18
    for part in images:
        assert part.images[:, 0, 0, 0].tolist() == (part.labels * 100).tolist()


def test_folders_without_readable_images_raise(tmp_path):
    with pytest.raises(UserError, match="no images to learn from"):
        load(tmp_path)
    (tmp_path / "a.jpg").write_text("no image")
    with pytest.raises(UserError, match=r"none of the 1 images can be read, such as .*a\.jpg"):
        load(tmp_path)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="permissions do not stop this user")
def test_folders_without_permission_are_listed_as_skipped(tmp_path):
    save_image(tmp_path / "open" / "a.png")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    assert load(tmp_path).skipped[0][0] == "closed"
    closed.chmod(0o700)


def test_an_interrupt_ends_loading(tmp_path):
    for i in range(50):
        save_image(tmp_path / f"{i}.png")

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(tmp_path, progress=stop)
