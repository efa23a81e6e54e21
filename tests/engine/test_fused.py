"""The fused update against the plain one: on a GPU as it is, elsewhere in Triton's interpreter."""

import os
import re
import subprocess
import sys

import pytest
import torch

triton = pytest.importorskip("triton")

COMPARISON = """
import torch
from simplicia.engine import fused
from simplicia.train.optim import LARS

device = "cuda" if torch.cuda.is_available() else "cpu"
fused.CHUNK, fused.BLOCK, fused.LARGE_CHUNK, fused.LARGE_BLOCK = 64, 32, 128, 32
torch.manual_seed(0)

def one_bit(half, whole):  # the interpreter cuts where a GPU rounds
    torch.testing.assert_close(half.float(), whole, rtol=2**-7, atol=1e-6)

def compare(shapes, kept, halves=False):
    lr, ema = torch.tensor(0.3, device=device), torch.tensor(0.97, device=device)
    rate = torch.ones((), device=device)
    slots, groups, plain, targets = [], [], [], []
    for i, (shape, copied, trust, followed) in enumerate(shapes):
        weight = torch.nn.Parameter(torch.randn(shape, device=device) * 0.1)
        source = weight.detach().bfloat16().requires_grad_() if copied else weight
        target = torch.randn(shape, device=device) if followed else None
        twin = torch.nn.Parameter(weight.detach().clone())
        velocity = torch.zeros(shape, device=device, dtype=kept)
        copy = target.bfloat16() if copied and followed else None
        own = rate if i == 0 else None
        slots.append(fused.Slot(weight.detach(), source, velocity, 0.01, trust, target, copy, own))
        groups.append({"params": [twin], "weight_decay": 0.01, "trust": trust, "rate": own})
        plain.append(twin)
        targets.append(None if target is None else target.clone())
        if halves:
            slot = slots[-1]
            slot.low = fused.halve(slot.weight, slot.source.detach())
            assert torch.equal(fused.merge_halves(slot.source.detach(), slot.low), slot.weight.cpu())
            if followed:
                slot.target_low = fused.halve(slot.target, slot.target_copy)
            one_bit(slot.source.detach(), slot.weight)
    optimizer = LARS(groups, lr, dtype=kept)
    update = fused.FusedUpdate(slots, lr, 0.9, 0.02, ema)
    close = {} if kept == torch.float32 else {"rtol": 0.02, "atol": 2e-3}
    for step in range(4):
        rate.fill_(float(step > 0))
        for slot, twin in zip(slots, plain):
            gradient = (torch.randn_like(twin) * 0.1).to(slot.source.dtype)
            slot.source.grad, twin.grad = gradient, gradient.float()
        update.find_gradients()
        if step == 0:
            update.measure_weights()
        update.update()
        optimizer.step()
        for slot, twin, target in zip(slots, plain, targets):
            if halves:
                slot.weight = fused.merge_halves(slot.source.detach(), slot.low).to(device)
                if target is not None:
                    slot.target = fused.merge_halves(slot.target_copy, slot.target_low).to(device)
            if target is not None:
                target.lerp_(twin.detach(), 1 - ema)
                torch.testing.assert_close(slot.target, target, **close)
                if slot.target_copy is not None:
                    one_bit(slot.target_copy, slot.target)
            torch.testing.assert_close(slot.weight, twin.detach(), **close)
            torch.testing.assert_close(slot.velocity, optimizer.velocity(twin), **close)
            if slot.source.dtype == torch.bfloat16:
                one_bit(slot.source.detach(), slot.weight)

for shapes in (
    [((16, 48), True, True, True), ((64,), False, False, True), ((4, 16), True, True, False)],
    [((32,), False, True, False), ((64, 16), False, True, True)],
    [((7, 3), True, True, True), ((5,), False, False, True)],  # sizes that forbid wide loads
):
    for kept in (torch.float32, torch.bfloat16):
        if device == "cuda" or kept == torch.float32 or len(shapes) == 3:  # the interpreter is slow
            compare(shapes, kept)
large = [((16, 48), True, True, True), ((5, 8), True, False, True), ((4, 16), True, True, False)]
compare(large, torch.float32, halves=True)
compare(large, torch.bfloat16, halves=True)
compare([((7, 3), True, True, True), ((5, 29), True, False, True)], torch.float32, halves=True)

# what is no number stays none: a GPU's own kind of NaN would be rounded to 0
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
print("equal")
"""


def test_the_fused_update_is_the_optimiser_and_the_moving_average():
    environment = dict(os.environ) if torch.cuda.is_available() else os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", COMPARISON], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "equal", done.stderr[-2000:]


@pytest.mark.parametrize("halves", [False, True])
def test_the_update_reads_and_writes_sixteen_bytes_at_a_time(halves):
    """Compiled for an H200, which takes none; a hint in the wrong place leaves words of four bytes."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from simplicia.engine import fused, fused_kernels

    numbers = dict.fromkeys(("ratio", "decay", "lr", "ema", "squares"), "*fp32")
    kinds = {"pointers": "*i64", "half_grad": "*i32", "owner": "*i32", "place": "*i32", "size": "*i64"}
    sizes = {"momentum": "fp32", "COUNT": "i32", "CHUNKS": "i32"}
    fixed = {"HALF_VELOCITY": False, "ALIGNED": True, "HALVES": halves}
    fixed |= {"AHEAD": 1, "CHUNK": fused.CHUNK, "BLOCK": fused.BLOCK}
    if halves:
        fixed |= {"AHEAD": fused.AHEAD, "CHUNK": fused.LARGE_CHUNK, "BLOCK": fused.LARGE_BLOCK}
    signature = kinds | numbers | sizes | dict.fromkeys(fixed, "constexpr")
    source = ASTSource(fn=fused_kernels.move, signature=signature, constexprs=fixed)
    options = {"num_warps": 8 if halves else 4}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    if halves:  # what a GPU with less room is asked for before a smaller block is taken
        needed = (fused.AHEAD - 1) * fused.BYTES * fused.LARGE_BLOCK
        assert needed <= compiled.metadata.shared <= needed + 4096
    accesses = re.findall(r"(?:ld|st)\.global\S*|cp\.async\.c\S*", compiled.asm["ptx"])
    wide = [access for access in accesses if ".v4." in access or ".cg." in access]  # of L2 always sixteen
    assert halves == any("cp.async" in access for access in accesses)
    assert len(wide) > 20 and not any(".b16" in access for access in accesses)
