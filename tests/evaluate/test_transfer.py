"""Transfer: the command end to end, choosing that never sees the test set, and one-line errors."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

import simplicia
from simplicia import cli
from simplicia.errors import UserError
from simplicia.evaluate.features import check_classes, load_labelled
from simplicia.evaluate.finetune import finetune
from simplicia.evaluate.logistic import Codes, Dense
from simplicia.evaluate.transfer import TransferSettings, accuracies, choose, features, load_splits, transfer

FEW = TransferSettings(regularisers=7)


@pytest.fixture(scope="module")
def run(small_run):
    return simplicia.load(small_run, "cpu")


@pytest.fixture(scope="module")
def sets(run, colours):
    return load_splits(run, str(colours))


def test_command_prints_the_numbers_it_writes(small_run, colours, capsys, tmp_path):
    out = tmp_path / "t.json"
    words = ["transfer", small_run, "--data", colours, "--regularisers", 5, "--json", out]
    assert cli.main(list(map(str, words))) == 0
    result, said = json.loads(out.read_text()), capsys.readouterr().out
    assert result["layer"] == "codes" and result["temperature"] == 0 and result["dataset"] == "colours"
    assert f"{result['accuracy']:.1f} ±" in said and f"{result['mean_class_accuracy']:.1f}" in said
    assert [row["regulariser"] for row in result["path"]] == pytest.approx(np.geomspace(1e5, 1e-6, 5))
    assert result["train_images"] == 48 and result["validation_images"] == 6 and result["test_images"] == 30
    assert result["online"] is False and result["converged"] and result["solver"] == "rotate"
    assert {"torch", "device", "seconds", "encoder"} <= result.keys()


def test_default_layer_without_sem_is_the_encoder(plain_run, colours):
    run = simplicia.load(plain_run, "cpu")
    result = transfer(run, load_splits(run, str(colours)), settings=FEW)
    assert result["layer"] == "encoder" and result["temperature"] is None
    assert result["accuracy"] > 60  # colours are easy to separate


@pytest.mark.parametrize("layer", ["encoder", "embedder", "sem", "codes"])
def test_solvers_agree_on_every_layer(run, sets, layer):
    one, other, theirs = (
        transfer(run, sets, layer, settings=TransferSettings(1, weakest=1.0, strongest=1.0, solver=solver))
        for solver in ("rotate", "direct", "sklearn")
    )
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-6) == pytest.approx(theirs["loss"], rel=1e-6)
    assert one["accuracy"] == other["accuracy"] == theirs["accuracy"]


def test_choosing_never_sees_the_test_set(run, sets):
    honest = transfer(run, sets, settings=FEW)
    test = sets.test
    poisoned = dataclasses.replace(test, images=255 - test.images, labels=test.labels.roll(10))
    other = transfer(run, sets._replace(test=poisoned), settings=FEW)
    for key in ("regulariser", "validation_accuracy", "path", "weight_norm", "loss"):
        assert honest[key] == other[key]
    assert honest["accuracy"] != other["accuracy"]


def test_the_chosen_regulariser_is_the_best_and_of_equals_the_strongest():
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    x = torch.randn(60, 20, generator=g) + 2 * torch.eye(3, 20)[labels]
    fitted, chosen = choose(Dense(x[:30]), labels[:30], Dense(x[30:]), labels[30:], 3, FEW)
    best = max(row["validation_accuracy"] for row in chosen["path"])
    strongest = next(row for row in chosen["path"] if row["validation_accuracy"] == best)
    assert chosen["regulariser"] == strongest["regulariser"]
    assert len(fitted.weight) == 20 and fitted.converged


def test_features_equal_run_encode(run, sets):
    images = sets.test.images
    codes = features(run, images, "codes")
    assert isinstance(codes, Codes) and codes.shape == (30, 8 * 13)
    assert (codes.columns % 13).long().equal(run.encode(images, "codes"))
    sem = features(run, images, "sem", 0.5)
    torch.testing.assert_close(sem.features.float(), run.encode(images, "sem", 0.5))


def test_accuracy_and_mean_class_accuracy():
    guesses, labels = torch.tensor([0, 0, 0, 1, 2, 0]), torch.tensor([0, 0, 0, 0, 2, 2])
    result = accuracies(guesses, labels)
    assert result["accuracy"] == pytest.approx(100 * 4 / 6)
    assert result["mean_class_accuracy"] == pytest.approx(100 * (3 / 4 + 1 / 2) / 2)


def test_a_val_folder_is_the_validation_split(run, tmp_path, draw):
    folder = draw(tmp_path / "own", {"train": 4, "val": 2, "test": 3})
    sets = load_splits(run, str(folder))
    assert [len(s) for s in sets[:3]] == [12, 6, 9] and sets.val_is_own
    assert all(file.startswith("val/") for file in sets.val.files)
    held = load_splits(run, str(draw(tmp_path / "held", {"train": 10, "test": 3})), share=0.2, seed=1)
    assert [len(s) for s in held[:3]] == [24, 6, 9] and not held.val_is_own
    assert held.val.labels.bincount().tolist() == [2, 2, 2]
    assert set(held.val.files).isdisjoint(held.train.files)
    for part, name in (("own/val/red", "a"), ("own/train/red", "b"), ("held/train/red", "c")):
        (tmp_path / part / f"{name}.png").write_bytes(b"no image")
    assert load_splits(run, str(tmp_path / "own")).details()["skipped_files"] == 2
    # counted once, though train and val are parts of one folder
    assert load_splits(run, str(tmp_path / "held")).details()["skipped_files"] == 1
    (folder / "val/loose.png").write_bytes((folder / "val/red/red_val_0.png").read_bytes())
    with pytest.raises(UserError, match=r"loose\.png' is outside of the class folders"):
        load_splits(run, str(folder))


def test_named_sets_are_decoded_at_the_size_of_the_run(run, draw, tmp_path):
    draw(tmp_path / "flowers-102", {"train": 3, "val": 2, "test": 2}, size=40)
    for result in (load_labelled(run, "flowers102", tmp_path), load_splits(run, "flowers102", tmp_path)[:3]):
        assert {tuple(s.images.shape[1:]) for s in result} == {(3, 16, 16)}


def test_user_errors_are_one_line_with_exit_status_2(
    small_run, plain_run, colours, draw, fails, tmp_path, monkeypatch
):
    monkeypatch.delenv("SIMPLICIA_DATA", raising=False)

    def message(*words, run=small_run):
        return fails("transfer", run, *words)

    assert "its bottleneck is 'none'" in message("--data", colours, "--layer", "codes", run=plain_run)
    assert "did you mean 'codes'" in message("--data", colours, "--layer", "code")
    assert "there is no folder 'no/such'" in message("--data", "no/such")
    assert "flowers-102' below --data-dir" in message("--data", "flowers102")
    assert "train/<class>/*" in message("--data", "flowers102", "--data-dir", tmp_path)
    assert "solver" in message("--data", colours, "--solver", "magic")
    assert "regularisers is 0" in message("--data", colours, "--regularisers", 0)
    assert "weakest is -1.0; it must be above 0" in message("--data", colours, "--weakest", -1)
    assert "above 0 and below 1" in message("--data", colours, "--validation", 2)
    assert "give them in order" in message("--data", colours, "--weakest", 2, "--strongest", 1)

    lonely = draw(tmp_path / "lonely", {"train": 1, "test": 2})
    assert "lonely has one image of each class" in message("--data", lonely)
    unseen = draw(tmp_path / "unseen", {"train": 3, "test": 2})
    shutil.rmtree(unseen / "train" / "green")
    assert "unseen tests classes that no training image shows: green" in message("--data", unseen)
    other = draw(tmp_path / "other", {"train": 3, "val": 2, "test": 2})
    draw(other / "val", {".": 2}, colours={"grey": (90, 90, 90)})
    assert "has class 'grey', which train does not have" in message("--data", other)
    loose = tmp_path / "loose"
    shutil.copytree(colours / "test" / "red", loose)
    assert "no labels" in message("--data", loose)


def test_target_network_is_measured(small_run, colours):
    run = simplicia.load(small_run, "cpu")
    sets = load_splits(run, str(colours))
    online = transfer(run, sets, "encoder", settings=FEW)
    with torch.no_grad():
        for parameter in run.method.target.encoder.parameters():
            parameter.zero_()
    run.features.clear()
    blind = transfer(run, sets, "encoder", settings=FEW, network="target")
    assert features(run, sets.test.images, "encoder", network="target").features.std(0).max() == 0
    assert blind["accuracy"] == pytest.approx(100 / 3) and blind["network"] == "target"
    assert transfer(run, sets, "encoder", settings=FEW)["accuracy"] == online["accuracy"] > 60


def test_every_temperature_and_setting_has_its_file(small_run, colours, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(small_run, copied)
    words = ["transfer", copied, "--data", colours, "--layer", "sem"]
    for more in ("--temperature 0.1", "--temperature 1", "--regularisers 2", "--regularisers 2 --weakest 1"):
        assert cli.main([*map(str, words), *more.split()]) == 0
    for k in (3, 20):
        assert cli.main(["knn", str(copied), "--data", str(colours), "--layer", "codes", "--k", str(k)]) == 0
    result = {path.name: json.loads(path.read_text()) for path in (copied / "results").iterdir()}
    assert result["transfer-sem-at-0.1.json"]["temperature"] == 0.1
    assert result["transfer-sem.json"]["temperature"] == 1 and len(result["transfer-sem.json"]["path"]) == 45
    assert len(result["transfer-sem-regularisers-2.json"]["path"]) == 2
    assert result["transfer-sem-regularisers-2-weakest-1.0.json"]["changed"] == {
        "regularisers": 2,
        "weakest": 1,
    }
    assert result["knn-codes-k-3.json"]["k"] == 3 and result["knn-codes.json"]["k"] == 20


def test_classes_in_another_order_raise(run, sets):
    turned = dataclasses.replace(sets.test, classes=sets.test.classes[::-1])
    with pytest.raises(UserError, match="the same names in another order"):
        check_classes(sets.train, turned)
    for measure in (transfer, finetune):
        with pytest.raises(UserError, match="the same names in another order"):
            measure(run, sets._replace(test=turned))


def test_result_states_the_temperature_of_the_bottleneck(small_run, sets):
    run = simplicia.load(small_run, "cpu")
    few = TransferSettings(regularisers=3)
    expected = transfer(run, sets, "sem", 0.02, few)["accuracy"]
    run.method.online.bottleneck.temperature = 0.02
    result = transfer(run, sets, "sem", settings=few)
    assert (result["temperature"], result["accuracy"]) == (0.02, expected)


def test_diverged_run_raises(small_run, colours):
    run = simplicia.load(small_run, "cpu")
    with torch.no_grad():
        next(run.method.online.encoder.parameters()).fill_(torch.nan)
    with pytest.raises(UserError, match="not finite"):
        transfer(run, load_splits(run, str(colours)), settings=FEW)
