"""Devices, precision and processes: Lightning Fabric, set up from a few words."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from simplicia.errors import UserError


def allow_variants() -> None:
    """Let a process compile the same code for up to 64 models, one after the other; torch allows eight."""
    import torch._dynamo

    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, 64)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the random numbers of the block; the caller's continue afterwards as if there were none."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def choose(device: str = "auto") -> torch.device:
    """Return the device of that name; "auto" is the GPU if there is one."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return torch.device("cuda" if gpus else "cpu")
    chosen: torch.device | None = None
    with suppress(RuntimeError):
        chosen = torch.device(device)
    present = {"cpu": True, "cuda": gpus > 0, "mps": torch.backends.mps.is_available()}
    if chosen is None or chosen.type not in present:
        raise UserError(f"device is {device!r}; choose auto, cpu, cuda, cuda:1 or mps")
    if not present[chosen.type]:
        raise UserError(
            f"device is {device!r}, but torch {torch.__version__} sees none here; --device cpu works"
        )
    if chosen.type == "cuda" and (chosen.index or 0) >= gpus:
        raise UserError(f"device is {device!r}, but there are {gpus} GPUs, counted from 0")
    return chosen


def launch(device: str, processes: int, precision: str) -> Any:
    """Return a launched Fabric."""
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
    is_gpu = chosen.type == "cuda"
    if processes < 1:
        raise UserError(f"processes is {processes}; it must be at least 1")
    if is_gpu and processes > torch.cuda.device_count():
        raise UserError(f"{processes} processes need as many GPUs; there are {torch.cuda.device_count()}")
    half = precision == "bf16" or (precision == "auto" and is_gpu)
    fabric = Fabric(
        accelerator=chosen.type,
        devices=[chosen.index] if is_gpu and chosen.index is not None and processes == 1 else processes,
        strategy="ddp" if processes > 1 else "auto",
        precision="bf16-mixed" if half else "32-true",
    )
    fabric.launch()
    return fabric


def peak_memory(device: torch.device) -> str:
    """Describe the most memory that was in use."""
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB at the peak of three steps"
    try:
        import resource
    except ImportError:  # not on Windows
        return "the peak is not known here"
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return f"{peak / 2**30:.2f} GiB at the peak of this process"
