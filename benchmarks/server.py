"""Whole servers: gunicorn with two workers, and sixteen connections at once, on PostgreSQL.

Each round has new processes, since one server of the same code can be quicker than another for as
long as both live. All are up at the same time, and under load in turn. A connection is one request,
as gunicorn's default workers have it.
"""

from __future__ import annotations

import asyncio
import collections.abc as c
import contextlib
import socket
import statistics
import subprocess
import sys
import time

from .deliveries import event_body, http_request, new_id
from .measure import Bench, Goal, Result

WORKERS = 2
CONNECTIONS = 16
SECONDS = {"ours": 3.6, "recipe": 3.6, "bare": 0.6}
"""Of load on each server in a round."""
TURNS = 12
"""Of each server in a round, so that all see the same moods of the machine."""
MOST = 1_500
"""Deliveries that are signed in advance for a turn."""


def whole_server(bench: Bench) -> list[Result]:
    modules = list(SECONDS)
    urls = {module: bench.servers.database("postgresql") for module in modules}
    seconds: dict[str, list[float]] = {module: [] for module in modules}
    slowest: dict[str, list[float]] = {module: [] for module in modules}

    for module, url in urls.items():
        # Two workers that created the tables at once would meet.
        setup = f"from benchmarks.{module} import create_app; create_app({url!r})"
        subprocess.run([sys.executable, "-c", setup], check=True)

    for _ in range(bench.rounds):
        totals = dict.fromkeys(modules, 0.0)
        latencies: dict[str, list[float]] = {module: [] for module in modules}

        with contextlib.ExitStack() as round_:
            ports = {module: _serve(round_, module, url) for module, url in urls.items()}

            for port in ports.values():
                _wait_for(port)
                _load(port, 0.3, [])

            for turn in range(TURNS):
                for module in modules[:: -1 if turn % 2 else 1]:
                    duration = (0.5 if bench.smoke else SECONDS[module]) / TURNS
                    totals[module] += _load(ports[module], duration, latencies[module])

        for module in modules:
            seconds[module].append(totals[module] / len(latencies[module]))
            slowest[module].append(statistics.quantiles(latencies[module], n=100)[-1])

    name = f"gunicorn, {WORKERS} workers, {CONNECTIONS} connections, PostgreSQL"
    floor_is = "gunicorn and Flask with a route that does nothing"
    return [
        Result(
            work=f"{name}: new events",
            rival="hand-written recipe",
            goal=Goal(0.95, at_least=True),
            unit="throughput",
            ours=seconds["ours"],
            theirs=seconds["recipe"],
            floor=seconds["bare"],
            floor_is=floor_is,
        ),
        Result(
            work=f"{name}: 99th percentile",
            rival="hand-written recipe",
            goal=Goal(1.1),
            ours=slowest["ours"],
            theirs=slowest["recipe"],
            floor=slowest["bare"],
            floor_is=floor_is,
        ),
    ]


def _serve(stack: contextlib.ExitStack, module: str, url: str) -> int:
    """Start gunicorn, and return its port.

    :param stack: stops it.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]

    command = [sys.executable, "-m", "gunicorn", "--workers", str(WORKERS), "--log-level", "error"]
    command += ["--bind", f"127.0.0.1:{port}", f"benchmarks.{module}:create_app({url!r})"]
    process = stack.enter_context(subprocess.Popen(command))
    stack.callback(process.terminate)
    return port


def _wait_for(port: int) -> None:
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            time.sleep(0.1)
        else:
            return

    raise RuntimeError("gunicorn does not listen.")


def _load(port: int, duration: float, latencies: list[float]) -> float:
    """Deliver new events for so many seconds.

    :param latencies: to which the seconds of each are added.
    :return: seconds in all.
    """
    requests = [
        http_request(event_id, event_body(event_id)) for event_id in (new_id() for _ in range(MOST))
    ]
    started = time.perf_counter()
    asyncio.run(_deliver_all(port, iter(requests), started + duration, latencies))
    return time.perf_counter() - started


async def _deliver_all(
    port: int, requests: c.Iterator[bytes], ends: float, latencies: list[float]
) -> None:
    async def connection() -> None:
        for request in requests:
            started = time.perf_counter()

            if started > ends:
                break

            await _deliver(port, request)
            latencies.append(time.perf_counter() - started)

    await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))


async def _deliver(port: int, request: bytes) -> None:
    loop = asyncio.get_running_loop()

    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        await loop.sock_sendall(sock, request)
        answer = b""

        while piece := await loop.sock_recv(sock, 65536):
            answer += piece

    if not answer.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"A delivery was answered with {answer[:40]!r}.")
