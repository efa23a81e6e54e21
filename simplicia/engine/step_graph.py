"""One training step as a CUDA graph: on one GPU in bf16, from gathering images to the moving average.

Convolutions and linear layers compute with 16-bit copies of their weights. The fused update writes the copies
in the same pass as the 32-bit weights; of large weights it stores only the 16 bits that the copy lacks. Both
views pass through the networks in one batch, and BatchNorm keeps them apart; an encoder of timm whose
BatchNorm cannot do that takes one view after the other. Independent work runs
concurrently: the target's encoder with the online one, and the update of everything after the encoder, which
is bound by memory, with the encoder's backward pass, which is not.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from simplicia.data.loaders import DeviceLoader
from simplicia.encoders import ResNet
from simplicia.engine import copies
from simplicia.engine.joint import JointNetwork, encode_views, join_views
from simplicia.engine.runner import CudaRunner, Runner
from simplicia.engine.update import FusedUpdate, Slot, halve, merge_halves
from simplicia.methods import Method, Output
from simplicia.methods.base import TargetMethod


class Optimizer(Protocol):
    """The parts of LARS that the fused update reads."""

    param_groups: list[dict[str, Any]]  # params, weight_decay, trust, rate
    defaults: dict[str, Any]  # momentum, eta
    lr: Tensor

    def velocity(self, p: Tensor) -> Tensor: ...


class Probe(Protocol):
    """An object that learns from a step's output, on the device."""

    def learn(self, output: Output, indices: Tensor) -> None: ...

    def tensors(self) -> dict[str, Tensor]: ...


class StepGraph:
    """Computes a method's steps by replaying a recorded one.

    Records again when a plain attribute of the method changes. The probe's learning is part of the step.
    """

    def __init__(
        self,
        method: Method,
        data: DeviceLoader,
        views: Callable[[Tensor, Tensor | None], list[Tensor]],
        optimizer: Optimizer,
        probe: Probe | None = None,
        micro_batches: int = 1,
    ):
        self.method, self.data, self.views, self.optimizer = method, data, views, optimizer
        self.probe, self.micro_batches = probe, micro_batches
        self.device = data.images.device
        self.runner = CudaRunner() if self.device.type == "cuda" else Runner()
        join_views(method)
        copies.copy_weights(method)
        online: Any = method.online
        self.online: JointNetwork = online
        self.target: Any = method.target if isinstance(method, TargetMethod) else None
        encoder: Any = self.online.encoder
        self.stem: Any = encoder.conv1 if isinstance(encoder, ResNet) and encoder.conv1.is_product else None
        self.slots = self._make_slots()
        self.halves: dict[str, tuple[Tensor, Tensor]] = {}  # large weights: 16-bit copy and its remainder
        self.head_updates: list[FusedUpdate] = []  # of everything after the encoder
        self.encoder_updates: list[FusedUpdate] = []
        self.indices = torch.zeros(data.batch_size, dtype=torch.long, device=self.device)
        rows = self.indices if data.fixed_rows is None else data.fixed_rows
        self.rows = rows.chunk(micro_batches)
        self._augment = self.runner.compile(self.augment)
        self._apply_heads = self.runner.compile(self.apply_heads)
        # our ResNets are convolutions and our own kernels: nothing is left for a compiler; other encoders are
        # anybody's code, which may not be one graph
        is_ours = isinstance(encoder, ResNet)
        self._encode = self.encode if is_ours else self.runner.compile(self.encode, in_one_graph=False)
        self.recorded: dict[str, Any] | None = None  # the method's attributes at recording
        self._replay: Callable[[], Output] | None = None

    def load_batch(self, step: int, indices: Tensor) -> None:
        """Put a step's images where the graph reads them."""
        self.indices.copy_(indices)
        self.data.fetch(step, indices)

    @property
    def outdated(self) -> bool:
        """Whether to ``record`` before the next ``replay``."""
        return self.recorded != _plain_attributes(self.method)

    def record(self) -> None:
        """Compile and warm up without changing anything, then record a step. Draws random numbers."""
        self._replay = None  # frees a former graph's memory
        if not self.encoder_updates:
            self._arrange_updates()
        changed = {name: b for name, b in self.method.named_buffers() if "queue" not in name}
        changed |= {} if self.probe is None else self.probe.tensors()
        before = {name: tensor.clone() for name, tensor in changed.items()}
        self.runner.warm_up(self._warm_up)
        for name, tensor in changed.items():
            tensor.copy_(before[name])
        self._replay = self.runner.record(self._step)
        for update in self._updates():
            if self.runner.replays:
                update.find_gradients()
            update.measure_weights()
        self.recorded = _plain_attributes(self.method)

    def replay(self) -> Output:
        """Compute the step that was recorded, on the batch that was loaded."""
        assert self._replay is not None
        return self._replay()

    def merged_weights(self) -> dict[str, Tensor]:
        """The weights that are stored in two halves, in 32 bits, by name."""
        return {name: merge_halves(*halves) for name, halves in self.halves.items()}

    def refresh(self) -> None:
        """Update the 16-bit copies after weights were loaded, before the first step."""
        assert not self.halves, "load weights before the first step splits them"
        for module in self.method.modules():
            if isinstance(module, copies.Copied):
                module.refresh()

    def finite(self) -> Tensor:
        """Whether all trained weights are finite; on the device."""
        large = [copy.isfinite().all() for copy, _ in self.halves.values()]
        others = [
            p.isfinite().all()
            for name, p in self.method.named_parameters()
            if p.requires_grad and name not in self.halves
        ]
        return torch.stack(large + others).all()

    def augment(self, rows: Tensor) -> Tensor:
        """Both views of a batch, one after the other, as the encoders' stem takes them."""
        views = torch.cat(self.views(*self.data.gather(rows)))
        views = views.to(torch.bfloat16, memory_format=torch.channels_last)
        return views if self.stem is None else self.stem.patches(views)

    def encode(self, encoder: nn.Module, images: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16):
            return encoder(images)

    def apply_heads(self, features: Tensor, target_features: Tensor | None) -> Output:
        """The method after its encoders, from their outputs for both views."""
        self.online.encoded = features
        if self.target is not None:
            self.target.encoded = target_features
        with torch.autocast(self.device.type, torch.bfloat16):
            output = self.method(list(features.chunk(2)))
        self.online.encoded = None
        if self.target is not None:
            self.target.encoded = None
        return output

    def _step(self) -> Output:
        """One step: the gradients of each micro-batch, then the update."""
        losses = []
        for i, indices in enumerate(self.indices.chunk(self.micro_batches)):
            output = self._micro_step(i, update=i == self.micro_batches - 1)
            self.method.after_micro_batch()  # the fused update has moved the target
            if self.probe is not None:
                self.probe.learn(output, indices)
            losses.append(output.loss.detach())
        return output._replace(loss=torch.stack(losses).mean())

    def _micro_step(self, i: int, update: bool = True, alone: bool = False) -> Output:
        """Add a micro-batch's gradients, and ``update`` the weights; on two streams, or ``alone`` on one."""
        self._forget_gradients()
        images = self._augment(self.rows[i])
        target_features = None
        if self.target is not None:
            with self.runner.aside(alone), torch.no_grad():
                target_features = encode_views(self.target.encoder, images, self._encode)
        encoded = encode_views(self.online.encoder, images, self._encode)
        if self.target is not None:
            self.runner.join()
        features = encoded.detach().requires_grad_()
        output = self._apply_heads(features, target_features)
        (output.loss / self.micro_batches).backward()
        self._accumulate(self.head_updates, i)
        if update:
            with self.runner.aside(alone):
                self._update(self.head_updates)
        encoded.backward(features.grad)
        self._accumulate(self.encoder_updates, i)
        if update:
            self._update(self.encoder_updates)
            self.runner.join()
        return output

    def _accumulate(self, updates: list[FusedUpdate], i: int) -> None:
        """Add the gradients of a micro-batch to those before it in 32 bits; a single batch has no totals."""
        for slot in (slot for update in updates for slot in update.slots):
            if slot.total is not None and slot.source.grad is not None:
                (slot.total.add_ if i else slot.total.copy_)(slot.source.grad)

    def _update(self, updates: list[FusedUpdate]) -> None:
        for update in updates:
            if not self.runner.replays:
                update.find_gradients()
            update.update()

    def _updates(self) -> Iterable[FusedUpdate]:
        return *self.head_updates, *self.encoder_updates

    def _warm_up(self) -> None:
        for i in range(3):
            # first on one stream: convolutions are timed and chosen meanwhile
            output = self._micro_step(0, update=False, alone=i == 0)
            if self.probe is not None:
                self.probe.learn(output, self.indices.chunk(self.micro_batches)[0])
        for update in self._updates():
            update.find_gradients()
            update.rehearse()
        self._forget_gradients()

    def _forget_gradients(self) -> None:
        for slot in self.slots.values():
            slot.source.grad = None

    def _arrange_updates(self) -> None:
        """Split large weights into halves and group the slots that are updated together.

        Happens once, with the initial or the loaded weights.
        """
        remainders: dict[int, Tensor] = {}  # by their copy
        for name, module in self.method.named_modules():
            if ".projector." not in f"{name}." or not isinstance(module, copies.Copied):
                continue
            if module.weight.numel() >= copies.LARGE:
                copy = module.half_weight.detach()
                remainders[id(module.half_weight)] = halve(module.weight.detach(), copy)
                self.halves[f"{name}.weight"] = copy, remainders[id(module.half_weight)]
                # keep the shape; reading it by mistake gives NaN
                nothing = torch.full((), torch.nan, device=self.device)
                module.weight.data = nothing.expand(module.weight.shape)
        for slot in self.slots.values():
            slot.low, slot.target_low = remainders.get(id(slot.source)), remainders.get(id(slot.target_copy))
            if slot.low is not None:
                slot.weight, slot.target = slot.source.detach(), None  # release the 32-bit weights
        encoder = {id(p) for p in self.online.encoder.parameters()}
        head = [slot for key, slot in self.slots.items() if key not in encoder]
        large = [slot for slot in head if slot.low is not None]
        small = [slot for slot in head if slot.low is None]
        self.head_updates = [self._fuse(slots) for slots in (large, small) if slots]
        self.encoder_updates = [self._fuse([slot for key, slot in self.slots.items() if key in encoder])]

    def _make_slots(self) -> dict[int, Slot]:
        """Each trained weight with the tensors that move with it, by the weight's id."""
        half = {id(m.weight): m.half_weight for m in self.method.modules() if isinstance(m, copies.Copied)}
        targets: dict[int, Tensor] = {}
        if self.target is not None:
            pairs = zip(self.online.parameters(), self.target.parameters(), strict=True)
            targets = {id(online): target for online, target in pairs}
        slots = {}
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                target = targets.get(id(p))
                slots[id(p)] = Slot(
                    weight=p.detach(),
                    source=half.get(id(p), p),
                    velocity=self.optimizer.velocity(p),
                    decay=group["weight_decay"],
                    trust=group["trust"],
                    target=None if target is None else target.detach(),
                    target_copy=None if target is None else half.get(id(target)),
                    rate=group["rate"],
                    total=torch.zeros_like(p, dtype=torch.float32) if self.micro_batches > 1 else None,
                )
        return slots

    def _fuse(self, slots: list[Slot]) -> FusedUpdate:
        settings = self.optimizer.defaults
        ema = self.method.momentum if isinstance(self.method, TargetMethod) else None
        return FusedUpdate(slots, self.optimizer.lr, settings["momentum"], settings["eta"], ema)


def _plain_attributes(method: Method) -> dict[str, Any]:
    """The attributes that a recorded step cannot read again; everything else that changes is a tensor."""
    return {k: v for k, v in vars(method).items() if isinstance(v, bool | int | float | str)}
