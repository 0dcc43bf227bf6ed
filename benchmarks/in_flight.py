"""A duplicate of an event whose handler is still at work, and other events meanwhile."""

from __future__ import annotations

import functools
import threading

from flask import Flask

from . import ours, recipe
from .deliveries import environ, event_body, new_environ, new_id
from .endpoint import SLOW_TYPE
from .measure import Bench, Goal, Result, timed
from .requests import dispose
from .wsgi import deliver

OTHERS = 60
RIVAL_WAITS = 0.5
"""Seconds that the handler sleeps while the rival's duplicate waits for it."""


class Slow:
    """An app with a handler that sleeps until it is woken, and a thread that delivers to it."""

    def __init__(self, bench: Bench, module: object) -> None:
        self.entered = threading.Event()
        self.awake = threading.Event()
        url = bench.servers.database("postgresql")
        self.app: Flask = module.create_app(url, self._pause)  # type: ignore[attr-defined]
        self.body = b""
        self.event_id = ""
        bench.servers.row.callback(dispose, self.app)
        deliver(self.app, [new_environ()])

    def start(self) -> threading.Thread:
        """Deliver an event, and wait until its handler sleeps."""
        self.event_id = new_id()
        self.body = event_body(self.event_id, SLOW_TYPE)
        self.entered.clear()
        self.awake.clear()
        thread = threading.Thread(target=deliver, args=(self.app, [self.request()]))
        thread.start()
        self.entered.wait(10)
        return thread

    def request(self) -> dict[str, object]:
        return environ(self.event_id, self.body)

    def _pause(self) -> None:
        # The row is written, not only added to the session.
        self.app.extensions["sqlalchemy"].session.flush()
        self.entered.set()
        self.awake.wait(30)


def in_flight(bench: Bench) -> list[Result]:
    app = Slow(bench, ours)
    rival = Slow(bench, recipe)
    answered, waited, beside, alone = [], [], [], []

    for _ in range(bench.rounds):
        thread = app.start()
        answered.append(
            timed(functools.partial(deliver, app.app, [app.request()], "503 SERVICE UNAVAILABLE"))
        )
        beside.append(_others(app))

        if not thread.is_alive():
            raise RuntimeError("The handler was over before the other events were.")

        app.awake.set()
        thread.join()
        alone.append(_others(app))

        thread = rival.start()
        threading.Timer(RIVAL_WAITS, rival.awake.set).start()
        waited.append(timed(functools.partial(deliver, rival.app, [rival.request()])))
        thread.join()

    return [
        Result(
            work="duplicate in flight on PostgreSQL",
            rival=f"hand-written recipe, whose handler sleeps for {RIVAL_WAITS} s",
            goal=Goal(0.05, absolute=True),
            ours=answered,
            theirs=waited,
        ),
        Result(
            work="another new event meanwhile",
            rival="the same when no handler sleeps",
            goal=Goal(1.2),
            ours=beside,
            theirs=alone,
        ),
    ]


def _others(slow: Slow) -> float:
    run = functools.partial(deliver, slow.app, [new_environ() for _ in range(OTHERS)])
    return timed(run) / OTHERS
