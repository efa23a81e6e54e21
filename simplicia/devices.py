"""Devices, precision and processes: Lightning Fabric, set up from a few words."""

import atexit
import inspect
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch

from simplicia.distributed import PATIENT, leave
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


class Launcher(NamedTuple):
    """What started this process together with others."""

    name: str
    processes: int
    nodes: int


def launcher() -> Launcher | None:
    """Return what started this process, by its environment: torchrun, srun with several tasks, or None."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return _launcher("torchrun", _number("WORLD_SIZE"), _number("LOCAL_WORLD_SIZE"))
    # only srun sets this; a shell or a script inside an allocation has SLURM_NTASKS too
    tasks = _number("SLURM_STEP_NUM_TASKS", 1)
    if tasks == 1:
        return None
    return _launcher("srun", tasks, tasks // _number("SLURM_STEP_NUM_NODES", 1))


def _launcher(name: str, processes: int, local: int) -> Launcher:
    if local < 1 or processes % local:
        raise UserError(
            f"{name} started {processes} processes, not the same number on each machine; give each as many"
        )
    return Launcher(name, processes, processes // local)


def _number(name: str, default: int | None = None) -> int:
    """A number in the environment."""
    value = os.environ.get(name, default)
    try:
        return int(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UserError(f"the environment says {name}={value}; it must be a number") from None


def process_count(given: int | None) -> int:
    """Return how many processes train: those of the launcher, or as many as were given."""
    started = launcher()
    if given is not None and given < 1:
        raise UserError(f"processes is {given}; it must be at least 1")
    if started is None:
        return given or 1
    if given not in (None, started.processes):
        raise UserError(
            f"processes is {given}, but {started.name} started {started.processes}; leave --processes out"
        )
    return started.processes


def _srun_as_torchrun(nodes: int) -> None:
    """Set the variables of torchrun from those of srun."""
    try:
        from lightning.fabric.plugins.environments import SLURMEnvironment
    except ImportError:
        from lightning_fabric.plugins.environments import SLURMEnvironment

    names = {"WORLD_SIZE": "STEP_NUM_TASKS", "RANK": "PROCID", "LOCAL_RANK": "LOCALID"}
    os.environ.update({name: str(_number(f"SLURM_{slurm}")) for name, slurm in names.items()})
    hosts = os.environ.get("SLURM_STEP_NODELIST", "")
    first = SLURMEnvironment.resolve_root_node_address(hosts) if nodes > 1 else "127.0.0.1"
    os.environ.setdefault("MASTER_ADDR", first)
    # a port of this job step: several may share a machine
    port = 10_000 + (_number("SLURM_JOB_ID", 0) * 31 + _number("SLURM_STEP_ID", 0)) % 20_000
    os.environ.setdefault("MASTER_PORT", str(port))


def launch(device: str, processes: int, precision: str) -> Any:
    """Return a launched Fabric of that many processes, which torchrun or srun started, or Fabric starts."""
    try:
        from lightning.fabric import Fabric
        from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
        from lightning.fabric.strategies import DDPStrategy
    except ImportError:
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
        from lightning_fabric.strategies import DDPStrategy

    # hints of Fabric and of torch's compiler are for those who write training loops
    for name in ("lightning.fabric", "lightning_fabric", "lightning.pytorch"):
        for logger in (name, f"{name}.utilities.rank_zero"):
            logging.getLogger(logger).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)  # 32 bits are intended
    chosen = choose(device)
    is_gpu = chosen.type == "cuda"
    process_count(processes)
    started = launcher()
    local = processes // started.nodes if started else processes
    if is_gpu and local > torch.cuda.device_count():
        raise UserError(f"{local} processes need as many GPUs; there are {torch.cuda.device_count()}")
    if started is not None and started.name == "srun":
        _srun_as_torchrun(started.nodes)
    # BatchNorm is synchronised, so that no buffer needs to be broadcast; the option's name depends on torch
    parameters = inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters
    sync = "forward_sync_buffers" if "forward_sync_buffers" in parameters else "broadcast_buffers"
    options: dict[str, Any] = {sync: False, "gradient_as_bucket_view": True}
    half = precision == "bf16" or (precision == "auto" and is_gpu)
    fabric = Fabric(
        accelerator=chosen.type,
        devices=[chosen.index] if is_gpu and chosen.index is not None and processes == 1 else local,
        num_nodes=started.nodes if started else 1,
        strategy=DDPStrategy(timeout=PATIENT, **options) if processes > 1 else "auto",
        precision="bf16-mixed" if half else "32-true",
        # what Fabric would find by itself takes any shell inside a SLURM allocation for srun
        plugins=[TorchElasticEnvironment() if started else LightningEnvironment()],
    )
    fabric.launch()
    if processes > 1:
        atexit.register(leave)  # threads of a group that still exists would abort a process that exits
    return fabric


def total_memory(device: torch.device) -> int | None:
    """Return the bytes of a GPU, or those of the host that this process may use; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, AttributeError, ValueError, OSError):  # not on Windows
        return None
    return installed if limit == resource.RLIM_INFINITY else min(installed, limit)


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
