"""The fused update against the optimiser and the moving average: by kernels, and by its PyTorch fallback."""

import re

import pytest
import torch

from simplicia.engine import runner
from simplicia.train.step import LARS

triton = pytest.importorskip("triton")
fused = pytest.importorskip("simplicia.engine.update")
update_kernels = pytest.importorskip("simplicia.engine.update_kernels")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = [
    [((16, 48), True, True, True), ((64,), False, False, True), ((4, 16), True, True, False)],
    [((32,), False, True, False), ((64, 16), False, True, True)],
    [((7, 3), True, True, True), ((5,), False, False, True)],  # sizes that forbid wide loads
]
LARGE = [
    [((16, 48), True, True, True), ((5, 8), True, False, True), ((4, 16), True, True, False)],
    [((7, 3), True, True, True), ((5, 29), True, False, True)],
]
CASES = [(shapes, dtype, False, False) for shapes in SMALL for dtype in (torch.float32, torch.bfloat16)]
CASES += [(LARGE[0], dtype, True, False) for dtype in (torch.float32, torch.bfloat16)]
CASES += [(LARGE[1], torch.float32, True, False), (LARGE[1], torch.float32, True, True)]
CASES += [(SMALL[0], torch.float32, False, True)]


@pytest.fixture(params=[pytest.param("kernels", marks=pytest.mark.kernels), "fallback"])
def small_chunks(request, monkeypatch):
    """Several chunks and blocks per tensor, by kernels or without."""
    monkeypatch.setattr(fused, "runs_kernels", lambda device: request.param == "kernels")
    for name, value in {"CHUNK": 64, "BLOCK": 32, "LARGE_CHUNK": 128, "LARGE_BLOCK": 32}.items():
        monkeypatch.setattr(fused, name, value)
    torch.manual_seed(0)
    return "cpu" if request.param == "fallback" else DEVICE


def one_bit(half, exact):
    """The interpreter truncates where a GPU rounds."""
    torch.testing.assert_close(half.float(), exact, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("shapes, dtype, halves, summed", CASES)
def test_the_fused_update_is_the_optimiser_and_the_moving_average(
    small_chunks, shapes, dtype, halves, summed
):
    """``shapes`` are (shape, has a 16-bit copy, trust ratio, has a target)."""
    device = small_chunks
    lr, ema = torch.tensor(0.3, device=device), torch.tensor(0.97, device=device)
    rate = torch.ones((), device=device)
    slots, groups, twins, targets = [], [], [], []
    for i, (shape, copied, trust, has_target) in enumerate(shapes):
        weight = torch.nn.Parameter(torch.randn(shape, device=device) * 0.1)
        source = weight.detach().bfloat16().requires_grad_() if copied else weight
        target = torch.randn(shape, device=device) if has_target else None
        twin = torch.nn.Parameter(weight.detach().clone())
        velocity = torch.zeros(shape, device=device, dtype=dtype)
        copy = target.bfloat16() if copied and has_target else None
        slot_rate = rate if i == 0 else None
        slot = fused.Slot(weight.detach(), source, velocity, 0.01, trust, target, copy, slot_rate)
        if summed:  # over micro-batches; the gradient of the last one is not read
            slot.total = torch.zeros(shape, device=device)
        slots.append(slot)
        groups.append({"params": [twin], "weight_decay": 0.01, "trust": trust, "rate": slot_rate})
        twins.append(twin)
        targets.append(None if target is None else target.clone())
        if halves:
            slot.low = fused.halve(slot.weight, slot.source.detach())
            assert torch.equal(fused.merge_halves(slot.source.detach(), slot.low), slot.weight.cpu())
            if has_target:
                slot.target_low = fused.halve(slot.target, slot.target_copy)
            one_bit(slot.source.detach(), slot.weight)
    optimizer = LARS(groups, lr, dtype=dtype)
    update = fused.FusedUpdate(slots, lr, 0.9, 0.02, ema)
    tolerance = {} if dtype == torch.float32 else {"rtol": 0.02, "atol": 2e-3}
    for step in range(4):
        rate.fill_(float(step > 0))
        for slot, twin in zip(slots, twins, strict=True):
            gradient = (torch.randn_like(twin) * 0.1).to(slot.source.dtype)
            slot.source.grad, twin.grad = gradient, gradient.float()
            if summed:
                slot.total.copy_(torch.randn_like(twin) * 0.1)
                slot.source.grad, twin.grad = torch.full_like(gradient, torch.nan), slot.total.clone()
        update.find_gradients()
        if step == 0:
            update.measure_weights()
        update.update()
        optimizer.step()
        for slot, twin, target in zip(slots, twins, targets, strict=True):
            if halves:
                slot.weight = fused.merge_halves(slot.source.detach(), slot.low).to(device)
                if target is not None:
                    slot.target = fused.merge_halves(slot.target_copy, slot.target_low).to(device)
            if target is not None:
                target.lerp_(twin.detach(), 1 - ema)
                torch.testing.assert_close(slot.target, target, **tolerance)
                if slot.target_copy is not None:
                    one_bit(slot.target_copy, slot.target)
            torch.testing.assert_close(slot.weight, twin.detach(), **tolerance)
            torch.testing.assert_close(slot.velocity, optimizer.velocity(twin), **tolerance)
            if slot.source.dtype == torch.bfloat16:
                one_bit(slot.source.detach(), slot.weight)


def test_a_depthwise_gradient_may_have_any_stride_where_its_size_is_one(small_chunks):
    weight = torch.randn(6, 1, 3, 3, device=small_chunks).to(memory_format=torch.channels_last)
    grad = torch.ones_like(weight).as_strided(weight.shape, (9, 9, 3, 1))
    source = weight.clone().requires_grad_()
    source.grad = grad
    velocity = torch.zeros_like(weight)
    assert velocity.stride() != grad.stride()
    slot = fused.Slot(source.detach(), source, velocity, 0.0, False)
    update = fused.FusedUpdate([slot], torch.ones((), device=small_chunks), 0.9, 0.02, None)
    update.find_gradients()
    update.measure_weights()
    update.update()
    torch.testing.assert_close(source.detach(), weight - 1)
    source.grad = grad.reshape(6, 3, 3).transpose(1, 2)[:, None]
    with pytest.raises(AssertionError, match="another layout"):
        update.find_gradients()


def test_nan_and_infinity_survive_halves(small_chunks):
    """Rounding would turn a GPU's own NaN into 0."""
    device = small_chunks
    strange = torch.tensor([0x7FFFFFFF, -1, 0x7F800001, 0x7F800000], dtype=torch.int32).view(torch.float32)
    strange = torch.cat([strange, -strange[3:], torch.tensor([1.0, 3.4e38, 1e-45])]).to(device)
    copy = torch.empty(8, dtype=torch.bfloat16, device=device)
    low = fused.halve(strange, copy)
    assert copy.isnan().tolist() == strange.isnan().tolist() == [True] * 3 + [False] * 5
    torch.testing.assert_close(fused.merge_halves(copy, low), strange.cpu(), rtol=0, atol=0, equal_nan=True)
    slot = fused.Slot(strange, copy.requires_grad_(), strange.clone(), 0.0, False, low=low)
    slot.source.grad = torch.zeros_like(copy)
    update = fused.FusedUpdate([slot], torch.tensor(0.1, device=device), 0.9, 0.02, None)
    update.find_gradients()
    update.measure_weights()
    update.update()
    assert copy.isnan()[:3].all() and not copy.isnan()[5:].any()


@pytest.mark.skipif(runner.INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize("halves, sums", [(False, False), (True, False), (True, True)])
def test_the_update_accesses_sixteen_bytes_at_a_time(halves, sums):
    """In code compiled for an H200, without one; a hint in the wrong place leaves words of four bytes."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    numbers = dict.fromkeys(("ratio", "decay", "lr", "ema", "squares"), "*fp32")
    kinds = {"pointers": "*i64", "half_grad": "*i32", "owner": "*i32", "place": "*i32", "size": "*i64"}
    sizes = {"momentum": "fp32", "COUNT": "i32", "CHUNKS": "i32"}
    fixed = {"HALF_VELOCITY": False, "ALIGNED": True, "HALVES": halves, "SUMS": sums}
    fixed |= {"AHEAD": 1, "CHUNK": fused.CHUNK, "BLOCK": fused.BLOCK}
    if halves:
        fixed |= {"AHEAD": fused.AHEAD, "CHUNK": fused.LARGE_CHUNK, "BLOCK": fused.LARGE_BLOCK}
    signature = kinds | numbers | sizes | dict.fromkeys(fixed, "constexpr")
    source = ASTSource(fn=update_kernels.move, signature=signature, constexprs=fixed)
    options = {"num_warps": 8 if halves else 4}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    if halves:  # what a GPU with less shared memory would be asked for
        needed = (fused.AHEAD - 1) * (fused.BYTES + fused.MORE_FOR_SUMS * sums) * fused.LARGE_BLOCK
        assert needed <= compiled.metadata.shared <= needed + 4096
    accesses = re.findall(r"(?:ld|st)\.global\S*|cp\.async\.c\S*", compiled.asm["ptx"])
    wide = [access for access in accesses if ".v4." in access or ".cg." in access]  # of L2 always sixteen
    assert halves == any("cp.async" in access for access in accesses)
    assert len(wide) > 20 and not any(".b16" in access for access in accesses)
