"""How many requests per second the HTTP example answers, and how long each takes.

Start [app.py](app.py), then run `python examples/serving/load.py` in another terminal. It sends a bounded number of
requests, for a bounded time, and to this machine alone.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import threading
import time

import torch

from peewit.data import fashion_mnist


def ask(port: int, bodies: list[bytes], requests: int, clients: int, seconds: float) -> dict[str, float]:
    """Send one image per request from several clients; percentiles are in milliseconds."""
    numbers, times, failures, lock = itertools.count(), list[float](), list[str](), threading.Lock()
    start = time.perf_counter()

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            while (number := next(numbers)) < requests and time.perf_counter() - start < seconds:
                begin = time.perf_counter()
                headers = {"Content-Type": "application/json"}
                connection.request("POST", "/predict", bodies[number % len(bodies)], headers)
                response = connection.getresponse()
                response.read()
                with lock:
                    times.append(time.perf_counter() - begin)
                    if response.status != 200:
                        failures.append(f"{response.status} {response.reason}")
        except OSError as error:
            failures.append(str(error))
        finally:
            connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - start
    if failures:
        raise SystemExit(f"{len(failures)} requests failed, the first with: {failures[0]}. Is app.py running?")
    points = torch.tensor(times, dtype=torch.float64).quantile(torch.tensor([0.5, 0.95, 0.99], dtype=torch.float64))
    p50, p95, p99 = (1000 * points).tolist()
    return {"requests": len(times), "per second": len(times) / took, "p50": p50, "p95": p95, "p99": p99}


def main() -> None:
    """Ask with test images, and print a line for each number of clients."""
    parser = argparse.ArgumentParser(description="Load the HTTP example on this machine.")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--requests", type=int, default=1000, help="at most so many for each number of clients")
    parser.add_argument("--seconds", type=float, default=20, help="at most so long for each")
    options = parser.parse_args()
    images = fashion_mnist()[1][0][:200, 0]
    bodies = [json.dumps({"images": [image.tolist()]}).encode() for image in images]
    ask(options.port, bodies, 50, 1, options.seconds)  # the first requests are slower
    for clients in (1, 4, 16):
        found = ask(options.port, bodies, options.requests, clients, options.seconds)
        print(
            f"{clients:2} clients: {found['per second']:6.0f} requests per second, "
            f"p50 {found['p50']:.1f} ms, p95 {found['p95']:.1f} ms, p99 {found['p99']:.1f} ms"
        )


if __name__ == "__main__":
    main()
