"""Whole requests, in the process: the WSGI app is called as a server would, without a socket."""

from __future__ import annotations

import collections.abc as c
import functools
import hmac
import json
import typing as t

import sqlalchemy as sa
from flask import Flask

from . import ours, recipe
from .deliveries import environ, event_body, new_environ, new_id
from .endpoint import SECRET, TYPE, UNHANDLED_TYPE
from .measure import Bench, FLOOR, Goal, OURS, Result, THEIRS, Work
from .servers import Dialect
from .wsgi import deliver

RIVAL = "hand-written recipe"
NAMES: dict[Dialect, str] = {
    "sqlite": "SQLite",
    "postgresql": "PostgreSQL",
    "mariadb": "MariaDB",
}
UNITS = 10


class Pair:
    """Both apps, each with a database of its own on the same server, and the driver alone."""

    def __init__(self, bench: Bench, dialect: Dialect) -> None:
        self.urls = {name: bench.servers.database(dialect) for name in (OURS, THEIRS, FLOOR)}
        self.apps = {
            OURS: ours.create_app(self.urls[OURS]),
            THEIRS: recipe.create_app(self.urls[THEIRS]),
        }
        # For its tables.
        dispose(recipe.create_app(self.urls[FLOOR]))
        self.driver = Driver(self.urls[FLOOR])
        bench.servers.row.callback(self.close)

    def sides(self, work: c.Callable[[Flask], Work], floor: Work) -> dict[str, Work]:
        return {OURS: work(self.apps[OURS]), THEIRS: work(self.apps[THEIRS]), FLOOR: floor}

    def counts(self) -> dict[str, tuple[int, int]]:
        """How many events are recorded, and how many rows handlers have written."""
        return {name: _counts(url) for name, url in self.urls.items()}

    def close(self) -> None:
        self.driver.close()

        for app in self.apps.values():
            dispose(app)


class Driver:
    """The statements of a delivery over the bare driver."""

    def __init__(self, url: str, **options: t.Any) -> None:
        self.engine = sa.create_engine(url, **options)
        self.pooled = self.engine.raw_connection()
        self.connection: t.Any = self.pooled.driver_connection
        dialect = self.engine.dialect.name
        mark = "?" if dialect == "sqlite" else "%s"
        conflict = (
            "ON CONFLICT (event_id) DO NOTHING"
            if dialect in ("sqlite", "postgresql")
            else "ON DUPLICATE KEY UPDATE event_id = event_id"
        )
        self.claim = (
            "INSERT INTO processed_webhook_events (event_id, event_type)"
            f" VALUES ({mark}, {mark}) {conflict}"
        )
        # "grant" is a word of SQL's own.
        name = '"grant"' if dialect in ("sqlite", "postgresql") else "`grant`"
        self.effect = f"INSERT INTO {name} (note) VALUES ({mark})"

    def new(self, units: int) -> c.Callable[[], None]:
        ids = [new_id() for _ in range(units)]

        def run() -> None:
            for event_id in ids:
                cursor = self.connection.cursor()
                cursor.execute(self.claim, (event_id, TYPE))
                cursor.execute(self.effect, (event_id,))
                cursor.close()
                self.connection.commit()

        return run

    def new_claim(self, units: int) -> c.Callable[[], None]:
        ids = [new_id() for _ in range(units)]

        def run() -> None:
            for event_id in ids:
                cursor = self.connection.cursor()
                cursor.execute(self.claim, (event_id, TYPE))
                cursor.close()
                self.connection.commit()

        return run

    def duplicate(self, event_id: str) -> Work:
        def work(units: int) -> c.Callable[[], None]:
            def run() -> None:
                for _ in range(units):
                    cursor = self.connection.cursor()
                    cursor.execute(self.claim, (event_id, TYPE))
                    cursor.close()
                    self.connection.rollback()

            return run

        return work

    def close(self) -> None:
        self.pooled.close()
        self.engine.dispose()


def dispose(app: Flask) -> None:
    """Close the app's connections to its database."""
    with app.app_context():
        app.extensions["sqlalchemy"].engine.dispose()


def new_event(dialect: Dialect, bench: Bench) -> list[Result]:
    pair = Pair(bench, dialect)
    sides = pair.sides(_new, pair.driver.new)
    # Every one waits for the disk, whose moods a longer round evens out.
    samples = bench.interleave(sides, units=UNITS, seconds=3)

    if any(recorded != effects for recorded, effects in pair.counts().values()):
        raise RuntimeError("Not every event was recorded with its effect.")

    return [
        Result(
            work=f"new event, handler writes one row: {NAMES[dialect]}",
            rival=RIVAL,
            goal=Goal(0.95, at_least=True),
            unit="throughput",
            ours=samples[OURS],
            theirs=samples[THEIRS],
            floor=samples[FLOOR],
            floor_is="the two inserts and COMMIT over the driver",
        )
    ]


def duplicate(dialect: Dialect, bench: Bench) -> list[Result]:
    pair = Pair(bench, dialect)
    event_id = new_id()
    body = event_body(event_id)

    for app in pair.apps.values():
        deliver(app, [environ(event_id, body)])

    first = pair.driver.new(1)
    first()
    with pair.driver.engine.connect() as connection:
        known = str(connection.scalar(sa.text("SELECT event_id FROM processed_webhook_events")))

    sides = pair.sides(
        functools.partial(_again, event_id=event_id, body=body), pair.driver.duplicate(known)
    )
    samples = bench.interleave(sides, units=UNITS)

    if set(pair.counts().values()) != {(1, 1)}:
        raise RuntimeError("A duplicate had an effect.")

    return [
        Result(
            work=f"duplicate of a processed event: {NAMES[dialect]}",
            rival=RIVAL,
            goal=Goal(1.1, at_least=True),
            unit="throughput",
            ours=samples[OURS],
            theirs=samples[THEIRS],
            floor=samples[FLOOR],
            floor_is="the insert and ROLLBACK over the driver",
        )
    ]


def without_handler(bench: Bench) -> list[Result]:
    pair = Pair(bench, "postgresql")
    key = SECRET.encode()

    def floor(units: int) -> c.Callable[[], None]:
        bodies = [event_body(new_id(), UNHANDLED_TYPE) for _ in range(units)]

        def run() -> None:
            for body in bodies:
                hmac.digest(key, body, "sha256")
                json.loads(body)

        return run

    sides = pair.sides(functools.partial(_new, event_type=UNHANDLED_TYPE), floor)
    samples = bench.interleave(sides, units=UNITS)
    return [
        Result(
            work="event without a handler",
            rival=f"{RIVAL}, PostgreSQL",
            goal=Goal(2, at_least=True),
            unit="throughput",
            ours=samples[OURS],
            theirs=samples[THEIRS],
            floor=samples[FLOOR],
            floor_is="hmac.digest and json.loads",
        )
    ]


def _new(app: Flask, event_type: str = TYPE) -> Work:
    def work(units: int) -> c.Callable[[], None]:
        environs = [new_environ(event_type) for _ in range(units)]
        return functools.partial(deliver, app, environs)

    return work


def _again(app: Flask, event_id: str, body: bytes) -> Work:
    def work(units: int) -> c.Callable[[], None]:
        return functools.partial(deliver, app, [environ(event_id, body) for _ in range(units)])

    return work


def _counts(url: str) -> tuple[int, int]:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    metadata = sa.MetaData()
    metadata.reflect(engine)
    counted = []

    with engine.connect() as connection:
        for name in ("processed_webhook_events", "grant"):
            count = sa.select(sa.func.count()).select_from(metadata.tables[name])
            counted.append(connection.execute(count).scalar_one())

    return counted[0], counted[1]
