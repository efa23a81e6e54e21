"""The fast step: on one GPU in bf16 everything from the gather to the moving average is one CUDA graph.

Convolutions and linear layers work on 16-bit copies of their weights, which the optimiser writes in the same
pass as the 32-bit ones; both views go through the networks in one batch, and BatchNorm keeps them apart.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simplicia.layers import normalise_by_view
from simplicia.methods import Method, Output
from simplicia.methods.base import TargetMethod
from simplicia.train.step import Step


class CapturedStep(Step):
    """A step that is compiled, captured once, and replayed; captured anew when the method's phase changes."""

    def setup(self) -> None:
        torch.backends.cudnn.benchmark = True
        self.method.joint = True
        normalise_by_view(self.method)
        self.copies = _make_copies(self.method)
        self.fused = self._fuse()
        self.static_indices = torch.zeros(
            self.data.batch_size, dtype=torch.long, device=self.data.images.device
        )
        self.forward = torch.compile(self._forward, fullgraph=True, dynamic=False)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Output]] = {}

    def __call__(self, step: int) -> Output:
        indices = self.prepare(step)
        self.static_indices.copy_(indices)
        if self.method.phase not in self.graphs:
            self.graphs = {self.method.phase: self._capture()}
        graph, output = self.graphs[self.method.phase]
        graph.replay()
        if self.probe is not None:
            self.probe.learn(output, indices)
        return output

    def refresh(self) -> None:
        """Write the 16-bit copies anew, after weights were loaded."""
        with torch.no_grad():
            for module, copy in self.copies.items():
                copy.copy_(module.weight)  # type: ignore[arg-type]
        if self.graphs:
            self.fused.measure_weights()

    def _forward(self, indices: Tensor) -> Output:
        with torch.autocast("cuda", torch.bfloat16):
            return self.method(self.views(self.data.images[indices]))

    def _compute(self) -> Output:
        output = self.forward(self.static_indices)
        output.loss.backward()
        return output

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, Output]:
        """Compile and warm up without moving anything, then record the whole step."""
        buffers = {name: b.clone() for name, b in self.method.named_buffers() if "queue" not in name}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._forget_gradients()
                self._compute()
            self.fused.find_gradients()
            self.fused.rehearse()
            self._forget_gradients()
        torch.cuda.current_stream().wait_stream(side)
        for name, buffer in self.method.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = self._compute()
            self.fused.update()
            self.method.after_step()
        self.fused.find_gradients()
        self.fused.measure_weights()
        return graph, output

    def _forget_gradients(self) -> None:
        for slot in self.fused.slots:
            slot.source.grad = None

    def _fuse(self) -> Any:
        from simplicia.train.fused import FusedUpdate, Slot

        copies = {id(module.weight): copy for module, copy in self.copies.items()}
        targets: dict[int, Tensor] = {}
        ema = None
        if isinstance(self.method, TargetMethod):
            pairs = zip(self.method.online.parameters(), self.method.target.parameters(), strict=True)
            targets = {id(online): target for online, target in pairs}
            ema = self.method.momentum
            self.method.follow = False  # the fused update moves the target
        slots = []
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                target = targets.get(id(p))
                slots.append(
                    Slot(
                        weight=p.detach(),
                        source=copies.get(id(p), p),
                        velocity=self.optimizer.velocity(p),
                        decay=group["weight_decay"],
                        trust=group["trust"],
                        target=None if target is None else target.detach(),
                        target_copy=None if target is None else copies.get(id(target)),
                        rate=group["rate"],
                    )
                )
        settings = self.recipe.optim
        return FusedUpdate(slots, self.lr, settings.momentum, settings.eta, ema)


class _Copied:
    """A layer that works, while training, on a 16-bit copy of its weight."""

    copy: Tensor


class _CopiedConv2d(_Copied, nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        return self._conv_forward(x, self.copy, self.bias)


class _CopiedLinear(_Copied, nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.copy, self.bias) if self.training else super().forward(x)


def _make_copies(method: Method) -> dict[nn.Module, Tensor]:
    """Give every convolution and linear layer a 16-bit copy of its weight to work on."""
    kinds: dict[type, type] = {nn.Conv2d: _CopiedConv2d, nn.Linear: _CopiedLinear}
    copies: dict[nn.Module, Tensor] = {}
    for module in method.modules():
        if type(module) in kinds:
            layer: Any = module
            layer.__class__ = kinds[type(module)]
            layer.copy = layer.weight.detach().to(torch.bfloat16).requires_grad_(layer.weight.requires_grad)
            copies[module] = layer.copy
    return copies
