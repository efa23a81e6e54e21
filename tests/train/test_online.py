"""Online probes: classifiers at several temperatures that train with a method and do not change it."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from simplicia import cli
from simplicia.data.augmentation import eval_view
from simplicia.data.datasets import load
from simplicia.sem import simplicial
from simplicia.settings import with_changes
from simplicia.train import recipes
from simplicia.train.monitor import OnlineProbe

SETS = [
    dataclasses.replace(s, images=s.images[:80], labels=s.labels[:80])
    for s in (load("shapes"), load("shapes", "test"))
]


def make(name="shapes-byol-sem", temperatures=(0.0, 0.1, 1.0)):
    torch.manual_seed(0)
    changes = {"sem.simplices": 6, "options.hidden": 16}
    method = with_changes(recipes.get(name), changes).build()
    arguments = SETS[0].statistics(), torch.device("cpu"), 32, 32
    return method, OnlineProbe(method, *SETS, *arguments, temperatures)


def batch(method, step):
    torch.manual_seed(step)
    indices = torch.randperm(80)[:16]
    views = [torch.randn(16, 3, 32, 32) for _ in range(2)]
    return method(views), indices


def test_each_temperature_trains_like_a_separate_probe():
    method, probe = make()
    weights = {k: (h.weight.clone(), h.bias.clone()) for k, h in probe.heads.items()}
    velocities = {k: [torch.zeros_like(p) for p in pair] for k, pair in weights.items()}
    for step in range(4):
        output, indices = batch(method, step)
        probe.learn(output, indices)
        features = torch.cat(output.features)
        bottleneck = method.online.bottleneck.eval()
        inputs = {"encoder": features, "sem": torch.cat(output.embeddings) + 1 / 13}
        for tau in (0.0, 0.1, 1.0):
            inputs[f"sem@{tau:g}"] = simplicial(bottleneck.logits(features), 13, tau).detach()
        method.train()
        labels = SETS[0].labels[indices].repeat(2)
        for k, pair in weights.items():
            pair = tuple(p.requires_grad_() for p in pair)
            loss = F.cross_entropy(F.linear(inputs[k], *pair), labels)
            grads = torch.autograd.grad(loss, pair)
            for v, g in zip(velocities[k], grads, strict=True):
                v.mul_(0.9).add_(g)
            weights[k] = tuple((p - 0.1 * v).detach() for p, v in zip(pair, velocities[k], strict=True))
    for k, (weight, bias) in weights.items():
        torch.testing.assert_close(probe.heads[k].weight, weight)
        torch.testing.assert_close(probe.heads[k].bias, bias)


def test_probes_do_not_change_the_method():
    method, probe = make()
    output, indices = batch(method, 0)
    before = {k: v.clone() for k, v in method.state_dict().items()}
    probe.learn(output, indices)
    probe.measure()
    assert all(torch.equal(v, before[k]) for k, v in method.state_dict().items())
    assert all(p.grad is None for p in method.parameters())
    assert method.online.training and method.online.bottleneck.training


def test_accuracies_are_named_online_with_their_temperature():
    method, probe = make()
    accuracies = probe.measure()
    heads = ["encoder_accuracy", "sem_accuracy", "sem_accuracy@0", "sem_accuracy@0.1", "sem_accuracy@1"]
    assert list(accuracies) == [f"online_{head}" for head in (*heads, "knn_accuracy")]
    features = torch.cat([method.online.eval().encoder(probe_view(probe))])
    scores = probe.heads["sem@0.1"](method.online.bottleneck(features, 0.1))
    share = (scores.argmax(1) == SETS[1].labels).double().mean().item()
    assert accuracies["online_sem_accuracy@0.1"] == pytest.approx(100 * share)


def probe_view(probe):
    return eval_view(SETS[1].images, 32, *probe.statistics)


def test_without_sem_only_the_encoder_is_probed():
    _, probe = make("shapes-byol")
    assert list(probe.heads) == ["encoder"]


def test_a_checkpoint_restores_every_head():
    method, probe = make()
    probe.learn(*batch(method, 0))
    stored = {k: v.clone() for k, v in probe.tensors().items()}
    assert "online.encoder.weight" in stored and "online_velocity.sem@0.1.bias" in stored
    same, other = make()
    same.load_state_dict(method.state_dict())
    other.load(stored)
    for p in (probe, other):
        p.learn(*batch(method.eval(), 1))
    assert all(torch.equal(v, other.tensors()[k]) for k, v in probe.tensors().items())


def test_a_negative_temperature_is_an_error(capsys):
    words = ["pretrain", "shapes-byol-sem", "--online-every", "1", "--online-temperatures", "-1", "--dry-run"]
    assert cli.main(words) == 2
    assert "online_temperatures is (-1.0,)" in capsys.readouterr().err


def test_uncropped_images_are_probed_by_their_center_crops():
    """Training stores them squeezed to squares; probes use the same center crops as `knn`."""
    method, probe = make()
    squeezed = dataclasses.replace(SETS[0], aspect_ratios=torch.full((80,), 2.0))
    _, other = make()
    other.train, other.method = squeezed, method
    method.eval()
    expected = probe._features(dataclasses.replace(SETS[0], images=squeezed.center_cropped().images))
    assert torch.equal(other._features(squeezed), expected)
    assert not torch.equal(expected, probe._features(SETS[0]))
