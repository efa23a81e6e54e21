"""The captured step against the eager one. Needs a GPU; the joint batch it rests on is tested anywhere."""

import copy
import dataclasses
import types

import pytest
import torch

from simplicia import bottlenecks, devices, encoders, methods
from simplicia.data.datasets import ImageSet
from simplicia.data.image_ops import normalise
from simplicia.engine import captured
from simplicia.engine.captured import CapturedStep, _CopiedConv2d
from simplicia.layers import normalise_by_view
from simplicia.methods.base import Network
from simplicia.settings import with_changes
from simplicia.train import recipes, step
from simplicia.train.auto import resolve
from simplicia.train.trainer import Trainer

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
EXTRA = {
    "moco": {"queue": 512},
    "swav": {"queue": 512, "queue_start": 1, "frozen_epochs": 0, "prototypes": 512},
}


@pytest.fixture(autouse=True)
def compiled_anew():
    """What is compiled for one test counts towards the compiler's limit of variants in the next."""
    torch._dynamo.reset()


@pytest.fixture
def projectors_in_halves(monkeypatch):
    """As at the paper's size, of weights that are small here."""
    monkeypatch.setattr(captured, "LARGE", 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"encoder": "mobilenetv3_small_050"}, "the encoder's BatchNormAct2d cannot tell the two views"),
        ({"method": "simclr", "sem.second_temperature": 0.0}, "sem.second_temperature is 0"),
        ({"sem.second_temperature": 0.0}, None),  # the target's own, for both views
    ],
)
def test_what_cannot_be_one_batch_is_not_captured(changes, words, monkeypatch):
    """Without a GPU: as if there were one."""
    monkeypatch.setattr(step.importlib.util, "find_spec", lambda name: True)
    recipe = with_changes(recipes.get("shapes-byol-sem"), {"precision": "bf16", **changes})
    gpu = types.SimpleNamespace(device=torch.device("cuda"), world_size=1)
    told = step._obstacle(recipe, recipe.build(), gpu)
    assert told is None if words is None else words in told


@pytest.mark.parametrize("name", methods.names())
def test_views_in_one_batch_are_views_one_by_one(name):
    torch.manual_seed(0)
    encoder = encoders.create("tiny")
    sem = bottlenecks.create("sem", encoder.out_features, simplices=16, vertices=5, temperature=0.5)
    queue = {"queue": 64} if name in ("moco", "swav") else {}
    apart = methods.create(name, encoder, sem, second_temperature=0.7, hidden=64, **queue)
    joint = copy.deepcopy(apart)
    normalise_by_view(joint)
    joint.joint = True
    views = [torch.randn(16, 3, 32, 32) for _ in range(2)]
    one, two = apart(views), joint(views)
    torch.testing.assert_close(one.loss, two.loss)
    for a, b in zip([*one.features, *one.embeddings], [*two.features, *two.embeddings], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    one.loss.backward()
    two.loss.backward()
    scale = max(p.grad.abs().max() for p in apart.parameters() if p.grad is not None)
    for (key, p), q in zip(apart.named_parameters(), joint.parameters(), strict=True):
        if p.grad is not None:
            assert (p.grad - q.grad).abs().max() < 1e-4 * scale, key
    for (key, a), b in zip(apart.state_dict().items(), joint.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", methods.names())
def test_a_step_in_its_parts_is_the_whole(name):
    """The captured step calls encoders and the rest apart; compiled so, it is the same."""
    torch.manual_seed(0)
    encoder = encoders.create("tiny")
    sem = bottlenecks.create("sem", encoder.out_features, simplices=16, vertices=5, temperature=0.5)
    queue = {"queue": 64} if name in ("moco", "swav") else {}
    whole = methods.create(name, encoder, sem, second_temperature=0.7, hidden=64, **queue)
    whole.joint = True
    normalise_by_view(whole)
    parts = copy.deepcopy(whole)
    views = [torch.randn(8, 3, 32, 32) for _ in range(2)]
    expected = whole(views)
    expected.loss.backward()

    step = CapturedStep.__new__(CapturedStep)  # its setup needs a GPU
    step.method, step.target = parts, getattr(parts, "target", None)
    encoded = parts.online.encoder(torch.cat(views))
    with torch.no_grad():
        followed = None if step.target is None else step.target.encoder(torch.cat(views))
    features = encoded.detach().requires_grad_()
    output = torch.compile(step._rest, backend="aot_eager", fullgraph=True)(features, followed)
    output.loss.backward()
    encoded.backward(features.grad)
    torch.testing.assert_close(output.loss, expected.loss)
    assert parts.online.encoded is None
    for (key, p), q in zip(whole.named_parameters(), parts.named_parameters(), strict=True):
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q[1].grad, msg=lambda text, key=key: f"{key}: {text}")


def test_a_stem_as_a_product_of_patches_is_the_convolution():
    for padding in (1, 2):
        plain = torch.nn.Conv2d(3, 16, 3, 1, padding, bias=False).to(memory_format=torch.channels_last)
        layer = copy.deepcopy(plain)
        layer.__class__, layer.copy = _CopiedConv2d, layer.weight
        x = torch.randn(2, 3, 8, 10)
        for a, b in zip(
            *(torch.autograd.grad(m(x).square().sum(), m.weight) for m in (plain, layer)), strict=True
        ):
            torch.testing.assert_close(a, b)
        torch.testing.assert_close(plain(x), layer(x))
        torch.testing.assert_close(plain(x), layer(layer.patches(x)))  # patches made once for two encoders


def training(name, engine, fixed_views=True, precision="bf16", **changes):
    settings = {"epochs": 4, "batch_size": 64, "encoder": "tiny", **changes}
    recipe = with_changes(recipes.get(name), settings)
    fabric = devices.launch("cuda", 1, precision)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (640, 3, 32, 32), dtype=torch.uint8, generator=generator)
    data = ImageSet("random", images, torch.zeros(640, dtype=torch.long), classes=("none",))
    recipe, _ = resolve(recipe, data, fabric.device)
    torch.manual_seed(0)
    made = Trainer(recipe, data, fabric, engine)
    if fixed_views:  # the same augmented batches for both engines

        def views(batch):
            plain = normalise(batch.float() / 255, (0.5,) * 3, (0.25,) * 3)
            return [plain, plain.flip(-1) * 0.9]

        made.step.views = views
    return made


def three_ways(name, **changes):
    """Eager in 32 bits, eager in 16, captured: what 16 bits do to the plain step says what they may do."""
    options = {"options": EXTRA.get(name.split("-")[1], {}), "sem.simplices": 200, **changes}
    ways = ("eager", "32"), ("eager", "bf16"), ("captured", "bf16")
    return [training(name, engine, precision=precision, **options) for engine, precision in ways]


@gpu
@pytest.mark.parametrize("bottleneck", ["", "-sem"])
@pytest.mark.parametrize("name", methods.names())
def test_captured_losses_are_the_eager_ones(name, bottleneck):
    # a low rate: where steps are wild, rounding grows into another path
    changes = {"optim.warmup_epochs": 1, "optim.lr": 0.02 * recipes.get(f"cifar100-{name}").optim.lr}
    if name == "swav":  # both of its phases: prototypes are released and the queue takes part at the tenth
        changes["options"] = EXTRA["swav"] | {"frozen_epochs": 1}
    ways = three_ways(f"cifar100-{name}{bottleneck}", **changes)
    losses = [[t.step(i).loss.item() for i in range(20)] for t in ways]
    rounding = 0.0
    for i, (exact, eager, fast) in enumerate(zip(*losses, strict=True)):
        rounding = max(rounding, abs(exact - eager))
        assert abs(eager - fast) < 0.03 * abs(eager) + 0.01 + 2 * rounding, (i, losses)
    assert losses[0][0] != losses[0][-1] and rounding < 0.1 * abs(losses[0][-1])


@gpu
@pytest.mark.usefixtures("projectors_in_halves")
@pytest.mark.parametrize("name", methods.names())
def test_captured_updates_are_the_eager_ones(name):
    """Every weight, target, momentum and running statistic, by how far it moved in five steps."""
    moved = []
    for made in three_ways(f"cifar100-{name}-sem", **{"optim.warmup_epochs": 0, "optim.lr": 0.02}):
        before = {k: v.detach().double().cpu() for k, v in made.step.tensors().items()}
        for i in range(5):
            made.step(i)
        moved.append({k: v.detach().double().cpu() - before[k] for k, v in made.step.tensors().items()})
    for key, exact in moved[0].items():
        if "queue" not in key:
            eager, fast = ((by[key] - exact).norm() for by in moved[1:])
            assert fast <= 1.5 * eager + 0.02 * exact.norm() + 1e-4 * exact.numel() ** 0.5, key


@gpu
def test_simplices_at_the_papers_size_are_those_of_float64():
    from simplicia.engine.norm import fuse

    torch.manual_seed(0)
    sem = bottlenecks.create("sem", 65_000, simplices=5000, vertices=13, embedder="identity").cuda()
    torch.nn.init.normal_(sem.norm.weight, 1, 0.2)
    exact = copy.deepcopy(sem).double()
    network = Network(torch.nn.Identity(), sem, torch.nn.Identity())
    fuse(network)
    x = torch.randn(512, 65_000, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    z = x.detach().double().requires_grad_()
    grad = torch.randn_like(x)
    ours = network(x).projection
    theirs = torch.cat([exact(view) for view in z.chunk(2)]) - 1 / 13
    ours.backward(grad)
    theirs.backward(grad.double())
    pairs = [(ours, theirs), (x.grad, z.grad), (sem.norm.weight.grad, exact.norm.weight.grad)]
    pairs += [(sem.norm.bias.grad, exact.norm.bias.grad), (sem.norm.running_var, exact.norm.running_var)]
    for a, b in pairs:
        assert (a.double() - b).norm() <= 5e-3 * b.norm()


@gpu
def test_a_step_draws_the_same_views_as_the_first_and_as_a_replay():
    def features(steps):
        made = training("cifar100-simclr", "captured", fixed_views=False)
        made.recipe.optim.lr = made.recipe.optim.warmup_lr = 0.0
        return [made.step(i).features[0].clone() for i in steps][-1]

    torch.testing.assert_close(features([3]), features([1, 2, 3]), rtol=0.02, atol=0.02)


@gpu
def test_randomness_differs_between_replays_and_views_and_is_that_of_the_step():
    def features(step_numbers):
        made = training("cifar100-simclr", "captured", fixed_views=False)
        made.recipe.optim.lr = made.recipe.optim.warmup_lr = 0.0  # weights stay: only the views differ
        return [tuple(f.clone() for f in made.step(i).features) for i in step_numbers]

    (a1, a2), (b1, _) = features([3, 13])  # the same place of the order, another step
    (again, _), *_ = features([3])
    assert not torch.equal(a1, a2) and not torch.equal(a1, b1)
    torch.testing.assert_close(a1, again, rtol=0.02, atol=0.02)


@gpu
def test_images_in_the_hosts_memory_train_as_those_on_the_gpu():
    ways = (
        training("cifar100-byol-sem", "captured", **{"sem.simplices": 200, "images_on": where})
        for where in ("device", "host")
    )
    resident, streamed = ([made.step(i).loss.item() for i in range(25)] for made in ways)
    assert streamed == pytest.approx(resident, rel=0.02) and resident[0] != resident[-1]


@gpu
@pytest.mark.usefixtures("projectors_in_halves")
def test_a_captured_run_resumes_where_it_was(tmp_path):
    straight, first, second = (
        training("cifar100-byol-sem", "captured", **{"sem.simplices": 200}) for _ in range(3)
    )
    losses = [straight.step(i).loss.item() for i in range(12)]
    for i in range(6):
        first.step(i)
    saved = {k: v.detach().cpu().clone() for k, v in first.step.tensors().items()}
    own = {k.removeprefix("method."): v for k, v in saved.items() if k.startswith("method.")}
    second.method.load_state_dict(own)
    second.step.load(saved)
    resumed = [second.step(i).loss.item() for i in range(6, 12)]
    assert resumed == pytest.approx(losses[6:], rel=0.02)


@gpu
def test_online_probes_learn_inside_the_graph():
    accuracies = []
    for engine in ("eager", "captured"):
        made = training("cifar100-byol-sem", engine, **{"sem.simplices": 200, "online_every": 1})
        made.images = dataclasses.replace(made.images, labels=torch.arange(640) % 2, classes=("a", "b"))
        made.add_online_probe(lambda images=made.images: images)
        before = made.step.probe.tensors()["online.encoder.weight"].clone()
        for i in range(20):
            made.step(i)
        after = made.step.probe.tensors()["online.encoder.weight"]
        assert not torch.equal(before, after)
        accuracies.append(after)
    torch.testing.assert_close(*accuracies, rtol=0.1, atol=0.02)


@gpu
@pytest.mark.parametrize("bottleneck", ["embed", "gumbel", "vq"])
def test_every_bottleneck_can_be_captured(bottleneck):
    sizes = {"sem.simplices": 50, "bottleneck": bottleneck, "vq.dimensions": 4}
    made = training("cifar100-byol", "captured", **sizes)
    losses = [made.step(i).loss.item() for i in range(8)]
    assert torch.tensor(losses).isfinite().all() and len(set(losses)) == 8


@gpu
@pytest.mark.usefixtures("projectors_in_halves")
def test_sixteen_bit_momentum_trains_as_well():
    wide, narrow = (
        training("cifar100-byol-sem", "captured", **{"sem.simplices": 200, "optim.momentum_bits": bits})
        for bits in ("32", "16")
    )
    a, b = ([t.step(i).loss.item() for i in range(40)] for t in (wide, narrow))
    assert b[-1] == pytest.approx(a[-1], rel=0.05)
