"""Devices, precision and processes: Lightning Fabric, set up from a few words."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from simplicia.errors import UserError

VARIANTS = 64  # of the same code that a process may compile


def allow_variants() -> None:
    """Let a process compile the same code for many models, one after the other: torch allows for eight."""
    import torch._dynamo

    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, VARIANTS)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers that are a function of a seed; those of the caller go on afterwards as if none were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def choose(device: str = "auto") -> torch.device:
    """The device of that name; "auto" is the GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen: torch.device | None
    try:
        chosen = torch.device(device)
    except RuntimeError:
        chosen = None
    if chosen is None or chosen.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"device is {device!r}; choose auto, cpu, cuda, cuda:1 or mps")
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError(
                f"device is {device!r}, but torch {torch.__version__} sees no GPU here; --device cpu works"
            )
        if (chosen.index or 0) >= torch.cuda.device_count():
            raise UserError(
                f"device is {device!r}, but there are {torch.cuda.device_count()} GPUs, counted from 0"
            )
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device is 'mps', but torch sees none here; --device cpu works")
    return chosen


def launch(device: str, processes: int, precision: str) -> Any:
    """A launched Fabric."""
    try:
        from lightning.fabric import Fabric
    except ImportError:
        from lightning_fabric import Fabric

    # hints of Fabric and of torch's compiler are for those who write training loops
    for name in ("lightning.fabric", "lightning_fabric", "lightning.pytorch"):
        for logger in (name, f"{name}.utilities.rank_zero"):
            logging.getLogger(logger).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)  # 32 bits are intended
    chosen = choose(device)
    if processes < 1:
        raise UserError(f"processes is {processes}; it must be at least 1")
    if chosen.type == "cuda" and processes > torch.cuda.device_count():
        raise UserError(f"{processes} processes need as many GPUs; there are {torch.cuda.device_count()}")
    half = precision == "bf16" or (precision == "auto" and chosen.type == "cuda")
    which = [chosen.index] if chosen.type == "cuda" and chosen.index is not None else 1
    devices: Any = processes if processes > 1 else which
    made = Fabric(
        accelerator=chosen.type,
        devices=devices,
        strategy="ddp" if processes > 1 else "auto",
        precision="bf16-mixed" if half else "32-true",
    )
    made.launch()
    return made


def peak_memory(device: torch.device) -> str:
    """The most memory that was in use, for people."""
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB at the peak of three steps"
    try:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    except ImportError:  # not on Windows
        return "the peak is not known here"
    unit = 1 if sys.platform == "darwin" else 1024
    return f"{peak * unit / 2**30:.2f} GiB at the peak of this process"
