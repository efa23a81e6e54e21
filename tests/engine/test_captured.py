"""The captured step against the eager one: on a GPU, and on a CPU with graphs replaced by plain calls."""

import numpy as np
import pytest
import torch
from PIL import Image

from simplicia import bottlenecks, devices, methods
from simplicia.data import datasets
from simplicia.data.augmentation import Views, normalise
from simplicia.data.datasets import ImageSet
from simplicia.data.loaders import DeviceLoader, HostLoader
from simplicia.data.streaming import StreamLoader
from simplicia.encoders import create as create_encoder
from simplicia.encoders import wrap
from simplicia.engine import copies, obstacle
from simplicia.engine.step_graph import StepGraph
from simplicia.layers import mlp
from simplicia.methods.byol import BYOL
from simplicia.methods.simclr import SimCLR
from simplicia.settings import with_changes
from simplicia.train import recipes, step
from simplicia.train.auto import resolve
from simplicia.train.monitor import OnlineProbe
from simplicia.train.trainer import Trainer

everywhere = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
QUICK = {"optim.warmup_epochs": 0, "optim.lr": 0.02}
STATISTICS = (0.5,) * 3, (0.25,) * 3
EXTRA = {
    "cpu": {
        "moco": {"queue": 64},
        "swav": {"queue": 64, "queue_start": 1, "frozen_epochs": 1, "prototypes": 32},
        "dino": {"prototypes": 32},
    },
    "cuda": {
        "moco": {"queue": 512},
        "swav": {"queue": 512, "queue_start": 1, "frozen_epochs": 0, "prototypes": 512},
    },
}


@pytest.fixture(autouse=True)
def reset_compiler():
    """Graphs compiled in one test would count towards the compiler's limit in the next."""
    torch._dynamo.reset()


@pytest.fixture
def split_projectors(monkeypatch):
    """Store the small projectors of these tests in halves, as at the paper's size."""
    monkeypatch.setattr(copies, "LARGE", 1)


def fixed_views(images, aspect_ratios):
    """The same augmented batches for all engines."""
    plain = normalise(images.float() / 255, *STATISTICS)
    return [plain, plain.flip(-1) * 0.9]


def build(name, engine, precision="bf16", device="cuda", views=fixed_views, loader=DeviceLoader, **changes):
    """A step on random images, small on a CPU; the captured one also where ``create`` refuses it."""
    size, batch = (32, 64) if device == "cuda" else (16, 16)
    size = changes.get("image_size", size)
    options = dict(EXTRA[device].get(name.split("-")[1], {}))
    if device == "cpu":
        options |= {"hidden": 32, "out": 32}
    settings = {"epochs": 4, "batch_size": batch, "encoder": "tiny", "options": options}
    settings |= {"sem.simplices": 200 if device == "cuda" else 16, "precision": precision, **changes}
    recipe = with_changes(recipes.get(name), settings)
    fabric = devices.launch(device, 1, precision)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (10 * batch, 3, size, size), dtype=torch.uint8, generator=generator)
    data = ImageSet("random", images, torch.arange(10 * batch) % 2, classes=("a", "b"))
    recipe, _ = resolve(recipe, data, fabric.device)
    torch.manual_seed(0)
    method = recipe.build().to(fabric.device).to(memory_format=torch.channels_last)
    probe = None
    if recipe.online_every:
        probe = OnlineProbe(method, data, data, STATISTICS, fabric.device, size, size)
    kind = {"eager": step.Step, "captured": step.CapturedStep}[engine]
    parts = recipe.accumulation_steps()
    images_at = loader(images, batch, recipe.seed, fabric.device, micro_batches=parts)
    return kind(recipe, method, images_at, views, fabric, probe)


def three_ways(name, **changes):
    """Eager in 32 bits, eager in bf16, captured: the second shows how much 16 bits may change."""
    ways = ("eager", "32"), ("eager", "bf16"), ("captured", "bf16")
    return [build(name, engine, precision, **changes) for engine, precision in ways]


def compare_updates(steps, count, slack=0.02, floor=1e-4):
    """Compare how far every weight, target, momentum and running statistic moves; returns the losses."""
    losses, moved = [], []
    for take in steps:
        before = {k: v.detach().double().cpu().clone() for k, v in take.tensors().items()}
        losses.append([take(i).loss.item() for i in range(count)])
        moved.append({k: v.detach().double().cpu() - before[k] for k, v in take.tensors().items()})
    assert moved[0].keys() == moved[1].keys() == moved[2].keys()
    for key, exact in moved[0].items():
        if "queue" not in key:
            eager, fast = ((other[key] - exact).norm() for other in moved[1:])
            assert fast <= 1.5 * eager + slack * exact.norm() + floor * exact.numel() ** 0.5, key
    return losses


class OwnAverage(BYOL):
    def after_step(self):
        pass


class OwnHead(SimCLR):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.head = torch.nn.ModuleList([mlp(4, 4, 4)])


@pytest.mark.parametrize(
    ("method", "temperature", "message"),
    [
        (BYOL, None, None),
        (BYOL, 0.0, None),  # the target's, for both views
        (SimCLR, 0.0, "sem.second_temperature is 0"),
        (OwnAverage, None, "OwnAverage overrides after_step"),
        (OwnHead, None, "OwnHead.head is neither a Network nor an nn.Sequential"),
    ],
)
def test_obstacles_to_capture(method, temperature, message):
    encoder = create_encoder("tiny")
    sem = bottlenecks.create("sem", encoder.out_features, simplices=4, vertices=3)
    reason = obstacle(method(encoder, sem, temperature), torch.device("cuda"))
    assert reason is None if message is None else message in reason
    assert "the device is cpu" in obstacle(method(encoder, sem, temperature), torch.device("cpu"))


class ReadsTheHost(torch.nn.Module):
    def forward(self, x):
        features = x.mean((2, 3))
        return 2 * features if features.max() > 0 else features


class Cumulative(torch.nn.Module):
    """A BatchNorm whose momentum is 1 over the number of batches, which PyTorch reads on the host."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(3, momentum=None)

    def forward(self, x):
        return self.norm(x).mean((2, 3))


class Unused(Cumulative):
    def forward(self, x):
        return x.mean((2, 3)) + self.norm.bias


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (ReadsTheHost(), "the encoder reads numbers on the host"),
        (Cumulative(), "the encoder reads numbers on the host"),
        (Unused(), "the encoder does not use its weight 'model.norm.weight'"),
    ],
)
def test_encoders_that_wait_for_their_numbers_or_leave_weights_unused_are_not_captured(encoder, message):
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    method = SimCLR(wrap(encoder, 16), bottlenecks.create("none", 3))
    reason = obstacle(method, torch.device("cuda"), 16)
    assert message in reason and "\n" not in reason
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


# other norms, which include an activation; LayerNorm; and no norm over the batch
OTHERS = ["mobilenetv3_small_050", "convnext_atto", "vit_tiny_patch16_224"]


@pytest.mark.usefixtures("split_projectors")
@pytest.mark.parametrize("encoder", OTHERS)
def test_encoders_of_timm_are_captured_like_eager_ones_on_a_cpu(encoder):
    """Their norms take one view after the other where they cannot separate them."""
    changes = QUICK | {"optim.lr": 0.002, "device": "cpu", "encoder": encoder, "image_size": 32}
    ways = three_ways("cifar100-simclr-sem", **changes)
    assert obstacle(ways[0].method, torch.device("cuda"), 32) is None
    exact, _, fast = compare_updates(ways, 2, slack=0.05, floor=1e-3)
    assert fast == pytest.approx(exact, rel=0.05) and exact[0] != exact[-1]


@pytest.mark.gpu
@pytest.mark.parametrize("encoder", [*OTHERS, "efficientnet_b0", "regnety_002"])
def test_encoders_of_timm_are_captured_like_eager_ones(encoder):
    changes = QUICK | {"optim.lr": 0.002, "encoder": encoder, "image_size": 64}
    compare_updates(three_ways("cifar100-byol-sem", **changes), 3, slack=0.05, floor=1e-3)


@pytest.mark.usefixtures("split_projectors")
@pytest.mark.parametrize("bottleneck", ["", "-sem"])
@pytest.mark.parametrize("name", methods.names())
def test_captured_updates_match_eager_ones_on_a_cpu(name, bottleneck):
    changes = QUICK | {"optim.lr": 0.002, "device": "cpu"}
    ways = three_ways(f"cifar100-{name}{bottleneck}", **changes)
    exact, _, fast = compare_updates(ways, 3, slack=0.05, floor=1e-3)
    assert fast == pytest.approx(exact, rel=0.05) and exact[0] != exact[-1]


@pytest.mark.usefixtures("split_projectors")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", ["moco-sem", "simclr-sem"])  # with and without a target
def test_captured_micro_batches_match_eager_ones(name, device):
    """Gradients, queues and running statistics; with images that stream as with those on the device."""
    name, at_a_time = f"cifar100-{name}", 8 if device == "cpu" else 16
    changes = QUICK | {"optim.lr": 0.002, "device": device, "process_batch_size": at_a_time}
    changes |= {"sem.temperature": 1.0, "sem.second_temperature": 1.0}
    ways = three_ways(name, **changes)
    exact, _, fast = compare_updates(ways, 3, slack=0.05, floor=1e-3)
    assert fast == pytest.approx(exact, rel=0.05) and ways[2].graph.micro_batches > 1
    loaders = HostLoader, DeviceLoader
    streamed, resident = (build(name, "captured", loader=loader, **changes) for loader in loaders)
    losses = [[take(i).loss.item() for i in range(2)] for take in (streamed, resident)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.gpu
@pytest.mark.usefixtures("split_projectors")
@pytest.mark.parametrize("name", methods.names())
def test_captured_updates_match_eager_ones(name):
    # at MoCo's temperatures, 0.04 and 0.01, rounding to 16 bits alone moves some updates by half their size
    soft = {"sem.temperature": 1.0, "sem.second_temperature": 1.0} if name == "moco" else {}
    compare_updates(three_ways(f"cifar100-{name}-sem", **QUICK, **soft), 5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*methods.names(), "byol-sem", "simclr-sem"])  # with and without a target
def test_captured_losses_match_eager_ones(name):
    # a low rate: with wild steps, rounding grows into another path
    rate = recipes.get(f"cifar100-{name.removesuffix('-sem')}").optim.lr
    changes = {"optim.warmup_epochs": 1, "optim.lr": 0.02 * rate}
    if name == "swav":  # at step 10 prototypes are released and the queue is used
        changes["options"] = EXTRA["cuda"]["swav"] | {"frozen_epochs": 1}
    ways = three_ways(f"cifar100-{name}", **changes)
    losses = [[take(i).loss.item() for i in range(20)] for take in ways]
    rounding = 0.0
    for i, (exact, eager, fast) in enumerate(zip(*losses, strict=True)):
        rounding = max(rounding, abs(exact - eager))
        assert abs(eager - fast) < 0.03 * abs(eager) + 0.01 + 2 * rounding, (i, losses)
    assert losses[0][0] != losses[0][-1] and rounding < 0.1 * abs(losses[0][-1])


@pytest.mark.kernels
@pytest.mark.skipif(
    torch.cuda.is_available(), reason="test_captured_updates_match_eager_ones runs the kernels"
)
def test_captured_updates_with_interpreted_kernels_match_eager_ones(monkeypatch):
    """Triton interprets the kernels of BatchNorm, simplices and update."""
    monkeypatch.setattr(copies, "LARGE", 1024)
    compare_updates(three_ways("cifar100-byol-sem", device="cpu", **QUICK), 1, slack=0.05, floor=1e-3)


@everywhere
@pytest.mark.parametrize("bottleneck", ["embed", "gumbel", "vq", "vq-shared"])
def test_every_bottleneck_can_be_captured(bottleneck, device):
    sizes = {"sem.simplices": 50, "bottleneck": bottleneck, "vq.dimensions": 4}
    take = build("cifar100-byol", "captured", device=device, **sizes)
    losses = [take(i).loss.item() for i in range(4)]
    assert torch.tensor(losses).isfinite().all() and len(set(losses)) == 4


@pytest.mark.parametrize("name", methods.names())
def test_the_heads_compile_to_one_graph(name):
    plain, compiled = (build(f"cifar100-{name}-sem", "captured", device="cpu").graph for _ in range(2))
    features = torch.randn(8, 128)
    outputs = []
    for graph, apply in (
        (plain, plain.apply_heads),
        (compiled, torch.compile(compiled.apply_heads, backend="aot_eager", fullgraph=True)),
    ):
        inputs = features.clone().requires_grad_()
        output = apply(inputs, features + 0.1)
        output.loss.backward()
        outputs.append((output.loss, inputs.grad))
        assert graph.online.encoded is None
    for a, b in zip(*outputs, strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=1e-3)


def test_a_changed_attribute_of_the_method_is_captured_again(monkeypatch):
    take = build("cifar100-swav", "captured", device="cpu")  # the queue is used from epoch 1
    recorded, record = [], StepGraph.record
    monkeypatch.setattr(StepGraph, "record", lambda graph: recorded.append(number) or record(graph))
    for number in (0, 1, 9, 10, 11):
        take(number)
    assert recorded == [0, 10]


def augmented_features(device, steps):
    """Features of both augmented views of each step, with weights that stay as they are."""
    views = Views(recipes.get("cifar100-simclr").views, 32 if device == "cuda" else 16, *STATISTICS)
    rates = {"optim.lr": 0.0, "optim.warmup_lr": 0.0}
    take = build("cifar100-simclr", "captured", device=device, views=views, **rates)
    return [tuple(f.clone() for f in take(i).features) for i in steps]


@everywhere
def test_views_are_a_function_of_the_step(device):
    (a1, a2), (b1, _) = augmented_features(device, [3, 13])  # recorded at step 3
    *_, replayed = augmented_features(device, [1, 2, 3])
    torch.testing.assert_close((a1, a2), replayed, rtol=0.02, atol=0.02)
    assert not torch.equal(a1, a2) and not torch.equal(a1, b1)


@everywhere
def test_images_in_host_memory_train_like_those_on_the_device(device):
    ways = (
        build("cifar100-byol-sem", "captured", device=device, loader=loader, **QUICK)
        for loader in (DeviceLoader, HostLoader)
    )
    count = 25 if device == "cuda" else 4
    resident, streamed = ([take(i).loss.item() for i in range(count)] for take in ways)
    assert streamed == pytest.approx(resident, rel=0.02) and resident[0] != resident[-1]


@everywhere
def test_streamed_micro_batches_are_captured(device, tmp_path, monkeypatch):
    monkeypatch.setenv("SIMPLICIA_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "photos"
    folder.mkdir()
    rng, side = np.random.default_rng(0), 32 if device == "cuda" else 16
    for i in range(128):
        Image.fromarray(rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(folder / f"{i:03d}.png")
    images = datasets.load(folder, size=32, stream=True, keep_aspect=True, threads=2).images
    settings = recipes.get("cifar100-byol-sem").views

    def loader(_, *how, **more):
        return StreamLoader(images, *how, views=settings, size=side, **more)

    views = Views(settings, side, *STATISTICS)
    changes = QUICK | {"device": device, "views": views, "loader": loader, "process_batch_size": 8}
    eager, fast = (build("cifar100-byol-sem", engine, **changes) for engine in ("eager", "captured"))
    losses = [[take(i).loss.item() for i in range(3)] for take in (eager, fast)]
    assert losses[1] == pytest.approx(losses[0], rel=0.05) and fast.graph.micro_batches > 1
    for take in (eager, fast):
        take.data.close()


@everywhere
@pytest.mark.usefixtures("split_projectors")
def test_a_captured_run_resumes(device):
    straight, resumed = (build("cifar100-byol-sem", "captured", device=device, **QUICK) for _ in range(2))
    for i in range(4):
        straight(i)
    saved = {k: v.detach().cpu().clone() for k, v in straight.tensors().items()}
    weights = {k.removeprefix("method."): v for k, v in saved.items() if k.startswith("method.")}
    resumed.method.load_state_dict(weights)
    resumed.load(saved)
    expected, losses = ([take(i).loss.item() for i in range(4, 8)] for take in (straight, resumed))
    assert losses == pytest.approx(expected, rel=0.02 if device == "cuda" else 1e-6)
    assert resumed.finite()


@everywhere
def test_online_probes_learn_within_a_captured_step(device):
    weights = []
    for engine in ("eager", "captured"):
        take = build("cifar100-byol-sem", engine, device=device, online_every=1)
        before = take.probe.tensors()["online.encoder.weight"].clone()
        for i in range(20 if device == "cuda" else 5):
            take(i)
        weights.append(take.probe.tensors()["online.encoder.weight"])
        assert not torch.equal(before, weights[-1])
    torch.testing.assert_close(*weights, rtol=0.1, atol=0.02)


@everywhere
@pytest.mark.usefixtures("split_projectors")
def test_sixteen_bit_momentum_trains_as_well(device):
    wide, narrow = (
        build("cifar100-byol-sem", "captured", device=device, **{"optim.momentum_bits": bits})
        for bits in ("32", "16")
    )
    count = 40 if device == "cuda" else 5
    a, b = ([take(i).loss.item() for i in range(count)] for take in (wide, narrow))
    assert b[-1] == pytest.approx(a[-1], rel=0.05)


@pytest.mark.gpu
def test_auto_captures_on_a_gpu():
    eager = build("cifar100-byol-sem", "eager")
    method = eager.recipe.build().cuda()
    made = step.create_step("auto", eager.recipe, method, eager.data, fixed_views, eager.fabric)
    assert type(made) is step.CapturedStep


def test_a_training_says_why_its_steps_are_not_captured():
    take = build("cifar100-byol", "eager", device="cpu")
    images = ImageSet("random", take.data.images, None, ())
    trainer = Trainer(take.recipe, images, take.fabric, "auto")
    assert trainer.step.obstacle is None  # nothing to say on a CPU
    trainer.step.obstacle = "gradients are clipped"
    assert "steps are eager, not captured as a graph: gradients are clipped" in trainer.describe([])


@pytest.mark.gpu
def test_auto_compiles_what_cannot_be_captured_and_says_why():
    eager = build("cifar100-byol-sem", "eager", **{"optim.clip": 1.0})
    method = eager.recipe.build().cuda()
    made = step.create_step("auto", eager.recipe, method, eager.data, fixed_views, eager.fabric)
    assert type(made) is step.CompiledStep and made.obstacle == "gradients are clipped"
