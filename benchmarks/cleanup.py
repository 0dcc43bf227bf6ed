"""Deleting 900,000 of 1,000,000 records while deliveries go on in another process.

The longest delivery is the one that took longest until it was accepted: where the database refuses
to wait, it is repeated at once.
"""

from __future__ import annotations

import collections.abc as c
import datetime as dt
import functools
import json
import shutil
import subprocess
import sys
import time

import sqlalchemy as sa

from flask_sangho_webhooks import SanghoWebhooks

from . import growth, ours
from .measure import Bench, Goal, Result
from .requests import dispose, NAMES
from .servers import Dialect

RETENTION = dt.timedelta(hours=72)
HOURS = 720
"""The records are spread over these: nine in ten are older than the retention."""

ROWS = 1_000_000
SMOKE_ROWS = 5_000
ROUNDS = 5
SHARES: dict[Dialect, float] = {"sqlite": 0.45, "postgresql": 0.25, "mariadb": 1}
"""Of the time that is left, in this order."""

CleanUp = c.Callable[[], None]

DELETE: dict[Dialect, str] = {
    "postgresql": "DELETE FROM processed_webhook_events"
    " WHERE processed_at < NOW() - INTERVAL '72 hours'",
    "mariadb": "DELETE FROM processed_webhook_events WHERE processed_at < NOW() - INTERVAL 72 HOUR",
    "sqlite": "DELETE FROM processed_webhook_events"
    " WHERE processed_at < datetime('now', '-72 hours')",
}
FILL: dict[Dialect, c.Sequence[str]] = {
    "mariadb": (
        # Without these, InnoDB fills an empty table row by row.
        "SET unique_checks = 0, foreign_key_checks = 0",
        "INSERT INTO processed_webhook_events (event_id, event_type, processed_at)"
        " SELECT CONCAT('evt_', MD5(seq)), 'payment_intent.succeeded',"
        " NOW() - INTERVAL {seconds} * (1 - seq / {size}) SECOND FROM seq_1_to_{size}",
    ),
    "sqlite": (
        "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers"
        " WHERE n < {size})"
        " INSERT INTO processed_webhook_events (event_id, event_type, processed_at)"
        " SELECT 'evt_' || lower(hex(randomblob(16))), 'payment_intent.succeeded',"
        " datetime('now', (-{seconds} * ({size} - n) / {size}) || ' seconds') FROM numbers",
    ),
}


def cleanup(dialect: Dialect, bench: Bench) -> list[Result]:
    size, quiet = (SMOKE_ROWS, 0.2) if bench.smoke else (ROWS, 0.5)
    make = _maker(bench, dialect, size)
    runs: dict[str, list[tuple[float, float, float]]] = {"ours": [], "theirs": []}
    sides = {"ours": _ours, "theirs": _guides}
    begun = time.monotonic()
    seconds = (bench.ends - begun) * SHARES[dialect]

    for number in range(min(bench.rounds, ROUNDS)):
        # If another round like those before it would take too long.
        if number and (time.monotonic() - begun) * (number + 1) / number > seconds:
            break

        for name in list(sides)[:: -1 if number % 2 else 1]:
            url = make()
            clean_up = sides[name](url, dialect)

            if bench.profiling and name == "ours":
                bench.profile("A cleanup without deliveries", clean_up)
                return []

            runs[name].append(_beside_deliveries(url, size, clean_up, quiet))
            bench.servers.drop(url)

    name = f"{NAMES[dialect]}, cleanup of {size * 9 // 10:,} of {size:,} rows"
    (longest, total, undisturbed), (their_longest, their_total, _) = (
        tuple(zip(*found, strict=True)) for found in runs.values()
    )
    return [
        Result(
            work=f"{name}: longest delivery",
            rival="the guide's single DELETE",
            goal=Goal(0.25),
            ours=longest,
            theirs=their_longest,
            floor=undisturbed,
            floor_is="longest delivery of half a second without a cleanup",
        ),
        Result(
            work=f"{name}: total time",
            rival="the guide's single DELETE",
            goal=Goal(2),
            ours=total,
            theirs=their_total,
        ),
    ]


def _beside_deliveries(
    url: str, size: int, clean_up: CleanUp, quiet: float
) -> tuple[float, float, float]:
    """Seconds of the longest delivery, of the cleanup, and of the longest delivery before it.

    :param quiet: seconds of deliveries before the cleanup begins.
    """
    sender = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.sender", url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    with sender:
        assert sender.stdout is not None
        sender.stdout.readline()
        time.sleep(quiet)
        started = time.monotonic()
        clean_up()
        ended = time.monotonic()
        output, _ = sender.communicate(timeout=300)

    deliveries = json.loads(output)
    _check(url, size // 10 + len(deliveries))
    before = [seconds for began, seconds in deliveries if began + seconds < started]
    during = [
        seconds for began, seconds in deliveries if began < ended and began + seconds > started
    ]
    return max(during), ended - started, max(before, default=quiet)


def _ours(url: str, dialect: Dialect) -> CleanUp:
    app = ours.create_app(url)
    webhooks: SanghoWebhooks = app.extensions["sangho_webhooks"]["sangho_webhooks"].webhooks

    def clean_up() -> None:
        with app.app_context():
            webhooks.endpoint().guard.cleanup(RETENTION)

        dispose(app)

    return clean_up


def _guides(url: str, dialect: Dialect) -> CleanUp:
    return functools.partial(_execute, url, DELETE[dialect])


def _check(url: str, expected: int) -> None:
    """No more may be left than has not expired, and no less, but for the minutes of this run."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)

    with engine.connect() as connection:
        left = connection.scalar(sa.text("SELECT COUNT(*) FROM processed_webhook_events"))

    if left is None or abs(left - expected) > expected // 50:
        raise RuntimeError(f"After the cleanup {left} records are left, not about {expected}.")


def _maker(bench: Bench, dialect: Dialect, size: int) -> c.Callable[[], str]:
    """A function that makes a database with the records in it, and returns its URL."""
    if dialect == "mariadb":  # there, to fill a table is quicker than to copy one
        return functools.partial(_filled, bench, dialect, size)

    return functools.partial(_copy, bench, dialect, _filled(bench, dialect, size))


def _filled(bench: Bench, dialect: Dialect, size: int) -> str:
    url = _empty(bench, dialect)

    if dialect == "postgresql":
        growth.fill(url, size, HOURS, growth.RANDOM_ID)
    else:
        _execute(url, *FILL[dialect], size=size, seconds=HOURS * 3600)

    return url


def _copy(bench: Bench, dialect: Dialect, template: str) -> str:
    if dialect == "postgresql":
        return bench.servers.database(dialect, template)

    url = bench.servers.database(dialect)
    shutil.copyfile(template.removeprefix("sqlite:///"), url.removeprefix("sqlite:///"))
    return url


def _empty(bench: Bench, dialect: Dialect) -> str:
    url = bench.servers.database(dialect)
    dispose(ours.create_app(url))
    return url


def _execute(url: str, *statements: str, **values: int) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool)

    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement.format(**values))
