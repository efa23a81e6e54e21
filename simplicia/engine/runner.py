"""How a step's work is run: recorded as a CUDA graph on two streams, or called plainly on a CPU.

The plain runner lets the same Python run in tests without a GPU.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from simplicia.devices import allow_variants

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # run the kernels on a CPU, slowly
T = TypeVar("T")


def runs_kernels(device: torch.device) -> bool:
    """Whether Triton kernels run there."""
    return device.type == "cuda" or INTERPRETED


class Runner:
    """Calls work as it is."""

    replays = False  # whether recorded work finds its tensors, gradients included, where they were recorded

    def compile(self, function: Callable[..., T], in_one_graph: bool = True) -> Callable[..., T]:
        """The function, compiled if that pays; an error if it is to be one graph and cannot."""
        return function

    @contextmanager
    def aside(self, alone: bool) -> Iterator[None]:
        """A context whose work runs concurrently with later work, unless it is to run ``alone``."""
        yield

    def join(self) -> None:
        """Wait for work that runs aside."""

    def warm_up(self, work: Callable[[], None]) -> None:
        """Run work whose tensors are not kept."""
        work()

    def record(self, work: Callable[[], T]) -> Callable[[], T]:
        """A function that does the work; recording it does nothing yet."""
        return work


class CudaRunner(Runner):
    """Records work as one CUDA graph."""

    replays = True

    def __init__(self) -> None:
        torch.backends.cudnn.benchmark = True
        allow_variants()
        self.main, self.side = torch.cuda.Stream(priority=-1), torch.cuda.Stream()

    def compile(self, function: Callable[..., T], in_one_graph: bool = True) -> Callable[..., T]:
        # padded rows would be copied for kernels that need them contiguous
        options: dict[str, Any] = {"comprehensive_padding": False, "shape_padding": False}
        return torch.compile(function, fullgraph=in_one_graph, dynamic=False, options=options)

    @contextmanager
    def aside(self, alone: bool) -> Iterator[None]:
        if alone:
            yield
            return
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            yield

    def join(self) -> None:
        torch.cuda.current_stream().wait_stream(self.side)

    def warm_up(self, work: Callable[[], None]) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream().wait_stream(stream)

    def record(self, work: Callable[[], T]) -> Callable[[], T]:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.main):
            output = work()

        def replay() -> T:
            graph.replay()
            return output

        return replay
