"""Two processes against one with the global batch."""

import os
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(__file__))
from test_losses import CALLS

from simplicia import bottlenecks, losses, methods
from simplicia.encoders import ResNet


def global_batch():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(8, 6, generator=generator, dtype=torch.float64) for _ in range(4)]


def loss_and_gradient(name, z):
    """The loss of a tiny linear model, and the gradient of its weight."""
    weight = torch.eye(6, dtype=torch.float64).add(0.1).requires_grad_()
    outputs = [x @ weight for x in z]
    if name == "info_nce":  # the queue is state, not batch: the same everywhere
        queue = F.normalize(global_batch()[2], dim=-1).T
        loss = losses.info_nce(outputs[0], outputs[1], queue)
    else:
        loss = CALLS[name](outputs)
    loss.backward()
    return loss.detach(), weight.grad


def tiny_method(name):
    torch.manual_seed(0)
    encoder = ResNet(bottleneck=False, depths=(1,), width=4)
    sem = bottlenecks.create("sem", 4, simplices=4, vertices=3, norm="layer")
    small = {k: v for k, v in {"hidden": 16, "out": 8}.items() if k in methods.options(name)}
    method = methods.create(name, encoder, sem, **small)
    for module in method.modules():  # statistics of half a batch differ; losses are under test
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.eval()
    return method.double()


def step(method, views):
    method.schedule(0, 10, 0)
    loss = method(views).loss
    loss.backward()
    gradients = {n: p.grad for n, p in method.named_parameters() if p.grad is not None}
    return loss.detach(), gradients


def images():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 3, 8, 8, generator=generator, dtype=torch.float64) for _ in range(2)]


def worker(rank, folder):
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    limit = timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=limit)
    out = {}
    mine = slice(4 * rank, 4 * rank + 4)
    for name in CALLS:
        loss, grad = loss_and_gradient(name, [x[mine] for x in global_batch()])
        dist.all_reduce(grad)
        out[name] = (loss, grad / 2)
    for name in methods.names():
        method = tiny_method(name)
        loss, grads = step(method, [v[mine] for v in images()])
        for grad in grads.values():
            dist.all_reduce(grad)
            grad /= 2
        method.after_step()
        state = {k: v for k, v in method.state_dict().items() if "queue" in k or "center" in k}
        out[f"method {name}"] = (loss, grads, state)
    torch.manual_seed(0)
    vq = bottlenecks.create("vq", 6, simplices=3, vertices=4, dimensions=2)
    torch.manual_seed(rank)  # each process draws different numbers
    vq(global_batch()[0][mine].float())
    out["codebook"] = vq.codebook
    torch.save(out, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    mp.start_processes(worker, (str(folder),), nprocs=2, start_method="spawn")
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", CALLS)
def test_loss_and_gradient_are_those_of_the_global_batch(two_processes, name):
    loss, grad = loss_and_gradient(name, global_batch())
    for out in two_processes:
        torch.testing.assert_close(out[name][0], loss)
        torch.testing.assert_close(out[name][1], grad)


@pytest.mark.parametrize("name", methods.names())
def test_queues_and_centres_are_those_of_the_global_batch(two_processes, name):
    method = tiny_method(name)
    loss, grads = step(method, images())
    method.after_step()
    for out in two_processes:
        other_loss, other_grads, state = out[f"method {name}"]
        torch.testing.assert_close(other_loss, loss)
        assert other_grads.keys() == grads.keys()
        for key in grads:
            torch.testing.assert_close(other_grads[key], grads[key], rtol=1e-6, atol=1e-9)
        for key, value in state.items():
            torch.testing.assert_close(value, method.state_dict()[key])


def test_dead_codes_restart_alike_in_every_process(two_processes):
    one, other = (out["codebook"] for out in two_processes)
    assert torch.equal(one, other) and len(one.flatten().unique()) > 4
