"""Compare the library with plain loops on many random networks, in several processes.

Failing networks are printed as Python, shrunk to the steps that matter, with what is wrong; then how often each option
of the grammar occurred. Run it by `make test-random SEED=0 COUNT=1000`.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PROGRESS = 500  # networks between two lines of progress
LEAST = 0.02  # the share of networks in which each option of the grammar has to occur


def set_up(put_back: str = "") -> None:
    """Let a process import the library and the tests, and put back a mistake that was repaired."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "support")]
    import torch

    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if put_back:
        import pytest

        import repairs

        getattr(repairs, put_back)(pytest.MonkeyPatch())


def compare(
    seed: int, device: str, dtype: str, only: tuple[str, ...], turns: bool, shrink: bool
) -> tuple[int, Any, list[str], str]:
    """The options of a seed's network, what is wrong with the library's answers, and the smallest network for it."""
    import torch

    from random_checks import failures, shrunk, some_checks
    from random_grammar import random_network

    network = random_network(seed)
    checks = some_checks(seed) if turns else only
    settings: dict[str, Any] = {"device": device, "dtype": getattr(torch, dtype), "only": checks}
    try:
        found = failures(network, **settings)
        smallest, left = shrunk(network, **settings) if found and shrink else (network, found)
    except Exception as error:  # a network that torch itself cannot run is a fault of the grammar
        return seed, network.options, [f"grammar: {type(error).__name__}: {error}"], str(network)
    return seed, network.options, found, "\n".join([*left, str(smallest)]) if found else ""


def main() -> int:
    """Run the command; the status is 0 if no network fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1000, help="how many networks")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float64", choices=["float64", "float32"])
    parser.add_argument("--only", nargs="*", default=[], help="checks; all of them if none is named")
    parser.add_argument("--turns", action="store_true", help="some checks of each network, in turns")
    parser.add_argument("--without", nargs="*", default=[], help="leave out networks that have one of these options")
    parser.add_argument("--plain", action="store_true", help="print failing networks as they are, not shrunk")
    parser.add_argument("--put-back", default="", help="put back a repaired mistake, by its name in repairs.py")
    arguments = parser.parse_args()
    set_up()
    import random_checks  # noqa: F401  # fills the grammar
    from random_grammar import owners, random_network

    seeds = range(arguments.seed, arguments.seed + arguments.count)
    counted = collections.Counter(option for seed in seeds for option in random_network(seed).options)
    chosen = [seed for seed in seeds if not set(arguments.without) & set(random_network(seed).options)]
    start, failing = time.time(), {}
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.workers, spawned, set_up, (arguments.put_back,)) as pool:
        settings = (arguments.device, arguments.dtype, tuple(arguments.only), arguments.turns, not arguments.plain)
        waiting = [pool.submit(compare, seed, *settings) for seed in chosen]
        for number, done in enumerate(as_completed(waiting), 1):
            seed, _, found, text = done.result()
            if number % PROGRESS == 0:
                print(f"{number} of {len(chosen)}, {time.time() - start:.0f} s", flush=True)
            if found:
                failing[seed] = found
                print(f"seed {seed} fails:", *found[:6], sep="\n  ")
                print(f"the smallest part of it that fails likewise:\n{text}\n", flush=True)
    print("how many networks have each option of the grammar, in percent:")
    shares = {option: counted[option] / len(seeds) for option in owners()}
    print(
        ", ".join(f"{option} {100 * share:.1f}" for option, share in sorted(shares.items(), key=lambda each: each[1]))
    )
    rare = [option for option, share in shares.items() if share < LEAST]
    if rare and len(seeds) >= 1000:
        print(f"too rare, below {100 * LEAST:.0f} percent: {', '.join(rare)}")
    print(f"{len(failing)} of {len(chosen)} networks fail, in {time.time() - start:.0f} s: {sorted(failing)}")
    return 1 if failing or (rare and len(seeds) >= 1000) else 0


if __name__ == "__main__":
    sys.exit(main())
