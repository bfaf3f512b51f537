"""Time and peak memory of a function on a device, and failures as values."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch


@dataclass(frozen=True)
class Timing:
    """Seconds of every repeat in order, and processor time over all threads where the processor does the work."""

    seconds: tuple[float, ...]
    processor: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance between the fastest and the slowest repeat."""
        return (max(self.seconds) - min(self.seconds)) / 2

    def as_dict(self) -> dict[str, Any]:
        found = {"median": self.median, "spread": self.spread, "repeats": len(self.seconds), "seconds": self.seconds}
        return {**found, "processor": statistics.median(self.processor)} if self.processor else found


@dataclass(frozen=True)
class Failure:
    """Why there is no measurement."""

    reason: str

    def as_dict(self) -> dict[str, Any]:
        return {"failure": self.reason}


def attempt(function: Callable[[], Any]) -> Any:
    """What the function returns, or a Failure in place of what it raises."""
    try:
        return function()
    except (torch.OutOfMemoryError, MemoryError):
        failure = Failure("out of memory")
    # Some libraries call exit() on numerical trouble, which must not end the whole run.
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())
        if "can't allocate memory" in message:
            failure = Failure("out of memory")
        else:
            failure = Failure(f"{type(error).__name__}: {message[:300]}".rstrip(": "))
    # Outside the handlers: the traceback held the tensors of the failed call.
    tidy()
    return failure


def tidy() -> None:
    """Free unused memory of the device, so that no measurement affects the next."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def synchronise(device: torch.device) -> None:
    """Wait for the device, which runs behind the host."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def elapsed(function: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one call, the device's work included: by the device's own clock where it has one."""
    synchronise(device)
    if device.type == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        function()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def timed(function: Callable[[], Any], device: torch.device, repeats: int, patience: float) -> Timing:
    """Repeat the call, less often if all calls together take longer than `patience` seconds; warm up before."""
    seconds: list[float] = []
    processor: list[float] = []
    while len(seconds) < repeats and (not seconds or sum(seconds) < patience):
        start = time.process_time()
        seconds.append(elapsed(function, device))
        processor.append(time.process_time() - start)
    return Timing(tuple(seconds), tuple(processor) if device.type == "cpu" else ())


@dataclass(frozen=True)
class Measurement:
    """Times of a call and the memory of one of them."""

    timing: Timing
    peak: int  # bytes, what was held before included; 0 on the CPU
    extra: int  # bytes beyond what was held before

    def as_dict(self) -> dict[str, Any]:
        return {"time": self.timing.as_dict(), "peak_bytes": self.peak, "extra_bytes": self.extra}


def measured(function: Callable[[], Any], device: torch.device, repeats: int, patience: float) -> Measurement:
    """Memory of a first call, then times of further ones; only one call where it takes longer than patience."""
    with PeakMemory(device) as memory:
        first = elapsed(function, device)
    timing = timed(function, device, repeats, patience) if first < patience else Timing((first,))
    return Measurement(timing, memory.total, memory.extra)


class PeakMemory:
    """Peak memory inside a `with` block.

    On CUDA the allocator's own peak; on the CPU the growth of the resident set, sampled, with what the process already
    held (the code of torch, memory kept for reuse) left out.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.total = 0  # bytes, model and inputs included; 0 on the CPU
        self.extra = 0  # bytes beyond what was held at the start
        self.done = threading.Event()

    def __enter__(self) -> PeakMemory:
        tidy()
        if self.device.type == "cuda":
            synchronise(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self.start = torch.cuda.memory_allocated(self.device)
        else:
            release_heap()
            self.start = resident_bytes()
            self.sampler = threading.Thread(target=self.sample, daemon=True)
            self.sampler.start()
        return self

    def sample(self) -> None:
        while not self.done.wait(0.002):
            self.extra = max(self.extra, resident_bytes() - self.start)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.device.type == "cuda":
            synchronise(self.device)
            self.total = torch.cuda.max_memory_allocated(self.device)
            self.extra = self.total - self.start
        else:
            self.done.set()
            self.sampler.join()
            self.extra = max(self.extra, resident_bytes() - self.start)


def release_heap() -> None:
    """Hand freed memory back to the system: a call that reuses it would seem to need none."""
    # Only glibc has malloc_trim; elsewhere the peak is a lower bound.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int:
    """Resident set of this process; 0 where the system does not report it."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def available_bytes() -> int:
    """Available memory of the host; a large number where the system does not report it."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 1 << 62


@contextlib.contextmanager
def within_memory(device: torch.device, share: float = 0.85) -> Iterator[None]:
    """On the host, let allocations beyond a share of free memory fail, before the system ends the process."""
    try:
        import resource
    except ImportError:  # not on every system
        resource = None  # type: ignore[assignment]
    if device.type != "cpu" or resource is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = private_bytes() + int(share * available_bytes())
    ceiling = min((each for each in (soft, hard, wanted) if each != resource.RLIM_INFINITY), default=wanted)
    resource.setrlimit(resource.RLIMIT_DATA, (ceiling, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def private_bytes() -> int:
    """Memory that counts towards the limit already: private memory of this process, touched or not."""
    try:
        with open("/proc/self/status") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))
    except (OSError, ValueError):
        return 0


def device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        with open("/proc/cpuinfo") as file:
            models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        models = []
    name = models[0] if models else platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads"


@dataclass(frozen=True)
class Precision:
    """How exact products in float32 are: torch's switches for matrices and convolutions, and peewit's policy."""

    matrices: bool  # whether they may be in TF32
    convolutions: bool
    arithmetic: str


PRECISIONS = {
    "fp32": Precision(False, False, "float32"),
    "tf32": Precision(True, True, "tf32"),
    "bf16": Precision(True, True, "bf16"),
    "default": Precision(False, True, "auto"),  # as torch and peewit come
}
chosen = [PRECISIONS["default"]]


def arithmetic() -> str:
    """The policy of peewit."""
    return chosen[0].arithmetic


def set_precision(precision: str) -> None:
    """Set how exact products in float32 are, in both libraries, by a name in PRECISIONS."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is not known; expected one of {', '.join(PRECISIONS)}.")
    chosen[0] = own = PRECISIONS[precision]
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = own.matrices, own.convolutions
