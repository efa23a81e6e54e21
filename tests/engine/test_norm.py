"""The BatchNorm kernels against BatchNorm in float64; test_kernels.py has them interpreted without a GPU."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.backends.registry import lookup_backend

from simplicia import SimplicialEmbedding, bottlenecks, encoders, methods, simplicial
from simplicia.engine import runner
from simplicia.layers import activate, mlp
from simplicia.methods.base import Network

pytest.importorskip("triton")
from simplicia.engine.joint import JointNetwork, join_views
from simplicia.engine.norm import FusedSimplicialEmbedding, fuse_norms

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
kernels = pytest.mark.kernels
gpu = pytest.mark.gpu
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2}  # of the largest value; bf16 has 8 bits


def close(ours, exact, dtype=torch.float32, logits=1.0):
    """Within the rounding of a type, or of float32 logits that are so many times a normalised value."""
    ours, exact = ours.detach().double().cpu(), exact.detach().cpu()
    assert ours.shape == exact.shape
    tolerance = max(TOLERANCE[dtype], logits * TOLERANCE[torch.float32])
    assert (ours - exact).abs().max() <= tolerance * exact.abs().max().clamp_min(1e-3)


def fused(norm):
    module = nn.Sequential(norm).to(DEVICE)
    fuse_norms(module)
    return module[0]


def batch_norm(channels, dims):
    torch.manual_seed(1)
    norm = {2: nn.BatchNorm1d, 4: nn.BatchNorm2d}[dims](channels)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


def twins(*shape, dtype):
    """A random tensor where the kernels run, channels last, and its float64 double."""
    x = (2 * torch.randn(shape) + 1).to(DEVICE, dtype)
    if len(shape) == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    return x.requires_grad_(), x.detach().double().cpu().requires_grad_()


def by_view(norm, x):
    """The reference: the views through the layer one after the other."""
    return torch.cat([norm(part) for part in x.chunk(2)])


def equal_gradients_and_statistics(norm, exact, dtype, logits=1.0):
    close(norm.weight.grad, exact.weight.grad, dtype, logits)
    close(norm.bias.grad, exact.bias.grad, dtype, logits)
    close(norm.running_mean, exact.running_mean)
    close(norm.running_var, exact.running_var)
    assert norm.num_batches_tracked == exact.num_batches_tracked == 2


# every shape, and every kind in both precisions: what the kernels specialise on is independent
LAYERS = [
    ((4, 64, 9, 9), "residual", torch.float32),
    ((4, 64, 9, 9), "plain", torch.bfloat16),
    ((6, 100, 5, 3), "relu", torch.bfloat16),
    ((2, 7, 40, 30), "residual", torch.bfloat16),
    ((2, 7, 40, 30), "plain", torch.float32),
    ((2, 33, 50, 50), "relu", torch.float32),  # 40 parts: settled in several steps
    ((8, 40), "relu", torch.float32),
    ((8, 40), "plain", torch.bfloat16),
    ((600, 33), "plain", torch.float32),
    ((600, 33), "relu", torch.bfloat16),
]


@kernels
@pytest.mark.parametrize("shape, kind, dtype", LAYERS)
def test_batch_norm_normalises_each_view(shape, kind, dtype):
    exact = batch_norm(shape[1], len(shape)).double()
    norm = fused(copy.deepcopy(exact).float())
    x, x64 = twins(*shape, dtype=dtype)
    residual, residual64 = twins(*shape, dtype=dtype) if kind == "residual" else (None, None)
    y64 = by_view(exact, x64)
    if kind == "plain":
        y = norm(x)
    else:
        y, y64 = activate(norm, x, residual), F.relu(y64 if residual is None else y64 + residual64)
    assert y.dtype == dtype and y.stride() == x.stride()
    close(y, y64, dtype)
    grad = torch.randn_like(y)
    if kind != "plain":  # where rounding decides on which side of 0 a value lies, both gradients are right
        grad[(y64.detach().abs() < 2e-2).to(DEVICE)] = 0
    y.backward(grad)
    y64.backward(grad.double().cpu())
    close(x.grad, x64.grad, dtype)
    equal_gradients_and_statistics(norm, exact, dtype)
    if residual is not None:
        close(residual.grad, residual64.grad, dtype)


# every size, and every kind of temperature in both precisions
SIMPLICES = [
    ((9, 13, 140), "rows", torch.float32),
    ((9, 13, 140), 0.1, torch.bfloat16),
    ((5, 8, 20), "scalar", torch.bfloat16),
    ((5, 8, 20), "rows", torch.bfloat16),
    ((3, 100, 10), 0.1, torch.float32),
    ((3, 100, 10), "scalar", torch.float32),
]


@kernels
@pytest.mark.parametrize("size, temperature, dtype", SIMPLICES)
def test_simplices_match_those_of_each_view(size, temperature, dtype):
    torch.manual_seed(0)
    simplices, vertices, rows = size
    features = simplices * vertices
    exact = batch_norm(features, 2).double()
    sem = SimplicialEmbedding(features, simplices, vertices, embedder="identity")
    sem.norm = fused(copy.deepcopy(exact).float())
    sem = FusedSimplicialEmbedding(sem)
    given = temperature
    if temperature == "scalar":
        temperature, given = 0.3, torch.tensor(0.3, device=DEVICE)
    elif temperature == "rows":
        temperature = torch.rand(rows, 1, 1).double() + 0.2
        given = temperature.float().to(DEVICE)
    x, x64 = twins(rows, features, dtype=dtype)
    centred = sem.centred(x, given)
    p64 = simplicial(by_view(exact, x64), vertices, temperature)
    assert centred.dtype == dtype
    # divided by a temperature below 1, logits grow and so does their rounding, which a softmax passes on
    logits = max(1.0, 1 / torch.as_tensor(temperature).min().item())
    close(centred, p64 - 1 / vertices, dtype, logits)
    grad = torch.randn_like(centred)
    centred.backward(grad)
    p64.backward(grad.double().cpu())
    close(x.grad, x64.grad, dtype, logits)
    equal_gradients_and_statistics(sem.norm, exact, dtype, logits)


@kernels
def test_gradients_are_exact_for_a_mean_far_from_zero():
    exact = batch_norm(16, 4).double()
    norm = fused(copy.deepcopy(exact).float())
    x, _ = twins(8, 16, 8, 8, dtype=torch.float32)
    with torch.no_grad():
        x += 30
    x64 = x.detach().double().cpu().requires_grad_()
    y, y64 = norm(x), by_view(exact, x64)
    grad = torch.randn_like(y)
    y.backward(grad)
    y64.backward(grad.double().cpu())
    for ours, right in ((y, y64), (x.grad, x64.grad), (norm.weight.grad, exact.weight.grad)):
        assert (ours.double().cpu() - right).abs().max() < 1e-3 * right.abs().max()


@kernels
def test_a_layer_repeats_bit_for_bit_and_leaves_its_counters_at_zero():
    x, _ = twins(4, 100, 12, 12, dtype=torch.float32)
    residual, _ = twins(4, 100, 12, 12, dtype=torch.float32)
    grad = torch.randn_like(x)
    norm = fused(batch_norm(100, 4))
    start = copy.deepcopy(norm.state_dict())
    assert "arrived" not in start
    results = []
    for _ in range(3):
        norm.load_state_dict(start)
        norm.zero_grad()
        inputs = [t.detach().clone().requires_grad_() for t in (x, residual)]
        y = activate(norm, *inputs)
        y.backward(grad)
        assert norm.arrived.shape == (2,) and not norm.arrived.any()  # one of 64 channels, one of 36
        gradients = [t.grad for t in (*inputs, norm.weight, norm.bias)]
        results.append([y.detach(), *gradients, norm.running_mean.clone(), norm.running_var.clone()])
    for again in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], again, strict=True))


@kernels
def test_interleaved_calls_of_layers_do_not_interfere():
    """Forward of all before backward of any, and one layer's twice: each count is over before the next."""
    exact = [batch_norm(channels, 4).double() for channels in (16, 100)]
    norms = [fused(copy.deepcopy(norm).float()) for norm in exact]
    assert norms[0].arrived.data_ptr() != norms[1].arrived.data_ptr()
    calls = []
    for which in (0, 1, 0):
        x, x64 = twins(4, exact[which].num_features, 9, 9, dtype=torch.float32)
        calls.append((x, x64, norms[which](x), by_view(exact[which], x64)))
    for x, x64, y, y64 in calls:
        grad = torch.randn_like(y)
        y.backward(grad)
        y64.backward(grad.double().cpu())
        close(y, y64)
        close(x.grad, x64.grad)
    for norm, right in zip(norms, exact, strict=True):
        close(norm.weight.grad, right.weight.grad)
        close(norm.bias.grad, right.bias.grad)
        close(norm.running_var, right.running_var)
        assert not norm.arrived.any()


@pytest.mark.skipif(runner.INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize("name", ["sums", "gradient_sums"])
def test_the_last_program_reads_after_all_others_have_stored(name):
    """In the code for an H200, which takes none: store, wait, count, wait, and only then read, past L1."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from simplicia.engine import norm_kernels, norm_operators

    kernel = getattr(norm_kernels, name)
    sizes = {
        "C": 128,
        "R": 64,
        "B": 64,
        "P": norm_operators.PARTS_AT_ONCE,
        "VIEWS": 2,
        "RELU": True,
        "RESIDUAL": False,
        "FORKED": False,
    }
    fixed = {key: sizes[key] for key in kernel.arg_names if key in sizes}
    kinds = dict.fromkeys(("x", "y", "grad", "aside", "dresidual"), "*bf16") | {
        "arrived": "*i32",
        "batches": "*i64",
    }
    kinds |= {"ROWS": "i32", "CHUNK": "i32", "eps": "fp32", "momentum": "fp32"}
    kinds |= dict.fromkeys(fixed, "constexpr")
    signature = {key: kinds.get(key, "*fp32") for key in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=fixed)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    events = re.findall(r"bar\.sync|atom\.\S+|st\.global|ld\.global\.cg", compiled.asm["ptx"])
    (count,) = (i for i, event in enumerate(events) if event.startswith("atom"))
    assert events[count] == "atom.global.gpu.acq_rel.add.u32"
    before, after = events[:count], events[count + 1 :]
    assert before.count("st.global") == 2 and before[-1] == "bar.sync" and "ld.global.cg" not in before
    assert after[:2] == ["bar.sync", "st.global"] and after.count("ld.global.cg") >= 8  # 0 to the counter


@kernels
def test_other_layouts_fall_back_to_pytorch():
    norm = batch_norm(6, 4)
    plain = copy.deepcopy(norm).to(DEVICE)
    norm = fused(norm)
    x = torch.randn(4, 6, 5, 5, device=DEVICE)
    torch.testing.assert_close(activate(norm, x, x), F.relu(by_view(plain, x) + x))
    torch.testing.assert_close(norm.eval()(x), plain.eval()(x))


@kernels
@pytest.mark.parametrize("compiled", [True, False])
def test_a_method_trains_as_with_plain_layers(monkeypatch, compiled):
    """Heads, residuals, shortcuts and simplices, compiled to one graph, or eager with forked outputs."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # its 10 bits would hide differences
    torch.manual_seed(0)
    encoder = encoders.create("tiny")
    sem = bottlenecks.create("sem", encoder.out_features, simplices=16, vertices=5, temperature=0.5)
    plain = methods.create("byol", encoder, sem, second_temperature=0.7, hidden=64).to(DEVICE)
    plain.to(memory_format=torch.channels_last)
    fast = copy.deepcopy(plain)
    join_views(fast)
    assert list(fast.state_dict()) == list(plain.state_dict())
    views = [torch.randn(4, 3, 16, 16, device=DEVICE).to(memory_format=torch.channels_last) for _ in "12"]
    used = set()

    def backend(graph, inputs):
        used.update(str(node.target) for node in graph.graph.nodes if "simplicia" in str(node.target))
        return lookup_backend("aot_eager")(graph, inputs)

    forked = []
    for block in fast.online.encoder.blocks():
        block.register_forward_hook(lambda block, x, y: forked.append(isinstance(y, tuple)))
    if compiled:
        one, two = plain(views), torch.compile(fast, fullgraph=True, backend=backend)(views)
        assert {name.split(".")[1] for name in used} == {"view_statistics", "normalise", "batch_simplicial"}
    else:
        one, two = plain(views), fast(views)
        assert forked == [True, True, False]
    torch.testing.assert_close(one.loss, two.loss, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one.embeddings, two.embeddings, rtol=1e-3, atol=1e-4)
    one.loss.backward()
    two.loss.backward()
    scale = max(p.grad.abs().max() for p in plain.parameters() if p.grad is not None)
    for (key, p), q in zip(plain.named_parameters(), fast.named_parameters(), strict=True):
        if p.grad is not None:
            assert (p.grad - q[1].grad).abs().max() < 1e-3 * scale, key
    assert not any(counters.any() for key, counters in fast.named_buffers() if key.endswith("arrived"))
    for (key, a), b in zip(plain.state_dict().items(), fast.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}")
    plain.eval(), fast.eval()
    torch.testing.assert_close(plain.online(views[0]), fast.online(views[0]), rtol=1e-3, atol=1e-3)


@kernels
def test_the_relu_of_a_head_joins_its_norm():
    torch.manual_seed(0)
    head = mlp(12, 24, 6, layers=3).to(DEVICE)
    plain = copy.deepcopy(head)
    fuse_norms(head)
    assert not any(type(part) is nn.ReLU for part in head)
    x = torch.randn(10, 12, device=DEVICE)
    torch.testing.assert_close(head(x), by_view(plain, x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(head.eval()(x), plain.eval()(x), rtol=1e-4, atol=1e-5)


@kernels
def test_operators_pass_opcheck():
    """Schemas, shapes and strides without data, and autograd under a compiler, as PyTorch checks them."""
    from simplicia.engine import norm_operators as norm

    x = torch.randn(4, 8, 3, 3, device=DEVICE).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight, bias = (torch.rand(8, device=DEVICE).requires_grad_() for _ in "12")
    running = torch.zeros(8, device=DEVICE), torch.ones(8, device=DEVICE), torch.tensor(0, device=DEVICE)
    arrived = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    given = x.detach(), weight.detach(), bias.detach(), *running, arrived, 2, 1e-5, 0.1
    torch.library.opcheck(norm.view_statistics, given)
    table = norm.view_statistics(*given)
    residual = torch.randn_like(x).requires_grad_()
    torch.library.opcheck(norm.normalise, (x, weight, bias, table, arrived, residual, True))
    torch.library.opcheck(norm.normalise, (x, weight, bias, table, arrived, None, False))
    vectors = torch.randn(6, 8, device=DEVICE, requires_grad=True)
    torch.library.opcheck(norm.batch_simplicial, (vectors, weight, bias, table, None, 2.0, 4))


@gpu
def test_simplices_at_the_papers_size_match_float64():
    torch.manual_seed(0)
    sem = bottlenecks.create("sem", 65_000, simplices=5000, vertices=13, embedder="identity").cuda()
    nn.init.normal_(sem.norm.weight, 1, 0.2)
    exact = copy.deepcopy(sem).double()
    network = Network(nn.Identity(), sem, nn.Identity())
    fuse_norms(network)
    network = JointNetwork(network)
    x = torch.randn(512, 65_000, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    z = x.detach().double().requires_grad_()
    grad = torch.randn_like(x)
    ours = network.embed(x)
    theirs = torch.cat([exact(view) for view in z.chunk(2)]) - 1 / 13
    ours.backward(grad)
    theirs.backward(grad.double())
    norm = network.bottleneck.norm
    pairs = [(ours, theirs), (x.grad, z.grad), (norm.weight.grad, exact.norm.weight.grad)]
    pairs += [(norm.bias.grad, exact.norm.bias.grad), (norm.running_var, exact.norm.running_var)]
    for a, b in pairs:
        assert (a.double() - b).norm() <= 5e-3 * b.norm()


@gpu
@pytest.mark.parametrize(
    ("shape", "residual"),
    [((512, 64, 32, 32), True), ((512, 512, 4, 4), False), ((64, 100, 7, 7), True), ((512, 4096), False)],
)
def test_batch_norm_at_the_sizes_of_training(shape, residual):
    """Outputs, gradients and statistics against float64, and again the same bit for bit."""
    exact = batch_norm(shape[1], len(shape)).to(DEVICE).double()
    norm = fused(copy.deepcopy(exact).float())
    x, _ = twins(*shape, dtype=torch.bfloat16)
    x64 = x.detach().double().requires_grad_()
    extra = torch.randn_like(x) if residual else None
    y, y64 = activate(norm, x, extra), by_view(exact, x64)
    y64 = F.relu(y64 if extra is None else y64 + extra)
    grad = torch.randn_like(x)
    grad[y64.detach().abs() < 2e-2] = 0  # there rounding decides on which side of 0 a value lies
    y.backward(grad)
    y64.backward(grad.double())
    close(y, y64, torch.bfloat16)
    close(x.grad, x64.grad, torch.bfloat16)
    equal_gradients_and_statistics(norm, exact, torch.bfloat16)
    first, dweight = x.grad.clone(), norm.weight.grad.clone()
    for _ in range(3):  # sums in a fixed order, whichever program is the last
        x.grad = norm.weight.grad = None
        again = activate(norm, x, extra)
        again.backward(grad)
        assert torch.equal(again, y) and torch.equal(x.grad, first) and torch.equal(norm.weight.grad, dweight)
    assert not norm.arrived.any()
