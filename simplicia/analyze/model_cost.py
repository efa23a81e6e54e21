"""Cost of a model: parameters, activations and FLOPs of the online network, and memory.

Counted on the meta device, which needs neither memory nor time.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from simplicia.errors import UserError
from simplicia.layers import BlockLinear, Prototypes
from simplicia.methods import Method
from simplicia.settings import with_changes
from simplicia.train import recipes
from simplicia.train.recipe import Recipe

COUNTS = ("parameters", "activations", "flops")
_COUNTED = (nn.modules.conv._ConvNd, nn.Linear, BlockLinear, Prototypes)

# The cost table of the paper (appendix, "An efficient variant of SEM"): BYOL's online network on 32x32
# images, with the released code's stem of padding 2, and the memory its authors' code took on their GPU.
PAPER_MODELS: dict[str, dict[str, Any]] = {
    "BYOL": {"bottleneck": "none"},
    "BYOL + SEM": {"bottleneck": "sem"},
    "BYOL + SEM/8": {"bottleneck": "sem", "sem.blocks": 8},
}
PAPER = {  # encoder, model: parameters, activations, FLOPs, GiB
    ("resnet18", "BYOL"): (16.5e6, 0.731e6, 7.20e8, 4.0),
    ("resnet18", "BYOL + SEM"): (313.7e6, 0.797e6, 1.01e9, 13.1),
    ("resnet18", "BYOL + SEM/8"): (51.9e6, 0.796e6, 7.46e8, 5.3),
    ("resnet50", "BYOL"): (35e6, 4.05e6, 1.65e9, 11.1),
    ("resnet50", "BYOL + SEM"): (425.6e6, 4.12e6, 2.04e9, 21.9),
    ("resnet50", "BYOL + SEM/8"): (76.7e6, 4.12e6, 1.69e9, 11.8),
}


@dataclass(frozen=True)
class Part:
    """Trained parameters of a module, and its activations and FLOPs per sample."""

    parameters: int
    activations: int  # output elements of convolutions and linear layers
    flops: int  # a multiply-add counts as one


@dataclass(frozen=True)
class Cost(Part):
    """Cost of the online network, in total and of each part."""

    parts: dict[str, Part]
    target_parameters: int  # of the target network, which is not trained

    def memory(self, batch_size: int, precision: str = "bf16") -> int:
        """Estimated peak of training memory, bytes.

        12 bytes for each trained parameter (weight, momentum and gradient; in bf16 a 16-bit copy and a 16-bit
        gradient take the place of a 32-bit one), 4 for each of the target (and 2 for its copy), and for both
        views of each sample two tensors per activation: a layer's output, before and after its norm.
        """
        half = precision == "bf16"
        weights = 12 * self.parameters + (6 if half else 4) * self.target_parameters
        return weights + 2 * 2 * batch_size * self.activations * (2 if half else 4)


def cost(method: Method, image_size: int) -> Cost:
    """Cost of a method's online network for one sample: encoder, bottleneck, projector and heads.

    >>> cost(run.method, image_size=16).parameters
    329040
    """
    trained = [
        (name, child)
        for name, child in method.named_children()
        if name != "online" and any(p.requires_grad for p in child.parameters())
    ]
    x = torch.empty(1, 3, image_size, image_size, device="meta")
    parts = {}
    for name, module in [*method.online.named_children(), *trained]:
        x, parts[name] = _count(module, x)
    totals = {name: sum(getattr(part, name) for part in parts.values()) for name in COUNTS}
    target = sum(p.numel() for p in method.parameters() if not p.requires_grad)
    return Cost(parts=parts, target_parameters=target, **totals)


def cost_of(recipe: Recipe) -> Cost:
    """Cost of a recipe's model, which is built on the meta device."""
    unset = [name for name in ("image_size", "encoder", "stem") if getattr(recipe, name) in (0, "auto")]
    if recipe.bottleneck != "none" and recipe.sem.simplices == 0:
        unset.append("sem.simplices")
    if unset:
        options = " ".join(f"--{name.replace('_', '-')} …" for name in unset)
        raise UserError(f"recipe {recipe.name!r} chooses {', '.join(unset)} from the images; give {options}")
    recipe = recipe.checked()
    with torch.device("meta"):
        return cost(recipe.build(), recipe.actual_view_size)


def fitting_batch(recipe: Recipe, memory: int, processes: int = 1) -> int | None:
    """The most images, up to half of a micro-batch, that ``memory`` bytes should hold; None if not even 2.

    A process's share of the batch is a multiple of it. Measured peaks are at most 1.5 times the estimate plus
    2 GiB (results/bench/step.json).
    """
    counted = cost_of(recipe)
    share, at_once = recipe.batch_size // processes, recipe.micro_batch_size(processes) // processes
    parts = (n for n in range(at_once // 2, 1, -1) if share % n == 0)
    return next((n for n in parts if 1.5 * counted.memory(n, recipe.precision) + 2 * 2**30 <= memory), None)


def paper_table() -> list[dict[str, Any]]:
    """The six rows of the paper's cost table: ours, theirs, and how far apart in percent."""
    rows = []
    for (encoder, model), figures in PAPER.items():
        changes = {"encoder": encoder, "stem_padding": 2, **PAPER_MODELS[model]}
        recipe = with_changes(recipes.get("cifar100-byol"), changes)
        total, paper = cost_of(recipe), dict(zip((*COUNTS, "gib"), figures, strict=True))
        row: dict[str, Any] = {"encoder": encoder, "model": model}
        row |= {name: getattr(total, name) for name in COUNTS}
        row["estimated_gib"] = total.memory(recipe.micro_batch_size()) / 2**30
        row["paper"] = paper
        row["deviation_percent"] = {name: 100 * (row[name] / paper[name] - 1) for name in COUNTS}
        rows.append(row)
    return rows


def measured_peak(recipe: Recipe, device: str = "auto") -> float:
    """Peak memory of two training steps on a GPU, in GiB: on random images, as many as two batches hold."""
    from simplicia import devices
    from simplicia.data.datasets import ImageSet
    from simplicia.train.auto import resolve
    from simplicia.train.trainer import Trainer

    fabric = devices.launch(device, 1, recipe.precision)
    if fabric.device.type != "cuda":
        raise UserError(f"peak memory is measured on a GPU, not on {fabric.device.type}; leave --measure out")
    shape = 2 * recipe.batch_size, 3, recipe.image_size, recipe.image_size
    images = ImageSet("random", torch.randint(0, 256, shape, dtype=torch.uint8), None, classes=())
    recipe, _ = resolve(recipe, images, fabric.device)
    torch.cuda.reset_peak_memory_stats(fabric.device)
    trainer = Trainer(recipe, images, fabric)
    for step in range(2):
        trainer.step(step).loss.item()
    return torch.cuda.max_memory_allocated(fabric.device) / 2**30


@torch.no_grad()
def _count(module: nn.Module, x: Tensor) -> tuple[Tensor, Part]:
    """A module's output and cost, from a copy on the meta device."""
    tensors = [*module.parameters(), *module.buffers()]
    shapes: dict[int, Any] = {id(t): t.detach().to("meta") for t in tensors}
    ghost = copy.deepcopy(module, shapes).eval()
    activations: list[int] = []
    for layer in ghost.modules():
        if isinstance(layer, _COUNTED):
            layer.register_forward_hook(lambda _, inputs, output: activations.append(output.numel()))
    with FlopCounterMode(display=False) as counter:
        output = ghost(x)
    parameters = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return output, Part(parameters, sum(activations), counter.get_total_flops() // 2)
