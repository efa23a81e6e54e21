"""LARS and SGD against explicit formulas, and their parameter groups."""

import pytest
import torch
from torch import nn

from simplicia.train.recipe import OptimSettings
from simplicia.train.step import LARS, create_optimizer


def reference(p, grads, lr, momentum, decay, eta, trust):
    """One tensor's weights after some steps, in plain Python numbers."""
    p, velocity = p.double(), torch.zeros_like(p).double()
    for grad in grads:
        grad = grad.double()
        norm, grad_norm = p.square().sum() ** 0.5, grad.square().sum() ** 0.5
        ratio = min((eta * norm / (grad_norm + decay * norm + 1e-8) / lr).item(), 1.0) if trust else 1.0
        if norm == 0 or grad_norm == 0:
            ratio = 1.0
        velocity = momentum * velocity + ratio * (grad + decay * p)
        p = p - lr * velocity
    return p


@pytest.mark.parametrize("trust", [True, False])
@pytest.mark.parametrize("start", [1.0, 0.0])
def test_lars_matches_its_formula(trust, start):
    torch.manual_seed(0)
    p = nn.Parameter(start * torch.randn(4, 3))
    first = p.detach().clone()
    grads = [torch.randn(4, 3) for _ in range(5)]
    lr = torch.tensor(0.3)
    optimizer = LARS([{"params": [p]}], lr, momentum=0.9, weight_decay=0.01, eta=0.02, trust=trust)
    for grad in grads:
        p.grad = grad.clone()
        optimizer.step()
    torch.testing.assert_close(
        p.double(), reference(first, grads, 0.3, 0.9, 0.01, 0.02, trust), rtol=1e-5, atol=1e-6
    )


def test_lars_without_trust_ratio_matches_torch_sgd():
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(torch.arange(6.0)) for _ in range(2))
    mine = LARS([{"params": [ours]}], torch.tensor(0.1), momentum=0.9, weight_decay=0.01, trust=False)
    other = torch.optim.SGD([theirs], 0.1, momentum=0.9, weight_decay=0.01)
    for _ in range(4):
        ours.grad = torch.randn(6)
        theirs.grad = ours.grad.clone()
        mine.step()
        other.step()
    torch.testing.assert_close(ours, theirs)


def test_a_frozen_group_neither_changes_nor_gathers_momentum():
    p = nn.Parameter(torch.ones(2, 2))
    rate = torch.zeros(())
    optimizer = LARS([{"params": [p], "rate": rate}], torch.tensor(0.5), weight_decay=0.1)
    for _ in range(3):
        p.grad = torch.ones(2, 2)
        optimizer.step()
    assert torch.equal(p, torch.ones(2, 2)) and (optimizer.state[p]["velocity"] == 0).all()
    rate.fill_(1)
    optimizer.step()
    assert not torch.equal(p, torch.ones(2, 2))


@pytest.mark.parametrize("exclude", [True, False])
@pytest.mark.parametrize("name", ["lars", "sgd"])
def test_every_parameter_is_in_the_right_group(exclude, name):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[2].bias.requires_grad_(False)
    rate = torch.zeros(())
    settings = OptimSettings(name=name, exclude_1d=exclude, weight_decay=0.1)
    optimizer = create_optimizer(model, settings, {"2": rate}, torch.tensor(1.0))
    groups = {id(p): g for g in optimizer.param_groups for p in g["params"]}
    assert groups.keys() == {id(p) for p in model.parameters() if p.requires_grad}
    for key, p in model.named_parameters():
        if p.requires_grad:
            excluded = exclude and p.ndim == 1
            assert groups[id(p)]["weight_decay"] == (0 if excluded else 0.1)
            assert groups[id(p)]["trust"] == (name == "lars" and not excluded)
            assert groups[id(p)]["rate"] is (rate if key.startswith("2.") else None)
