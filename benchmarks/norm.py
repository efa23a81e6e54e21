"""BatchNorm per view, hand-written against compiled: ``python3 benchmarks/norm.py [--json OUT.json]``.

Needs a GPU. Medians of CUDA-event times; buffers rotate, so that none is in the L2 cache.
"""

import argparse
import copy
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from simplicia.engine.joint import JointNetwork
from simplicia.engine.norm import PerViewBatchNorm1d, PerViewBatchNorm2d, fuse_norms
from simplicia.layers import activate, replace_modules
from simplicia.methods.base import Network
from simplicia.provenance import commit, versions
from simplicia.sem import SimplicialEmbedding

MAPS = ((512, 64, 32, 32), (512, 128, 16, 16), (512, 256, 8, 8), (512, 512, 4, 4), (512, 4096))
REPEATS = 30


class Simplices(nn.Module):
    """BatchNorm and softmax of SEM with p - 1/V as its projector gets it."""

    def __init__(self, simplices: int = 5000, vertices: int = 13):
        super().__init__()
        sem = SimplicialEmbedding(simplices * vertices, simplices, vertices, embedder="identity")
        self.network = Network(nn.Identity(), sem, nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return self.network.embed(x).to(x.dtype)


class Activated(nn.Module):
    """BatchNorm, (residual,) ReLU."""

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.norm = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d)(shape[1])

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return activate(self.norm, x, residual)


def inputs(shape: tuple[int, ...], count: int) -> list[list[Tensor]]:
    """Sets of random tensors that together exceed the cache several times."""
    kind = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    make = lambda: torch.randn(shape, device="cuda").bfloat16().contiguous(memory_format=kind)  # noqa: E731
    sets = max(4, int(200e6 / (2 * torch.Size(shape).numel())))
    return [[make().requires_grad_() for _ in range(count)] for _ in range(sets)]


def medians(module: nn.Module, tensors: list[list[Tensor]], grad: Tensor) -> tuple[float, float]:
    """Milliseconds forward and backward, in CUDA graphs that go through all sets."""
    parameters = list(module.parameters())
    for _ in range(3):
        torch.autograd.grad(module(*tensors[0]), [*tensors[0], *parameters], grad)
    torch.cuda.synchronize()
    forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(forward):
        outputs = [module(*given) for given in tensors]
    with torch.cuda.graph(backward, pool=forward.pool()):
        for y, given in zip(outputs, tensors, strict=True):
            torch.autograd.grad(y, [*given, *parameters], grad)
    return timed(forward) / len(tensors), timed(backward) / len(tensors)


def timed(graph: torch.cuda.CUDAGraph) -> float:
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "12")
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def compare(name: str, module: nn.Module, shape: tuple[int, ...], passes: tuple[int, int]) -> dict[str, Any]:
    """Both ways; ``passes`` is how often forward and backward must read or write a complete tensor."""
    torch._dynamo.reset()
    module = module.cuda()
    fast, plain = copy.deepcopy(module), module
    replace_modules(plain, {nn.BatchNorm1d: PerViewBatchNorm1d, nn.BatchNorm2d: PerViewBatchNorm2d})
    fuse_norms(fast)
    replace_modules(fast, {Network: JointNetwork})
    tensors = inputs(shape, 2 if "residual" in name else 1)
    grad = torch.randn_like(tensors[0][0])
    row: dict[str, Any] = {"name": name, "shape": list(shape)}
    for kind, made in (("compiled", plain), ("fused", fast)):
        compiled = torch.compile(made, fullgraph=True, dynamic=False)
        for direction, ms, many in zip(
            ("forward", "backward"), medians(compiled, tensors, grad), passes, strict=True
        ):
            row[f"{kind} {direction} ms"] = ms
            row[f"{kind} {direction} GB/s"] = many * grad.numel() * grad.element_size() / ms / 1e6
    print(
        f"{name:24} {'x'.join(map(str, shape)):16}"
        + "".join(
            f"{row[f'{kind} {direction} ms']:9.4f} {row[f'{kind} {direction} GB/s']:6.0f}"
            for direction in ("forward", "backward")
            for kind in ("compiled", "fused")
        ),
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU")
    print("ms and GB/s of the bytes that must move; forward: compiled, fused; backward: compiled, fused")
    rows = []
    for shape in MAPS:
        rows.append(compare("norm, relu", Activated(shape), shape, (3, 5)))
        if len(shape) == 4:
            rows.append(compare("norm, residual, relu", Activated(shape), shape, (4, 7)))
    rows.append(compare("norm, simplices of 13", Simplices(), (512, 65000), (3, 3)))
    if given.json:
        result = {"rows": rows, "commit": commit(), **versions(torch.device("cuda"))}
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
