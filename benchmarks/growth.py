"""A claim in tables of many sizes."""

from __future__ import annotations

import collections.abc as c
import concurrent.futures as futures
import statistics
import typing as t

import sqlalchemy as sa

from flask_sangho_webhooks import Event, Outcome, SanghoWebhooks

from . import ours
from .deliveries import event_body, new_id
from .measure import Bench, FLOOR, Goal, Result, Work
from .requests import dispose, Driver

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
SMOKE_SIZES = (1_000, 100_000)
UNITS = 20

# COMMIT waits for the disk in tables of every size, and would hide what the table costs.
NO_WAIT: dict[str, t.Any] = {"connect_args": {"options": "-c synchronous_commit=off"}}

FILL = """
INSERT INTO processed_webhook_events (event_id, event_type, processed_at)
SELECT {event_id}, 'payment_intent.succeeded',
       now() - interval '{hours} hours' * (1 - number / {size}::float8)
FROM generate_series({first}, {last}) AS number
"""
RANDOM_ID = "'evt_' || md5(number::text)"
# As evenly spread, and quicker to make and to build an index of.
ORDERED_ID = (
    "'evt_' || lpad(to_hex(number::bigint * (4294967295 / {size})), 8, '0')"
    " || '000000000000000000000000'"
)
FILLERS = 2
"""Connections that fill a table at the same time."""


def claim(bench: Bench) -> list[Result]:
    sizes = SMOKE_SIZES if bench.smoke else SIZES
    urls = {size: bench.servers.database("postgresql") for size in sizes}
    sides = {str(size): _claims(bench, url, size) for size, url in urls.items()}
    driver = Driver(urls[sizes[-1]], **NO_WAIT)
    bench.servers.row.callback(driver.close)
    samples = bench.interleave({**sides, FLOOR: driver.new_claim}, units=UNITS)
    medians = [(size, statistics.median(samples[str(size)])) for size in sizes]
    bench.growth["rows"] = {"ours": medians}
    return [
        Result(
            work=f"claim with {sizes[-1]:,} rows in the table, PostgreSQL",
            rival=f"the same with {sizes[0]:,} rows",
            goal=Goal(1.3),
            ours=samples[str(sizes[-1])],
            theirs=samples[str(sizes[0])],
            floor=samples[FLOOR],
            floor_is="the insert over the driver",
        )
    ]


def fill(url: str, size: int, hours: int = 71, event_id: str = ORDERED_ID) -> None:
    """Put so many records into the table of processed events, spread over so many hours."""
    event_id = event_id.format(size=size)
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    part = size // FILLERS

    def execute(*statements: str) -> None:
        with engine.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    # The indexes are built afterwards: much faster, and without holes.
    execute(
        "ALTER TABLE processed_webhook_events DROP CONSTRAINT processed_webhook_events_pkey",
        "DROP INDEX idx_webhook_processed_at",
    )

    with futures.ThreadPoolExecutor(FILLERS) as fillers:
        parts = [(number * part + 1, (number + 1) * part) for number in range(FILLERS)]
        statements = [
            FILL.format(event_id=event_id, size=size, hours=hours, first=first, last=last)
            for first, last in parts
        ]
        list(fillers.map(execute, statements))

    execute(
        "SET maintenance_work_mem = '512MB'",
        "ALTER TABLE processed_webhook_events ADD PRIMARY KEY (event_id)",
        "CREATE INDEX idx_webhook_processed_at ON processed_webhook_events (processed_at)",
        "VACUUM ANALYZE processed_webhook_events",
        "CHECKPOINT",
    )


def _claims(bench: Bench, url: str, size: int) -> Work:
    app = ours.create_app(url, SQLALCHEMY_ENGINE_OPTIONS=NO_WAIT)
    fill(url, size)
    bench.servers.row.callback(dispose, app)
    webhooks: SanghoWebhooks = app.extensions["sangho_webhooks"]["sangho_webhooks"].webhooks

    def work(units: int) -> c.Callable[[], None]:
        events = [Event.from_body(event_body(new_id())) for _ in range(units)]

        def run() -> None:
            with app.app_context():
                guard = webhooks.endpoint().guard

                for event in events:
                    if guard.once(event, _nothing) is not Outcome.PROCESSED:
                        raise RuntimeError("A new event was taken for a duplicate.")

        return run

    return work


def _nothing() -> None:
    """What there is to do between the claim and its commit."""
