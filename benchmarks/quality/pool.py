"""Work that is shared by several processes, of which one may be killed."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

import torch

ATTEMPTS = 3  # to finish the work with a new pool, after a process was killed
Job = tuple[str, int]  # a task and a split
Work = Callable[[Job], str | None]  # why it could not be done


def say(line: str) -> None:
    """A line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def run_all(work: Work, jobs: Sequence[Job], processes: int) -> int:
    """Measure all, and return how many splits could not be measured."""
    if processes == 1:
        return sum(work(job) is not None for job in jobs)
    os.environ["OMP_NUM_THREADS"] = "1"
    failed, left = 0, list(jobs)
    for _ in range(ATTEMPTS):
        number, left = run_pool(work, left, processes)
        failed += number
        if not left:
            break
        say(f"a process was killed, as it happens where memory runs out; {len(left)} splits go on with new ones")
    return failed + len(left)


def run_pool(work: Work, jobs: Sequence[Job], processes: int) -> tuple[int, list[Job]]:
    """How many splits could not be measured, and those that are left because a process was killed."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting: dict[Future[str | None], Job] = {pool.submit(work, job): job for job in jobs}
        failed, left = 0, []
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                job = waiting.pop(future)
                try:
                    failed += future.result() is not None
                except BrokenProcessPool:
                    left.append(job)
    return failed, left
