"""Verification and parsing of a body, without HTTP.

Nothing here waits, so the time that counts is the processor's: a busy machine does not disturb it.
"""

from __future__ import annotations

import collections.abc as c
import hmac
import json
import statistics
import time

from sangho.resources.webhooks import Webhooks  # type: ignore[import-untyped]

from flask_sangho_webhooks.event import Event
from flask_sangho_webhooks.signature import verify

from .deliveries import event_body, new_id, sign
from .endpoint import SECRET
from .measure import Bench, FLOOR, Goal, OURS, Result, THEIRS, Work

FLOOR_IS = "hmac.digest and json.loads"
SECRETS = (SECRET,)
CLOCK = time.thread_time
GROWTH = (300, 2_000, 10_000, 100_000, 1_000_000)


def small(bench: Bench) -> list[Result]:
    return [_beside_the_sdk(bench, size, name) for size, name in ((300, "300 B"), (2000, "2 kB"))]


def large(bench: Bench) -> list[Result]:
    body = event_body(new_id(), size=100_000)
    samples = bench.interleave({OURS: _ours(body), THEIRS: _floor(body)}, units=10, clock=CLOCK)
    return [
        Result(
            work="verify and parse, 100 kB",
            rival=FLOOR_IS,
            goal=Goal(1.1),
            floor=samples[THEIRS],
            floor_is=FLOOR_IS,
            ours=samples[OURS],
            theirs=samples[THEIRS],
        )
    ]


def growth(bench: Bench) -> list[Result]:
    """Not in the table, but in the plot."""
    for size in GROWTH:
        body = event_body(new_id(), size=size)
        sides = {OURS: _ours(body), THEIRS: _sdk(body), FLOOR: _floor(body)}
        samples = bench.interleave(sides, units=max(1, 100_000 // size), seconds=0.1, clock=CLOCK)

        for name, label in ((OURS, OURS), (THEIRS, "SDK"), (FLOOR, "HMAC and JSON alone")):
            line = bench.growth["body"].setdefault(label, [])
            line.append((size, statistics.median(samples[name])))

    return []


def _beside_the_sdk(bench: Bench, size: int, name: str) -> Result:
    body = event_body(new_id(), size=size)
    sides = {OURS: _ours(body), THEIRS: _sdk(body), FLOOR: _floor(body)}
    samples = bench.interleave(sides, units=100_000 // size, clock=CLOCK)
    return Result(
        work=f"verify and parse, {name}",
        rival="SDK construct_event",
        goal=Goal(0.75),
        floor=samples[FLOOR],
        floor_is=FLOOR_IS,
        ours=samples[OURS],
        theirs=samples[THEIRS],
    )


def _ours(body: bytes) -> Work:
    header = sign(body)
    event_id = json.loads(body)["id"]

    def work(units: int) -> c.Callable[[], None]:
        def run() -> None:
            for _ in range(units):
                verify(body, header, SECRETS, 300)
                Event.from_body(body, event_id)

        return run

    return work


def _sdk(body: bytes) -> Work:
    header = sign(body)

    def work(units: int) -> c.Callable[[], None]:
        def run() -> None:
            for _ in range(units):
                Webhooks.construct_event(body, header, SECRET)

        return run

    return work


def _floor(body: bytes) -> Work:
    key = SECRET.encode()

    def work(units: int) -> c.Callable[[], None]:
        def run() -> None:
            for _ in range(units):
                hmac.digest(key, body, "sha256")
                json.loads(body)

        return run

    return work
