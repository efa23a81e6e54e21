"""The update inside the product against gradient, optimiser and average one after the other."""

import os
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

triton = pytest.importorskip("triton")

COMPARISON = """
import torch
from simplicia.train import product
from simplicia.train.fused import Slot
from simplicia.train.optim import LARS

device = "cuda" if torch.cuda.is_available() else "cpu"
given = torch.bfloat16
if device == "cpu":  # the interpreter is slow, and knows no product of 16 bits
    product.TILE |= {"BO": 16, "BI": 32, "BK": 16}
    given = torch.float32
torch.manual_seed(0)

def compare(rows, out, into, trust, followed, kept):
    lr, ema = torch.tensor(0.3, device=device), torch.tensor(0.97, device=device)
    rate = torch.ones((), device=device)
    weight = torch.randn(out, into, device=device) * 0.1
    source = weight.bfloat16()
    target = torch.randn_like(weight) if followed else None
    copy = target.bfloat16() if followed else None
    twin, average = torch.nn.Parameter(weight.clone()), None if target is None else target.clone()
    slot = Slot(weight, source, torch.zeros_like(weight, dtype=kept), 0.01, trust, target, copy, rate)
    optimizer = LARS([{"params": [twin], "weight_decay": 0.01, "trust": trust, "rate": rate}], lr, dtype=kept)
    update = product.ProductUpdate(slot, lr, 0.9, 0.02, ema if followed else None)
    update.measure_weights()
    close = {"rtol": 1e-4, "atol": 1e-5} if kept == torch.float32 else {"rtol": 0.02, "atol": 2e-3}
    for step in range(3):
        rate.fill_(float(step > 0))
        x, slope = (torch.randn(rows, n, device=device).to(given) * 0.3 for n in (into, out))
        if step == 1:
            update.rehearse(x, slope)  # changes nothing
        update.update(x, slope)
        twin.grad = (slope.double().T @ x.double()).float()
        optimizer.step()
        torch.testing.assert_close(weight, twin.detach(), **close)
        torch.testing.assert_close(slot.velocity, optimizer.velocity(twin), **close)
        torch.testing.assert_close(update.squares.sum().sqrt(), twin.detach().norm(), rtol=1e-3, atol=0)
        torch.testing.assert_close(source.float(), weight, rtol=2**-7, atol=1e-6)
        if target is not None:
            average.lerp_(twin.detach(), 1 - ema)
            torch.testing.assert_close(target, average, **close)
            torch.testing.assert_close(copy.float(), target, rtol=2**-7, atol=1e-6)

compare(40, 48, 104, True, True, torch.float32)  # sizes that leave parts of tiles empty
compare(32, 32, 64, False, False, torch.float32)
compare(16, 24, 72, True, True, torch.bfloat16)
if device == "cuda":
    compare(512, 4096, 65_000, True, True, torch.float32)
print("equal")
"""


def test_the_update_in_the_product_is_the_optimisers():
    environment = dict(os.environ) if torch.cuda.is_available() else os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", COMPARISON], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "equal", done.stderr[-2000:]


def test_the_norm_of_a_product_from_its_factors():
    from simplicia.train.product import product_norm

    for into in (5, 64, 1000):
        x, slope = torch.randn(12, into), torch.randn(12, 30)
        slope -= slope.mean(0)  # as behind a BatchNorm
        exact = (slope.double().T @ x.double()).norm()
        torch.testing.assert_close(product_norm(x, slope).double(), exact, rtol=1e-5, atol=0)


def test_a_tapped_layer_gives_input_and_slope():
    from simplicia.train.captured import _CopiedLinear

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 3))
    x = torch.randn(6, 40, requires_grad=True)
    plain(x).square().sum().backward()
    expected, x_grad, bias_grad = plain[0].weight.grad, x.grad, plain[0].bias.grad
    x.grad = plain[0].bias.grad = None
    layer = plain[0]
    layer.__class__, layer.copy = _CopiedLinear, layer.weight.detach()
    layer.tap = torch.zeros(6, 24, requires_grad=True)
    compiled = torch.compile(plain, backend="aot_eager", fullgraph=True)
    compiled(x).square().sum().backward()
    torch.testing.assert_close(layer.tap.grad.T @ layer.given, expected)
    torch.testing.assert_close(x.grad, x_grad)
    torch.testing.assert_close(layer.bias.grad, bias_grad)
    plain.eval()
    assert not plain(x)[:2].isnan().any()  # any number of rows when not training


def test_the_kernel_uses_matrix_units_and_sixteen_bytes_at_a_time():
    """Compiled for an H200, which takes none."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from simplicia.train import product

    numbers = ("weight", "velocity", "target", "share", "lr", "ema", "squares")
    halves = ("x", "slope", "copy", "target_copy")
    kinds = dict.fromkeys(numbers, "*fp32") | dict.fromkeys(halves, "*bf16")
    fixed = {"ROWS": 512, "IN": 65_000, "OUT": 4096, "TARGET": True, **product.TILE}
    options = {name: fixed.pop(name) for name in ("num_warps", "num_stages")}
    names = product._move_by_product.arg_names
    signature = {n: kinds.get(n, "constexpr" if n in fixed else "fp32") for n in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n in kinds}
    source = ASTSource(fn=product._move_by_product, signature=signature, constexprs=fixed, attrs=aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    accesses = re.findall(r"(?:ld|st)\.global\S*", compiled.asm["ptx"])
    assert "wgmma.mma_async" in compiled.asm["ptx"]
    assert sum(".v4." in access for access in accesses) > 0.9 * len(accesses)
    assert compiled.metadata.shared <= 113 * 1024  # two programs share a multiprocessor
