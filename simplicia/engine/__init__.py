"""The fast path on one GPU: CUDA-graph capture, Triton kernels, a fused optimiser update.

Optional: without this folder the trainer runs eager or compiled steps. ``obstacle`` says why a step cannot
be captured, and ``step_graph.StepGraph`` computes one. The engine adapts a method from outside: it
replaces layers by faster ones that share their parameters (``joint.join_views``, ``copies.copy_weights``).
"""

import importlib.util

import torch
from torch import nn

from simplicia.methods.base import Method, Network, TargetMethod


def obstacle(method: Method, device: torch.device) -> str | None:
    """Why a method's step cannot be captured on a device; None if it can."""
    name = type(method).__name__
    if device.type != "cuda":
        return f"the device is {device.type}, not a GPU"
    for norm in _batch_norms(method):
        # many timm models have other ones, which include an activation
        replaceable = type(norm) in (nn.BatchNorm1d, nn.BatchNorm2d) and norm.affine
        if not (replaceable and norm.track_running_stats and norm.momentum is not None):
            return f"the encoder's {type(norm).__name__} cannot tell the two views of a batch apart"
    for child_name, child in method.named_children():
        if type(child) not in (Network, nn.Sequential) and _batch_norms(child):
            return f"{name}.{child_name} is neither a Network nor an nn.Sequential and has a BatchNorm"
    joint_views = not isinstance(method, TargetMethod)
    if joint_views and isinstance(method.second_temperature, int | float) and method.second_temperature == 0:
        return "sem.second_temperature is 0, which a batch of both views cannot have for one of them"
    if type(method).after_step not in (Method.after_step, TargetMethod.after_step):
        return f"{name} overrides after_step, which the fused update replaces"
    return None if importlib.util.find_spec("triton") else "triton is not installed"


def _batch_norms(module: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
