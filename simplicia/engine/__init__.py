"""The fast path on one GPU: CUDA-graph capture, Triton kernels, a fused optimiser update.

Optional: without this folder the trainer runs eager or compiled steps. ``obstacle`` says why a step cannot
be captured, and ``step_graph.StepGraph`` computes one. The engine adapts a method from outside: it
replaces layers by faster ones that share their parameters (``joint.join_views``, ``copies.copy_weights``).
"""

import importlib.util
from typing import Any

import torch
from torch import Tensor, nn

from simplicia.encoders import ResNet
from simplicia.methods.base import Method, Network, TargetMethod

BatchNorm = nn.modules.batchnorm._BatchNorm


def obstacle(method: Method, device: torch.device, size: int = 32) -> str | None:
    """Why a method's step on views of ``size`` pixels cannot be captured on a device; None if it can."""
    name = type(method).__name__
    if device.type != "cuda":
        return f"the device is {device.type}, not a GPU"
    networks = [part for part in method.modules() if isinstance(part, Network)]
    in_encoders = {id(norm) for network in networks for norm in batch_norms(network.encoder)}
    for norm in batch_norms(method):
        if id(norm) not in in_encoders and not is_replaceable(norm):
            return f"a {type(norm).__name__} after the encoder cannot tell the two views of a batch apart"
    for child_name, child in method.named_children():
        if type(child) not in (Network, nn.Sequential) and batch_norms(child):
            return f"{name}.{child_name} is neither a Network nor an nn.Sequential and has a BatchNorm"
    joint_views = not isinstance(method, TargetMethod)
    if joint_views and isinstance(method.second_temperature, int | float) and method.second_temperature == 0:
        return "sem.second_temperature is 0, which a batch of both views cannot have for one of them"
    if type(method).after_step not in (Method.after_step, TargetMethod.after_step):
        return f"{name} overrides after_step, which the fused update replaces"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return _encoder_obstacle(method.online.encoder, size)


def batch_norms(module: nn.Module) -> list[Any]:
    """All BatchNorms of a module."""
    return [part for part in module.modules() if isinstance(part, BatchNorm)]


def is_replaceable(norm: Any) -> bool:
    """Whether a BatchNorm can be replaced by one that keeps views apart; those of many timm models cannot."""
    is_plain = type(norm) in (nn.BatchNorm1d, nn.BatchNorm2d) and norm.affine
    return is_plain and norm.track_running_stats and norm.momentum is not None


def _encoder_obstacle(encoder: nn.Module, size: int) -> str | None:
    """Why a step with this encoder cannot be captured: it waits for the device, or does not use a weight.

    Passes forward and backward through it without numbers, so a decision that depends on them is an error.
    """
    if isinstance(encoder, ResNet):
        return None
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode, fake = FakeTensorMode(), dict[str, Tensor]()
    try:
        for name, tensor in [*encoder.named_parameters(), *encoder.named_buffers()]:
            fake[name] = mode.from_tensor(tensor.detach()).requires_grad_(tensor.requires_grad)
        trained = {name: tensor for name, tensor in fake.items() if tensor.requires_grad}
        device = next(encoder.parameters(), torch.empty(0)).device
        with mode, torch.enable_grad():
            images = torch.empty(2, 3, size, size, device=device)
            features = torch.func.functional_call(encoder, fake, (images,))
            grads = torch.autograd.grad(features.sum(), list(trained.values()), allow_unused=True)
    except Exception as error:  # anybody's code
        why = str(error).splitlines()[0] if str(error) else ""
        return f"the encoder reads numbers on the host, or cannot be traced ({type(error).__name__}: {why})"
    unused = next((name for name, grad in zip(trained, grads, strict=True) if grad is None), None)
    return f"the encoder does not use its weight {unused!r}" if unused is not None else None
