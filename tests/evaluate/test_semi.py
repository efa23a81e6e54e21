"""Semi-supervised learning: which labels are used, the command end to end, and errors."""

import dataclasses
import importlib
import json
import shutil

import pytest
import torch

import simplicia
from simplicia import cli
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.evaluate.compare import compare
from simplicia.evaluate.features import load_labelled
from simplicia.evaluate.finetune import FinetuneSettings, SemiSettings, Trial, semi, subset
from simplicia.evaluate.make_result import changed_settings, result_name
from simplicia.evaluate.transfer import TransferSettings
from simplicia.result import Result, digest

QUICK = SemiSettings(fraction=0.5, lrs=(0.1,), epochs=(1, 2), temperatures=(0.1, 1.0), batch_size=16)


@pytest.fixture(scope="module")
def run(small_run):
    return simplicia.load(small_run, "cpu")


@pytest.fixture(scope="module")
def sets(run, colours):
    return load_labelled(run, str(colours))


def test_command_prints_the_numbers_it_writes(small_run, colours, capsys, tmp_path):
    out = tmp_path / "s.json"
    words = f"semi {small_run} --data {colours} --fraction 0.25 --lrs 0.1 --epochs 1 2 --temperatures 1"
    assert cli.main([*words.split(), "--batch-size", "8", "--json", str(out)]) == 0
    result, said = json.loads(out.read_text()), capsys.readouterr().out
    assert f"{result['accuracy']:.1f} ±" in said and "not the paper's list" in result["labelled_list"]
    assert result["labelled_images"] == 12 and result["fraction"] == 0.25 and result["validation_images"] == 3
    assert "top5_accuracy" not in result and result["train_images"] == 12  # there are only three classes
    assert [(row["lr"], row["epochs"]) for row in result["trials"]] == [(0.1, 1), (0.1, 2)]
    assert result["selected"] == {"epochs": result["epochs"]} and result["temperature"] == 1
    assert result["steps"] == result["epochs"]  # twelve images are one batch of eight


def test_labels_are_drawn_by_the_seed(run, sets, monkeypatch):
    module, seen = importlib.import_module("simplicia.evaluate.finetune"), []
    real = module.search

    def keep(run, sets, *rest):
        seen.append({*sets.train.files, *sets.val.files})
        return real(run, sets, *rest)

    monkeypatch.setattr(module, "search", keep)
    for seed in (0, 0, 1):
        semi(run, *sets, "encoder", dataclasses.replace(QUICK, epochs=(1,), seed=seed))
    assert seen[0] == seen[1] != seen[2] and len(seen[0]) == len(seen[2]) == 24


def test_lists_and_drawn_shares_have_different_files(run, sets, tmp_path):
    train, test = sets
    path = tmp_path / "my list.txt"
    path.write_text("\n".join(train.files[::2]))
    quick = dataclasses.replace(QUICK, epochs=(1,))
    listed, drawn, fewer = (
        result_name(run, "semi", semi(run, train, test, "encoder", dataclasses.replace(quick, **more), names))
        for more, names in (({}, path), ({}, None), ({"fraction": 0.25}, None))
    )
    own = "lrs-0.1-epochs-1-temperatures-0.1_1.0-batch_size-16"
    number = digest("\n".join(train.files[::2]))
    assert listed == f"semi-encoder-50-percent-my_list.txt-{number}-{own}"
    assert drawn == f"semi-encoder-50-percent-{own}" and fewer == f"semi-encoder-25-percent-{own}"


def test_other_settings_have_different_files_and_rows(small_run, colours, tmp_path):
    """A short measurement does not replace the long one, nor the other way round."""
    copied = tmp_path / "run"
    shutil.copytree(small_run, copied)
    semi = "semi --fraction 0.5 --epochs 1 --temperatures 1"
    tune = "finetune --batch-size 16 --steps 1"
    for words in (
        f"{semi} --lrs 0.1",
        f"{semi} --lrs 0.2",
        f"{tune} --lrs 0.1",
        f"{tune} --lrs 0.1 --seed 1",
    ):
        verb, rest = words.split(maxsplit=1)
        assert cli.main([verb, str(copied), "--data", str(colours), *rest.split()]) == 0
    short = "semi-sem-50-percent-lrs-{}-epochs-1-temperatures-1.0"
    assert {path.stem for path in (copied / "results").iterdir()} == {
        short.format(0.1),
        short.format(0.2),
        "finetune-sem-lrs-0.1-steps-1-batch_size-16",
        "finetune-sem-lrs-0.1-steps-1-batch_size-16-seed-1",
    }
    result = compare([copied])["rows"]
    assert len(result) == 4 and {"lrs 0.1", "lrs 0.2"} < {w for r in result for w in r["variant"].split(", ")}


def test_names_of_result_files(run):
    """Results of default settings keep their old names, and no name is too long for a file system."""
    plain = {"layer": "sem", "temperature": 1.0, "selected": {}, "dataset": "colours", "network": "online"}
    plain["data"] = run.recipe.data
    for settings in (
        SemiSettings(),
        FinetuneSettings(),
        TransferSettings(),
    ):  # seeds choose the held-out images
        assert changed_settings(settings) == {} and changed_settings(
            dataclasses.replace(settings, seed=7)
        ) == {"seed": 7}
    plain = Result.make(protocol="transfer", **plain)
    assert result_name(run, "transfer", plain.replace(changed={})) == "transfer-sem"
    assert result_name(run, "transfer", plain) == "transfer-sem"
    many = [tuple(0.001 * i for i in range(start, start + 200)) for start in (1, 2)]
    long = [
        result_name(run, "semi", plain.replace(changed=changed_settings(SemiSettings(lrs=lrs))))
        for lrs in many
    ]
    assert len(set(long)) == 2 and all(
        len(word) < 100 and word.startswith("semi-sem-changed-") for word in long
    )


def test_defaults_match_the_paper():
    settings = SemiSettings()
    assert settings.batch_size == 224 and settings.epochs == (30, 50)
    assert set(settings.lrs) == {0.005, 0.01, 0.02, 0.05, 0.1} and settings.temperatures == (0.01, 0.1, 1.0)


def test_a_share_of_every_class_from_a_seed():
    labels = torch.arange(400) % 4
    images = torch.arange(400)[:, None, None, None].expand(-1, 3, 8, 8).to(torch.uint8)
    full = ImageSet("w", images, labels, classes=("a", "b", "c", "d"))
    one, same, other = (subset(full, 0.1, seed) for seed in (0, 0, 1))
    assert one.labels.bincount().tolist() == [10] * 4
    assert one.images.equal(same.images) and not one.images.equal(other.images)
    rare = ImageSet("r", images[:101], torch.cat([labels[:100] % 2, torch.tensor([2])]))
    assert subset(rare, 0.1, 0).labels.bincount().tolist() == [5, 5, 1]  # the only one of its class


def test_a_list_names_the_images(run, sets, tmp_path):
    train, test = sets
    path = tmp_path / "list.txt"
    chosen = [file for file in train.files if int(file.rsplit("_", 1)[1][:-4]) < 6]
    path.write_text("\n".join(file.rsplit("/", 1)[1] for file in chosen))
    assert subset(train, 0.01, 0, path).files == tuple(chosen)
    path.write_text("\n".join(chosen))  # with folders
    result = semi(run, train, test, "encoder", dataclasses.replace(QUICK, epochs=(1,)), path)
    assert result["labelled_list"] == "list.txt" and result["labelled_images"] == 18
    assert result["temperature"] is None and len(result["trials"]) == 1


def test_names_with_spaces_and_ambiguous_names(tmp_path):
    images = torch.zeros(3, 3, 8, 8, dtype=torch.uint8)
    files = ("a/my cat.png", "a/1.png", "b/1.png")
    train = ImageSet("t", images, torch.tensor([0, 0, 1]), classes=("a", "b"), files=files)
    path = tmp_path / "list.txt"
    path.write_text("  my cat.png\r\n\nb/1.png\n")
    assert subset(train, 0.1, 0, path).files == ("a/my cat.png", "b/1.png")
    path.write_text("my cat.png\n1.png")
    with pytest.raises(UserError, match=r"names '1\.png', which is 'a/1\.png' or 'b/1\.png'"):
        subset(train, 0.1, 0, path)


def test_steps_follow_from_epochs_and_images():
    trial = Trial(0.1, None, None, epochs=30)
    assert [trial.total_steps(n, 8) for n in (5, 8, 31, 32)] == [30, 30, 90, 120]
    assert Trial(0.1, 7, None).total_steps(32, 8) == 7


def test_choosing_never_sees_the_test_set_nor_other_labels(run, sets):
    train, test = sets
    honest = semi(run, train, test, "sem", QUICK)
    poisoned = dataclasses.replace(test, images=255 - test.images, labels=test.labels.roll(10))
    other = semi(run, train, poisoned, "sem", QUICK)
    keys = ("lr", "steps", "temperature", "validation_accuracy", "trials")
    assert all(honest[key] == other[key] for key in keys) and len(honest["trials"]) == 4


def test_user_errors(run, sets, small_run, colours, tmp_path, fails):
    train, _ = sets
    message = lambda *words: fails("semi", small_run, "--data", colours, *words)  # noqa: E731
    assert "fraction is 1.5" in message("--fraction", 1.5)
    assert "fraction is 0" in message("--fraction", 0)
    few = message("--fraction", 0.01)
    assert "colours has one image of each class" in few and "fraction is 0.01; give more" in few
    assert "cannot be read" in message("--list", tmp_path / "none.txt")
    (tmp_path / "wrong.txt").write_text("n0144_1.JPEG")
    assert "names 'n0144_1.JPEG'; it takes names of training images" in message(
        "--list", tmp_path / "wrong.txt"
    )
    (tmp_path / "tested.txt").write_text("blue/blue_test_0.png")
    assert "names 'blue/blue_test_0.png', which is a test image; it" in message(
        "--list", tmp_path / "tested.txt"
    )
    (tmp_path / "short.txt").write_text("\n".join(file.removeprefix("train/") for file in train.files[:7]))
    assert subset(train, 0.1, 0, tmp_path / "short.txt").files == train.files[:7]
    (tmp_path / "empty.txt").write_text("")
    assert "is empty" in message("--list", tmp_path / "empty.txt")
    assert "give one of the two" in message("--list", tmp_path / "wrong.txt", "--fraction", 0.1)
    one_class = [f for f in train.files if "/red/" in f]
    (tmp_path / "red.txt").write_text("\n".join(one_class))
    assert "no training image shows: blue, green" in message("--list", tmp_path / "red.txt")
    with pytest.raises(UserError, match="no file names"):
        subset(dataclasses.replace(train, files=()), 0.1, 0, tmp_path / "red.txt")
