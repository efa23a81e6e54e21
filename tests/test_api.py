"""``pretrain``, ``dry_run`` and ``load`` from Python: names, inputs, encoders, messages."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from torch.utils.data import TensorDataset

import simplicia
from simplicia import UserError, cli, errors
from simplicia.settings import with_changes
from simplicia.train import recipes
from simplicia.train.recipe import read_yaml, write_yaml
from simplicia.train.run_dir import read_log, resume_command

IMAGES = np.random.default_rng(0).integers(0, 256, (48, 16, 16, 3), dtype=np.uint8)
SMALL = {"epochs": 1, "batch_size": 16, "sem": {"simplices": 8}, "byol": {"hidden": 16, "out": 8}}
SMALL |= {"log_every": 1, "quiet": True}


class Pooled(nn.Module):
    """An encoder of the user's own."""

    def __init__(self, channels=12):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, channels, 3, 2), nn.BatchNorm2d(channels)

    def forward(self, x):
        return self.norm(self.conv(x)).relu().mean((2, 3))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return simplicia.pretrain("byol-sem", data=IMAGES, out=tmp_path_factory.mktemp("runs") / "a", **SMALL)


def test_a_setting_has_one_name_in_python_on_the_command_line_and_in_files(tmp_path):
    base = recipes.get("byol-sem")
    wanted = with_changes(base, {"options.hidden": 64, "sem.vertices": 7})  # as version 0.1 wrote it
    for changes in (
        {"byol.hidden": 64, "sem.vertices": 7},
        {"byol": {"hidden": 64}, "sem": {"vertices": 7}},
        {"byol": {"hidden": "64"}, "sem.vertices": "7"},
    ):
        assert with_changes(base, changes).checked() == wanted.checked()
    write_yaml(wanted, tmp_path / "recipe.yaml")
    written = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    assert written["byol"] == {"hidden": 64} and "options" not in written
    assert read_yaml(tmp_path / "recipe.yaml") == wanted
    written["options"] = written.pop("byol")  # a file of version 0.1
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(written))
    assert read_yaml(tmp_path / "old.yaml") == wanted
    other = with_changes(base, {"method": "simclr", "simclr.hidden": 32})
    assert other.options == {"hidden": 32}
    for changes, words in (
        ({"simclr.hidden": 3}, "simclr.hidden is an option of simclr, and the method is byol"),
        ({"byol.hiden": 3}, "hidden"),
        ({"byol.hidden": "many"}, "byol.hidden is 'many'; it must be a whole number"),
        ({"byol": 3}, "must be a mapping"),
        ({"lr": 0.1}, r"unknown setting 'lr'; did you mean 'optim\.lr'\?"),
        ({"learning_rate": 0.1}, r"did you mean 'optim\.lr'\?"),
        ({"sem": {"tau": 1}}, r"unknown setting 'sem\.tau'; did you mean 'sem\.temperature'\?"),
    ):
        with pytest.raises(UserError, match=words):
            with_changes(base, changes).checked()


def test_differences_have_the_names_that_users_write(run):
    with pytest.raises(UserError, match=r"trained with byol\.hidden 16, not 32"):
        changes = {**SMALL, "byol": {"hidden": 32, "out": 8}}
        simplicia.pretrain("byol-sem", data=IMAGES, out=run.path, resume=True, **changes)


def test_a_run_repeats_from_its_recipe_file_with_equal_losses(run, tmp_path):
    again = simplicia.pretrain(run.path / "recipe.yaml", data=IMAGES, out=tmp_path / "again", quiet=True)
    losses = [[line["loss"] for line in read_log(r.path / "log.jsonl")] for r in (run, again)]
    assert losses[0] == losses[1] and len(losses[0]) == 3
    assert all(map(torch.equal, run.method.state_dict().values(), again.method.state_dict().values()))
    changed = simplicia.pretrain(
        str(run.path / "recipe.yaml"), data=IMAGES, out=tmp_path / "longer", epochs=2, quiet=True
    )
    assert changed.recipe.epochs == 2 and changed.recipe.options == {"hidden": 16, "out": 8}


def test_overwrite_replaces_a_run_and_nothing_else(tmp_path, run):
    out = tmp_path / "run"
    first = simplicia.pretrain("byol-sem", data=IMAGES, out=out, **SMALL)
    first.write_result("probe", {"protocol": "probe"})
    (out / "notes.txt").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").write_text("")
    (out / "analysis").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="holds a run; add resume=True to continue it, or overwrite=True"):
        simplicia.pretrain("byol-sem", data=IMAGES, out=out, **SMALL)
    with pytest.raises(UserError, match="epochs is 0"):
        simplicia.pretrain("byol-sem", data=IMAGES, out=out, overwrite=True, **{**SMALL, "epochs": 0})
    assert simplicia.load(out).state["id"] == first.state["id"]  # the error came before
    second = simplicia.pretrain("byol-sem", data=IMAGES, out=out, overwrite=True, **{**SMALL, "seed": 1})
    assert second.state["id"] != first.state["id"] and second.recipe.seed == 1 and second.finished
    names = {path.name for path in out.iterdir()}
    assert names == {".lock", "recipe.yaml", "log.jsonl", "checkpoint", "notes.txt"}
    assert (tmp_path / "elsewhere" / "kept").exists()
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a").write_text("")
    for wrong, words in (
        ({"out": tmp_path / "files"}, "holds other files; give another out"),
        ({"out": out, "resume": True}, "resume=True continues a run and overwrite=True replaces it"),
        ({}, "overwrite needs the run's folder; give out"),
    ):
        with pytest.raises(UserError, match=words):
            simplicia.pretrain("byol-sem", data=IMAGES, overwrite=True, **wrong, **SMALL)


def test_dry_run_returns_and_prints_a_plan(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    plan = simplicia.dry_run("byol-sem", data=IMAGES, **{**SMALL, "quiet": False})
    assert (plan.steps, plan.steps_per_epoch, plan.recipe.encoder) == (3, 3, "tiny")
    assert plan.parameters > 0 and plan.seconds > 0 and "cpu" in plan.device
    output = capfd.readouterr()
    assert "steps: 3 (3 per epoch)" in output.out + output.err and not list(tmp_path.iterdir())
    assert simplicia.pretrain("byol-sem", data=IMAGES, dry_run=True, **SMALL) is None  # as in 0.1


def test_settings_without_effect_are_named(capsys):
    simplicia.dry_run("byol", data=IMAGES, **{**SMALL, "quiet": False})
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("byol: 48 images, ") for line in lines)
    assert any(line.startswith("sem.simplices does nothing: recipe 'byol' has no SEM") for line in lines)
    simplicia.dry_run("byol-sem", data=IMAGES, **{**SMALL, "quiet": False})
    assert "does nothing" not in capsys.readouterr().err


def test_images_from_python_are_not_looked_for_in_a_folder(run, capsys):
    for words in (["probe", run.path], ["analyze", run.path], ["report", run.path]):
        assert cli.main(list(map(str, words))) == 2
        assert "got its images from Python and did not keep them; give --data" in capsys.readouterr().err


def test_an_encoder_may_be_a_module(tmp_path):
    torch.manual_seed(0)
    module = Pooled()
    before = module.conv.weight.clone()
    more = {**SMALL, "out": tmp_path / "run", "optim": {"lr": 0.0, "warmup_lr": 0.0}}
    run = simplicia.pretrain("byol-sem", data=TensorDataset(torch.from_numpy(IMAGES)), encoder=module, **more)
    assert torch.equal(module.conv.weight, before) and torch.equal(run.encoder.model.conv.weight, before)
    assert run.encoder.out_features == 12 and run.encode(IMAGES, "encoder").shape == (48, 12)
    assert run.recipe.encoder == "given"
    again = simplicia.load(run.path, encoder=Pooled())
    assert torch.equal(again.encode(IMAGES), run.encode(IMAGES))
    path = run.export(tmp_path / "mine.safetensors")
    from safetensors.torch import load_file

    Pooled().load_state_dict(load_file(path))  # its own names
    for call, words in (
        (lambda: simplicia.load(run.path), r"simplicia.load\(path, encoder=module\) takes it"),
        (lambda: simplicia.load(run.path, encoder=Pooled(13)), "does not fit this model"),
        (lambda: simplicia.load(run.path, encoder=nn.Conv2d(3, 4, 3)), r"must be \(N, features\)"),
        (lambda: simplicia.load(run.path, encoder=nn.Linear(5, 4)), "takes no images"),
    ):
        with pytest.raises(UserError, match=words):
            call()
    capture = cli.main(["knn", str(run.path)])
    assert capture == 2


def test_resuming_a_run_with_a_module(tmp_path):
    more = {**SMALL, "epochs": 2, "out": tmp_path / "run", "encoder": Pooled()}
    with pytest.raises(errors.Interrupted, match="continue with: the same call of pretrain, with out="):
        simplicia.pretrain("byol-sem", data=IMAGES, deadline=0.0, **more)
    with pytest.raises(UserError, match="trained with encoder 'given'"):
        simplicia.pretrain("byol-sem", data=IMAGES, resume=True, **{**more, "encoder": "tiny"})
    assert simplicia.pretrain("byol-sem", data=IMAGES, resume=True, **more).finished


def test_messages_speak_python_in_python_and_options_on_the_command_line(run, tmp_path, capsys):
    with pytest.raises(UserError) as error:
        simplicia.pretrain("byol-sem", data=IMAGES, out=run.path, **SMALL)
    assert "--" not in str(error.value) and "resume=True" in str(error.value)
    assert cli.main(["pretrain", "shapes-byol", "--out", str(run.path)]) == 2
    assert "add --resume to continue it" in capsys.readouterr().err
    assert not errors.at_terminal
    for message, python in (
        ("give --batch-size 48 or less", "give batch_size=48 or less"),
        ("give --data with a folder or a name", "give data with a folder or a name"),
        ("a lower --optim.lr, into another --out", "a lower optim.lr, into another out"),
        ("give --stem small", "give stem='small'"),
        ("add --allow-other-processes", "add allow_other_processes=True"),
        (
            "use --data; simplicia pretrain --download gets it",
            "use data; simplicia pretrain --download gets it",
        ),
        ("a file named a--b -- and --", "a file named a--b -- and --"),
    ):
        assert str(UserError(message)) == python
    recipe = with_changes(recipes.get("byol-sem"), {"data": "shapes"})
    assert resume_command(Path("a"), recipe, 2) == (
        "simplicia.pretrain('byol-sem', out='a', resume=True, processes=2)"
    )


def test_a_run_is_used_like_a_module(run):
    images = torch.from_numpy(IMAGES[:5])
    assert torch.equal(run(images), run.encode(images)) and not run(images).requires_grad
    assert torch.equal(run.sem(run.encoder(run.view(images))).detach(), run.encode(images))
    assert run.to("cpu") is run and run.sem.simplices == 8
    with pytest.raises(UserError, match="device is 'gpu'"):
        run.to("gpu")


def test_the_default_encoder_on_a_cpu_says_which_one_others_load(tmp_path, capfd):
    """In training and at export; the encoder it names does load."""
    run = simplicia.pretrain("byol-sem", data=IMAGES, out=tmp_path / "a", **{**SMALL, "quiet": False})
    output = capfd.readouterr()
    assert "encoder tiny (of Simplicia only; torchvision and timm load resnet18" in output.out + output.err
    run.export(tmp_path / "a.safetensors")
    output = capfd.readouterr()
    assert "torchvision and timm load resnet18" in output.out + output.err


def test_exports_and_encode_agree_on_floats(run, tmp_path):
    images = torch.rand(7, 3, 16, 16)
    program = torch.export.load(run.export(tmp_path / "a.pt2")).module()
    assert (program(images) - run.encode(images)).abs().max() < 1e-5
    nhwc = images.permute(0, 2, 3, 1).numpy()
    assert torch.equal(run.encode(nhwc), run.encode(images))
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(run.export(tmp_path / "a.onnx"))
    (output,) = session.run(["sem"], {"images": images.numpy()})
    assert abs(output - run.encode(images).numpy()).max() < 1e-5
