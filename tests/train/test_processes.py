"""Several processes train as one does: the same losses, started by torchrun, srun or --processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

sys.path.insert(0, os.path.dirname(__file__))
from ten_steps import ALL, OTHERS

import simplicia
from simplicia import cli, devices
from simplicia.data import datasets
from simplicia.errors import UserError
from simplicia.train import checkpoint
from simplicia.train.recipe import read_yaml
from simplicia.train.run_dir import read_log

SCRIPT = Path(__file__).with_name("ten_steps.py")
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
SMALL = "--encoder tiny --sem.simplices 8 --byol.hidden 32 --byol.out 16 --image-size 16"
SMALL += " --batch-size 16 --device cpu"


def finish(*processes, status=0):
    """Wait for processes; returns their standard errors."""
    errors = [process.communicate(timeout=240)[1] for process in processes]
    for process, error in zip(processes, errors, strict=True):
        assert process.returncode == status, error[-3000:]
    return errors


def start(command, **environment):
    command = list(map(str, command))
    return subprocess.Popen(
        command, env={**ONE_THREAD, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="module")
def ten_steps(tmp_path_factory):
    """What ten steps of each method give in 1, 2 and 4 processes."""
    folder = tmp_path_factory.mktemp("ten")
    found = {}
    for processes in (1, 2, 4):
        out = folder / f"{processes}.json"
        launcher = (
            [*TORCHRUN, "--standalone", "--nproc-per-node", processes] if processes > 1 else [sys.executable]
        )
        finish(start([*launcher, SCRIPT, out]))
        found[processes] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("name", [*ALL, *OTHERS])
def test_losses_in_32_bits_are_those_of_one_process(ten_steps, name, processes):
    one, several = (ten_steps[n]["32"][name]["losses"] for n in (1, processes))
    assert several[0] == pytest.approx(one[0], rel=1e-5)
    assert several[9] == pytest.approx(one[9], rel=1e-3)


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("name", [*ALL, "micro-batches"])
def test_training_in_64_bits_is_that_of_one_process(ten_steps, name, processes):
    """Losses, weights, momentum, running statistics, queues and centres."""
    one, several = (ten_steps[n]["64"][name] for n in (1, processes))
    assert several["losses"] == pytest.approx(one["losses"], rel=1e-8)
    assert several["state"] == pytest.approx(one["state"], rel=1e-6, abs=1e-9)
    assert max(one["losses"]) > 1.01 * min(one["losses"])  # the model moves


@pytest.mark.parametrize("processes", [2, 4])
def test_online_probes_are_those_of_one_process(ten_steps, processes):
    one, several = (ten_steps[n]["32"]["byol-sem"]["state"] for n in (1, processes))
    probe = [key for key in one if key.startswith("online.")]
    assert len(probe) == 4
    for key in probe:
        assert several[key] == pytest.approx(one[key], rel=1e-3)
    accuracies = [key for key in one if key.endswith("accuracy")]
    assert {key: one[key] for key in accuracies} == {key: several[key] for key in accuracies}


def test_gradients_of_large_matrices_may_be_averaged_in_16_bits(ten_steps):
    one, rounded = (ten_steps[1]["32"][n] for n in ("byol-sem", "reduced in 16 bits"))
    assert one == rounded  # one process sends nothing
    two, rounded = (ten_steps[2]["32"][n] for n in ("byol-sem", "reduced in 16 bits"))
    assert rounded["losses"] == pytest.approx(two["losses"], rel=1e-3)
    velocities = {key: value for key, value in two["state"].items() if key.startswith("velocity.")}
    for key, value in velocities.items():
        assert rounded["state"][key] == pytest.approx(value, rel=0.02, abs=1e-4), key
    differing = {k for k, v in velocities.items() if abs(rounded["state"][k] - v) > 1e-5 * v}
    assert "velocity.online.bottleneck.embedder.weight" in differing


@pytest.fixture
def photos(tmp_path):
    path = tmp_path / "photos"
    path.mkdir()
    for i, image in enumerate(datasets.load("shapes", "test").images[:48]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path / f"{i:03d}.png")
    return path


def pretrain(photos, out, *words):
    return ["-m", "simplicia", "pretrain", "byol-sem", "--data", photos, "--out", out, *SMALL.split(), *words]


def pretrain_here(*given):
    """In this process."""
    assert cli.main(list(map(str, pretrain(*given)[2:]))) == 0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_two_torchrun_agents_train_as_one_process(photos, tmp_path):
    words = "--epochs", 2, "--log-every", 1, "--optim.lr", 0.1, "--quiet"
    rendezvous = [
        "--nnodes",
        2,
        "--nproc-per-node",
        2,
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        free_port(),
    ]
    agents = [
        start([*TORCHRUN, *rendezvous, "--node-rank", i, *pretrain(photos, tmp_path / "four", *words)])
        for i in range(2)
    ]
    finish(*agents)
    pretrain_here(photos, tmp_path / "one", *words)
    one, four = ([line["loss"] for line in read_log(tmp_path / n / "log.jsonl")] for n in ("one", "four"))
    assert (
        len(one) == 6 and four == pytest.approx(one, rel=1e-3) and four[0] == pytest.approx(one[0], rel=1e-5)
    )
    run = simplicia.load(tmp_path / "four")
    assert run.state["processes"] == 4 and [part["processes"] for part in run.state["trained_by"]] == [4]


def srun(photos, out, *words, **environment):
    """Two processes with the variables that srun sets."""
    common = {"SLURM_JOB_ID": "4077", "SLURM_STEP_ID": str(os.getpid() % 1000), "SLURM_STEP_NUM_TASKS": "2"}
    common |= {"SLURM_STEP_NUM_NODES": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "node[07-08]"}
    own = [{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i), "SLURM_NODEID": "0"} for i in range(2)]
    command = [sys.executable, *pretrain(photos, out, *words)]
    return [start(command, **common, **variables, **environment) for variables in own]


def test_a_time_limit_under_slurm_saves_and_requeues_and_other_processes_resume(photos, tmp_path):
    """A stand-in for ``scontrol`` records its calls."""
    out, calls, tools = tmp_path / "run", tmp_path / "calls", tmp_path / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    (tools / "scontrol").chmod(0o755)
    words = "--epochs", 30, "--log-every", 1, "--quiet", "--resume"
    processes = srun(photos, out, *words, PATH=f"{tools}:{os.environ['PATH']}")
    wait_for(lambda: len(read_log(out / "log.jsonl")) > 2, processes)
    processes[1].send_signal(signal.SIGUSR1)  # also if only one process receives it
    errors = finish(*processes, status=128 + signal.SIGUSR1)
    assert calls.read_text() == "requeue 4077\n"
    assert "continue with:" in errors[0] and "SLURM job 4077 was requeued" in errors[0]
    step = checkpoint.state_of(out)["step"]
    assert 2 < step < 90
    pretrain_here(photos, out, *words)
    state = simplicia.load(out).state
    assert state["step"] == 90 and [part.get("processes", 1) for part in state["trained_by"]] == [2, 1]
    assert [part["from_step"] for part in state["trained_by"]] == [0, step]


def wait_for(condition, processes):
    deadline = time.monotonic() + 120
    while not condition():
        for process in processes:
            assert process.poll() is None, process.stderr.read()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_user_error_of_process_0_ends_all_with_its_sentence(photos, tmp_path):
    """Only process 0 looks at the run's folder."""
    (tmp_path / "run").mkdir()
    with simplicia.train.run_dir.lock(tmp_path / "run"):
        errors = finish(*srun(photos, tmp_path / "run", "--epochs", 1, "--quiet"), status=2)
    assert all("is being trained by another process" in error for error in errors)
    assert not any("Traceback" in error for error in errors)


LAUNCHED = {  # the environment: the name, processes and nodes of the launcher, or its error
    "none": ({}, None),
    "a stray variable": ({"WORLD_SIZE": "1", "RANK": "0"}, None),
    "a shell inside an allocation": ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, None),
    "one task": ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"}, None),
    "srun": ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "2"}, ("srun", 8, 2)),
    "torchrun": (
        {"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
        ("torchrun", 4, 2),
    ),
    "torchrun in srun": (
        {"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "SLURM_STEP_NUM_TASKS": "2"},
        ("torchrun", 4, 1),
    ),
    "uneven": (
        {"SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_NUM_NODES": "2"},
        "not the same number on each machine",
    ),
    "no number": ({"SLURM_STEP_NUM_TASKS": "many"}, "the environment says SLURM_STEP_NUM_TASKS=many"),
}


@pytest.mark.parametrize("case", LAUNCHED)
def test_the_launcher_is_read_from_the_environment(case, monkeypatch):
    variables, expected = LAUNCHED[case]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            devices.process_count(None)
        return
    assert devices.launcher() == expected
    processes = expected[1] if expected else 1
    assert devices.process_count(None) == processes == devices.process_count(processes)
    if expected:
        with pytest.raises(UserError, match=rf"processes is 3, but {expected[0]} started {processes}; leave"):
            devices.process_count(3)
    else:
        assert devices.process_count(3) == 3
        assert devices.launch("cpu", 1, "32").world_size == 1


def test_micro_batches_of_all_processes_become_those_of_one(photos, tmp_path):
    """Runs trained before micro-batches were counted per process resume as they were."""
    run = tmp_path / "run"
    small = {"encoder": "tiny", "sem.simplices": 8, "options": {"hidden": 8, "out": 8}, "image_size": 16}
    simplicia.pretrain(
        "byol", out=run, data=str(photos), batch_size=16, epochs=1, stem="small", quiet=True, **small
    )
    text = (run / "recipe.yaml").read_text()
    state = checkpoint.latest(run / "checkpoint") / "state.json"
    for name in ("micro_batch_size", "micro_batch"):
        for size, processes, expected in ((8, 1, 8), (8, 2, 4), (0, 2, 0)):
            (run / "recipe.yaml").write_text(text.replace("process_batch_size: 0", f"{name}: {size}"))
            state.write_text(json.dumps({**json.loads(state.read_text()), "processes": processes}))
            assert read_yaml(run / "recipe.yaml").process_batch_size == expected


def test_a_batch_norm_of_one_process_equals_torchs():
    """The tests above compare several processes with one."""
    from simplicia.layers import synchronise_norms

    torch.manual_seed(0)
    for plain, shape in (
        (torch.nn.BatchNorm1d(5), (8, 5)),
        (torch.nn.BatchNorm2d(5, momentum=None), (4, 5, 3, 2)),
    ):
        model = torch.nn.Sequential(plain.double())
        with torch.no_grad():
            plain.weight.normal_(), plain.bias.normal_()
        other = torch.nn.Sequential(type(plain)(5, momentum=plain.momentum).double())
        other.load_state_dict(model.state_dict())
        synchronise_norms(other)
        for _ in range(2):
            x = torch.randn(shape, dtype=torch.float64)
            inputs = [x.clone().requires_grad_() for _ in range(2)]
            outputs = [m(i) for m, i in zip((model, other), inputs, strict=True)]
            torch.testing.assert_close(*outputs)
            for output in outputs:
                output.pow(3).sum().backward()
            torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
        for (key, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, msg=key)
        for key, value in model.state_dict().items():
            torch.testing.assert_close(other.state_dict()[key], value, msg=key)
        torch.testing.assert_close(other.eval()(x), model.eval()(x))
