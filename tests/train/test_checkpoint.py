"""Checkpoints are written atomically, read strictly, and survive a full disk."""

import json
import os
import resource
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from simplicia.errors import UserError
from simplicia.train import checkpoint


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def test_round_trip_keeps_the_memory_format(tmp_path):
    one, two = (
        model().to(memory_format=torch.channels_last),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
    )
    two.to(memory_format=torch.channels_last)
    checkpoint.save(tmp_path, 7, one.state_dict(), {"x": 1})
    newest = checkpoint.latest(tmp_path)
    tensors, state = checkpoint.read(newest)
    checkpoint.load_into(two, tensors, newest)
    assert state["step"] == 7 and state["x"] == 1
    for key, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[key])
    assert two[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_the_last_two_checkpoints_are_kept(tmp_path):
    for step in (5, 10, 15):
        checkpoint.save(tmp_path, step, {"a": torch.ones(2)}, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000000010", "step-000000015"]


def test_files_are_flushed_where_folders_cannot_be_opened(tmp_path, monkeypatch):
    """As on Windows, where a read-only descriptor cannot be flushed either."""
    real, flushed = os.open, []

    def opened(path, flags, *rest):
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied", str(path))
        flushed.append((Path(path).name, flags))
        return real(path, flags, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        checkpoint.save(tmp_path, 1, {"a": torch.ones(2)}, {})
    assert {flags for name, flags in flushed} == {os.O_RDWR} and len(flushed) == 2
    assert checkpoint.read(checkpoint.latest(tmp_path))[0]["a"].tolist() == [1, 1]


def test_leftovers_of_a_killed_process_are_ignored_and_removed_on_request(tmp_path):
    checkpoint.save(tmp_path, 5, {"a": torch.ones(2)}, {})
    half = tmp_path / ".writing-000000009-1"
    half.mkdir()
    (half / "tensors.safetensors").write_bytes(b"half")
    assert checkpoint.latest(tmp_path).name == "step-000000005"
    checkpoint.Writer(tmp_path)  # removes nothing: without the lock another process may be writing
    assert half.exists()
    checkpoint.remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000005"]


def test_an_old_checkpoint_is_removed_atomically(tmp_path, monkeypatch):
    """A process killed while it removes files must not leave half a checkpoint under its name."""
    checkpoint.save(tmp_path, 5, {"a": torch.ones(2)}, {}, keep=1)
    monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda path, **options: None)  # killed before it deletes
    checkpoint.save(tmp_path, 6, {"a": torch.ones(2)}, {}, keep=1)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-000000006"]
    monkeypatch.undo()
    checkpoint.remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000006"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("mean", [0, 0, 10**30]), ("std", [1, 1, 10**400]), ("seconds", 10**30), ("loss", float("nan"))],
)
def test_a_state_with_impossible_numbers_is_damaged(tmp_path, key, value):
    checkpoint.save(tmp_path, 5, {"a": torch.ones(2)}, {key: value})
    with pytest.raises(UserError, match=f"is damaged .state.json says {key}"):
        checkpoint.read(checkpoint.latest(tmp_path))


@pytest.mark.parametrize("damage", ["truncate", "garbage", "state", "missing", "no tensors", "flipped bit"])
def test_the_error_names_the_damaged_checkpoint_and_the_one_before(tmp_path, damage):
    for step in (5, 10):
        checkpoint.save(tmp_path, step, {"a": torch.ones(50)}, {})
    newest = checkpoint.latest(tmp_path)
    file = newest / "tensors.safetensors"
    if damage == "truncate":
        file.write_bytes(file.read_bytes()[:-10])
    elif damage == "flipped bit":
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
    elif damage == "garbage":
        file.write_bytes(b"\xff" * file.stat().st_size)
    elif damage == "state":
        (newest / "state.json").write_text("[]")
    elif damage == "missing":
        (newest / "state.json").unlink()
    else:
        file.unlink()
    with pytest.raises(UserError, match=r"step-000000010 is damaged.*step-000000005"):
        checkpoint.read(newest)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("0.bias"), "lacks '0.bias'"),
        (lambda t: t.update(extra=torch.ones(1)), "unknown 'extra'"),
        (lambda t: t.update({"0.bias": torch.ones(9)}), r"0.bias is \(9,\)"),
        (lambda t: t.update({"0.bias": torch.ones(4, dtype=torch.float64)}), "float64"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(tmp_path, change, words):
    tensors = dict(model().state_dict())
    change(tensors)
    target = model()
    before = {k: v.clone() for k, v in target.state_dict().items()}
    with pytest.raises(UserError, match=words):
        checkpoint.load_into(target, tensors, tmp_path)
    assert all(torch.equal(v, before[k]) for k, v in target.state_dict().items())


def test_a_full_disk_leaves_the_last_good_checkpoint_and_nothing_else(tmp_path):
    writer = checkpoint.Writer(tmp_path)
    writer.save(5, {"a": torch.ones(10)}, {})
    writer.wait()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # limits the size of files
    try:
        writer.save(10, {"a": torch.ones(1_000_000)}, {})
        with pytest.raises(UserError, match=r"no checkpoint could be written.*step-000000005"):
            writer.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000005"]
    assert json.loads((tmp_path / "step-000000005" / "state.json").read_text())["step"] == 5


def test_any_failure_to_write_a_checkpoint_is_an_error(tmp_path):
    writer = checkpoint.Writer(tmp_path)
    writer.save(5, {"a": torch.ones(10)}, {"note": Path("no JSON")})
    with pytest.raises(
        UserError, match=r"no checkpoint could be written.*not JSON serializable; there is none"
    ):
        writer.wait()
    assert list(tmp_path.iterdir()) == []


def test_save_copies_tensors_immediately(tmp_path):
    writer, tensor = checkpoint.Writer(tmp_path), torch.ones(1000)
    writer.save(1, {"a": tensor}, {})
    tensor.zero_()
    writer.wait()
    assert (checkpoint.read(checkpoint.latest(tmp_path))[0]["a"] == 1).all()


def test_writer_records_its_slowest_write(tmp_path, monkeypatch):
    writer, save = checkpoint.Writer(tmp_path), checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda *arguments: (time.sleep(0.05), save(*arguments)))
    writer.save(1, {"x": torch.ones(3)}, {})
    writer.wait()
    assert writer.slowest >= 0.05
