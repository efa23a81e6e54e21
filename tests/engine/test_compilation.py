"""The Triton kernels compile to machine code for an H200, which needs no GPU.

The engine launches them with the types and the widths of the CIFAR-100 recipes; here each launch compiles,
and computes nothing.
"""

import pytest
import torch
from torch import nn

from simplicia import SimplicialEmbedding
from simplicia.engine import runner

pytest.importorskip("triton")
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from simplicia.engine import update
from simplicia.engine.norm import FusedSimplicialEmbedding, fuse_norms
from simplicia.evaluate.multi_temperature_kernel import multi_temperature

H200 = GPUTarget("cuda", 90, 32)
NUMBERS = {int: "i32", float: "fp32"}
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int32: "*i32", torch.int64: "*i64"}


@pytest.fixture
def compiled(monkeypatch):
    """The names of the kernels that were launched, and so compiled."""
    names = set()

    def compile_only(kernel, *arguments, grid, warmup, **named):
        parameters = {p.name: p for p in kernel.params}
        options = {name: named.pop(name) for name in list(named) if name not in parameters}
        values = dict(zip(parameters, arguments, strict=False)) | named
        assert values.keys() == parameters.keys()
        constants = {name: value for name, value in values.items() if parameters[name].is_constexpr}
        kinds = {
            n: POINTERS[v.dtype] if torch.is_tensor(v) else NUMBERS.get(type(v)) for n, v in values.items()
        }
        source = ASTSource(kernel, kinds | dict.fromkeys(constants, "constexpr"), constants)
        assert triton.compile(source, target=H200, options=options).asm["cubin"]
        names.add(kernel.__name__)

    monkeypatch.setattr(triton.JITFunction, "run", compile_only)
    for module in (runner, update):
        monkeypatch.setattr(module, "runs_kernels", lambda device: True)
    return names


def step(module, *shape):
    """Forward and backward."""
    x = torch.ones(shape, dtype=torch.bfloat16, requires_grad=True)
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    module(x.contiguous(memory_format=layout)).float().sum().backward()


def test_norms_of_maps_compile(compiled):
    module = nn.Sequential(nn.BatchNorm2d(64), nn.ReLU(), nn.BatchNorm2d(64))
    fuse_norms(module)
    relu, _, residual = module
    step(relu, 4, 64, 8, 8)
    step(lambda x: residual.activated(x, x), 4, 64, 8, 8)
    residual.forks = True
    step(lambda x: torch.cat(residual.activated(x, x)), 4, 64, 8, 8)
    assert compiled == {"sums", "apply", "gradient_sums", "gradient_apply"}


def test_norms_of_vectors_compile(compiled):
    module = nn.Sequential(nn.BatchNorm1d(4096), nn.ReLU())
    fuse_norms(module)
    step(module, 512, 4096)
    assert compiled == {"column_statistics", "apply", "column_backward"}


@pytest.mark.parametrize("temperature", [1.0, torch.ones(())])
def test_simplicial_embeddings_compile(compiled, temperature):
    module = nn.Sequential(SimplicialEmbedding(4, simplices=50, vertices=13, temperature=temperature))
    fuse_norms(module)
    sem = FusedSimplicialEmbedding(module[0].bfloat16())
    step(sem.centred, 512, 4)
    assert compiled == {"column_statistics", "simplicial", "column_backward"}


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("momentum", [torch.float32, torch.bfloat16])
def test_updates_compile(compiled, halves, momentum):
    weight, target = torch.ones(64, 64), torch.ones(64, 64)
    copy, target_copy = weight.bfloat16().requires_grad_(), target.bfloat16()
    copy.grad = torch.ones_like(copy)
    low = [
        update.halve(w, c.detach()) if halves else None for w, c in ((weight, copy), (target, target_copy))
    ]
    slot = update.Slot(
        weight, copy, torch.zeros(64, 64, dtype=momentum), 1e-5, True, target, target_copy, None, *low
    )
    fused = update.FusedUpdate([slot], torch.ones(()), 0.9, 0.02, torch.ones(()))
    fused.find_gradients()
    fused.measure_weights()
    fused.update()
    assert compiled == {"square", "trust", "move"}


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_simplices_at_several_temperatures_compile(compiled, kind):
    multi_temperature(torch.ones(256, 5 * 13), 13, (0.1, 1.0), kind)
    assert compiled == {"softmaxes"}
