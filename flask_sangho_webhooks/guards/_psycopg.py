"""A claim in one round trip, over the libpq below a connection of psycopg.

psycopg itself takes one for BEGIN, and one for each statement.
"""

from __future__ import annotations

import collections.abc as c
import functools
import re
import time
import typing as t

import sqlalchemy as sa
from psycopg import Connection, Cursor, errors, generators, pq

from ._driver import call_driver, Found, plain_texts

if t.TYPE_CHECKING:
    from psycopg.abc import PQGen

_DONE = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_LEAST_TIMEOUT = 1
"""Seconds below which only the server can tell a wait for a lock from a slow network."""
_CANCELLATION = 5
"""Seconds that a server may take to cancel a statement."""
_INTERVAL = 0.1
"""Seconds between two looks at the clock."""


def insert_or_find(
    connection: sa.Connection,
    insert: sa.Insert,
    select: sa.Select[t.Any],
    parameters: c.Mapping[str, object],
    timeout: float,
) -> Found | None:
    """Begin a transaction and insert an id, or else look for it and roll back.

    The session's ``lock_timeout`` is the app's. To ask what it is, set ours, and set it back would
    take the server half as long again, so the time is watched from here.

    :param insert: of one row, or none.
    :param select: finds the row that is there in its place.
    :param timeout: in seconds, after which a wait is cancelled.
    :return: None if this is not the way to do it here. Then nothing was done.
    :raises sqlalchemy.exc.DBAPIError: what the database says.
    """
    texts = plain_texts(connection, insert, select)
    driver = connection.connection.dbapi_connection

    if texts is None or timeout < _LEAST_TIMEOUT or not _can_begin(driver):
        return None

    insert_text, select_text = texts

    send = functools.partial(_execute, driver, parameters, timeout)
    claim = functools.partial(send, f"BEGIN;{insert_text.sql}")
    _, inserted = call_driver(connection, insert_text.sql, claim)

    if inserted.command_tuples:
        return Found(is_inserted=True)

    look = functools.partial(send, f"{select_text.sql};ROLLBACK")
    found, _ = call_driver(connection, select_text.sql, look)
    value = found.get_value(0, 0) if found.ntuples else None
    event_id = None if value is None else bytes(value).decode("ascii", "replace")
    return Found(is_inserted=False, event_id=event_id)


def _can_begin(driver: object) -> t.TypeGuard[Connection[t.Any]]:
    """Whether psycopg itself would begin a transaction now, and with a plain BEGIN."""
    return (
        # Not those of a tracer, which would miss the claim.
        type(driver) is Connection
        and driver.cursor_factory is Cursor
        and driver.pgconn.transaction_status == pq.TransactionStatus.IDLE
        and driver.pgconn.pipeline_status == pq.PipelineStatus.OFF
        and driver.isolation_level is None
        and driver.read_only is None
        and driver.deferrable is None
        # Before psycopg 3.2, who waits is not told that time goes by.
        and hasattr(driver, "cancel_safe")
    )


def _execute(
    driver: Connection[t.Any], parameters: c.Mapping[str, object], timeout: float, sql: str
) -> list[pq.abc.PGresult]:
    """Execute statements until one fails.

    :param timeout: in seconds, after which they are cancelled.
    :param sql: with parameters as ``%(name)s``.
    :return: their results.
    :raises psycopg.Error: what the server says.
    """
    literals = {}

    for name, value in parameters.items():
        text = str(value)
        literals[name] = f"'{text}'" if _needs_no_escape(text) else _escaped(driver, text)

    filled = sql % literals
    query = filled.encode("ascii" if filled.isascii() else driver.info.encoding)

    with driver.lock:
        driver.pgconn.send_query(query)

        try:
            results = driver.wait(_fetch(driver, timeout), _INTERVAL)
        except errors.Error:
            # Not what the server says, which is a result. What it will still say is nobody's.
            driver.close()
            raise

    for result in results:
        if result.status not in _DONE:
            raise errors.error_from_result(result, driver.info.encoding)

    return results


_needs_no_escape = re.compile("[A-Za-z0-9_.-]*").fullmatch


def _escaped(driver: Connection[t.Any], text: str) -> str:
    encoding = driver.info.encoding
    quoted = pq.Escaping(driver.pgconn).escape_literal(text.encode(encoding))
    return bytes(quoted).decode(encoding)


def _fetch(driver: Connection[t.Any], timeout: float) -> PQGen[list[pq.abc.PGresult]]:
    """The server's results, one of which is an error if it had to cancel.

    :raises psycopg.OperationalError: if it does not answer, or only after its time.
    """
    steps = generators.execute(driver.pgconn)
    ends = time.monotonic() + timeout
    is_cancelled = False
    ready: t.Any = None

    try:
        while True:
            ready = yield steps.send(ready)

            if ready or time.monotonic() < ends:
                continue

            if is_cancelled:
                raise errors.OperationalError("The server did not cancel a statement.")

            is_cancelled = True
            driver.cancel_safe(timeout=_CANCELLATION)
            ends = time.monotonic() + _CANCELLATION
    except StopIteration as end:
        results: list[pq.abc.PGresult] = end.value

    # The last reply and the cancellation have crossed, and that may meet another statement.
    if is_cancelled and all(result.status in _DONE for result in results):
        raise errors.OperationalError("The server answered too late.")

    return results
