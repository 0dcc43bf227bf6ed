"""One event through RedisGuard, beside Powertools for AWS Lambda on the same Redis. No HTTP.

Entry beside entry: ``webhooks.process(event)`` and the decorated function. Both run a function
that does next to nothing, hold a claim for 300 s and a record for 72 hours.
"""

from __future__ import annotations

import collections.abc as c
import json
import typing as t
import warnings

import redis
from flask import Flask

from flask_sangho_webhooks import Event, RedisGuard, SanghoWebhooks

from .deliveries import event_body, new_id
from .endpoint import SECRET, TYPE
from .measure import Bench, FLOOR, Goal, OURS, Result, THEIRS, Work
from .servers import Servers

LEASE = 300
RETENTION = 72 * 3600
UNITS = 20

Process = c.Callable[[t.Any], object]
Prepare = c.Callable[[bytes], t.Any]


class Sides:
    """The function that takes an event, for each side, and what makes the event of a body."""

    def __init__(self, servers: Servers) -> None:
        self.url = servers.redis()
        self.prefix = f"sangho-bench:{new_id()}:"
        self.client: t.Any = redis.Redis.from_url(self.url, decode_responses=True)
        self.runs = 0
        self.process: dict[str, Process] = {OURS: self._ours(servers), THEIRS: self._powertools()}
        self.prepare: dict[str, Prepare] = {OURS: Event.from_body, THEIRS: json.loads}
        servers.row.callback(self._tidy_up)

    def handler(self, event: t.Any) -> None:
        self.runs += 1

    def _ours(self, servers: Servers) -> Process:
        webhooks = SanghoWebhooks(guard=RedisGuard(url=self.url, lease=LEASE, prefix=self.prefix))
        webhooks.on(TYPE)(self.handler)
        app = Flask(__name__)
        app.config["SANGHO_WEBHOOK_SECRET"] = SECRET
        webhooks.init_app(app)
        servers.row.enter_context(app.app_context())
        return webhooks.process

    def _powertools(self) -> Process:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a name it uses itself
            from aws_lambda_powertools.utilities import idempotency
            from aws_lambda_powertools.utilities.idempotency.persistence import cache

            layer = cache.CachePersistenceLayer(client=self.client)

        config = idempotency.IdempotencyConfig(
            event_key_jmespath="id", expires_after_seconds=RETENTION
        )
        # It bounds the claim. Without it, every call warns.
        config.register_lambda_context(t.cast(t.Any, _Context()))

        process: t.Any = idempotency.idempotent_function(
            self.handler,
            data_keyword_argument="event",
            persistence_store=layer,
            config=config,
            key_prefix=self.prefix,
        )
        return lambda event: process(event=event)

    def _tidy_up(self) -> None:
        for key in self.client.scan_iter(f"{self.prefix}*", count=10_000):
            self.client.unlink(key)

        self.client.close()


class _Context:
    def get_remaining_time_in_millis(self) -> int:
        return LEASE * 1000


def new(bench: Bench) -> list[Result]:
    sides = Sides(bench.servers)

    def side(name: str) -> Work:
        def work(units: int) -> c.Callable[[], None]:
            prepare, process = sides.prepare[name], sides.process[name]
            events = [prepare(event_body(new_id())) for _ in range(units)]

            def run() -> None:
                before = sides.runs

                for event in events:
                    process(event)

                if sides.runs != before + units:
                    raise RuntimeError(f"A new event was not run by {name}.")

            return run

        return work

    def floor(units: int) -> c.Callable[[], None]:
        keys = [f"{sides.prefix}{new_id()}" for _ in range(units)]

        def run() -> None:
            for key in keys:
                sides.client.set(key, "processing", nx=True, ex=LEASE)
                sides.client.set(key, "processed", ex=RETENTION)

        return run

    samples = bench.interleave({OURS: side(OURS), THEIRS: side(THEIRS), FLOOR: floor}, units=UNITS)
    return [_result("new event with RedisGuard", 1.3, samples, "SET twice over redis-py")]


def duplicate(bench: Bench) -> list[Result]:
    sides = Sides(bench.servers)
    body = event_body(new_id())
    key = f"{sides.prefix}{new_id()}"
    sides.client.set(key, "processed", ex=RETENTION)

    def side(name: str) -> Work:
        event = sides.prepare[name](body)
        process = sides.process[name]
        process(event)

        def work(units: int) -> c.Callable[[], None]:
            def run() -> None:
                before = sides.runs

                for _ in range(units):
                    process(event)

                if sides.runs != before:
                    raise RuntimeError(f"A duplicate was run by {name}.")

            return run

        return work

    def floor(units: int) -> c.Callable[[], None]:
        def run() -> None:
            for _ in range(units):
                sides.client.get(key)

        return run

    samples = bench.interleave({OURS: side(OURS), THEIRS: side(THEIRS), FLOOR: floor}, units=UNITS)
    return [_result("duplicate with RedisGuard", 1.8, samples, "GET over redis-py")]


def _result(work: str, goal: float, samples: dict[str, list[float]], floor_is: str) -> Result:
    return Result(
        work=work,
        rival="Powertools for AWS Lambda",
        goal=Goal(goal, at_least=True),
        unit="throughput",
        ours=samples[OURS],
        theirs=samples[THEIRS],
        floor=samples[FLOOR],
        floor_is=floor_is,
    )
