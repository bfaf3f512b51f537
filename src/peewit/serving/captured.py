"""A function of inputs of one shape as a CUDA graph: all that it does on the GPU is begun by one launch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..kernels import available
from ..messages.errors import PeewitError
from ..network.nests import Inputs, count, map_tensors, tensors

Result = TypeVar("Result")  # a dataclass, some of whose fields are tensors
WARM = 3  # passes before the capture: kernels are compiled, and libraries take their memory
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique", "equal.default", "is_nonzero", "_assert_async")


class Witness(TorchDispatchMode):
    """Notes what cannot be captured: operations that wait for the GPU, or that copy between it and the processor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the operation."""
        result = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("aten.")
        devices = {each.device.type for each in (*args, result) if isinstance(each, Tensor)}
        crosses = name.startswith(("_to_copy", "copy_", "_copy_from")) and len(devices) > 1
        if crosses or (any(word in name for word in WAITING) and "cuda" in devices):
            self.found.append(name)
        return result


class Captured(Generic[Result]):
    """A captured function: one call at a time, and whoever would wait does without it."""

    def __init__(self, compute: Callable[[Inputs], Result], x: Inputs) -> None:
        """Capture a function that gives a dataclass; `PeewitError` where it cannot be captured."""
        self.inputs: Inputs = map_tensors(torch.clone, x)
        self.lock = threading.Lock()
        self.device = tensors(x)[0].device
        if self.device.type != "cuda":
            raise PeewitError(f"cuda_graph=True with inputs on {self.device}; expected a network and inputs on a GPU.")
        stream, current = torch.cuda.Stream(self.device), torch.cuda.current_stream(self.device)
        self.graph = torch.cuda.CUDAGraph()
        self.done = torch.cuda.Event()
        with torch.cuda.device(self.device), kernels_as_before():
            stream.wait_stream(current)
            with torch.cuda.stream(stream), Witness() as witness:
                compute(self.inputs)
            if witness.found:
                raise PeewitError(
                    f"cuda_graph=True, but the network waits for the GPU, or copies to it or from it, in "
                    f"{', '.join(dict.fromkeys(witness.found))}; a CUDA graph cannot hold that. Leave cuda_graph out."
                )
            with torch.cuda.stream(stream):
                for _ in range(WARM):
                    compute(self.inputs)
            current.wait_stream(stream)
            try:
                with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                    self.result = compute(self.inputs)
            except RuntimeError as error:
                raise PeewitError(
                    f"cuda_graph=True, but torch cannot capture these passes ({' '.join(str(error).split())[:200]}); "
                    "leave cuda_graph out."
                ) from error

    def fits(self, x: Inputs) -> bool:
        """Whether inputs are as many as those of the capture."""
        return count(x) == count(self.inputs)

    def __call__(self, x: Inputs) -> Result | None:
        """The result with tensors of its own; None where another thread is asking."""
        if not self.lock.acquire(blocking=False):
            return None
        try:
            with torch.cuda.device(self.device):
                stream = torch.cuda.current_stream(self.device)
                stream.wait_event(self.done)  # another stream may still copy results
                for kept, given in zip(tensors(self.inputs), tensors(x), strict=True):
                    kept.copy_(given)
                self.graph.replay()
                found = {each.name: getattr(self.result, each.name) for each in fields(self.result)}  # type: ignore
                copies = {name: value.clone() for name, value in found.items() if isinstance(value, Tensor)}
                self.done.record(stream)
            return replace(self.result, **copies)  # type: ignore[type-var]
        finally:
            self.lock.release()


@contextmanager
def kernels_as_before() -> Iterator[None]:
    """What fails in here says nothing of kernels elsewhere."""
    before = list(available.broken)
    try:
        yield
    finally:
        available.broken[:] = before
