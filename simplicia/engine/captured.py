"""The fast step: on one GPU in bf16 everything from the gather to the moving average is one CUDA graph.

Convolutions and linear layers work on 16-bit copies of their weights, which the optimiser writes in the same
pass as the 32-bit ones, or, of large ones, as the 16 bits that the copy lacks. Both views go through the
networks in one batch, and BatchNorm keeps them apart. What does not wait for each other runs side by side:
the target's encoder beside the online one, and the update of everything behind the encoder, which is bound by
memory, beside the encoder's backward, which is not.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simplicia.devices import allow_variants
from simplicia.encoders import ResNet
from simplicia.layers import BlockLinear
from simplicia.methods import Method, Output
from simplicia.methods.base import TargetMethod
from simplicia.train.step import Step

LARGE = 1 << 22  # a projector's weights with so many numbers are kept in two halves of 16 bits


class CapturedStep(Step):
    """A step that is compiled, captured once, and replayed; captured anew when the method's phase changes."""

    def setup(self) -> None:
        from simplicia.engine.norm import fuse

        torch.backends.cudnn.benchmark = True
        allow_variants()
        self.method.joint = True
        fuse(self.method)
        self.copies = _make_copies(self.method)
        self.target = self.method.target if isinstance(self.method, TargetMethod) else None
        online: Any = self.method.online.encoder
        self.stem: Any = online.conv1 if isinstance(online, ResNet) and online.conv1.is_product else None
        self.slots = self._slots()
        self.halves: dict[str, tuple[Tensor, Tensor]] = {}  # large weights, by name
        self.head: list[Any] = []  # updates of what lies behind the encoder
        self.trunk: list[Any] = []  # and of the encoder
        self.static_indices = torch.zeros(
            self.data.batch_size, dtype=torch.long, device=self.data.images.device
        )
        self.places = self.static_indices if self.data.fixed_rows is None else self.data.fixed_rows
        self.augment, self.rest = _compiled(self._augment), _compiled(self._rest)
        # our ResNets are convolutions and kernels of our own, for which a compiler can do nothing
        self.encode = self._encode if isinstance(online, ResNet) else _compiled(self._encode)
        self.main, self.beside = torch.cuda.Stream(priority=-1), torch.cuda.Stream()
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Output]] = {}

    def __call__(self, step: int) -> Output:
        indices = self.prepare(step)
        self.static_indices.copy_(indices)
        self.data.fetch(step, indices)
        if not self.trunk:
            self._arrange()
        if self.method.phase not in self.graphs:
            self.graphs.clear()  # before the next takes memory
            self.graphs[self.method.phase] = self._capture()
            self.prepare(step)  # warming up drew random numbers: from the step's seed again
        graph, output = self.graphs[self.method.phase]
        graph.replay()
        return output

    def tensors(self) -> dict[str, Tensor]:
        from simplicia.engine.fused import merge_halves

        large = {f"method.{name}": merge_halves(*halves) for name, halves in self.halves.items()}
        return super().tensors() | large

    def refresh(self) -> None:
        """Write the 16-bit copies anew, after weights were loaded: before the first step."""
        assert not self.halves, "weights are loaded before the first step takes them apart"
        with torch.no_grad():
            for module, copy in self.copies.items():
                copy.copy_(module.weight)  # type: ignore[arg-type]

    def finite(self) -> Tensor:
        halves = [copy.isfinite().all() for copy, _ in self.halves.values()]
        others = [
            p.isfinite().all()
            for name, p in self.method.named_parameters()
            if p.requires_grad and name not in self.halves
        ]
        return torch.stack(halves + others).all()

    def _augment(self, places: Tensor) -> Tensor:
        """Both views of a batch, one after the other, as the encoders' stem takes them."""
        views = torch.cat(self.views(*self.data.gather(places)))
        views = views.to(torch.bfloat16, memory_format=torch.channels_last)
        return views if self.stem is None else self.stem.patches(views)

    def _encode(self, encoder: nn.Module, images: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return encoder(images)

    def _rest(self, features: Tensor, followed: Tensor | None) -> Output:
        """The method behind its encoders, from their outputs for both views."""
        self.method.online.encoded = features
        if self.target is not None:
            self.target.encoded = followed
        with torch.autocast("cuda", torch.bfloat16):
            output = self.method(list(features.chunk(2)))
        self.method.online.encoded = None
        if self.target is not None:
            self.target.encoded = None
        return output

    def _compute(self, update: bool, alone: bool = False) -> Output:
        """One step, its work on two streams, or ``alone`` on one; without ``update`` only the gradients."""
        main = torch.cuda.current_stream()
        beside = main if alone else self.beside
        images = self.augment(self.places)
        followed = None
        if self.target is not None:
            beside.wait_stream(main)
            with torch.cuda.stream(beside), torch.no_grad():
                followed = self.encode(self.target.encoder, images)
        encoded = self.encode(self.method.online.encoder, images)
        if self.target is not None:
            main.wait_stream(beside)
        features = encoded.detach().requires_grad_()
        output = self.rest(features, followed)
        output.loss.backward()
        if not update:
            encoded.backward(features.grad)
            return output
        beside.wait_stream(main)
        with torch.cuda.stream(beside):
            for fused in self.head:
                fused.update()
        encoded.backward(features.grad)
        for fused in self.trunk:
            fused.update()
        main.wait_stream(beside)
        self.method.after_step()
        self._learn(output, self.static_indices)
        return output

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, Output]:
        """Compile and warm up without moving anything, then record the whole step."""
        kept = {name: b for name, b in self.method.named_buffers() if "queue" not in name}
        kept |= {} if self.probe is None else self.probe.tensors()
        before = {name: tensor.clone() for name, tensor in kept.items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for i in range(3):
                self._forget_gradients()
                # the first on one stream: while it runs, convolutions are timed and chosen
                self._learn(self._compute(update=False, alone=i == 0), self.static_indices)
            for update in (*self.head, *self.trunk):
                update.find_gradients()
                update.rehearse()
            self._forget_gradients()
        torch.cuda.current_stream().wait_stream(side)
        for name, tensor in kept.items():
            tensor.copy_(before[name])
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.main):
            output = self._compute(update=True)
        for update in (*self.head, *self.trunk):
            update.find_gradients()
            update.measure_weights()
        return graph, output

    def _forget_gradients(self) -> None:
        for slot in self.slots.values():
            slot.source.grad = None

    def _arrange(self) -> None:
        """Once, with the weights to begin with: take large ones apart, gather what is updated together."""
        from simplicia.engine.fused import halve

        lows: dict[int, Tensor] = {}  # by their copy
        for name, module in self.method.named_modules():
            if ".projector." not in f"{name}." or not isinstance(module, _Copied):
                continue
            weight: Tensor = module.weight  # type: ignore[attr-defined]
            if weight.numel() >= LARGE:
                copy = module.copy.detach()
                lows[id(module.copy)] = halve(weight.detach(), copy)
                self.halves[f"{name}.weight"] = copy, lows[id(module.copy)]
                # its shape stays; whoever reads it unasked sees that it is not there
                weight.data = torch.full((), torch.nan, device=weight.device).expand(weight.shape)
        for slot in self.slots.values():
            slot.low, slot.target_low = lows.get(id(slot.source)), lows.get(id(slot.target_copy))
            if slot.low is not None:
                slot.weight, slot.target = slot.source.detach(), None  # no longer hold what was taken apart
        encoder = {id(p) for p in self.method.online.encoder.parameters()}
        behind = [slot for key, slot in self.slots.items() if key not in encoder]
        large = [slot for slot in behind if slot.low is not None]
        rest = [slot for slot in behind if slot.low is None]
        self.head = [self._fuse(slots) for slots in (large, rest) if slots]
        self.trunk = [self._fuse([slot for key, slot in self.slots.items() if key in encoder])]

    def _slots(self) -> dict[int, Any]:
        """What moves with each weight, by the weight's id."""
        from simplicia.engine.fused import Slot

        copies = {id(module.weight): copy for module, copy in self.copies.items()}
        targets: dict[int, Tensor] = {}
        if isinstance(self.method, TargetMethod):
            pairs = zip(self.method.online.parameters(), self.method.target.parameters(), strict=True)
            targets = {id(online): target for online, target in pairs}
            self.method.follow = False  # the fused update moves the target
        slots = {}
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                target = targets.get(id(p))
                slots[id(p)] = Slot(
                    weight=p.detach(),
                    source=copies.get(id(p), p),
                    velocity=self.optimizer.velocity(p),
                    decay=group["weight_decay"],
                    trust=group["trust"],
                    target=None if target is None else target.detach(),
                    target_copy=None if target is None else copies.get(id(target)),
                    rate=group["rate"],
                )
        return slots

    def _fuse(self, slots: list[Any]) -> Any:
        from simplicia.engine.fused import FusedUpdate

        settings = self.recipe.optim
        ema = self.method.momentum if isinstance(self.method, TargetMethod) else None
        return FusedUpdate(slots, self.lr, settings.momentum, settings.eta, ema)


def _compiled(part: Callable[..., Any]) -> Callable[..., Any]:
    # rows padded to whole cache lines would be copied for kernels that read them one after the other
    options: dict[str, Any] = {"comprehensive_padding": False, "shape_padding": False}
    return torch.compile(part, fullgraph=True, dynamic=False, options=options)


class _Copied:
    """A layer that works, while training, on a 16-bit copy of its weight."""

    copy: Tensor


class _CopiedConv2d(_Copied, nn.Conv2d):
    @property
    def is_product(self) -> bool:
        """Whether it is one product of patches instead: few channels leave a convolution's units idle."""
        plain = self.stride == self.dilation == (1, 1) and self.groups == 1 and self.padding_mode == "zeros"
        small = self.in_channels <= 4 and self.kernel_size == (3, 3)
        return plain and small and self.padding in ((1, 1), (2, 2))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        if not self.is_product:
            return self._conv_forward(x, self.copy, self.bias)
        patches = x if x.shape[1] > self.in_channels else self.patches(x)
        weight = self.copy.permute(0, 2, 3, 1).flatten(1)
        weight = F.pad(weight, (0, patches.shape[1] - weight.shape[1]))
        return F.linear(patches.permute(0, 2, 3, 1), weight, self.bias).permute(0, 3, 1, 2)

    def patches(self, x: Tensor) -> Tensor:
        """What each output sees, as channels: 9 per channel, then spare ones up to a whole tile."""
        p = int(self.padding[0])
        x = F.pad(x.to(self.copy.dtype).permute(0, 2, 3, 1), (0, 0, p, p, p, p))
        height, width, channels = x.shape[1] - 2, x.shape[2] - 2, x.shape[3]
        # where each number of a patch lies in its image; spare ones meet zero weights
        row, column = (torch.arange(n, device=x.device) for n in (height, width))
        number = torch.arange(9 * channels + -9 * channels % 16, device=x.device) % (9 * channels)
        i, j, channel = number // (3 * channels), number // channels % 3, number % channels
        place = ((row[:, None, None] + i) * x.shape[2] + column[:, None] + j) * channels + channel
        return x.flatten(1)[:, place].permute(0, 3, 1, 2)


class _CopiedLinear(_Copied, nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        if self.bias is None or self.weight.numel() < LARGE:
            return F.linear(x, self.copy, self.bias)
        # in a pass of its own, and in 32 bits, so that no compiler joins it: given a bias, cuBLAS chooses
        # another way to compute a product of the size of SEM's, which takes a quarter longer
        y = F.linear(x, self.copy)
        return (y + self.bias).to(y.dtype)


class _CopiedBlockLinear(_Copied, BlockLinear):
    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.copy if self.training else self.weight)


def _make_copies(method: Method) -> dict[nn.Module, Tensor]:
    """Give every convolution and linear layer a 16-bit copy of its weight to work on."""
    kinds: dict[type, type] = {
        nn.Conv2d: _CopiedConv2d,
        nn.Linear: _CopiedLinear,
        BlockLinear: _CopiedBlockLinear,
    }
    copies: dict[nn.Module, Tensor] = {}
    for module in method.modules():
        if type(module) in kinds:
            layer: Any = module
            layer.__class__ = kinds[type(module)]
            layer.copy = layer.weight.detach().to(torch.bfloat16).requires_grad_(layer.weight.requires_grad)
            copies[module] = layer.copy
    return copies
