"""Reading and deleting records by hand, beside running deliveries."""

from __future__ import annotations

import collections.abc as c
import contextlib
import datetime as dt
import typing as t

import sqlalchemy as sa
import sqlalchemy.exc as sa_exc

from ..errors import EventInProgress
from ..models import MYSQL
from ._claim import lock_key
from ._timeouts import busy_timeout, lock_wait_timeout, milliseconds
from ._transient import error_code, LOCK_NOT_AVAILABLE, LOCK_WAIT_TIMEOUT, sqlstate
from .base import Record


def forget(connection: sa.Connection, table: sa.Table, event_id: str, timeout: float) -> bool:
    """Delete the record of an event.

    :param connection: in a transaction.
    :param timeout: seconds to wait for a lock.
    :return: whether there was one.
    :raises EventInProgress: if the event is being processed.
    """
    statement = sa.delete(table).where(table.c.event_id == event_id)
    statement = statement.execution_options(preserve_rowcount=True)

    with _bounded(connection, table, event_id, timeout):
        return connection.execute(statement).rowcount > 0


def newest(
    connection: sa.Connection, table: sa.Table, pattern: str | None, limit: int
) -> list[Record]:
    """The records of the events that were processed last, the newest first.

    Those without a time, which the guard does not make, come last.

    :param pattern: as for handlers; None for all.
    :param limit: how many at most.
    """
    on_mysql = connection.dialect.name in MYSQL
    processed_at = table.c.processed_at
    # The zone of the session, in which MySQL shows a time, is of no interest here.
    shown = sa.func.unix_timestamp(processed_at) if on_mysql else processed_at
    wanted = sa.select(table.c.event_id, table.c.event_type, shown.label("processed_at"))
    wanted = wanted.where(*_conditions(table, pattern, on_mysql))

    # Two statements, because where NULL comes first, sorting it last is not in the index's order.
    timed = wanted.where(processed_at.is_not(None)).order_by(processed_at.desc()).limit(limit)
    rows = connection.execute(timed).all()

    if len(rows) < limit:
        untimed = wanted.where(processed_at.is_(None)).limit(limit - len(rows))
        rows = [*rows, *connection.execute(untimed)]

    return [Record(row.event_id, row.event_type, _in_utc(row.processed_at)) for row in rows]


def _conditions(
    table: sa.Table, pattern: str | None, on_mysql: bool
) -> c.Iterator[sa.ColumnElement[bool]]:
    """What :meth:`.Handler.matches` does, in SQL."""
    if pattern is None or pattern == "*":
        return

    column: sa.ColumnElement[t.Any] = table.c.event_type
    prefix: t.Any = pattern.removesuffix("*")

    if on_mysql:  # whose collations take 'A' for 'a'
        column, prefix = sa.cast(column, sa.LargeBinary), prefix.encode()

    if pattern.endswith("*"):
        yield sa.func.substr(column, 1, len(prefix), type_=column.type) == prefix
        yield sa.func.length(column) > len(prefix)
    else:
        yield column == prefix


def _in_utc(value: t.Any) -> dt.datetime | None:
    if value is None:
        return None

    if not isinstance(value, dt.datetime):
        return dt.datetime.fromtimestamp(float(value), dt.UTC)

    return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


@contextlib.contextmanager
def _bounded(
    connection: sa.Connection, table: sa.Table, event_id: str, timeout: float
) -> c.Iterator[None]:
    """Wait no longer than ``timeout`` for whoever is at the event.

    PostgreSQL's DELETE does not see a record that is not committed, and would not wait at all: the
    lock that each delivery takes tells.
    """
    dialect = connection.dialect.name

    try:
        if dialect == "postgresql":
            with _setting(connection, "lock_timeout", milliseconds(timeout)):
                key = sa.literal(lock_key(table, event_id), sa.BigInteger)
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))
                yield
        elif dialect == "sqlite":
            with busy_timeout(connection, timeout):
                yield
        elif dialect in MYSQL:
            with lock_wait_timeout(connection, timeout):
                yield
        else:
            yield
    except sa_exc.DBAPIError as error:
        if sqlstate(error) == LOCK_NOT_AVAILABLE or error_code(error) == LOCK_WAIT_TIMEOUT:
            raise EventInProgress from error

        raise


@contextlib.contextmanager
def _setting(connection: sa.Connection, name: str, value: str) -> c.Iterator[None]:
    """Set something for the rest of the transaction, unless the block succeeds before."""
    previous = connection.execute(sa.select(sa.func.current_setting(name))).scalar_one()
    connection.execute(sa.select(sa.func.set_config(name, value, True)))
    yield
    connection.execute(sa.select(sa.func.set_config(name, previous, True)))
