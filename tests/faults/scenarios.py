"""The scenarios that need more than a database."""

from __future__ import annotations

import contextlib
import functools
import time
import typing as t

import celery
import sqlalchemy as sa

from .app import TABLE
from .brokers import Broker, Valkey
from .causes import Causes
from .chaos import Chaos, SlowProxy
from .checker import Explain, Kind
from .rabbitmq import rabbitmq
from .scenario import Scenario
from .server import kill_one
from .settings import Receiver
from .worker import Worker

_PATIENCE = 10
"""Seconds in which a queue that is not empty has to get shorter."""
_MAX_STARTS = 4


class ChecksThenRecords(Scenario):
    """Two at once both find nothing, and who is killed in between runs again."""

    receiver: Receiver = "checks_then_records"
    expects: Kind | None = "doubled"


class RecordsThenHandles(Scenario):
    """Who fails, or is killed, after the record never runs again."""

    receiver: Receiver = "records_then_handles"
    expects: Kind | None = "lost"


class RedisScenario(Scenario):
    """The guard in Redis. The books are in PostgreSQL, which nothing happens to."""

    receiver: Receiver = "redis"
    records_in_database = False
    breaks_database = False

    def set_up(self, stack: contextlib.ExitStack) -> None:
        self.broker = stack.enter_context(Valkey(self.folder))
        self.result.notes.append(self.broker.how)
        self.redis_proxy = stack.enter_context(SlowProxy(self.broker.url))

    def more_settings(self) -> dict[str, t.Any]:
        return {"redis_url": self.redis_proxy.url}

    def more_chaos(self, chaos: Chaos) -> None:
        faults = self.faults
        chaos.break_broker(self.broker, connections=faults.connections, restarts=faults.restarts)

        for command in (b"EVAL", b"SET"):
            chaos.break_wire(
                self.redis_proxy,
                losses=faults.losses // 2,
                delays=faults.delays // 2,
                command=command,
            )

    def explain(self) -> Explain:
        return Causes(self.journal, self.settings(0).lease).explain


class CeleryScenario(Scenario):
    """The guard in the database, in Celery workers."""

    receiver: Receiver = "celery"
    breaks_database = False
    queue = "faults"

    def make_broker(self) -> Broker:
        return Valkey(self.folder)

    def set_up(self, stack: contextlib.ExitStack) -> None:
        self.broker: Broker = stack.enter_context(self.make_broker())
        self.result.notes.append(self.broker.how)
        self.workers = [
            stack.enter_context(Worker(self.settings(0), self.folder, n)) for n in range(2)
        ]

    def more_settings(self) -> dict[str, t.Any]:
        return {"broker_url": self.broker.url, "queue": self.queue}

    def more_chaos(self, chaos: Chaos) -> None:
        faults = self.faults
        chaos.break_broker(self.broker, connections=faults.connections, restarts=faults.restarts)

        for number in range(faults.kills):
            worker = self.workers[number % len(self.workers)]
            child = functools.partial(self._kill_child, worker, chaos)
            chaos.spread("kill process of the pool", 1, child)

        for worker in self.workers:
            chaos.spread("kill whole worker", 1, functools.partial(self._replace, worker))

    def _kill_child(self, worker: Worker, chaos: Chaos) -> bool:
        return kill_one(worker.process.pid, self.journal, chaos.rng, "random, Celery")

    def _replace(self, worker: Worker) -> None:
        self.journal.note("kills", point="whole worker", killed=worker.process.pid)
        worker.kill()
        worker.start()

    def settle(self) -> None:
        """Wait until every event is recorded, and the queue is empty.

        After a broker has come back, a worker of Celery now and then hangs for ever: whoever
        watches it starts it again.
        """
        left, since, starts = self._left(), time.monotonic(), 0

        while any(left):
            time.sleep(0.2)
            before, left = left, self._left()

            if left != before:
                since = time.monotonic()
            elif time.monotonic() > since + _PATIENCE:
                if starts == _MAX_STARTS:
                    break  # the checker will say what is missing

                for worker in self.workers:
                    self._replace(worker)

                since, starts = time.monotonic(), starts + 1

        if starts:
            self.result.notes.append(f"workers that did nothing were restarted {starts} times")

        # Duplicates that a worker holds back for a while.
        time.sleep(2)

    def _left(self) -> tuple[int, int]:
        """Events without a record, and messages in the queue."""
        engine = sa.create_engine(self.database.url(), poolclass=sa.NullPool)
        connection: t.Any = celery.Celery(broker=self.broker.url).connection_for_read()

        with engine.connect() as database:
            recorded = database.execute(sa.text(f"SELECT count(*) FROM {TABLE}")).scalar_one()

        with connection:
            try:
                queue = connection.default_channel.queue_declare(self.queue, passive=True)
            except connection.channel_errors:  # Redis has no empty lists
                return self.profile.events - recorded, 0

            return self.profile.events - recorded, queue.message_count


class RabbitMQScenario(CeleryScenario):
    def make_broker(self) -> Broker:
        return rabbitmq(self.folder)
