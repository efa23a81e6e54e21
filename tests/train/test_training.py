"""Runs end to end: resumed equals uninterrupted, a killed run loses nothing, and errors are one line."""

import errno
import fcntl
import itertools
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import types
import warnings

import numpy as np
import pytest
import torch
import warm
from PIL import Image
from torch.nn.modules.module import register_module_forward_pre_hook

import simplicia
from simplicia import cli, devices, losses, methods
from simplicia.data import augmentation
from simplicia.encoders import ResNet
from simplicia.errors import Diverged, Interrupted, UserError
from simplicia.evaluate.features import encoder_features, load_labelled
from simplicia.settings import with_changes
from simplicia.train import auto, checkpoint, monitor, recipes, run_dir, trainer
from simplicia.train.hooks import Checkpoints, StopOnRequest
from simplicia.train.recipe import write_yaml
from simplicia.train.run_dir import Log
from simplicia.train.step import Step

SMALL = {"epochs": 2, "batch_size": 500, "encoder": "tiny", "sem.simplices": 8, "log_every": 3, "quiet": True}
HEADS = {
    "barlow": {"hidden": 32, "out": 32},
    "byol": {"hidden": 32, "out": 16},
    "dino": {"hidden": 32, "out": 16, "prototypes": 20},
    "moco": {"hidden": 32, "out": 16, "queue": 700},
    "simclr": {"hidden": 32, "out": 16},
    "swav": {"hidden": 32, "out": 16, "prototypes": 20, "queue": 700, "queue_start": 1, "frozen_epochs": 1},
    "vicreg": {"hidden": 32, "out": 32},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sixty small images without labels, in a flat folder."""
    path = tmp_path_factory.mktemp("photos")
    images = simplicia.data.datasets.load("shapes", "test").images[:60]
    for i, image in enumerate(images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path / f"{i:03d}.jpg")
    return path


def settings(folder, method="byol", **changes):
    small = {
        "data": str(folder),
        "epochs": 4,
        "batch_size": 16,
        "sem.simplices": 8,
        "log_every": 4,
        "quiet": True,
    }
    return {
        **small,
        "image_size": 16,
        "encoder": "tiny",
        "stem": "small",
        "options": HEADS[method],
        **changes,
    }


def stop_at(monkeypatch, step):
    """Send this process SIGTERM after a step, so that it saves and stops."""
    original = Step.__call__

    def call(self, number):
        output = original(self, number)
        if number + 1 == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return output

    monkeypatch.setattr(Step, "__call__", call)


@pytest.mark.parametrize("method", methods.names())
def test_a_resumed_run_equals_the_uninterrupted_run_bit_for_bit(method, folder, tmp_path, monkeypatch):
    name = f"{method}-sem"
    uninterrupted = simplicia.pretrain(name, out=tmp_path / "uninterrupted", **settings(folder, method))
    with monkeypatch.context() as patch, pytest.raises(simplicia.errors.Interrupted, match="step 5 of 12"):
        stop_at(patch, 5)  # in the middle of the second epoch
        simplicia.pretrain(name, out=tmp_path / "broken", **settings(folder, method))
    assert checkpoint.latest(tmp_path / "broken/checkpoint").name == "step-000000005"
    resumed = simplicia.pretrain(
        name, out=tmp_path / "broken", resume=True, quiet=True
    )  # settings come from the run
    assert resumed.finished and uninterrupted.finished
    one, two = (
        checkpoint.read(checkpoint.latest(r.path / "checkpoint"))[0] for r in (uninterrupted, resumed)
    )
    assert one.keys() == two.keys()
    for key in one:
        assert torch.equal(one[key], two[key]), key
    lines = [(tmp_path / f / "log.jsonl").read_text().splitlines() for f in ("uninterrupted", "broken")]
    logged = [[json.loads(line)["loss"] for line in log if '"loss"' in line] for log in lines]
    assert logged[0] == logged[1] and len(logged[0]) == 5  # steps 1, 2, 4, 8, 12


def test_randomness_is_a_function_of_seed_and_step(folder, tmp_path):
    runs = [
        simplicia.pretrain("byol-sem", out=tmp_path / str(i), **settings(folder, epochs=1, seed=seed))
        for i, seed in enumerate((0, 0, 1))
    ]
    a, b, c = (r.method.online.projector[0].weight for r in runs)
    assert torch.equal(a, b) and not torch.equal(a, c)


def command(*words):
    return [sys.executable, "-m", "simplicia", *map(str, words)]


def pretrain_words(folder, out, *words):
    heads = [f"--byol.{k}={v}" for k, v in HEADS["byol"].items()]
    small = "--epochs 40 --batch-size 16 --sem.simplices 8 --log-every 5 --image-size 16 --encoder tiny"
    return ["pretrain", "byol-sem", "--data", folder, "--out", out, *small.split(), *heads, *words]


def pretrain_command(folder, out, *words):
    return command(*pretrain_words(folder, out, *words))


def test_a_run_killed_at_random_moments_loses_nothing(folder, tmp_path):
    out, rng = tmp_path / "run", random.Random(0)
    quick = ["--checkpoint-minutes", "0.002", "--resume", "--quiet"]
    steps = []
    for _ in range(4):
        process = warm.start(pretrain_words(folder, out, *quick))
        deadline = time.monotonic() + 120
        first = checkpoint.latest(out / "checkpoint")
        while process.is_alive() and checkpoint.latest(out / "checkpoint") == first:
            assert time.monotonic() < deadline, "no checkpoint was written"
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))  # during a step or a save
        process.kill()
        process.join()
        newest = checkpoint.latest(out / "checkpoint")
        tensors, state = checkpoint.read(newest)
        steps.append(state["step"])
        assert all(t.isfinite().all() for t in tensors.values() if t.is_floating_point())
    assert steps == sorted(steps)
    straight = tmp_path / "straight"
    for words in (pretrain_words(folder, out, *quick), pretrain_words(folder, straight, "--quiet")):
        process = warm.start(words, tmp_path / "errors")
        process.join(300)
        assert process.exitcode == 0, (tmp_path / "errors").read_text()
    one, two = (checkpoint.read(checkpoint.latest(f / "checkpoint"))[0] for f in (out, straight))
    assert all(torch.equal(one[key], two[key]) for key in two)
    logged = [json.loads(line)["step"] for line in (out / "log.jsonl").read_text().splitlines()]
    assert logged == sorted(set(logged))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_save_a_checkpoint_and_print_the_resume_command(folder, tmp_path, number):
    out = tmp_path / "run"
    process = subprocess.Popen(
        pretrain_command(folder, out, "--epochs", "5000"), stderr=subprocess.PIPE, text=True
    )
    while not (out / "log.jsonl").exists() or not (out / "log.jsonl").read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "--resume" in errors and "Traceback" not in errors
    assert simplicia.load(out).step > 0


def test_two_processes_train_as_one_batch(folder, tmp_path):
    words = pretrain_command(
        folder, tmp_path / "two", "--processes", "2", "--device", "cpu", "--quiet", "--epochs", "2"
    )
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    run = simplicia.load(tmp_path / "two")
    assert run.finished and run.state["total_steps"] == 6


def test_a_run_cannot_be_resumed_while_another_process_trains_it(run):
    with run_dir.lock(run.path), pytest.raises(UserError, match="another process"):
        simplicia.pretrain("byol-sem", out=run.path, resume=True, quiet=True)


def test_a_file_system_without_locks_is_supported(tmp_path, monkeypatch):
    def unable(*arguments):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unable)
    with run_dir.lock(tmp_path):
        assert (tmp_path / ".lock").exists()


def test_other_loggers_receive_numbers_and_are_closed(tmp_path, monkeypatch):
    """A stand-in for W&B, which would need an account, records its calls."""
    calls = []
    run = types.SimpleNamespace(
        log=lambda v, step: calls.append((step, v)), finish=lambda: calls.append("end")
    )
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda **words: run))
    log = Log(tmp_path / "log.jsonl", 0, ("wandb",))
    log.write(3, loss=0.5, warning="words")
    log.close()
    assert calls == [(3, {"loss": 0.5}), "end"]


def test_a_second_run_in_the_same_folder_is_an_error(folder, tmp_path, monkeypatch):
    read = auto.load_images

    def slowly(*arguments):
        """Meanwhile another command trains in the same folder."""
        monkeypatch.setattr(auto, "load_images", read)
        simplicia.pretrain("byol", out=tmp_path / "run", **settings(folder, epochs=1))
        return read(*arguments)

    monkeypatch.setattr(auto, "load_images", slowly)
    with pytest.raises(UserError, match="holds a run; add resume=True"):
        simplicia.pretrain("byol", out=tmp_path / "run", **settings(folder, epochs=1, seed=7))
    run = simplicia.load(tmp_path / "run")
    assert run.finished and run.recipe.seed == 0
    (tmp_path / "new").mkdir()
    with run_dir.lock(tmp_path / "new"), pytest.raises(UserError, match="another process"):
        simplicia.pretrain("byol", out=tmp_path / "new", **settings(folder, epochs=1))
    assert not (tmp_path / "new/recipe.yaml").exists()


def test_resuming_on_other_images_is_an_error(folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "photos")
    with monkeypatch.context() as patch, pytest.raises(simplicia.errors.Interrupted):
        stop_at(patch, 2)
        simplicia.pretrain("byol", out=tmp_path / "run", **settings(tmp_path / "photos"))
    for path in (tmp_path / "photos").iterdir():
        Image.new("RGB", (32, 32), "red").save(path)
    with pytest.raises(UserError, match=r"was trained on other images: the mean .* and is \(0\.99\d+, 0\.0"):
        simplicia.pretrain("byol", out=tmp_path / "run", resume=True, quiet=True)


def test_a_second_temperature_equal_to_the_first_is_no_change(tmp_path):
    recipe = recipes.get("cifar100-byol-sem")
    write_yaml(with_changes(recipe, {"sem.second_temperature": 1.0}), tmp_path / "recipe.yaml")
    run_dir.check_same_recipe(tmp_path, recipe)
    with pytest.raises(UserError, match=r"sem.second_temperature 1.0, not 0.5"):
        run_dir.check_same_recipe(tmp_path, with_changes(recipe, {"sem.second_temperature": 0.5}))


def test_a_run_resumes_after_its_image_folder_moved(folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "photos")
    small = settings(tmp_path / "photos")
    uninterrupted = simplicia.pretrain("byol-sem", out=tmp_path / "uninterrupted", **small)
    with monkeypatch.context() as patch, pytest.raises(simplicia.errors.Interrupted):
        stop_at(patch, 5)
        simplicia.pretrain("byol-sem", out=tmp_path / "run", **small)
    (tmp_path / "photos").rename(tmp_path / "pictures")
    with pytest.raises(UserError, match="there is no folder"):
        simplicia.pretrain("byol-sem", out=tmp_path / "run", resume=True, quiet=True)
    moved = {"data": str(tmp_path / "pictures"), "resume": True, "quiet": True}
    run = simplicia.pretrain("byol-sem", out=tmp_path / "run", **moved)
    assert run.finished and run.recipe.data == str(tmp_path / "pictures")
    for (key, a), b in zip(
        run.method.state_dict().items(), uninterrupted.method.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), key


def test_data_may_be_a_path_object_and_the_device_cpu_0(folder, tmp_path):
    given = settings(folder, epochs=1) | {"data": folder}
    assert simplicia.pretrain("byol", out=tmp_path / "run", device="cpu:0", **given).finished


@pytest.mark.parametrize("line", ["[1, 2]", '{"step": "abc"}', "\udcff", "{"])
def test_a_damaged_log_does_not_prevent_resuming(run, line, tmp_path):
    again = tmp_path / "run"
    shutil.copytree(run.path, again)
    with (again / "log.jsonl").open("a", errors="surrogateescape") as log:
        log.write(line)
    assert simplicia.pretrain("byol-sem", out=again, resume=True, quiet=True).finished


@pytest.mark.parametrize(
    "change",
    [
        {"step": "x"},
        {"step": 10**9},
        {"seconds": None},
        {"mean": [1]},
        {"std": [0, 0, 0]},
        {"loss": "x"},
        {"total_steps": "7"},
    ],
)
def test_a_damaged_state_is_an_error(run, change, tmp_path):
    again = tmp_path / "run"
    shutil.copytree(run.path, again)
    (state,) = again.glob("checkpoint/*/state.json")
    state.write_text(json.dumps({**json.loads(state.read_text()), **change}))
    for call in (
        lambda: simplicia.load(again),
        lambda: simplicia.pretrain("byol-sem", out=again, resume=True),
    ):
        with pytest.raises(UserError, match="is damaged"):
            call()


def test_diverging_stops_and_keeps_the_last_good_checkpoint(folder, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(Diverged, match=r"lower optim\.lr"):
        simplicia.pretrain(
            "simclr",
            out=out,
            **settings(
                folder, "simclr", epochs=30, **{"optim.name": "sgd", "optim.lr": 1e30, "log_every": 1}
            ),
        )
    newest = checkpoint.latest(out / "checkpoint")
    assert newest is None or all(t.isfinite().all() for t in checkpoint.read(newest)[0].values())


def test_health_is_logged_and_collapse_is_reported(folder, tmp_path, capfd):
    run = simplicia.pretrain(
        "byol-sem", out=tmp_path / "run", **settings(folder, **{"quiet": False, "optim.lr": 0.0})
    )
    lines = [json.loads(line) for line in (run.path / "log.jsonl").read_text().splitlines()]
    assert {"loss", "lr", "feature_std", "effective_rank", "entropy", "images_per_s", "epoch"} <= lines[
        0
    ].keys()
    logged = [line["warning"] for line in lines if "warning" in line]
    assert len({words.split("(")[0] for words in logged}) == len(logged)  # each kind is logged once
    same = torch.ones(8, 128) + 1e-4 * torch.randn(8, 128)
    uniform = torch.full((8, 104), 1 / 13) - run.method.online.offset
    output = methods.Output(torch.tensor(0.1), (same, same), (uniform,) * 2)
    figures = monitor.health(run.method, output)
    reported = monitor.warnings(run.method, figures, 90, 100, 8)
    assert reported.keys() == {"collapse", "uniform"} and "temperature may be too high" in reported["uniform"]
    one_hot = torch.nn.functional.one_hot(torch.randint(13, (8, 8)), 13).flatten(1) - run.method.online.offset
    output = methods.Output(torch.tensor(0.1), (same, same), (one_hot.bfloat16(),) * 2)
    assert 0 <= monitor.health(run.method, output)["entropy"] < 0.02  # as at low temperature on a GPU
    healthy = monitor.health(run.method, run.method([torch.randn(16, 3, 16, 16)] * 2))
    assert healthy["feature_std"] > 0.05 and 1 < healthy["effective_rank"] <= 16


def test_a_loss_at_chance_is_reported(folder):
    method = with_changes(recipes.get("shapes-moco"), {"options": HEADS["moco"]}).build()
    figures = {"loss": torch.log(torch.tensor(701.0)).item(), "feature_std": 0.5, "effective_rank": 50.0}
    assert "ln K" in monitor.warnings(method, figures, 6, 100, 256)["chance"]
    assert monitor.warnings(method, figures, 5, 100, 256) == {}
    assert monitor.warnings(method, {**figures, "loss": 3.0}, 90, 100, 256) == {}
    simclr = recipes.get("shapes-simclr").build()  # K follows from the batch size
    same = losses.nt_xent(torch.ones(351, 8), torch.ones(351, 8)).item()
    assert "ln K" in monitor.warnings(simclr, {**figures, "loss": same}, 6, 100, 351)["chance"]
    assert monitor.warnings(simclr, {**figures, "loss": same}, 6, 100, 64) == {}


def test_log_names_of_probes_and_knn_start_with_online(tmp_path, fewer_shapes):
    run = simplicia.pretrain(
        "shapes-byol-sem", out=tmp_path / "run", online_every=1, **{**SMALL, "epochs": 1}
    )
    last = [json.loads(line) for line in (run.path / "log.jsonl").read_text().splitlines()][-1]
    assert {"online_encoder_accuracy", "online_sem_accuracy", "online_knn_accuracy"} <= last.keys()
    assert all(0 <= last[k] <= 100 for k in last if k.startswith("online"))


def test_dry_run_prints_estimates_and_writes_nothing(folder, tmp_path):
    out = tmp_path / "run"
    done = subprocess.run(
        pretrain_command(folder, out, "--dry-run"), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and not out.exists()
    for word in ("parameters:", "memory:", "steps: 120", "time: about", "nothing was written"):
        assert word in done.stderr


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    return simplicia.pretrain(
        "byol-sem", out=tmp_path_factory.mktemp("runs") / "a", **settings(folder, epochs=1)
    )


def test_lightning_hints_are_silenced():
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        devices.launch("cpu", 1, "bf16")
        warnings.warn("TensorFloat32 tensor cores for float32 matrix multiplication available", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert [str(warning.message) for warning in recorded] == ["something else"]
    for name in ("lightning.fabric", "lightning_fabric", "lightning.pytorch"):
        assert not logging.getLogger(f"{name}.utilities.rank_zero").isEnabledFor(logging.INFO)


def test_a_run_can_be_loaded_from_its_folder_alone(run):
    assert {p.name for p in run.path.iterdir()} == {".lock", "recipe.yaml", "log.jsonl", "checkpoint"}
    (newest,) = (run.path / "checkpoint").iterdir()
    assert len({path.stat().st_mode for path in newest.iterdir()}) == 1  # equal permissions
    again = simplicia.load(run.path)
    images = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8)
    assert torch.equal(again.encode(images), run.encode(images))
    assert again.recipe == run.recipe and again.state["torch"] == torch.__version__


def test_an_opened_image_encodes_like_its_file(run, tmp_path):
    noise = np.random.default_rng(0)
    deep = Image.fromarray(noise.integers(0, 65536, (20, 30), dtype=np.uint16))
    clear = Image.fromarray(noise.integers(0, 256, (20, 30, 4), dtype=np.uint8), "RGBA")
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    turned = clear.convert("RGB")
    for name, image, more in (("deep", deep, {}), ("clear", clear, {}), ("turned", turned, {"exif": exif})):
        image.save(tmp_path / f"{name}.png", **more)
    files = sorted(tmp_path.glob("*.png"))
    opened = run.encode((Image.open(file) for file in files), "encoder")
    assert torch.equal(opened, run.encode(files, "encoder"))
    torch.testing.assert_close(run.encode(Image.open(files[0]), "encoder"), opened[:1])


def test_a_list_of_tensors_is_a_batch(run):
    images = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    assert torch.equal(run.encode(list(images)), run.encode(images))
    assert torch.equal(run.encode([image.numpy() for image in images]), run.encode(images))


def test_changing_the_method_resets_its_options(tmp_path):
    assert simplicia.pretrain("shapes-byol-sem", method="simclr", dry_run=True, quiet=True) is None
    changed = settings_of("shapes-byol-sem", {"method": "moco", "options.hidden": 7})
    assert changed.options == {"hidden": 7}
    assert settings_of("shapes-byol-sem", {"method": "byol"}).options  # the same method keeps them


def settings_of(name, changes):
    return with_changes(recipes.get(name), changes)


def test_training_on_one_image_is_an_error(tmp_path, capsys):
    (tmp_path / "one").mkdir()
    Image.new("RGB", (20, 20)).save(tmp_path / "one" / "a.png")
    words = ["pretrain", "byol-sem", "--data", str(tmp_path / "one"), "--out", str(tmp_path / "run")]
    assert cli.main(words) == 2
    assert "one has 1 image; training needs 2 or more" in capsys.readouterr().err


def test_pretrain_ends_by_printing_the_next_command(folder, tmp_path, capsys):
    words = ["--epochs", "1", "--batch-size", "16", "--image-size", "16", "--encoder", "tiny", "--quiet"]
    words += ["--sem.simplices", "8", "--byol.hidden", "16", "--optim.name", "sgd", "--loggers", "none"]
    out = tmp_path / "a run"
    assert cli.main(["pretrain", "byol-sem", "--data", str(folder), "--out", str(out), *words]) == 0
    printed = capsys.readouterr().out.splitlines()[-1]
    assert printed == f"next: simplicia encode '{out}' {folder} --out features.npz"
    assert simplicia.load(out).recipe.optim.name == "sgd"


def test_too_little_disk_space_is_an_error_before_training(folder, tmp_path, monkeypatch):
    usage = shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"a checkpoint takes \d+\.\d MB, and .* has 0\.0 MB free"):
        simplicia.pretrain("byol-sem", out=tmp_path / "run", **settings(folder))
    assert not list((tmp_path / "run").iterdir())


def test_online_probes_need_labels(folder, tmp_path):
    with pytest.raises(UserError, match=r"online_every is 1, but .* has no labels"):
        simplicia.pretrain("byol-sem", out=tmp_path / "run", **settings(folder, online_every=1))


def test_files_pil_images_and_tensors_encode_alike(run, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (4, 6, 9, 3), dtype=np.uint8)
    images = [Image.fromarray(x).resize((90, 60), Image.Resampling.BICUBIC) for x in noise]
    for i, image in enumerate(images):
        image.save(tmp_path / f"{i}.png")
    pixels = torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in images])
    paths = sorted(tmp_path.glob("*.png"))
    files, opened, tensors = (run.encode(given, "encoder") for given in (paths, images, pixels))
    assert torch.equal(files, opened)
    assert torch.equal(tensors, encoder_features(run, pixels).cpu())  # evaluations use the same features
    assert (tensors - files).norm() < 0.02 * files.norm() < 0.2 * (files - files.flip(0)).norm()


def test_images_may_be_decoded_larger_than_views(tmp_path):
    """Training crops the decoded images; probes and ``encode`` use their center crops."""
    noise = np.random.default_rng(0).integers(0, 256, (24, 40, 60, 3), dtype=np.uint8)
    for i, pixels in enumerate(noise):
        class_folder = tmp_path / "photos" / "ab"[i % 2]
        class_folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(class_folder / f"{i}.png")
    small = settings(tmp_path / "photos", epochs=1, image_size=28, decode_size=32, online_every=1)
    run = simplicia.pretrain("byol-sem", out=tmp_path / "run", **small)
    images, _ = load_labelled(run)
    assert images.images.shape[2:] == (32, 32) and simplicia.load(run.path).recipe.decode_size == 32
    mean, std = (torch.tensor(run.state[key])[:, None, None] for key in ("mean", "std"))
    middle = (images.images[:, :, 2:30, 2:30].float() / 255 - mean) / std
    torch.testing.assert_close(run.view(images.images), middle)
    logged = [json.loads(line) for line in (run.path / "log.jsonl").read_text().splitlines()]
    assert any("online_encoder_accuracy" in line for line in logged)
    files = sorted((tmp_path / "photos").rglob("*.png"))[:3]
    assert run.encode(files, "encoder").shape == run.encode(noise[:3].transpose(0, 3, 1, 2), "encoder").shape
    for changes, words in (
        ({"decode_size": 16}, "decode_size is 16 and image_size 28"),
        ({"image_size": 0}, "decode_size is 32 and image_size 0"),
        ({"data": "digits"}, "decode_size is for image files; digits has a size of its own"),
    ):
        with pytest.raises(UserError, match=words):
            simplicia.pretrain("byol-sem", out=tmp_path / "other", **{**small, **changes})


def test_views_are_cut_from_uncropped_images(tmp_path, monkeypatch):
    """Images are black with white sides, so center crops show no white; probes test on center crops."""
    for i in range(40):
        pixels = np.zeros((20, 60, 3), np.uint8)
        pixels[:, :20] = pixels[:, 40:] = 255
        pixels = pixels if i % 4 else pixels.transpose(1, 0, 2)
        (tmp_path / "photos" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "photos" / "ab"[i % 2] / f"{i}.png")
    crops, tested = [], []
    crop, probe = augmentation.resized_crop, trainer.OnlineProbe

    def cropped(images, boxes, size, interpolation="bicubic"):
        crops.append(crop(images, boxes, size, interpolation))
        return crops[-1]

    def probed(method, train, test, *rest):
        tested.append(test.images)
        return probe(method, train, test, *rest)

    monkeypatch.setattr(augmentation, "resized_crop", cropped)
    monkeypatch.setattr(trainer, "OnlineProbe", probed)
    small = settings(tmp_path / "photos", epochs=1, online_every=1, batch_size=8)
    for name, changes in (
        ("uncropped", {}),
        ("host", {"data_device": "host"}),
        ("held", {"holdout": 0.25}),
        ("centre", {"keep_aspect": False}),
    ):
        run = simplicia.pretrain("byol-sem", out=tmp_path / name, **{**small, **changes})
        white = max(x.max().item() for x in crops if x.shape[-1] == 16 and len(x) == 8)
        assert white > 0.9 if name != "centre" else white == 0
        assert simplicia.load(run.path).recipe.keep_aspect is (name != "centre")
        assert len(tested[-1]) > 1 and tested[-1].float().mean() < 40  # resizing blurs the edge of the center
        crops.clear()


def test_training_views_may_be_smaller_than_evaluation_views(folder, tmp_path):
    small = settings(folder, epochs=1, view_size=12)
    shapes = []

    def record(module, inputs):
        if isinstance(module, ResNet):
            shapes.append(tuple(inputs[0].shape[2:]))

    handle = register_module_forward_pre_hook(record)
    try:
        run = simplicia.pretrain("byol-sem", out=tmp_path / "run", **small)
    finally:
        handle.remove()
    assert set(shapes) == {(12, 12)}
    assert run.view(sorted(folder.iterdir())[:1]).shape[2:] == (16, 16)
    assert simplicia.load(run.path).recipe.view_size == 12
    for changes, words in (
        ({"encoder": "vit_tiny_patch16_224", "image_size": 32}, "view_size is 12, but encoder 'vit_tiny"),
        ({"stem": "imagenet", "image_size": 32}, "images of 12 pixels are too small for the imagenet stem"),
        ({"view_size": -1}, "view_size is -1"),
    ):
        with pytest.raises(UserError, match=words):
            simplicia.pretrain("byol-sem", out=tmp_path / "other", **{**small, **changes})


def test_view_accepts_what_encode_accepts(run, folder):
    """Also floats from 0 to 1, which are not rounded to 8 bits when they are resized, and image files.

    Cached features follow changes of weights and pixels.
    """
    images = simplicia.data.datasets.load("shapes", "test").images[:6]
    view = run.view(images)
    difference = (run.view(images.float() / 255) - view) * torch.tensor(run.state["std"])[:, None, None]
    assert 0 < difference.abs().max() < 1 / 255
    assert run.view(sorted(folder.iterdir())[:1]).shape == view[:1].shape
    for call, words in (
        (lambda: run.encode(str(folder)), "is a folder; give its files"),
        (lambda: run.encode(images, temperature="a"), "temperature is 'a'; it must be a number"),
        (lambda: run.encode(images, "banana"), "unknown layer 'banana'"),
    ):
        with pytest.raises(UserError, match=words):
            call()
    mine = simplicia.load(run.path)
    before = encoder_features(mine, images)
    assert encoder_features(mine, images) is before
    with torch.no_grad():
        next(mine.method.online.encoder.parameters()).mul_(0.5)
    after = encoder_features(mine, images)
    assert not torch.equal(before, after)
    images[:3] = 0
    assert not torch.equal(encoder_features(mine, images)[:3], after[:3])


def test_encode_returns_each_layer(run, folder):
    images = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8)
    probabilities, codes = run.encode(images), run.encode(images, "codes")
    assert run.encode(images, "encoder").shape == (5, 128) and run.encode(images, "embedder").shape == (
        5,
        104,
    )
    torch.testing.assert_close(probabilities.view(5, 8, 13).sum(-1), torch.ones(5, 8))
    assert torch.equal(run.encode(images, temperature=0.0).view(5, 8, 13).argmax(-1), codes)
    assert not torch.equal(run.encode(images, network="target"), probabilities)
    assert torch.equal(run.encode(images.float() / 255), probabilities)
    files = sorted(folder.glob("*.jpg"))[:3]
    assert run.encode(files).shape == (3, 104)
    torch.testing.assert_close(
        run.encode([Image.open(f) for f in files]), run.encode(files), atol=0.05, rtol=0
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda run, tmp: simplicia.load(tmp), "is not a run"),
        (lambda run, tmp: run.encode(torch.full((5, 3, 16, 16), 7.0)), "uint8"),
        (lambda run, tmp: run.encode(torch.zeros(5, 16, 16, 4, dtype=torch.uint8)), "(N, 3, H, W)"),
        (lambda run, tmp: run.encode(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "sen"), "'sem'"),
        (lambda run, tmp: run.encode([]), "no images"),
        (lambda run, tmp: run.encode(None), "images are a NoneType"),
        (lambda run, tmp: run.encode(torch.zeros(1, 3, 8, 8), "codes", 0.1), "layer 'codes' takes none"),
        (lambda run, tmp: run.encode([torch.zeros(3, 8, 8), "a.png"]), "a.png cannot be read"),
        (lambda run, tmp: simplicia.pretrain("shapes-byol", out=tmp / "r", loggers=("wandb",)), "loggers=()"),
        (lambda run, tmp: simplicia.pretrain("shapes-byol", out=tmp / "r", **{"optim.lr": "inf"}), "finite"),
        (lambda run, tmp: run.encode([tmp / "none.png"]), "none.png"),
        (lambda run, tmp: run.network("teacher"), "target"),
        (lambda run, tmp: simplicia.pretrain("byol", out=tmp), "give data with a folder"),
        (lambda run, tmp: simplicia.pretrain("shapes-byol", out=run.path), "holds a run; add resume=True"),
        (lambda run, tmp: simplicia.pretrain("shapes-byol", resume=True), "give out"),
        (
            lambda run, tmp: simplicia.pretrain("shapes-byol", out=run.path, resume=True),
            "with recipe 'byol-sem'",
        ),
        (
            lambda run, tmp: simplicia.pretrain("byol-sem", out=run.path, resume=True, epochs=9),
            "with epochs 1, not 9",
        ),
        (
            lambda run, tmp: simplicia.pretrain("shapes-byol", out=tmp, processes=3, batch_size=128),
            "need a multiple",
        ),
        (lambda run, tmp: simplicia.pretrain("shapes-byol", out=tmp, seed=10**22), "seed is 1000"),
        (lambda run, tmp: simplicia.pretrain("shapes-byol", out=tmp / "\udcff"), "which is not UTF-8"),
        (lambda run, tmp: run.encode(torch.zeros(1, 3, 8, 8), batch_size=0), "batch_size is 0"),
    ],
)
def test_user_errors_are_one_line(run, tmp_path, call, words):
    with pytest.raises(UserError) as error:
        call(run, tmp_path)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_run_without_sem_or_target_has_neither_codes_nor_target(folder, tmp_path):
    run = simplicia.pretrain("simclr", out=tmp_path / "run", **settings(folder, "simclr", epochs=1))
    images = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    assert run.encode(images).shape == (2, 128)
    with pytest.raises(UserError, match="its bottleneck is 'none'"):
        run.encode(images, "codes")
    with pytest.raises(UserError, match="no target network"):
        run.network("target")


def test_a_run_keeps_its_id_and_records_which_commit_trained_each_part(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("SIMPLICIA_COMMIT", "first")
    for step in (5, 7):  # resuming with the same commit adds no part
        with monkeypatch.context() as patch, pytest.raises(simplicia.errors.Interrupted):
            stop_at(patch, step)
            simplicia.pretrain("byol", out=tmp_path / "run", resume=True, **settings(folder, "byol"))
    monkeypatch.setenv("SIMPLICIA_COMMIT", "second")
    before = simplicia.load(tmp_path / "run").state
    run = simplicia.pretrain("byol", out=tmp_path / "run", resume=True, quiet=True)
    parts = [(part["commit"], part["from_step"]) for part in run.state["trained_by"]]
    assert parts == [("first", 0), ("second", 7)]
    assert run.state["trained_by"][0]["device"] == run.state["device"]
    other = simplicia.pretrain("byol", out=tmp_path / "other", **settings(folder, "byol"))
    assert before["id"] == run.state["id"] != other.state["id"] is not None


class FakeTrainer:
    """The part of a trainer that hooks use, without training."""

    def __init__(self, clock):
        self.clock, self.done, self.is_leader, self.is_ending = clock, 0, True, False
        self.step = types.SimpleNamespace(tensors=dict, finite=lambda: torch.tensor(True))

    def request_stop(self, signal, resume):
        self.is_ending = signal is not None

    def state(self, loss):
        return {}


class SlowFirstWriter:
    """A writer whose first checkpoint takes four seconds."""

    def __init__(self, clock):
        self.clock, self.saved, self.slowest = clock, [], 0.0

    def save(self, step, tensors, state):
        self.clock.now += 0 if self.saved else 4
        self.saved.append(self.clock.now)

    def wait(self):
        pass


def test_checkpoints_take_at_most_a_fiftieth_of_the_time_and_none_shortly_before_the_deadline():
    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    clock, deadline = Clock(), 470.0
    writer, fake = SlowFirstWriter(clock), FakeTrainer(clock)
    hooks = [
        StopOnRequest(writer, "resume", deadline, save_margin=20, clock=clock),
        Checkpoints(writer, 0.1, deadline, clock),
    ]
    output = methods.Output(torch.tensor(0.5), (), ())
    while not fake.is_ending:
        clock.now += 1
        for hook in hooks:
            hook.after_step(fake, output)
    for hook in hooks:
        hook.close()
    waits = [later - earlier for earlier, later in itertools.pairwise(writer.saved)]
    assert waits[0] >= 200 and len(waits) > 3  # fifty times as long as the first one took
    assert all(6 <= wait <= 8 for wait in waits[1:-1])
    assert writer.saved[-2] < deadline - 6 and deadline - 23 <= writer.saved[-1] <= deadline - 20


def test_a_run_stops_early_enough_for_a_slow_disk(folder, tmp_path, monkeypatch):
    original = checkpoint.Writer.__init__

    def slow(self, *arguments):
        original(self, *arguments)
        self.slowest = 1800.0

    monkeypatch.setattr(checkpoint.Writer, "__init__", slow)
    with pytest.raises(simplicia.errors.Interrupted, match="step 1 of 12"):
        simplicia.pretrain(
            "byol", out=tmp_path / "run", deadline=time.monotonic() + 3600, **settings(folder, "byol")
        )


def test_images_in_memory_train_like_a_named_data_set(tmp_path, fewer_shapes):
    shapes = simplicia.data.datasets.load("shapes")
    small = {**SMALL, "epochs": 1, "image_size": 16, "options": HEADS["byol"], "out": tmp_path / "a"}
    named = simplicia.pretrain("shapes-byol-sem", data="shapes", **small)
    for name, data in (("set", shapes), ("tensor", shapes.images), ("array", shapes.images.numpy())):
        run = simplicia.pretrain("shapes-byol-sem", data=data, **{**small, "out": tmp_path / name})
        for key, value in named.method.state_dict().items():
            assert torch.equal(run.method.state_dict()[key], value), (name, key)
    assert run.recipe.data == "memory" and run.encode(shapes.images[:2]).shape[0] == 2
    with pytest.raises(UserError, match="got its images from Python and did not keep them"):
        load_labelled(run)
    longer = {**small, "epochs": 2, "out": tmp_path / "b", "deadline": time.monotonic()}
    with pytest.raises(
        Interrupted, match=r"continue with: the same call of pretrain, with out=.*resume=True"
    ):
        simplicia.pretrain("shapes-byol-sem", data=shapes.images, **longer)
    del longer["deadline"]
    with pytest.raises(UserError, match="got its images from Python and did not keep them"):
        simplicia.pretrain("shapes-byol-sem", resume=True, **longer)
    assert simplicia.pretrain("shapes-byol-sem", data=shapes.images, resume=True, **longer).finished
    for wrong, words in (
        (shapes.images.float(), "uint8 or from 0 to 1"),
        ([1, 2], "an image is a int"),
    ):
        with pytest.raises(UserError, match=words):
            simplicia.pretrain("shapes-byol-sem", data=wrong, **{**small, "out": tmp_path / "wrong"})


def test_init_starts_from_the_weights_of_another_run(folder, tmp_path, capfd):
    first = simplicia.pretrain("byol-sem", out=tmp_path / "first", **settings(folder, epochs=1))
    start = {"epochs": 1, "init": tmp_path / "first", "optim.lr": 0.0, "optim.warmup_lr": 0.0, "quiet": False}
    expected = first.method.state_dict()

    def weights(run, part):
        return {k: v for k, v in run.method.state_dict().items() if k.startswith(part) and "running" not in k}

    same = simplicia.pretrain("byol-sem", out=tmp_path / "same", **settings(folder, **start))
    assert "begins with the weights of" in capfd.readouterr().err
    # at a learning rate of 0 only BatchNorm statistics change
    names = [k for k in weights(same, "online") if "num_batches" not in k]
    assert names and all(torch.equal(same.method.state_dict()[k], expected[k]) for k in names)
    other = simplicia.pretrain("simclr", out=tmp_path / "other", **settings(folder, "simclr", **start))
    assert all(
        torch.equal(v, expected[k])
        for k, v in weights(other, "online.encoder").items()
        if "num_batches" not in k
    )
    target = simplicia.pretrain(
        "moco", out=tmp_path / "target", **settings(folder, "moco", **start | {"init": tmp_path / "other"})
    )
    state = target.method.state_dict()
    for key, value in weights(target, "target.encoder").items():
        if "num_batches" not in key:
            assert torch.equal(value, state[key.replace("target.", "online.", 1)])
            assert torch.equal(value, other.method.state_dict()[key.replace("target.", "online.", 1)])
    again = with_changes(target.recipe, {"init": str(target.path)}).build()
    fresh = again.queue.vectors.clone()
    checkpoint.initialise_from(again, target.path)
    assert torch.equal(again.queue.vectors, fresh) and again.queue.pointer == 0 < target.method.queue.pointer
    shutil.rmtree(tmp_path / "first")
    assert simplicia.load(tmp_path / "same").recipe.init == str(tmp_path / "first")  # load does not need it
    for changes, words in (
        ({"init": tmp_path / "nowhere"}, "nowhere is not a run"),
        ({"init": tmp_path / "same", "encoder": "resnet18"}, "whose encoder is another"),
    ):
        with pytest.raises(UserError, match=words):
            simplicia.pretrain("byol", out=tmp_path / "wrong", **settings(folder, **start | changes))
