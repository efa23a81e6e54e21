"""Every registered method with every registered bottleneck, and the details of each method."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

from simplicia import bottlenecks, encoders, methods
from simplicia.methods import TargetMethod
from simplicia.methods.base import Queue
from simplicia.train.recipe import OptimSettings
from simplicia.train.step import create_optimizer

PAIRS = [(m, b) for m in methods.names() for b in bottlenecks.names()]


def build(name, bottleneck="sem", second_temperature=None, blocks=1, **options):
    torch.manual_seed(0)
    encoder = encoders.create("tiny")
    sizes = {"simplices": 16, "vertices": 5, "dimensions": 4, "blocks": blocks}
    sizes = {option: sizes[option] for option in bottlenecks.options(bottleneck) if option in sizes}
    bottleneck = bottlenecks.create(bottleneck, encoder.out_features, **sizes)
    options = ({"hidden": 64} if "hidden" in methods.options(name) else {}) | options
    return methods.create(name, encoder, bottleneck, second_temperature, **options)


WITH_TARGET = [name for name in methods.names() if isinstance(build(name), TargetMethod)]


def views(n=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, 3, 16, 16, generator=generator) for _ in range(2)]


@pytest.mark.parametrize("name", methods.names())
def test_options_have_help_text_and_valid_defaults(name):
    options = methods.options(name)
    assert all(option.help and option.range for option in options.values())
    defaults = {option.name: option.default for option in options.values()}
    assert methods.converted(name, {key: str(value) for key, value in defaults.items()}) == defaults


@pytest.mark.parametrize(("name", "bottleneck"), PAIRS)
def test_a_step_is_finite_and_every_parameter_gets_a_gradient(name, bottleneck):
    method = build(name, bottleneck)
    method.schedule(0, 100, 0)
    output = method(views())
    output.loss.backward()
    assert output.loss.shape == () and output.loss.isfinite()
    assert len(output.features) == len(output.embeddings) == 2
    assert output.embeddings[0].shape == (8, method.online.bottleneck.out_features)
    for key, p in method.named_parameters():
        if p.requires_grad:
            assert p.grad is not None and p.grad.abs().sum() > 0, f"no gradient for {key}"
        else:
            assert key.startswith("target.") and p.grad is None
    method.after_step()


@pytest.mark.parametrize(("name", "bottleneck"), [pair for pair in PAIRS if pair[0] in WITH_TARGET])
def test_target_starts_as_a_copy_and_is_the_moving_average(name, bottleneck):
    method = build(name, bottleneck)
    for target, online in zip(method.target.parameters(), method.online.parameters(), strict=True):
        assert torch.equal(target, online) and target.data_ptr() != online.data_ptr()
    method.schedule(30, 100, 0)
    momentum = method.momentum.item()
    assert method.momenta[0] < momentum < method.momenta[1]
    before = copy.deepcopy(method.target.state_dict())
    method(views()).loss.backward()
    statistics = {k: v.clone() for k, v in method.target.state_dict().items() if "running" in k}
    with torch.no_grad():
        for p in method.parameters():
            if p.grad is not None:
                p -= 0.1 * p.grad
    method.after_step()
    online, target = method.online.state_dict(), method.target.state_dict()
    for key, _ in method.target.named_parameters():
        expected = momentum * before[key].double() + (1 - momentum) * online[key].double()
        torch.testing.assert_close(target[key].double(), expected, rtol=1e-5, atol=1e-7)
    for key, value in statistics.items():  # BatchNorm statistics are the target's own, not an average
        assert torch.equal(target[key], value) and not torch.equal(value, before[key])


def test_momentum_follows_a_cosine():
    method = build("byol")
    seen = []
    for step in (0, 50, 100):
        method.schedule(step, 100, 0)
        seen.append(method.momentum.item())
    assert seen == pytest.approx([0.99, 0.995, 1.0])


@pytest.mark.parametrize("name", methods.names())
def test_second_temperature_applies_to_the_target_or_to_view_two(name):
    first, second = build(name), build(name, second_temperature=0.1)
    batch = views()
    for method in (first, second):
        method.eval()
    one, two = first(batch), second(batch)
    assert not torch.equal(one.loss, two.loss)
    assert torch.equal(one.embeddings[0], two.embeddings[0])
    has_target = name in WITH_TARGET
    assert torch.equal(one.embeddings[1], two.embeddings[1]) == has_target
    sharper = first.online(batch[1], 0.1).embedding
    if not has_target:
        torch.testing.assert_close(two.embeddings[1], sharper.detach())


@pytest.mark.parametrize("name", methods.names())
def test_projector_follows_the_bottlenecks_blocks(name):
    dense, blocks = build(name), build(name, blocks=4)
    count = {m: sum(p.numel() for p in m.online.parameters()) for m in (dense, blocks)}
    width = 16 * 5
    saved = (128 * width + width * 64) * 3 // 4  # the embedder and the projector's first layer
    assert count[dense] - count[blocks] == saved
    assert blocks(views()).loss.isfinite()


@pytest.mark.parametrize("name", methods.names())
def test_entropy_weight_adds_the_mutual_information_of_images_and_vertices(name):
    plain, weighted = build(name), build(name, entropy_weight=0.7)
    batch = views()
    torch.manual_seed(1)
    without = plain(batch)
    torch.manual_seed(1)
    output = weighted(batch)
    expected = 0.0
    for embedding in output.embeddings:
        p = (embedding + weighted.online.offset).unflatten(-1, (16, 5)).double()
        share = p.mean(0)
        information = (p * (p / share).log()).sum(-1).mean()  # KL from the batch's mean simplices
        expected -= 0.7 * information.item() / 2
    assert expected < 0 and (output.loss - without.loss).item() == pytest.approx(expected, abs=2e-5)
    output.loss.backward()
    assert all(p.grad is not None for p in weighted.online.bottleneck.parameters())


def test_batch_norm_sees_one_view_at_a_time():
    method = build("simclr")
    batch = views()
    alone = copy.deepcopy(method.online)
    embedding = alone(batch[0]).embedding
    output = method(batch)
    torch.testing.assert_close(output.embeddings[0], embedding.detach())
    assert method.online.encoder.bn1.num_batches_tracked == 2


def test_queue_is_a_ring():
    queue = Queue(5, 2)
    start = queue.vectors.clone()
    a = torch.arange(12.0).view(2, 3, 2)
    queue.push(a)
    assert torch.equal(queue.vectors[:, :3], a) and torch.equal(queue.vectors[:, 3:], start[:, 3:])
    queue.push(a + 100)
    assert torch.equal(queue.vectors[:, 3:], a[:, :2] + 100)
    assert torch.equal(queue.vectors[:, 0], a[:, 2] + 100)
    assert torch.equal(queue.vectors[:, 1:3], a[:, 1:])
    large = torch.randn(2, 7, 2)
    queue.push(large)  # only the newest five fit
    assert sorted(queue.vectors[0, :, 0].tolist()) == sorted(large[0, 2:, 0].tolist())


def test_moco_and_swav_queue_their_last_batch():
    for name in ("moco", "swav"):
        method = build(name, queue=24)
        method(views()).loss.backward()
        before = method.queue.vectors.clone()
        method.after_step()
        assert method.queue.pointer == 8
        assert not torch.equal(method.queue.vectors[:, :8], before[:, :8])
        assert torch.equal(method.queue.vectors[:, 8:], before[:, 8:])
        torch.testing.assert_close(method.queue.vectors.norm(dim=-1), torch.ones(2, 24))


def test_swav_uses_its_queue_from_queue_start_on():
    method = build("swav", queue=24, queue_start=3)
    used = []
    for epoch in range(5):
        method.schedule(epoch, 5, epoch)
        used.append(method.queue_used)
    assert used == [False, False, False, True, True]
    with_queue = method(views()).loss
    method.queue_used = False
    assert not torch.equal(with_queue, method(views()).loss)


@pytest.mark.parametrize(("name", "epochs"), [("swav", 2), ("dino", 1)])
def test_frozen_prototypes_have_rate_zero(name, epochs):
    method = build(name)
    ((prefix, rate),) = method.rates().items()
    assert [k for k, _ in method.named_parameters() if k.startswith(prefix + ".")] == [f"{prefix}.weight"]
    assert dict(method.named_parameters())[f"{prefix}.weight"].requires_grad
    for epoch in range(4):
        method.schedule(epoch, 4, epoch)
        assert rate.item() == float(epoch >= epochs)


def test_dino_centre_and_teacher_temperature():
    method = build("dino", prototypes=32, warmup_epochs=11)
    temperatures = []
    for epoch in (0, 5, 10, 20):
        method.schedule(0, 1, epoch)
        temperatures.append(method.teacher_temperature.item())
    assert temperatures == pytest.approx([0.04, 0.055, 0.07, 0.07])
    at_once = build("dino", prototypes=32, warmup_epochs=0)
    at_once.schedule(0, 1, 0)
    assert at_once.teacher_temperature.item() == pytest.approx(0.07)
    batch = views()
    teacher = torch.cat(copy.deepcopy(method).targets(batch))
    method(batch)
    method.after_step()
    torch.testing.assert_close(method.center, 0.1 * teacher.mean(0))


def test_dino_trains_like_a_loop_in_plain_pytorch():
    """Method, optimiser and schedules together against an independent implementation."""
    steps, per_epoch, lr, momentum = 9, 3, 0.3, 0.95
    options = {"prototypes": 40, "out": 16, "warmup_epochs": 3, "momentum": momentum}
    method = build("dino", "none", **options)
    student = torch.nn.ModuleList([copy.deepcopy(method.online.encoder), _dino_head(method, 64, 16, 40)])
    teacher = copy.deepcopy(student)

    settings = OptimSettings(name="lars", lr=lr, weight_decay=1e-2, warmup_epochs=0)
    optimizer = create_optimizer(method, settings, method.rates(), torch.tensor(lr))
    centre, velocities = torch.zeros(40), {}
    for step in range(steps):
        batch = views(seed=step)
        method.schedule(step, steps, step // per_epoch)
        loss = method(batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        method.after_step()

        with torch.no_grad():
            targets = [teacher[1](teacher[0](x)) for x in batch]
        scores = [student[1](student[0](x)) for x in batch]
        temperature = (0.04, 0.055, 0.07)[step // per_epoch]
        wanted = [((t - centre) / temperature).softmax(1) for t in targets]
        written = [F.cross_entropy(s / 0.1, w) for s, w in zip(scores, reversed(wanted), strict=True)]
        torch.testing.assert_close(loss, sum(written) / 2, rtol=1e-4, atol=1e-4)
        (sum(written) / 2).backward()
        centre = 0.9 * centre + 0.1 * torch.cat(targets).mean(0)
        with torch.no_grad():
            for name, p in student.named_parameters():
                if name.endswith("original0") or (name.endswith("original1") and step < per_epoch):
                    continue  # gains are fixed, directions for the first epoch
                d = p.grad
                if p.ndim > 1:
                    trust = 0.02 * p.norm() / (d.norm() + 1e-2 * p.norm() + 1e-8) / lr
                    d = (d + 1e-2 * p) * trust.clamp(max=1)
                velocities[name] = 0.9 * velocities.get(name, 0) + d
                p -= lr * velocities[name]
            student.zero_grad()
            share = 1 - (1 - momentum) * (1 + math.cos(math.pi * step / steps)) / 2
            for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
                t.copy_(share * t + (1 - share) * s)

    mine = method.online.encoder.state_dict(), method.target.encoder.state_dict()
    for ours, network in zip(mine, (student, teacher), strict=True):
        for key, value in network[0].state_dict().items():
            torch.testing.assert_close(ours[key], value, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(method.center, centre, rtol=1e-3, atol=1e-4)


def _dino_head(method, hidden, out, prototypes):
    """The head in plain PyTorch, with the method's weights."""
    width = method.online.encoder.out_features
    linears = [torch.nn.Linear(*shape) for shape in ((width, hidden), (hidden, hidden), (hidden, out))]
    last = weight_norm(torch.nn.Linear(out, prototypes, bias=False))
    own = list(method.online.projector.parameters())
    with torch.no_grad():
        for p, value in zip([p for x in linears for p in x.parameters()], own[:-1], strict=True):
            p.copy_(value)
        last.parametrizations.weight.original0.fill_(1)
        last.parametrizations.weight.original1.copy_(own[-1])
    first, second, third = linears
    return torch.nn.Sequential(first, torch.nn.GELU(), second, torch.nn.GELU(), third, _Unit(), last)


class _Unit(torch.nn.Module):
    def forward(self, x):
        return x / x.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("name", methods.names())
def test_compiles_without_a_graph_break(name):
    torch._dynamo.reset()  # variants of other tests count towards the compiler's limit
    method = build(name, **{"queue": 16} if "queue" in methods.options(name) else {})
    compiled = torch.compile(method, fullgraph=True, backend="aot_eager")
    method.eval()
    trained = {key: p for key, p in method.named_parameters() if p.requires_grad}
    ours, expected = ({}, {})
    for values, call in ((ours, compiled), (expected, method)):
        values["loss"] = call(views()).loss
        gradients = torch.autograd.grad(values["loss"], list(trained.values()), allow_unused=True)
        values |= dict(zip(trained, gradients, strict=True))
    scale = max(g.abs().max() for g in expected.values() if g is not None)
    for key, exact in expected.items():
        if exact is None:
            assert ours[key] is None, key
        else:
            assert (ours[key] - exact).abs().max() <= 1e-4 * scale, key


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: methods.create("boyl", None, None), "'byol'"),
        (lambda: build("byol", momentun=0.9), "'momentum'"),
        (lambda: methods.options("simclear"), "'simclr'"),
        (lambda: methods.recommended("simclear"), "'simclr'"),
        (lambda: build("byol", momentum=2.0), "byol.momentum is 2.0; it must be at least 0 and at most 1"),
        (lambda: methods.converted("swav", {"queue": "many"}), "swav.queue is 'many'"),
        (lambda: methods.register("byol")(Queue), "choose another name"),
        (lambda: build("byol")(views()[:1]), "takes 2"),
    ],
)
def test_bad_input_raises_one_line_errors(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "\n" not in str(error.value)
