"""Each loss against a derivation that shares no code with it: value and gradient."""

import math

import pytest
import torch
import torch.nn.functional as F

from simplicia import losses


def rand(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(*shape, generator=generator, dtype=torch.float64)).requires_grad_()


def agree(loss, reference, *tensors):
    torch.testing.assert_close(loss, reference)
    grads, expected = (torch.autograd.grad(x, tensors, retain_graph=True) for x in (loss, reference))
    for grad, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, other)


def unit(x):
    return x / (x * x).sum(-1, keepdim=True).sqrt()


def test_nt_xent_anchor_by_anchor():
    z1, z2 = rand(5, 7), rand(5, 7, seed=1)
    z = unit(torch.cat([z1, z2]))
    total = 0.0
    for i in range(10):
        positive = torch.exp(z[i] @ z[(i + 5) % 10] / 0.3)
        others = sum(torch.exp(z[i] @ z[k] / 0.3) for k in range(10) if k != i)
        total = total - torch.log(positive / others)
    agree(losses.nt_xent(z1, z2, 0.3), total / 10, z1, z2)


def test_info_nce_sample_by_sample():
    query, key, queue = rand(4, 6), rand(4, 6, seed=1), unit(rand(9, 6, seed=2)).T.detach()
    total = 0.0
    for i in range(4):
        q, k = unit(query[i]), unit(key[i]).detach()
        positive = torch.exp(q @ k / 0.2)
        total = total - torch.log(positive / (positive + torch.exp(q @ queue / 0.2).sum()))
    loss = losses.info_nce(query, key, queue, 0.2)
    agree(loss, total / 4, query)
    assert torch.autograd.grad(loss, key, allow_unused=True) == (None,)


def test_byol_is_the_squared_distance_of_unit_vectors():
    prediction, target = rand(6, 5), rand(6, 5, seed=1)
    loss = losses.byol(prediction, target)
    agree(loss, (unit(prediction) - unit(target).detach()).square().sum(-1).mean(), prediction)
    assert torch.autograd.grad(loss, target, allow_unused=True) == (None,)


def test_barlow_twins_entry_by_entry():
    z1, z2 = rand(8, 4), rand(8, 4, seed=1)

    def standard(z):
        return (z - z.mean(0)) / torch.sqrt(z.var(0, unbiased=False) + 1e-5)

    a, b = standard(z1), standard(z2)
    total = 0.0
    for i in range(4):
        for j in range(4):
            c = sum(a[n, i] * b[n, j] for n in range(8)) / 8
            total = total + ((1 - c) ** 2 if i == j else 0.02 * c**2)
    agree(losses.barlow_twins(z1, z2, lamb=0.02, scale=0.5), 0.5 * total, z1, z2)


def test_vicreg_term_by_term():
    z1, z2 = rand(6, 3, scale=0.5), rand(6, 3, seed=1, scale=0.5)
    total = 25 * ((z1 - z2) ** 2).sum() / 18
    for z in (z1, z2):
        for d in range(3):
            total = total + 10 * F.relu(1 - torch.sqrt(z[:, d].var() + 1e-4)) / 3
            for e in range(3):
                if d != e:
                    covariance = ((z[:, d] - z[:, d].mean()) * (z[:, e] - z[:, e].mean())).sum() / 5
                    total = total + 2 * covariance**2 / 3
    agree(losses.vicreg(z1, z2, sim=25, var=10, cov=2), total, z1, z2)


def plain_sinkhorn(scores, epsilon, iterations):
    """The textbook form: rescale rows and columns of exp(scores / epsilon)."""
    q = torch.exp(scores / epsilon).T
    q = q / q.sum()
    for _ in range(iterations):
        q = q / q.sum(1, keepdim=True) / q.shape[0]
        q = q / q.sum(0, keepdim=True) / q.shape[1]
    return (q * q.shape[1]).T


def test_swav_with_and_without_queues():
    scores1, scores2 = rand(6, 5, scale=0.3), rand(6, 5, seed=1, scale=0.3)
    queue1, queue2 = rand(10, 5, seed=2, scale=0.3), rand(10, 5, seed=3, scale=0.3)
    for q1, q2 in ((None, None), (queue1, queue2)):
        codes = []
        for scores, queue in ((scores1, q1), (scores2, q2)):
            joint = scores if queue is None else torch.cat([scores, queue])
            codes.append(plain_sinkhorn(joint.detach(), 0.05, 3)[:6])
        reference = -0.5 * (
            (codes[0] * torch.log_softmax(scores2 / 0.1, -1)).sum() / 6
            + (codes[1] * torch.log_softmax(scores1 / 0.1, -1)).sum() / 6
        )
        agree(losses.swav(scores1, scores2, queue1=q1, queue2=q2), reference, scores1, scores2)


def test_sinkhorn_does_not_overflow_in_float32():
    scores = 100 * torch.randn(64, 30, generator=torch.Generator().manual_seed(0))
    codes = losses.sinkhorn(scores, 0.05, 3)
    assert codes.isfinite().all()
    torch.testing.assert_close(codes.sum(1), torch.ones(64))
    balanced = losses.sinkhorn(torch.randn(64, 8, generator=torch.Generator().manual_seed(0)), 1.0, 50)
    torch.testing.assert_close(balanced.sum(0), torch.full((8,), 8.0), rtol=1e-3, atol=1e-3)


def test_dino_both_directions():
    student1, student2, teacher1, teacher2 = (rand(4, 5, seed=i) for i in range(4))
    center = rand(5, seed=9).detach()

    def direction(teacher, student):
        p = torch.softmax((teacher.detach() - center) / 0.05, -1)
        return -(p * (student / 0.2 - torch.logsumexp(student / 0.2, -1, keepdim=True))).sum() / 4

    loss = losses.dino(student1, student2, teacher1, teacher2, center, 0.2, 0.05)
    agree(loss, (direction(teacher1, student2) + direction(teacher2, student1)) / 2, student1, student2)
    assert torch.autograd.grad(loss, [teacher1, teacher2], allow_unused=True) == (None, None)


CALLS = {
    "nt_xent": lambda z: losses.nt_xent(z[0], z[1]),
    "info_nce": lambda z: losses.info_nce(z[0], z[1], F.normalize(z[2].double(), dim=-1).T),
    "byol": lambda z: losses.byol(z[0], z[1]),
    "barlow_twins": lambda z: losses.barlow_twins(z[0], z[1]),
    "vicreg": lambda z: losses.vicreg(z[0], z[1]),
    "swav": lambda z: losses.swav(z[0], z[1]),
    "dino": lambda z: losses.dino(*z, torch.zeros(z[0].shape[1])),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_inputs_and_autocast_are_computed_in_thirty_two(name, dtype):
    z = [rand(8, 12, seed=i).detach().to(dtype) for i in range(4)]
    expected = CALLS[name]([x.float() for x in z])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = CALLS[name](z)
        wide = CALLS[name]([x.float() for x in z])
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(wide, expected)


def test_losses_at_chance_and_at_zero():
    z = F.normalize(torch.eye(8).repeat(2, 1), dim=-1)[:8]
    assert losses.byol(z, z).item() == pytest.approx(0, abs=1e-6)
    same = torch.ones(16, 4)
    assert losses.nt_xent(same, same).item() == pytest.approx(math.log(31), abs=1e-5)
    queue = torch.ones(4, 100) / 2
    assert losses.info_nce(same, same, queue).item() == pytest.approx(math.log(101), abs=1e-5)
    assert losses.swav(torch.zeros(6, 9), torch.zeros(6, 9)).item() == pytest.approx(math.log(9), abs=1e-5)


def test_keyword_names_of_the_public_api():
    a, b = torch.randn(2, 6, 5)
    queue = F.normalize(torch.randn(5, 9), dim=0)
    z = {"z1": a, "z2": b}
    assert torch.equal(losses.nt_xent(**z, temperature=0.2), losses.nt_xent(a, b))
    assert torch.equal(losses.info_nce(query=a, key=b, queue=queue), losses.info_nce(a, b, queue))
    assert torch.equal(losses.byol(prediction=a, target=b), losses.byol(a, b))
    assert torch.equal(losses.barlow_twins(**z, lamb=0.0051, scale=0.1), losses.barlow_twins(a, b))
    assert torch.equal(losses.vicreg(**z, sim=25.0, var=25.0, cov=1.0), losses.vicreg(a, b))
    assert torch.equal(losses.swav(scores1=a, scores2=b, epsilon=0.05), losses.swav(a, b))
    names = {"student1": a, "student2": b, "teacher1": b, "teacher2": a, "center": torch.zeros(5)}
    assert torch.equal(losses.dino(**names), losses.dino(a, b, b, a, torch.zeros(5)))


@pytest.mark.parametrize("name", CALLS)
def test_views_of_different_size_are_refused(name):
    with pytest.raises(ValueError, match=r"\(1, 12\)"):
        CALLS[name]([torch.randn(8, 12), torch.randn(1, 12), torch.randn(8, 12), torch.randn(8, 12)])
